"""D-ADMMS, figure 5: the law of each of five agents on a ring after some rounds, one dimension, 50 rows each, rho = 5.

The paper does not state the rounds, which are chosen here. Curves are the exact law, and ticks below are trials.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from accord import Gaussian, law

from ...base.figures import COLORS, figure
from ..agreement import Tally, bound
from ..frame import Claim, Experiment, Progress, Size, listed, whole_run, write_table
from ..verdicts import Verdict
from .common import METHODS, NETWORKS, PAPER, TRIALS, recursion, regression
from .curves import CHANCE, SAME

AGENTS, ROWS = 5, 50
SHOWN = (1, 2, 5, 10, 20, 50)
START = Gaussian(np.zeros(1), np.eye(1))
NEAR = 0.1  # largest error of means in posterior sds, and largest relative error of sds
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 5."""
    data, noise = np.random.default_rng(seed).spawn(2)
    post, network, method = regression(AGENTS, ROWS, data, dim=1), NETWORKS["ring"](AGENTS), METHODS["D-ADMMS"]("ring")
    exact, target, trials = law(post, network, method, init=START), post.exact(), size.numbers["trials"]
    joints = [exact.at(k).joint for k in range(SHOWN[-1] + 1)]
    walk = recursion("D-ADMMS", "ring", post).walk(START, AGENTS, SHOWN[-1])
    apart = max(
        float(np.abs(a.mean - b.mean).max() / target.sd[0] + np.abs(a.cov - b.cov).max() / target.cov[0, 0])
        for a, b in zip(joints, walk, strict=True)
    )
    progress("trials", 0.5)
    with jax.enable_x64(True):
        options = {"chains": trials, "seed": int(noise.integers(2**63)), "init": START}
        draws = whole_run(post, network, method, draws=SHOWN[-1], burn_in=0, thin=1, **options).draws[..., 0]
    means, sds = np.array([joint.mean for joint in joints[1:]]), np.array([joint.sd for joint in joints[1:]])
    tally = Tally(means, sds**2)
    tally.add(draws)
    rows = [
        [k, i, means[k - 1, i], sds[k - 1, i], tally.means[k - 1, i], tally.variances[k - 1, i] ** 0.5]
        for k in SHOWN
        for i in range(AGENTS)
    ]
    rows.append(["posterior", None, target.mean[0], target.sd[0], None, None])
    write_table(folder / "laws.csv", ["round", "agent", "mean_law", "sd_law", "mean_trials", "sd_trials"], rows)
    title = f"{AGENTS} agents on a ring; curves: exact law; ticks: {min(trials, TRIALS)} trials"
    with figure(folder, "figure", panels=3, rows=2, title=title) as axes:
        for axis, k in zip(axes.ravel(), SHOWN, strict=True):
            m, s = means[k - 1], sds[k - 1]
            ends = [(m - 4 * s).min(), (m + 4 * s).max(), *(target.mean[0] + 4 * target.sd[0] * np.array([-1, 1]))]
            x = np.linspace(min(ends), max(ends), 400)
            for i, name in zip(range(AGENTS), COLORS, strict=False):
                density = np.exp(-(((x - m[i]) / s[i]) ** 2) / 2.0)
                axis.plot(x, density, color=COLORS[name], ls=DASHES[i], label=f"agent {i}")
                ticks = np.full(min(trials, TRIALS), -0.05 * (i + 1))
                # as pixels, because thousands of ticks make a large SVG
                axis.plot(draws[:TRIALS, k - 1, i], ticks, "|", color=COLORS[name], ms=4, rasterized=True)
            posterior = np.exp(-(((x - target.mean[0]) / target.sd[0]) ** 2) / 2.0)
            axis.fill_between(x, posterior, color="0.5", alpha=0.3, lw=0, label="posterior")
            axis.set(
                xlabel="x (its own units)", ylabel="density over its largest", title=f"round {k}", yticks=(0, 0.5, 1)
            )
        axes[0, 0].legend()
    scores = np.abs([tally.mean_scores(), tally.variance_scores()])
    most = bound(scores.size, CHANCE)
    off, wide = np.abs(means[-1] - target.mean[0]) / target.sd[0], sds[-1] / target.sd[0]
    shown = tally.variances[-1] ** 0.5 / target.sd[0]
    return [
        Claim(
            "accord.law",
            "the exact law is that of the printed equations written out as matrices",
            Verdict.of(apart < SAME),
            f"largest difference at any round, in posterior sds and variances; bound {SAME:g}",
            law=apart,
            kind="check",
        ),
        Claim(
            "accord.sample",
            "the trials have the exact law at every round",
            Verdict.of(float(scores.max()) < most),
            f"largest score of means and variances over agents and rounds; bound {most:.3g}, which trials of that law "
            f"exceed with a chance of {CHANCE:g}",
            ours=float(scores.max()),
            kind="check",
        ),
        Claim(
            "section 6.2.4, figure 5",
            "the agents' sample distributions come to the posterior",
            Verdict.of(bool((off < NEAR).all() and (np.abs(wide - 1.0) < NEAR).all())),
            f"after {SHOWN[-1]} rounds the agents' means are {listed(off)} posterior sds off, their sds {listed(wide)} "
            f"of the posterior's; within {NEAR:g} holds. Given: the largest sd. The published noise has the "
            "temperature r / (2 rho) = 0.2, which makes them too narrow, and noise of its own widens each",
            ours=float(shown.max()),
            law=float(wide.max()),
        ),
    ]


EXPERIMENT = Experiment(
    name="dadmms-fig5",
    title="The law of each of five agents of D-ADMMS after some rounds, in one dimension",
    paper=PAPER,
    figure="Figure 5",
    sizes={
        "small": Size(minutes=0.1, memory=0.6, numbers={"trials": TRIALS}),
        "paper": Size(minutes=0.2, memory=0.8, numbers={"trials": 10_000}),
    },
    run=run,
)
