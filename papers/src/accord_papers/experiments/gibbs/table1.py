"""Client-only Gibbs, table 1: slopes of log W2 on trees and circles, and a search for the unstated settings.

The search fits all eight numbers of tables 1 and 2 on trees. The numbers on circles have no free settings left. It
tries one agent or the average of all, eta from 0.01 to 0.08, and one to five dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accord import Network

from ...base.figures import COLORS, figure
from ...theory import constants
from ...theory.gibbs import contraction
from ..frame import Claim, Experiment, Progress, Size, listed, write_table
from ..verdicts import Estimate, Verdict, by_copies, mean_of
from .common import (
    COLUMNS,
    DIM,
    ETA,
    GRAPHS,
    MEASURED,
    NODES,
    PAPER,
    PAPER_SETS,
    PRINTED,
    SIGMA,
    SMALL_SETS,
    Fit,
    Reached,
    checks,
    draw_table,
    printed_claims,
    reached,
    reading_remarks,
    rising,
    search,
    table_rows,
    unit_gaussians,
    weights,
)

ETAS = tuple(float(eta) for eta in np.arange(2, 17) / 200.0)
DIMS = (1, 2, 3, 4, 5)
RESAMPLES = 200


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run table 1."""
    seeds, sets, close_sets = (size.numbers[name] for name in ("seeds", "law_sets", "close_sets"))
    progress("search", 0.0)
    fits = search("tree", size.numbers["search_sets"], ETAS, DIMS)
    found = {}
    for share, kind in zip((0.4, 0.7), GRAPHS, strict=True):
        progress(f"{kind}s", share)
        found[kind] = reached(kind, seed, seeds, sets)
    progress("readings of circles", 0.9)
    write_table(folder / "table.csv", COLUMNS, table_rows("slope", found))
    write_table(
        folder / "search.csv",
        ["measured", "dim", "eta", "worst_of_trees_in_printed_2sigma"],
        [[fit.measured, fit.dim, fit.eta, fit.worst] for fit in fits],
    )
    draw(folder, found, fits)
    return [
        *checks("slope", found),
        search_remark(fits),
        *printed_claims("slope", found, close_sets),
        *rate_claims(found),
        *set_up_claims(),
        *reading_remarks("slope", sets, close_sets),
    ]


def draw(folder: Path, found: dict[str, Reached], fits: list[Fit]) -> None:
    """Draw the table, and the fit of each reading."""
    with figure(folder, "figure", panels=2) as (table, misfit):
        draw_table(table, "slope", found)
        for measured, color, marker in zip(MEASURED, COLORS.values(), "osv^", strict=False):
            line = sorted((fit.eta, fit.worst) for fit in fits if fit.measured == measured and fit.dim == DIM)
            misfit.semilogy(*zip(*line, strict=True), marker=marker, ms=4, color=color, label=measured)
        misfit.axhline(1.0, color="0.5", ls=":", label="all within the printed errors")
        misfit.set(xlabel="eta", ylabel="largest distance from the trees' numbers\n(printed 2-sigma errors)")
        misfit.set_title(f"the search, {DIM} dimensions")
        misfit.set_ylim(bottom=0.15)
        misfit.legend(loc="lower right", ncols=2)


def search_remark(fits: list[Fit]) -> Claim:
    """Remark that the chosen settings fit best."""
    best, within = fits[0], [fit for fit in fits if fit.worst <= 1.0]
    others = "; ".join(f"{fit.measured}, d = {fit.dim}, eta = {fit.eta:g}: {fit.worst:.2f}" for fit in fits[1:4])
    return Claim(
        "not in the paper",
        f"of {len(fits)} readings d = {DIM}, eta = {ETA:g} and the first agent fit the trees' eight numbers best",
        Verdict.of((best.measured, best.dim, best.eta) == ("the first agent", DIM, ETA)),
        f"{len(within)} of them have all eight within the printed errors. Best: {best.measured}, d = {best.dim}, "
        f"eta = {best.eta:g}, whose worst number is {best.worst:.2f} errors away; next: {others}",
        law=best.worst,
        kind="remark",
    )


def rate_claims(found: dict[str, Reached]) -> list[Claim]:
    """Claims of section A.5.2 on the slopes."""
    slopes = {kind: reach.law["slope"].mean(axis=1) for kind, reach in found.items()}
    falls = min(float(np.diff(values).min()) for values in slopes.values())
    printed, ours, exact = (
        max(-np.polyfit(np.log(NODES), np.log(-table[kind]), 1)[0] for kind in found)
        for table in (
            {kind: PRINTED["slope"][kind].mean for kind in found},
            {kind: reach.ours["slope"].mean(axis=1) for kind, reach in found.items()},
            slopes,
        )
    )
    rates = {kind: reach.rates for kind, reach in found.items()}
    off = [
        mean_of(-sets / rate - 1.0).within(0.1)
        for kind, reach in found.items()
        for rate, sets in zip(rates[kind], reach.law["slope"], strict=True)
    ]
    ratios = np.concatenate([-rates[kind] / slopes[kind] for kind in found])
    trees = [GRAPHS["tree"](n) for n in NODES]
    bounds = [
        contraction(network, constants(unit_gaussians(network.num_agents)), eta=ETA, mixing=weights(network))
        for network in trees
    ]
    return [
        Claim(
            "appendix A.5.2, table 1",
            "the slope is small for large n",
            Verdict.all(rising(reach.law["slope"]) for reach in found.values()),
            "by the law each slope is nearer to zero than that of fewer nodes; number: the smallest difference",
            law=falls,
        ),
        Claim(
            "appendix A.5.2, table 1",
            "the estimated slope is the convergence rate of the Gibbs sampler",
            Verdict.all(off),
            f"the law contracts by exp(-{listed(rates['tree'])}) an iteration on trees of {listed(NODES)} nodes and by "
            f"exp(-{listed(rates['circle'])}) on circles, {ratios.min():.2g} to {ratios.max():.2g} times the slopes. "
            "The curves fall at that rate and then lie flat, at the excess width of one agent; a line through both has "
            "a slope that depends on where they flatten. Number: the circle of 63 nodes",
            paper=-float(PRINTED["slope"]["circle"].mean[-1]),
            law=float(rates["circle"][-1]),
        ),
        Claim(
            "appendix A.5.2, table 1",
            "the dependence on n is faster than a linear one (Proposition 5.5 bounds it by n^2)",
            Verdict.all(powers(reach.law["slope"]).below(1.0) for reach in found.values()),
            "p of slope = c n^-p by least squares of the logarithms, the larger one of trees and circles; of the "
            f"contraction itself it is {max(-np.polyfit(np.log(NODES), np.log(r), 1)[0] for r in rates.values()):.2g}",
            paper=printed,
            ours=ours,
            law=exact,
        ),
        Claim(
            "theorem 5.3",
            "KL contracts at least by exp(-C) an iteration on trees",
            Verdict.of(all(2.0 * rate >= least for rate, least in zip(rates["tree"], bounds, strict=True))),
            f"C is {listed(bounds)}; KL contracts by twice the rates above in the long run. Number: the smallest ratio",
            law=float((2.0 * rates["tree"] / bounds).min()),
        ),
    ]


def powers(sets: np.ndarray) -> Estimate:
    """The p of c n^-p fitted to slopes of shape (nodes, set), with its bootstrap error over sets."""

    def power(slopes: np.ndarray) -> np.ndarray:
        return -np.polyfit(np.log(NODES), np.log(-slopes), 1)[0]

    count, rng = sets.shape[1], np.random.default_rng(0)
    copies = np.stack([sets[:, rng.integers(count, size=count)].mean(axis=1) for _ in range(RESAMPLES)], axis=1)
    return by_copies(float(power(sets.mean(axis=1))), power(copies))


def set_up_claims() -> list[Claim]:
    """Claims on two statements of the set-up, which do not hold."""
    trees, circles = ([graph(n) for n in NODES] for graph in GRAPHS.values())
    weight = float(max(abs(network.mixing()[tuple(network.edges.T)] - SIGMA).max() for network in trees))
    parts = max(int(network.coloring().max()) + 1 for network in circles)
    return [
        Claim(
            "appendix A.5.2",
            "following the Metropolis weights, sigma of perfect binary trees is 1/3",
            Verdict.of(weight < 1e-9),
            "every edge of these trees has an end with three neighbours, so that they are 1 / (3 + 1). The printed 1/3 "
            f"is used. Only sigma / eta matters: 1/4 with eta = {0.75 * ETA:g} is the same sampler",
            paper=SIGMA,
            law=float(Network.tree(3).mixing()[0, 1]),
        ),
        Claim(
            "appendix A.5.2 and algorithm 2",
            f"circular graphs of {listed(NODES)} nodes are bipartite",
            Verdict.of(parts == 2),
            "number: the groups that circles of odd length need; the stationary law is the same, updated by colour",
            paper=2.0,
            law=float(parts),
        ),
    ]


EXPERIMENT = Experiment(
    name="gibbs-table1",
    title="Bipartite Gibbs: slopes of log W2 on binary trees and circles of 7 to 63 nodes",
    paper=PAPER,
    figure="Table 1",
    sizes={
        "small": Size(minutes=0.7, memory=1.2, numbers={**SMALL_SETS, "search_sets": 16}),
        "paper": Size(minutes=3.0, memory=1.5, numbers={**PAPER_SETS, "search_sets": 64}),
    },
    run=run,
)
