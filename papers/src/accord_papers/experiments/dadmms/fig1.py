"""D-ADMMS, figure 1: W2 to the posterior by round, three networks, 5 to 100 agents with 50 rows each.

Set-up as in common.py. The printed W2 is that of Gaussians fitted to 100 trials. Here lines are the exact law, and dots
are Gaussians fitted to 100 trials. Calibrated D-ADMMS, with and without common noise, is a method of accord. As in the
paper, there is no complete network of 100 agents. Figure 2 is the same with 200 rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ...base.figures import figure
from ..frame import Claim, Experiment, Progress, Size, write_table
from .claims import Curves, network_claims, remarks, ring_claims
from .common import ALONE, BASELINES, METHODS, NETWORKS, PAPER, ROUNDS, STYLE, TRIALS, methods_on, recursion, regression
from .curves import checks, curve, refitted, written_out

AGENTS = (5, 20, 100)
WHO = ("agent", "average")


def run(rows: int, size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 1 or 2, with `rows` rows for each agent."""
    data, noise, others = np.random.default_rng(seed).spawn(3)
    posts = {n: regression(n, rows, data) for n in AGENTS}
    cases = [
        (n, kind, name)
        for n in AGENTS
        for kind in NETWORKS
        for name in methods_on(kind)
        if n <= size.numbers["agents"] and (n, kind) != (100, "complete")
    ]
    curves: Curves = {}
    for n, kind, name in cases:
        progress(f"{name}, {kind}, {n} agents", len(curves) / len(cases))
        written = recursion(name, kind, posts[n])
        # each case compiles for seconds, so a small run has trials of the paper's methods on the ring only, and in all
        # other cases the law from the equations
        few = kind == "ring" and name in (*ALONE, *BASELINES)
        drawn = n <= size.numbers["simulated"] and (few or size.numbers["every_method"])
        if not drawn or (kind == "no edges" and name in ALONE):
            curves[n, kind, name] = written_out(written, posts[n])
        else:
            method, network = METHODS[name](kind), NETWORKS[kind](n)
            curves[n, kind, name] = curve(posts[n], network, method, written, trials=TRIALS, rng=noise)
    scripts = {
        case: written_out(recursion(name, kind, posts[n], scripts=True), posts[n])
        for case in curves
        for n, kind, name in [case]
        if n == AGENTS[0] and kind != "no edges" and name in ("D-ADMMS", "C-ADMM", *BASELINES)
    }
    write(folder, curves, scripts)
    draw(folder, curves, scripts, noise)
    sets = [regression(n, rows, others) for n in AGENTS[:2] for _ in range(size.numbers["data_sets"])]
    return [
        *checks(list(curves.values()), noise),
        *ring_claims(curves, sets),
        *network_claims(curves, posts),
        *remarks(curves, scripts, noise),
    ]


def write(folder: Path, curves: Curves, scripts: Curves) -> None:
    """Write all curves, including the curves of the authors' scripts."""
    columns = ["form", "agents", "network", "method", "round", "agent_law", "average_law"]
    columns += ["agent_trials", "average_trials", "agent_expected_of_trials", "average_expected_of_trials"]
    rows = [
        [form, *case, k, *found.law[k], *(shown(found.trials, k) + shown(found.expected, k))]
        for form, group in (("equations", curves), ("scripts", scripts))
        for case, found in group.items()
        for k in range(ROUNDS + 1)
    ]
    write_table(folder / "curves.csv", columns, rows)


def shown(values: np.ndarray | None, k: int) -> list[float | None]:
    """Row k, with None for missing values."""
    return [None, None] if values is None or np.isnan(values[k]).any() else values[k].tolist()


def draw(folder: Path, curves: Curves, scripts: Curves, rng: np.random.Generator) -> None:
    """Draw one figure for each number of agents, and one that compares equations and scripts."""
    for n in sorted({n for n, _, _ in curves}):
        kinds = [kind for kind in NETWORKS if (n, kind, "D-SGLD") in curves]
        dots = f"; dots: {TRIALS} trials" if curves[n, "ring", "D-SGLD"].trials is not None else ""
        title = f"{n} agents; lines: exact law{dots}"
        with figure(folder, f"figure-{n}-agents", panels=len(kinds), rows=2, title=title) as axes:
            for (row, what), (column, kind) in ((a, b) for a in enumerate(WHO) for b in enumerate(kinds)):
                axis = axes[row, column]
                for name in methods_on(kind):
                    found = curves[n, kind, name]
                    axis.semilogy(found.law[:, row], **STYLE[name], label=name)
                    if found.trials is not None:
                        fives = np.arange(5, ROUNDS + 1, 5)
                        axis.semilogy(fives, found.trials[fives, row], "o", color=STYLE[name]["color"], ms=3)
                floor = refitted(found.target, found.target, TRIALS, 1000, rng).mean()
                axis.axhline(floor, color="0.5", lw=1, ls=":", label=f"{TRIALS} draws of the posterior itself")
                # a method that diverges leaves the panel
                axis.set(xlabel="round", ylabel="W2 (units of x)", title=f"{kind}, {what}")
                axis.set_ylim(top=3.0 * max(curves[n, k, "D-SGLD"].law[0, 0] for k in kinds))
            below = {"loc": "outside lower center", "ncols": 8 if len(kinds) > 2 else 4}
            axes[0, 0].figure.legend(*axes[0, 0].get_legend_handles_labels(), **below)
    title = f"{AGENTS[0]} agents, average; lines: the printed equations; dots: the authors' scripts"
    with figure(folder, "scripts", panels=2, title=title) as axes:
        for axis, kind in zip(axes, ("complete", "ring"), strict=True):
            for (_, at, name), found in scripts.items():
                if at == kind:
                    axis.semilogy(curves[AGENTS[0], kind, name].law[:, 1], **STYLE[name], label=name)
                    axis.semilogy(found.law[:, 1], "o", color=STYLE[name]["color"], ms=3)
            axis.set(xlabel="round", ylabel="W2 (units of x)", title=kind)
            axis.legend()


def experiment(name: str, figure: str, rows: int, small: float, paper: float) -> Experiment:
    """The experiment for figure 1 or 2, with expected minutes of both sizes."""
    numbers = (
        {"agents": 20, "simulated": 5, "every_method": 0, "data_sets": 5},
        {"agents": 100, "simulated": 100, "every_method": 1, "data_sets": 20},
    )
    return Experiment(
        name=name,
        title=f"W2 to the posterior of linear regression by round, {rows} rows an agent: D-ADMMS and others",
        paper=PAPER,
        figure=figure,
        sizes={
            "small": Size(minutes=small, memory=1.1, numbers=numbers[0]),
            "paper": Size(minutes=paper, memory=2.0, numbers=numbers[1]),
        },
        run=partial(run, rows),
    )


EXPERIMENT = experiment("dadmms-fig1", "Figure 1", rows=50, small=0.5, paper=5.0)
