"""Client-only Gibbs, figure 5: W2 by iteration on binary trees and circles of 7, 15, 31 and 63 nodes.

eta, the dimension and the agent of the distance are as in `gibbs-table1`, which finds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...base.figures import COLORS, figure
from ..frame import Claim, Experiment, Progress, Size, listed, write_table
from ..verdicts import Verdict, mean_of
from .common import CHAINS, DIM, ETA, GRAPHS, NODES, PAPER, ROUNDS, SIGMA, Reached, checks, reached

NEAR = 0.05  # relative distance to the limit that counts as converged


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 5."""
    seeds, sets = size.numbers["seeds"], size.numbers["law_sets"]
    found = {}
    for share, kind in zip((0.0, 0.5), GRAPHS, strict=True):
        progress(f"{kind}s", share)
        found[kind] = reached(kind, seed, seeds, sets)
    rows: list[list[Any]] = []
    title = (
        "dots: accord, mean and 2-sigma of sets of 100 chains; lines: exact law of 100 chains; dotted: of endless ones"
    )
    with figure(folder, "figure", panels=2, title=title) as axes:
        for axis, (kind, reach) in zip(axes, found.items(), strict=True):
            draw(axis, kind, reach)
            mean, spread = reach.curves.mean(axis=2), 2 * reach.curves.std(axis=2, ddof=1)
            for at, n in enumerate(NODES):
                curve = zip(range(ROUNDS + 1), mean[at], spread[at], reach.expected[at], reach.limit[at], strict=True)
                rows += [[kind, n, *point] for point in curve]
    columns = ["graph", "nodes", "iteration", "w2", "w2_2sigma", "w2_law", "w2_law_endless_chains"]
    write_table(folder / "curves.csv", columns, rows)
    return [*checks("distance", found)[:2], convergence(found), least_claim(found), rate_remark(found)]


def draw(axis: Any, kind: str, reach: Reached) -> None:
    """Draw the curves of one kind of graph."""
    rounds = np.arange(ROUNDS + 1)
    for at, (n, color, marker) in enumerate(zip(NODES, COLORS.values(), "osv^", strict=False)):
        mean, spread = reach.curves[at].mean(axis=1), 2 * reach.curves[at].std(axis=1, ddof=1)
        dots = slice(at % 2, None, 2)
        axis.plot(rounds, reach.expected[at], color=color, lw=1)
        axis.plot(rounds, reach.limit[at], color=color, lw=1, ls=":")
        style = {"ls": "none", "marker": marker, "ms": 3, "color": color, "label": f"{n} nodes"}
        axis.errorbar(*(part[dots] for part in (rounds, mean, spread)), **style)
    axis.set(
        yscale="log", ylim=(0.12, 3.5), xlabel="iteration", ylabel="W2 to the posterior (units of x)", title=f"{kind}s"
    )
    axis.legend(loc="upper right")


def stationary(kind: str, n: int) -> float:
    """The limit of the first agent's distance."""
    # the precision is I + sigma / eta times the Laplacian for any colouring
    cov = np.linalg.inv(np.eye(n) + SIGMA / ETA * GRAPHS[kind](n).laplacian)
    return float(np.sqrt(DIM) * abs(np.sqrt(cov[0, 0]) - n**-0.5))


def convergence(found: dict[str, Reached]) -> Claim:
    """Claim that curves reach their limit."""
    limits = np.array([[stationary(kind, n) for n in NODES] for kind in found])
    lasts = np.array([reach.limit[:, -1] for reach in found.values()])
    ours = np.array([reach.curves[:, -1].mean(axis=1) for reach in found.values()])
    away = np.abs(lasts / limits - 1.0)
    return Claim(
        "appendix A.5.2, figure 5",
        "the sampler converges even when the graph is sparse and the number of nodes is large",
        Verdict.of(bool(away.max() < NEAR)),
        f"the law's distance after {ROUNDS} iterations is off its limit by {listed(away[0])} of it on trees and by "
        f"{listed(away[1])} on circles; bound {NEAR:g}. The limits are not 0 but {listed(limits[0])} and "
        f"{listed(limits[1])}. Numbers: the circle of 63 nodes at the end",
        ours=float(ours[1, -1]),
        law=float(lasts[1, -1]),
    )


def least_claim(found: dict[str, Reached]) -> Claim:
    """Claim that the least of noisy distances estimates their limit."""
    off = {
        kind: reach.law["distance"].mean(axis=1) / [stationary(kind, n) for n in NODES] - 1.0
        for kind, reach in found.items()
    }
    over = [
        mean_of(sets / stationary(kind, n) - 1.0).within(NEAR)
        for kind, reach in found.items()
        for n, sets in zip(NODES, reach.law["distance"], strict=True)
    ]
    worst = max(float(np.abs(values).max()) for values in off.values())
    return Claim(
        "appendix A.5.2, figure 5 and table 2",
        "the least W2 over each chain estimates the distance that is left",
        Verdict.all(over),
        f"the least of {ROUNDS + 1} distances of {CHAINS} chains over the limit, less 1, by the law: trees "
        f"{listed(off['tree'])}, circles {listed(off['circle'])}; bound {NEAR:g}. The least of noisy distances lies "
        "below their mean, and few nodes have a floor. Number: the largest",
        law=worst,
    )


def rate_remark(found: dict[str, Reached]) -> Claim:
    """Remark on the contraction rate by the number of nodes."""
    rates = {kind: reach.rates for kind, reach in found.items()}
    change = max(float(np.ptp(values) / values.max()) for values in rates.values())
    return Claim(
        "not in the paper",
        "the contraction by iteration changes by less than a quarter from 7 to 63 nodes",
        Verdict.of(change < 0.25),
        f"-log of the spectral radius: trees {listed(rates['tree'])}, circles {listed(rates['circle'])}: a sweep is a "
        "Langevin step of 2 eta / sum_ij sigma_ij on a potential of curvature n, 3 eta on large graphs. Number: the "
        "largest relative change",
        law=change,
        kind="remark",
    )


EXPERIMENT = Experiment(
    name="gibbs-fig5",
    title="Bipartite Gibbs: W2 by iteration on binary trees and circles of 7 to 63 nodes",
    paper=PAPER,
    figure="Figure 5",
    sizes={
        "small": Size(minutes=0.4, memory=1.2, numbers={"seeds": 5, "law_sets": 400}),
        "paper": Size(minutes=1.5, memory=2.5, numbers={"seeds": 50, "law_sets": 1600}),
    },
    run=run,
)
