"""Plots of draws: densities, traces, ranks and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from ..base.figures import COLORS, SOFT

# Colours of chains, repeated cyclically.
_COLORS = tuple(COLORS.values())
# Number of points of a density curve.
_CURVE = 200
# Largest number of draws of a chain in a trace.
_SHOWN = 200
# Number of bins of rank plots.
_BINS = 20


def density(ax: Any, draws: np.ndarray) -> None:
    """Plot the densities of a parameter's draws (chain, draw), one line per chain, and the 90% interval."""
    from arviz_stats.base.array import array_stats

    low, high = np.quantile(draws, [0.05, 0.95])
    ax.axvspan(low, high, color=SOFT, alpha=0.15, linewidth=0)
    first, last = np.quantile(draws, [0.002, 0.998])
    for chain, own in enumerate(draws):
        if np.ptp(own) > 0:
            # bounded by the draws, so that positive parameters have no density below zero
            x, height, _ = array_stats.kde(own, grid_len=_CURVE, bound_correction=True)
            ax.plot(x, height, color=_COLORS[chain % len(_COLORS)], linewidth=1.1)
    if last > first:
        beyond = 0.08 * (last - first)
        ax.set_xlim(max(first - beyond, draws.min()), min(last + beyond, draws.max()))
    ax.set_yticks([])
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel="value", ylabel="density")


def trace(ax: Any, draws: np.ndarray) -> None:
    """Plot a parameter's draws (chain, draw) in order, thinned to at most 200 per chain."""
    step = max(1, -(-draws.shape[1] // _SHOWN))
    at = np.arange(0, draws.shape[1], step)
    for chain, own in enumerate(draws):
        ax.plot(at, own[at], color=_COLORS[chain % len(_COLORS)], linewidth=0.6, alpha=0.8)
    ax.set_xlim(0, draws.shape[1])
    ax.set(xlabel="draw", ylabel="value")


def thinned(draws: int) -> int:
    """The step between draws of a trace."""
    return max(1, -(-draws // _SHOWN))


def ranks(ax: Any, draws: np.ndarray) -> None:
    """Plot a histogram of the ranks of a parameter's draws (chain, draw) among all chains, one line per chain.

    The band contains 95% of the counts of independent draws from one distribution.
    """
    chains, count = draws.shape
    order = scipy.stats.rankdata(draws, method="ordinal").reshape(draws.shape)
    edges = np.linspace(0, draws.size, _BINS + 1)
    expected = count / _BINS
    half = 1.96 * np.sqrt(count / _BINS * (1.0 - 1.0 / _BINS) * (1.0 - 1.0 / chains))
    ax.axhspan(max(0.0, expected - half), expected + half, color=SOFT, alpha=0.15, linewidth=0)
    for chain, own in enumerate(order):
        counts, _ = np.histogram(own, edges + 0.5)
        ax.stairs(counts, edges, baseline=None, color=_COLORS[chain % len(_COLORS)], linewidth=1.0)
    ax.set_xticks([])
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel="rank", ylabel="draws")


def weights(ax: Any, weight: np.ndarray) -> None:
    """Plot weights of mean 1 in descending order, on logarithmic axes."""
    falling = np.sort(weight)[::-1]
    place = np.unique(np.geomspace(1, falling.size, 150).round().astype(int))
    ax.plot(place, falling[place - 1], color=COLORS["blue"], linewidth=1.5)
    ax.axhline(1.0, color=SOFT, linewidth=0.8, linestyle="--")
    ax.set(xscale="log", yscale="log", xlabel="points, heaviest first", ylabel="weight (mean 1)")
    ax.set_ylim(max(falling[-1], falling[0] * 1e-3) / 1.5, falling[0] * 1.5)
    for axis in (ax.xaxis, ax.yaxis):
        # plain numbers, as powers of ten would need mathtext
        axis.set_major_formatter(lambda x, _: f"{x:,.5g}" if x >= 1e-4 else f"{x:.0e}")
        axis.set_minor_formatter(lambda x, _: "")
