"""Sums, evaluations, bytes and errors of the default on regressions at unlike sites, against long pooled NUTS.

python benchmarks/few_sums.py             # all studies, 4 seeds each
python benchmarks/few_sums.py Poisson 2   # studies whose name contains a text, 2 seeds
python benchmarks/few_sums.py --coarse    # with coarse answers
python benchmarks/few_sums.py --plans     # forecasts against runs
python benchmarks/few_sums.py --one-shot  # Bayesian federated inference against runs
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas as pd
from coarse import breast_cancer, wine

import accord
from accord.engines import Local
from accord.posterior.reference import nuts

SITES = 6
# draws of each of four chains of the reference
DRAWS = 25_000


def tables(seed: int, rows: int, columns: int) -> tuple[np.random.Generator, np.ndarray, list[str], np.ndarray]:
    """Covariates at unlike sites: each site has its own means and scales. Also names and sites of rows."""
    rng = np.random.default_rng(seed)
    site = np.sort(rng.integers(0, SITES, rows))
    shift, scale = 0.7 * rng.standard_normal((SITES, columns)), rng.uniform(0.5, 1.5, (SITES, columns))
    x = shift[site] + scale[site] * rng.standard_normal((rows, columns))
    return rng, x, [f"x{k}" for k in range(columns)], site


def study(family: str, seed: int, rows: int, columns: int) -> accord.Posterior:
    """A regression with an intercept and some columns."""
    rng, x, names, site = tables(seed, rows, columns)
    eta = 0.3 + x @ (0.35 * rng.standard_normal(columns))
    table = pd.DataFrame(x, columns=names)
    response = "y"
    if family == "bernoulli":
        table["y"] = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    elif family == "rare":
        table["y"] = (rng.random(rows) < 1.0 / (1.0 + np.exp(2.5 - eta))).astype(float)
        family = "bernoulli"
    elif family == "binomial":
        table["n"] = rng.integers(1, 12, rows)
        table["y"] = rng.binomial(table["n"], 1.0 / (1.0 + np.exp(-eta)))
        response = "prop(y, n)"
    elif family == "poisson":
        table["y"] = rng.poisson(np.exp(eta))
    elif family == "negative_binomial":
        table["y"] = rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, rows))
    elif family == "gamma":
        table["y"] = np.exp(eta) * rng.gamma(3.0, 1.0 / 3.0, rows)
    elif family == "normal":
        table["y"] = eta + rng.standard_normal(rows)
    elif family == "student":
        table["y"] = eta + rng.standard_t(4.0, rows)
    elif family == "ordinal":
        table["y"] = np.digitize(eta + rng.logistic(size=rows), [-1.0, 1.0])
    parts = [part.reset_index(drop=True) for _, part in table.groupby(site)]
    mine = accord.data.as_study(parts, policy=accord.data.Policy.none())
    return accord.models.glm(mine, f"{response} ~ {' + '.join(names)}", family)


STUDIES: dict[str, Callable[[], accord.Posterior]] = {
    "normal, 7": lambda: study("normal", 1, 210, 5),
    "logistic, 6": lambda: study("bernoulli", 2, 300, 5),
    "logistic, 11": lambda: study("bernoulli", 3, 1100, 10),
    "logistic, rare outcome, 8": lambda: study("rare", 4, 800, 7),
    "logistic, 31": lambda: study("bernoulli", 5, 3100, 30),
    "binomial, 8": lambda: study("binomial", 6, 240, 7),
    "Poisson, 8": lambda: study("poisson", 7, 800, 7),
    "Poisson, 16": lambda: study("poisson", 8, 640, 15),
    "negative binomial, 8": lambda: study("negative_binomial", 9, 320, 6),
    "gamma, 7": lambda: study("gamma", 10, 700, 5),
    "Student, 8": lambda: study("student", 11, 320, 5),
    "ordinal, 7": lambda: study("ordinal", 12, 300, 5),
    "logistic, breast cancer, 11": lambda: breast_cancer(10),
    "logistic, wine, 14": wine,
    "logistic, breast cancer, 31": lambda: breast_cancer(30),
}


def row(name: str, post: accord.Posterior, seeds: int, engine: Local) -> str:
    """A row of the table."""
    with jax.enable_x64(True):
        draws = nuts(post, draws=DRAWS, warmup=2000, chains=4)
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    network, found, means, sds = accord.Network.star(post.num_agents), [], [], []
    for seed in range(seeds):
        run = accord.sample(post, network, accord.samplers.Importance(), seed=seed, progress=False, engine=engine)
        points, traffic = run.points, run.traffic
        values, slopes = traffic.value_rows.sum() / post.sizes.sum(), traffic.gradient_rows.sum() / post.sizes.sum()
        found.append(
            (
                run.certificate.holds,
                traffic.sums,
                points.weight.size / points.effective,
                values / points.effective,
                slopes / points.effective,
                traffic.bytes_sent.min() / 1e3,
            )
        )
        means.append((points.mean - mean) / sd)
        sds.append(points.sd / sd - 1.0)
    holds, sums, a_draw, values, slopes, sent = np.mean(found, axis=0)
    # of the average over seeds, for the worst parameter
    off, wide = (np.abs(np.mean(one, axis=0)).max() for one in (means, sds))
    most = max(one[1] for one in found)
    return (
        f"| {name} | {post.sizes.sum() / post.dim:.0f} | {holds * seeds:.0f} of {seeds} | {sums:.0f} ({most}) | "
        f"{a_draw:.2f} | {values:.2f} | {slopes:.2f} | {sent:.0f} | {off:.3f} | {wide:.1%} |"
    )


def forecast(name: str, post: accord.Posterior) -> str:
    """A row of the table of forecasts: the plan of a seed, the run of that seed, and runs of three others."""
    network, method = accord.Network.ring(post.num_agents), accord.samplers.Importance()
    (trial,) = accord.plan(post, network, [method], seed=0, progress=False).trials

    def evaluations(of: Any) -> float:
        return float(np.max(of.value_rows) + np.max(of.gradient_rows))

    runs = [accord.sample(post, network, method, seed=seed, progress=False) for seed in range(4)]
    same, *others = [evaluations(trial.cost) / evaluations(run.traffic) for run in runs]
    sums, (first, *further) = trial.cost.sums, [run.traffic.sums for run in runs]
    certified = sum(run.certificate.holds for run in runs)
    return (
        f"| {name} | {sums:.0f}, {first}, {min(further)} to {max(further)} | {same:.2f}, {min(others):.2f} to "
        f"{max(others):.2f} | {certified} of 4 |"
    )


def one_shot(name: str, post: accord.Posterior) -> str:
    """A row of the table of Bayesian federated inference, with shares of the prior and with the paper's local prior."""
    network = accord.Network.star(post.num_agents)
    run = accord.sample(post, network, accord.samplers.Importance(), draws=10_000, seed=0, progress=False)
    found, whole = accord.meta_analysis(run, post, network), accord.samplers.combine.bfi(post, draws=10_000)
    draws = whole.moved.average.reshape(-1, len(found.names)).astype(float)
    cells = []
    for mean, sd in ((found.one_shot, found.one_shot_sd), (draws.mean(axis=0), draws.std(axis=0))):
        ratio = sd / found.sd
        cells += [f"{np.abs((mean - found.mean) / found.sd).max():.2f}", f"{ratio.min():.2f} to {ratio.max():.2f}"]
    separated = sum(np.isnan(found.estimate).any(axis=1))
    return f"| {name} | {separated} of {post.num_agents} | {' | '.join(cells)} |"


PLANNED = "logistic, 6", "normal, 7", "logistic, breast cancer, 11", "logistic, wine, 14", "logistic, breast cancer, 31"


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore")
    if "--plans" in sys.argv:
        print("| data | sums: forecast, run, other seeds | evaluations, forecast divided by run | certified |")
        print("| --- | --- | --- | --- |")
        for name in PLANNED:
            print(forecast(name, STUDIES[name]()), flush=True)
        return
    if "--one-shot" in sys.argv:
        columns = "study, parameters", "sites without an estimate", "mean, sds", "sd, ratio"
        columns = *columns, "paper's prior: mean, sds", "paper's prior: sd, ratio"
        print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        for name, make in STUDIES.items():
            print(one_shot(name, make()), flush=True)
        return
    engine, given = Local(coarse="--coarse" in sys.argv), [text for text in sys.argv[1:] if text != "--coarse"]
    wanted, seeds = given[0] if given else "", int(given[1]) if len(given) > 1 else 4
    columns = "study, parameters", "rows a parameter", "certified", "sums (most)", "points a draw", "values a draw"
    columns = *columns, "gradients a draw", "kB", "mean, sds", "sd"
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name, make in STUDIES.items():
        if wanted in name:
            print(row(name, make(), seeds, engine), flush=True)


if __name__ == "__main__":
    main()
