"""Forecasts of plans, and Bayesian federated inference, against runs of the default on regressions at unlike sites.

python benchmarks/few_sums.py --plans     # forecasts against runs
python benchmarks/few_sums.py --one-shot  # Bayesian federated inference against runs
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from problems import breast_cancer, regression, wine

import accord

STUDIES: dict[str, Callable[[], accord.Posterior]] = {
    "normal, 7": lambda: regression("normal", 1, 210, 5),
    "logistic, 6": lambda: regression("bernoulli", 2, 300, 5),
    "logistic, 11": lambda: regression("bernoulli", 3, 1100, 10),
    "logistic, rare outcome, 8": lambda: regression("rare", 4, 800, 7),
    "logistic, 31": lambda: regression("bernoulli", 5, 3100, 30),
    "binomial, 8": lambda: regression("binomial", 6, 240, 7),
    "Poisson, 8": lambda: regression("poisson", 7, 800, 7),
    "Poisson, 16": lambda: regression("poisson", 8, 640, 15),
    "negative binomial, 8": lambda: regression("negative_binomial", 9, 320, 6),
    "gamma, 7": lambda: regression("gamma", 10, 700, 5),
    "Student, 8": lambda: regression("student", 11, 320, 5),
    "ordinal, 7": lambda: regression("ordinal", 12, 300, 5),
    "logistic, breast cancer, 11": lambda: breast_cancer(columns=10, prior_variance=1.0),
    "logistic, wine, 14": wine,
    "logistic, breast cancer, 31": breast_cancer,
}


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
    elif "--one-shot" in sys.argv:
        columns = "study, parameters", "sites without an estimate", "mean, sds", "sd, ratio"
        columns = *columns, "paper's prior: mean, sds", "paper's prior: sd, ratio"
        print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        for name, make in STUDIES.items():
            print(one_shot(name, make()), flush=True)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
