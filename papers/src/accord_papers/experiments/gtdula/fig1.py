"""GT-DULA, figure 1: KL of DULA and GT-DULA on a Gaussian mean, and their gradient errors, exactly and by chains.

The paper states the steps of figures 1(b) and (c). It does not state the step of figure 1(a), here the second of them,
or beta and gamma, here equal as in section 5.2 and half of the largest at which GT-DULA is stable with the first step.
The claims also try other beta and other data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from accord.samplers import GTDULA

from ...base.figures import COLORS, figure
from ..frame import Claim, Experiment, Progress, Size, listed, write_table
from ..verdicts import Verdict
from .claims import SATURATION, Curves, Setting, claims
from .common import METHODS, NETWORK, PAPER, POINTS_OF_200, Problem, apart, curve, potentials

# "starting with alpha = 1e-2 reduced alpha by 1/10-th every 500 iterations for a total 3000 iterations"
STEPS = 10.0 ** -np.arange(2, 8)
SAME, LAW_ROUNDS = 1e-9, 20  # tolerance between law and equations in posterior sds, and rounds of each step
DATA_SETS = 1000
KEPT = 10  # rounds between points of curves and rows of the data file
COLOR = dict(zip(METHODS, (COLORS["vermillion"], COLORS["blue"]), strict=True))


def reduced(rounds: int) -> Callable[[Any], Any]:
    """The schedule of figures 1(b) and (c), with `rounds` rounds for each step."""
    return lambda k: STEPS[0] * (STEPS[1] / STEPS[0]) ** (k // rounds)


def largest_stable_beta(hessians: np.ndarray) -> float:
    """The largest beta = gamma at which GT-DULA, and also DULA, is stable with the first step."""

    def spare(beta: float) -> float:
        return GTDULA(STEPS[0], beta, beta).max_step(NETWORK, hessians[:, None, None]) - STEPS[0]

    return float(brentq(spare, 1e-6, (2.0 - 1e-6) / NETWORK.laplacian_extremes()[1]))


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 1."""
    rounds, chains = size.numbers["rounds"], size.numbers["chains"]
    data, noise, others = np.random.default_rng(seed).spawn(3)
    hessians, b = potentials(1, data)
    most = largest_stable_beta(hessians)
    problem = Problem(hessians, b[:, 0], most / 2.0)
    schedules = {"constant": (lambda k: float(STEPS[1]), rounds), "reduced": (reduced(rounds), rounds * len(STEPS))}
    whole, done, curves = len(METHODS) * sum(total for _, total in schedules.values()), 0, {}
    for panel, (step, total) in schedules.items():
        for name in METHODS:

            def part(share: float, done: int = done, total: int = total, what: str = f"{name}, {panel} step") -> None:
                progress(what, (done + share * total) / whole)

            curves[panel, name] = curve(problem, name, step, rounds=total, chains=chains, rng=noise, progress=part)
            done += total
    write(folder, curves)
    draw(folder, curves, chains)
    more = potentials(DATA_SETS, others)[1], potentials(DATA_SETS, others, POINTS_OF_200)
    return [*checks(curves, problem), *claims(Setting(curves, problem, STEPS, rounds, most, *more))]


def write(folder: Path, curves: Curves) -> None:
    """Write every tenth round of the curves."""
    columns = ["steps", "method", "round", "alpha", "kl_average_law", "kl_average_chains"]
    columns += ["kl_worst_agent_law", "kl_worst_agent_chains", "gradient_error_law", "gradient_error_chains"]
    rows: list[list[Any]] = []
    for (panel, name), found in curves.items():
        exact, drawn = found.kl, found.drawn_kl
        for k in range(KEPT - 1, len(exact), KEPT):
            kls = [exact[k, -1], drawn[k, -1], exact[k, :-1].max(), drawn[k, :-1].max()]
            rows.append([panel, name, k + 1, found.steps[k], *kls, found.gradient[k], found.drawn_gradient[k]])
    write_table(folder / "curves.csv", columns, rows)


def draw(folder: Path, curves: Curves, chains: int) -> None:
    """Draw the three panels, with lines for the exact law and markers for the chains."""
    panels = ("constant", f"(a) step {STEPS[1]:g}"), ("reduced", f"(b) step reduced from {STEPS[0]:g} to {STEPS[-1]:g}")
    with figure(folder, "figure", panels=3, title="lines: exact law; markers: chains") as axes:
        for axis, (panel, title) in zip(axes, (*panels, ("reduced", "(c) the same")), strict=True):
            for name, color in COLOR.items():
                found = curves[panel, name]
                at = np.arange(KEPT - 1, len(found.steps), KEPT)
                dots = at[:: max(1, len(at) // 25)]
                exact, drawn = found.kl[:, -1], found.drawn_kl[:, -1]
                if axis is axes[2]:
                    exact, drawn = found.gradient, found.drawn_gradient
                else:
                    worst = found.kl[at, :-1].max(axis=1)
                    axis.semilogy(at + 1, worst, color=color, ls="--", lw=1, label=f"{name}, worst agent")
                axis.semilogy(at + 1, exact[at], color=color, label=name if axis is axes[2] else f"{name}, average")
                axis.semilogy(dots + 1, drawn[dots], "." if name == "DULA" else "x", color=color, ms=5)
            # KL of a Gaussian fitted to draws of the posterior itself: 1 / (2 chains) each from mean and variance
            level = (
                (SATURATION, "DULA as printed: about 20")
                if axis is axes[2]
                else (1.0 / chains, f"floor of {chains:,} chains")
            )
            axis.axhline(level[0], color="0.5", lw=1, ls=":", label=level[1])
            axis.set(title=title, xlabel="round", ylabel="KL to the posterior (nats)")
            axis.legend(loc="best")
        axes[2].set(ylabel="gradient error (1 / unit of w, squared)")


def checks(curves: Curves, problem: Problem) -> list[Claim]:
    """Checks of the law against the equations, and of the chains against the law."""
    steps, total = reduced(LAW_ROUNDS), LAW_ROUNDS * len(STEPS)
    off = max(apart(problem, name, steps, total) for name in METHODS)
    worst = [found.worst() for found in curves.values()]
    text = "the exact law of both methods is that of eqs. 3, 7 and 8 written out"
    why = f"largest difference in {total} rounds with all steps, in posterior sds and variances; bound {SAME:g}"
    drawn = "the chains have the exact law at every round, with constant and with reduced steps"
    score = f"largest scores of means, variances and gradient errors {listed(z for z, _ in worst)}; bounds "
    score += f"{listed(bound for _, bound in worst)}, which chains of that law exceed with a chance of 0.001"
    fine = all(score < bound for score, bound in worst)
    return [
        Claim("accord.law", text, Verdict.of(off < SAME), why, law=off, kind="check"),
        Claim("accord.sample", drawn, Verdict.of(fine), score, ours=max(z for z, _ in worst), kind="check"),
    ]


EXPERIMENT = Experiment(
    name="gtdula-fig1",
    title="Gradient tracking on a Gaussian mean: five agents on a ring, constant and reduced steps",
    paper=PAPER,
    figure="Figure 1",
    sizes={
        "small": Size(minutes=0.4, memory=1.2, numbers={"chains": 2_000, "rounds": 500}),
        "paper": Size(minutes=4.0, memory=1.2, numbers={"chains": 40_000, "rounds": 500}),
    },
    run=run,
)
