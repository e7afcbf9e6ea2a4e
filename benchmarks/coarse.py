"""Coarse answers against exact ones: bias of means, sds and evidence, and effective draws.

python benchmarks/coarse.py                 # all models, 200 repetitions
python benchmarks/coarse.py logistic 20     # models whose name contains a text, 20 repetitions
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from problems import breast_cancer, intercepts, split, wine

import accord
from accord.engines import Local
from accord.samplers import Importance

COARSE = Local(coarse=True)


def gaussian() -> accord.Posterior:
    """Four agents, three parameters."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((4, 3, 3))
    return accord.models.gaussian(rng.standard_normal((4, 3)), factors @ np.swapaxes(factors, 1, 2) + np.eye(3))


def logistic() -> accord.Posterior:
    """Five agents, 300 rows, six parameters."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 6))
    y = rng.random(300) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(6)))
    return accord.models.logistic_regression(split(X, y.astype(float), 5), 10.0)


def poisson() -> accord.Posterior:
    """Five agents, 200 rows, eight parameters."""
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(200), rng.standard_normal((200, 7))])
    y = rng.poisson(np.exp(X @ (rng.standard_normal(8) * 0.3)))
    return accord.models.poisson_regression(split(X, y.astype(float), 5), 10.0)


MODELS: dict[str, Callable[[], accord.Posterior]] = {
    "gaussian, 3": gaussian,
    "logistic, 6": logistic,
    "poisson, 8": poisson,
    "random intercepts, 3": intercepts,
    "breast cancer, 11": lambda: breast_cancer(columns=10, prior_variance=1.0),
    "wine, 14": wine,
    "breast cancer, 31": breast_cancer,
}


def reference(name: str, post: accord.Posterior) -> tuple[np.ndarray, np.ndarray, float]:
    """Means, sds and log evidence of a long exact run, or in closed form."""
    draws = 25_000 if post.dim > 20 else 100_000
    network = accord.Network.star(post.num_agents)
    long = accord.sample(post, network, Importance(), draws=draws, seed=10**6, progress=False).points
    law = post.exact() if name.startswith("gaussian") else long
    return law.mean, law.sd, long.log_evidence[0]


def row(name: str, post: accord.Posterior, repetitions: int) -> str:
    """A row of the table."""
    network = accord.Network.star(post.num_agents)
    began = time.perf_counter()
    mean, sd, evidence = reference(name, post)
    usual = accord.sample(post, network, Importance(), seed=0, progress=False)
    found, refused = [], dict[str, int]()
    for seed in range(repetitions):
        try:
            run = accord.sample(post, network, Importance(), seed=seed, engine=COARSE, progress=False)
        except ArithmeticError as error:
            refused[str(error)[:60]] = refused.get(str(error)[:60], 0) + 1
            continue
        for check in run.certificate.checks:
            if not check.holds:
                refused[check.name] = refused.get(check.name, 0) + 1
        points = run.points
        value, error = points.log_evidence
        found.append(
            (
                run.certificate.holds,
                (points.mean - mean) / sd,
                points.sd / sd - 1.0,
                value - evidence,
                (value - evidence) / error,
                points.effective / points.weight.size,
            )
        )
    if not found:
        return f"| {name} | none: {refused} |"
    holds, means, sds, above, errors, efficiency = (np.array(column) for column in zip(*found, strict=True))
    kept = holds if holds.any() else ~holds
    count = max(int(kept.sum()), 2)

    def bias(of: np.ndarray) -> str:
        average, spread = of[kept].mean(axis=0), of[kept].std(axis=0, ddof=1) / count**0.5
        worst = int(np.argmax(np.abs(np.atleast_1d(average))))
        return f"{np.atleast_1d(average)[worst]:+.4f} ({np.atleast_1d(spread)[worst]:.4f})"

    return (
        f"| {name} | {holds.sum()} of {repetitions} | {bias(means)} | {bias(sds)} | {bias(above)} "
        f"| {errors[kept].std():.2f} "
        f"| {usual.points.effective / usual.points.weight.size:.2f}, {efficiency.mean():.2f} "
        f"| {refused or ''} {time.perf_counter() - began:.0f} s |"
    )


def main() -> None:
    texts, numbers = [x for x in sys.argv[1:] if not x.isdigit()], [int(x) for x in sys.argv[1:] if x.isdigit()]
    warnings.simplefilter("ignore")
    print(
        "| model | certified | worst bias of a mean, sds (error) | of an sd, relative | of the log evidence "
        "| sd of its z | effective draws per point: exact, coarse | refused |\n" + "| --- " * 8 + "|"
    )
    for name, make in MODELS.items():
        if not texts or any(text in name for text in texts):
            print(row(name, make(), *numbers or [200]), flush=True)


if __name__ == "__main__":
    main()
