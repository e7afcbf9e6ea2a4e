"""GT-DULA, figure 2: growth of the asymptotic KL of the agents' average with their number, over random splits of data.

The 400 points of section 5.1 are split at random into n equal groups on a ring. The paper does not state the step and
beta = gamma, which are here as in our figure 1(a). The claims also try others. All numbers are exact.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accord import Network, law
from accord.metrics import kl
from accord.models import quadratic

from ...base.figures import COLORS, figure
from ..frame import Claim, Experiment, Progress, Size, listed, write_table
from ..verdicts import SURE, Estimate, Verdict, by_copies
from .common import METHODS, PAPER, POINTS, SIGMA, SIGMA_THETA, Equations, method, potentials
from .fig1 import STEPS, largest_stable_beta
from .ring import asymptotic, split

AGENTS = (5, 10, 20, 25, 40, 50, 80, 100, 200)
ALPHA = float(STEPS[1])
TRIED = ((1e-4, 0.5), (ALPHA, 0.05), (ALPHA, 0.9))  # other steps, and shares of the largest stable beta (ours: 0.5)
FEW = 5  # splits in a batch, and splits for `TRIED`
SAME = 1e-6  # relative tolerance for KLs, which are differences of numbers near 1
CHECKED = (5, 50)  # numbers of agents for the slow check by `accord.law`
RESAMPLES = 200


def run(size: Size, seed: int, folder: Path, progress: Progress) -> list[Claim]:
    """Run figure 2."""
    splits = size.numbers["splits"]
    data, cuts, again = np.random.default_rng(seed).spawn(3)
    theta = SIGMA_THETA * data.standard_normal()
    x = theta + SIGMA[:, None] * data.standard_normal((len(SIGMA), POINTS))
    most = largest_stable_beta(potentials(1, data)[0])
    found, apart, beta = np.empty((len(METHODS), len(AGENTS), splits)), 0.0, most / 2.0
    lower = np.empty((len(TRIED), len(AGENTS)))
    for a, n in enumerate(AGENTS):
        for first in range(0, splits, FEW):
            progress(f"{n} agents", (a + first / splits) / len(AGENTS))
            chunk = [split(x, n, cuts) for _ in range(min(FEW, splits - first))]
            hessians, b = (np.stack(values) for values in zip(*chunk, strict=True))
            found[:, a, first : first + FEW] = kls(hessians, b, ALPHA, beta)
        lower[:, a] = [np.mean(np.diff(kls(hessians, b, alpha, share * most), axis=0) < 0) for alpha, share in TRIED]
        if n in CHECKED:
            exact = laws(Network.ring(n), hessians[-1], b[-1], beta)
            apart = max(apart, float(np.abs(found[:, a, -1] / exact - 1.0).max()))
    # rounds until the largest network reaches its stationary law
    recursion = Equations(True, Network.ring(AGENTS[-1]), hessians[0], b[0][:, None], ALPHA, beta)
    slowest = 1.0 / (1.0 - np.abs(np.linalg.eigvals(recursion.forgetting)).max())
    write(folder, found)
    draw(folder, found)
    progress("claims", 1.0)
    tried = "; ".join(
        f"alpha = {alpha:g}, beta = {share * most:.2g}: {listed(f'{part:.0%}' for part in parts)}"
        for (alpha, share), parts in zip(TRIED, lower, strict=True)
    )
    return claims(found, apart, float(slowest), tried, f"alpha = {ALPHA:g}, beta = gamma = {beta:.3g}", again)


def kls(hessians: np.ndarray, b: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Asymptotic KLs of both methods, shape (method, split)."""
    return np.array([asymptotic(name, hessians, b, alpha, beta) for name in METHODS])


def laws(network: Network, hessians: np.ndarray, b: np.ndarray, beta: float) -> np.ndarray:
    """Asymptotic KLs of both methods for one split, by `accord.law`."""
    post = quadratic(hessians[:, None, None], b[:, None])
    moments = [law(post, network, method(name, ALPHA, beta)).stationary() for name in METHODS]
    return np.array([kl(one.average, post.exact()) for one in moments])


def write(folder: Path, found: np.ndarray) -> None:
    """Write mean, sd and quantiles over the splits."""
    columns = ["method", "agents", "splits", "mean_kl", "sd_kl", "kl_5%", "kl_50%", "kl_95%"]
    rows = [
        [name, n, len(kls), kls.mean(), kls.std(ddof=1), *np.quantile(kls, (0.05, 0.5, 0.95))]
        for name, by_agents in zip(METHODS, found, strict=True)
        for n, kls in zip(AGENTS, by_agents, strict=True)
    ]
    write_table(folder / "asymptotic.csv", columns, rows)


def draw(folder: Path, found: np.ndarray) -> None:
    """Draw means, and the distributions of both methods on one scale."""
    with figure(folder, "figure", panels=3) as axes:
        looks = ((COLORS["vermillion"], "s--"), (COLORS["blue"], "o-"))
        for name, by_agents, (color, line), axis in zip(METHODS, found, looks, axes[1:], strict=True):
            axes[0].loglog(AGENTS, by_agents.mean(axis=1), line, color=color, ms=4, label=name)
            boxes = axis.boxplot(list(by_agents), tick_labels=AGENTS, whis=(5, 95), showfliers=False)
            for part in [part for kind in boxes.values() for part in kind]:
                part.set_color(color)
            axis.set(yscale="log", ylim=(found.min() / 2, found.max() * 2))
            axis.set(title=f"{name}: boxes 25% to 75%, whiskers 5% to 95%")
        axes[0].set(title="mean over splits")
        axes[0].legend()
        for axis in axes:
            axis.set(xlabel="agents", ylabel="asymptotic KL to the posterior (nats)")


def claims(
    found: np.ndarray, apart: float, slowest: float, tried: str, numbers: str, rng: np.random.Generator
) -> list[Claim]:
    """Claims of section 5.1 on figure 2."""
    means, sds, gaps, spreads = summary(found)
    picks = [rng.integers(found.shape[2], size=found.shape[2]) for _ in range(RESAMPLES)]
    copies = zip(*(summary(found[..., pick]) for pick in picks), strict=True)
    again = [np.array(resampled) for resampled in copies]
    rises = [steps(values, resampled) for values, resampled in zip((means, sds, gaps, spreads), again, strict=True)]
    lower = [
        [by_copies(value, copy).above(0.0) for value, copy in zip(values, resampled.T, strict=True)]
        for values, resampled in ((gaps, again[2]), (spreads, again[3]))
    ]
    rule = f"a step counts beyond {SURE:g} standard errors (bootstrap over splits); the least rise is, in these,"
    figure_a, figure_bc = "section 5.1, figure 2(a)", "section 5.1, figure 2(b) and (c)"
    return [
        Claim(
            "accord.law",
            "the numbers of both methods match their exact law",
            Verdict.of(apart < SAME),
            f"largest relative difference on a split among each of {CHECKED} agents; bound {SAME:g}",
            law=apart,
            kind="check",
        ),
        Claim(
            figure_a,
            "the expected asymptotic bias in the KL divergence increases with n",
            Verdict.all(rise.above(0.0) for rise in rises[0]),
            f"n = {listed(map(str, AGENTS))}, {numbers}: DULA {listed(means[0])}, "
            f"GT-DULA {listed(means[1])} nats; {rule} {least(rises[0]):.2g}. Number: GT-DULA's growth from first to "
            "last",
            law=means[1, -1] / means[1, 0],
        ),
        Claim(
            figure_a,
            "it is lower for GT-DULA than DULA in each corresponding case",
            Verdict.all(lower[0]),
            f"means, DULA's over GT-DULA's: {listed(means[0] / means[1])}; the smallest decides. Share of {FEW} "
            f"splits on which GT-DULA is lower, n from first to last: {tried}",
            law=(means[0] / means[1]).min(),
        ),
        Claim(
            figure_a,
            "the gap increases with n",
            Verdict.all(rise.above(0.0) for rise in rises[2]),
            f"means, DULA's less GT-DULA's: {listed(gaps)} nats; {rule} {least(rises[2]):.2g}. Number: the last gap",
            law=gaps[-1],
        ),
        Claim(
            figure_bc,
            "the variance of the asymptotic KL divergence is lower for GT-DULA",
            Verdict.all(lower[1]),
            f"sds over splits, DULA's over GT-DULA's: {listed(sds[0] / sds[1])}. Number: the smallest",
            law=(sds[0] / sds[1]).min(),
        ),
        Claim(
            figure_bc,
            "this benefit is more pronounced with increasing n",
            Verdict.all(rise.above(0.0) for rise in rises[3]),
            f"sds, DULA's less GT-DULA's: {listed(spreads)} nats; {rule} {least(rises[3]):.2g}. Number: the last "
            "difference",
            law=spreads[-1],
        ),
        Claim(
            "not in the paper",
            f"GT-DULA of {AGENTS[-1]} agents is near its asymptotic law within 100,000 rounds",
            Verdict.of(slowest < 1e5),
            "1 / (1 - largest modulus below 1), rounds in which the slowest part of the start falls to 1 / e",
            law=slowest,
            kind="remark",
        ),
    ]


def summary(found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Means and sds over splits, shapes (method, n), and their differences DULA - GT-DULA, shapes (n,)."""
    means, sds = found.mean(axis=2), found.std(axis=2, ddof=1)
    return means, sds, means[0] - means[1], sds[0] - sds[1]


def steps(values: np.ndarray, copies: np.ndarray) -> list[Estimate]:
    """The increases from one n to the next, with errors from resampled copies (copy, ..., n)."""
    rises, again = np.diff(values).ravel(), np.diff(copies).reshape(len(copies), -1)
    return [by_copies(rise, copy) for rise, copy in zip(rises, again.T, strict=True)]


def least(rises: list[Estimate]) -> float:
    """The least increase in its standard errors."""
    return min(rise.value / rise.error for rise in rises)


EXPERIMENT = Experiment(
    name="gtdula-fig2",
    title="How the asymptotic KL of the agents' average grows with their number, over random splits of data",
    paper=PAPER,
    figure="Figure 2",
    sizes={
        "small": Size(minutes=0.3, memory=1.0, numbers={"splits": 50}),
        "paper": Size(minutes=3.0, memory=1.0, numbers={"splits": 1_000}),
        # at 1,000 splits the least increase of the sds' difference is 0.93 standard errors
        "deciding": Size(minutes=30.0, memory=1.0, numbers={"splits": 12_000}),
    },
    run=run,
)
