"""What `accord.plan` says of methods by sums beside runs: sums, and rows of which values were evaluated.

Needs scikit-learn (pip install 'accord[demo]'). Regressions on a ring of 10, 4,000 effective draws, prior sd
3.2 where nothing else is said. Values are the forecast over a run's, for the seed of the plan and for three others.

    python benchmarks/plans.py
"""

import argparse
import multiprocessing
import warnings

import sums
from no_knobs import posterior
from rich.table import Table

import accord
from accord.base.terminal import console
from accord.samplers import ChEES, Importance

SEEDS = range(4)
PROBLEMS = {
    "diabetes": lambda: posterior("diabetes", sums.AGENTS),
    "breast-cancer-1": sums.PROBLEMS["breast-cancer-1"],
    "breast-cancer-3.2": sums.PROBLEMS["breast-cancer-3.2"],
    "wine": sums.PROBLEMS["wine"],
    "digits": sums.PROBLEMS["digits"],
}


def line(name):
    """One row of the table."""
    warnings.simplefilter("ignore")
    post, network = PROBLEMS[name](), accord.Network.ring(sums.AGENTS)
    importance, chees = accord.plan(post, network, [Importance(), ChEES()], progress=False).trials
    runs = [accord.sample(post, network, Importance(), seed=seed, progress=False) for seed in SEEDS]
    walked = accord.sample(post, network, ChEES(), progress=False)
    took = [run.traffic.sums for run in runs]
    ratio = [importance.cost.value_rows / max(1.0, run.traffic.value_rows.max()) for run in runs]
    certified = sum(run.certificate.holds for run in runs)
    return [
        name,
        f"{post.dim}",
        f"{importance.cost.sums:.0f}, {took[0]}, {min(took[1:])} to {max(took[1:])}",
        f"{ratio[0]:.2f}, {min(ratio[1:]):.2f} to {max(ratio[1:]):.2f}",
        "refusal" if importance.forecast.doubt else "certificate",
        f"{certified} of {len(runs)}",
        f"{chees.cost.sums:.0f}, {walked.traffic.sums}",
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default=",".join(PROBLEMS))
    options = parser.parse_args()
    table = Table(box=None)
    for heading in ("data", "d", "sums: forecast, run, other seeds", "values: forecast over run, other seeds"):
        table.add_column(heading)
    for heading in ("foreseen", "certified", "ChEES: sums forecast, run"):
        table.add_column(heading)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in options.sets.split(","):
            table.add_row(*pool.apply(line, (name,)))
    console().print(table)


if __name__ == "__main__":
    main()
