"""Each agent's error bars under five methods, and the truth: the picture of the README, docs/error-bars.svg.

Data, network, methods and truth (NUTS on the pooled data) are as in `accord demo`. The picture shows the parameter with
the largest error of DE-SGLD's agents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

import accord
from accord.base.figures import COLORS
from accord.cli import demo

PAGE = Path(__file__).parents[1] / "docs" / "error-bars.svg"
# panel titles, by label of the demo's methods
HEADINGS = {
    "DE-SGLD": "DE-SGLD",
    "GT-DULA": "GT-DULA",
    "D-ADMMS as published": "D-ADMMS\nas published",
    "D-ADMMS calibrated, common noise": "D-ADMMS, calibrated,\ncommon noise",
    "default": "accord.sample(post, net)\n(default)",
}
# half-width of a 90% interval, in standard deviations
HALF = 1.645
RIGHT = "right,\nat every agent"


def moments(post: accord.Posterior, network: accord.Network) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations of every agent, (agent, dim), by method."""
    warmup = accord.tuning.warm_up(post, network)
    placed = post.transformed(warmup.coordinates)
    found = {}
    for entry in demo.ENTRIES:
        if entry.label not in HEADINGS:
            continue
        method, draws = entry.run()
        given = post if entry.sampler is None else placed
        run = accord.sample(given, network, method, draws=draws, chains=demo.CHAINS, seed=0)
        own = run.draws.astype(np.float64)
        found[entry.label] = own.mean(axis=(0, 1)), own.std(axis=(0, 1))
    return found


def verdict(off: np.ndarray, ratio: np.ndarray) -> str:
    """Text on the largest error over agents, by the demo's tolerances for means (in sds) and ratios of sds."""
    if np.abs(off).max() > demo.MEAN_TOLERANCE and np.ptp(off) > demo.MEAN_TOLERANCE:
        return f"agents differ: their means\nare up to {np.abs(off).max():.2f} sd off"
    if ratio.max() > 1 + demo.SD_TOLERANCE:
        return f"too wide,\nby up to {ratio.max() - 1:.0%}"
    if ratio.min() < 1 - demo.SD_TOLERANCE:
        return f"too narrow,\nby up to {1 - ratio.min():.0%}"
    return RIGHT


def panel(axis: Axes, label: str, mean: np.ndarray, sd: np.ndarray, truth: tuple[float, float]) -> None:
    """Draw one method: an interval for each agent, and the band of the truth."""
    axis.axvspan(truth[0] - HALF * truth[1], truth[0] + HALF * truth[1], color="#d0d7de", lw=0)
    axis.axvline(truth[0], color="#57606a", lw=1)
    text = verdict((mean - truth[0]) / truth[1], sd / truth[1])
    color = COLORS["green" if text == RIGHT else "vermillion"]
    axis.errorbar(mean, np.arange(mean.size), xerr=HALF * sd, fmt="o", ms=3.5, lw=1.8, color=color)
    axis.set_title(HEADINGS[label], fontsize=9)
    axis.set_xlabel(text, fontsize=9, color=color, fontweight="bold")
    axis.set_ylim(mean.size - 0.4, -0.6)
    axis.tick_params(labelsize=8)


def draw(found: dict[str, tuple[np.ndarray, np.ndarray]], truth: tuple[np.ndarray, np.ndarray], names: Any) -> Figure:
    """Draw all panels for the parameter with the largest error of DE-SGLD's agents."""
    mean, sd = truth
    d = int(np.argmax(np.abs(found["DE-SGLD"][0] - mean).max(axis=0) / sd))
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    axes = figure.subplots(1, len(HEADINGS), sharey=True, sharex=True)
    for axis, label in zip(axes, HEADINGS, strict=True):
        own_mean, own_sd = found[label]
        panel(axis, label, own_mean[:, d], own_sd[:, d], (mean[d], sd[d]))
    axes[0].set_yticks(range(demo.AGENTS), [f"agent {k}" for k in range(demo.AGENTS)])
    figure.suptitle(
        f"“{names[d]}” at ten agents on a ring: means and 90% intervals. Grey: the posterior of all data",
        fontsize=10,
    )
    return figure


def main() -> None:
    """Sample, draw and write."""
    post, network = demo.breast_cancer(), accord.Network.ring(demo.AGENTS)
    pooled = accord.posterior.reference.nuts(post, draws=2000, warmup=1000, chains=4, seed=0).reshape(-1, post.dim)
    pooled = pooled.astype(np.float64)
    figure = draw(moments(post, network), (pooled.mean(axis=0), pooled.std(axis=0)), post.names)
    FigureCanvasSVG(figure)
    figure.savefig(PAGE, metadata={"Date": None})
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
