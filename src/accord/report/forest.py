"""Forest plots: coefficients with their intervals, and what each site says of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.figures import COLORS, INK, SOFT
from .told import Interval, OfSite

# Inches of a line, and of what stands above and below all lines.
LINE, EDGES = 0.21, 0.55


def forest(
    ax: Any,
    names: Sequence[str],
    mean: np.ndarray,
    inner: np.ndarray,
    outer: np.ndarray,
) -> None:
    """Means with two intervals each, from top to bottom.

    Parameters
    ----------
    ax
        Axes of matplotlib.
    names
        Of the lines.
    mean
        A number of each, (line,).
    inner, outer
        Ends of their intervals, (2, line): the thick line and the thin one.
    """
    place = np.arange(len(names))
    ax.hlines(place, *outer, color=COLORS["blue"], linewidth=1.2)
    ax.hlines(place, *inner, color=COLORS["blue"], linewidth=3.5)
    ax.plot(mean, place, "o", color=COLORS["blue"], markeredgecolor=COLORS["blue"], markersize=4.5)
    ax.axvline(0.0, color=SOFT, linewidth=0.8, linestyle="--")
    _lines(ax, names)


def of_one_size(reach: np.ndarray, most: int) -> list[list[int]]:
    """Lines in groups that one axis shows: of sizes (line,) within a factor of twenty, and no more than so many."""
    reach = np.maximum(reach, np.finfo(float).tiny)
    of_line, largest = np.zeros(len(reach), dtype=int), np.inf
    for place in np.argsort(-reach, kind="stable"):
        # what is far smaller than the largest of a group begins another
        if 20.0 * reach[place] < largest:
            largest, own = reach[place], place
        of_line[place] = own
    groups = [np.flatnonzero(of_line == one).tolist() for one in dict.fromkeys(of_line.tolist())]
    return [group[begin : begin + most] for group in groups for begin in range(0, len(group), most)]


def sites(ax: Any, found: Sequence[OfSite], together: Interval, parameter: int) -> None:
    """One parameter by each site alone, without each site, and of all together, which is the band."""
    assert together.mean is not None and together.low is not None and together.high is not None
    low, high = together.low[parameter], together.high[parameter]
    ax.axvspan(low, high, color=SOFT, alpha=0.15, linewidth=0, label="all together")
    ax.axvline(together.mean[parameter], color=SOFT, linewidth=1.0)
    kinds = [
        ([one.alone for one in found], COLORS["vermillion"], "o", "the site alone"),
        ([one.without for one in found], COLORS["blue"], "s", "without the site"),
    ]
    # where no site's is known, the reason stands below once
    known = [kind for kind in kinds if any(own.mean is not None for own in kind[0])]
    offsets = (0.0,) if len(known) == 1 else (-0.17, 0.17)
    for offset, (intervals, color, marker, label) in zip(offsets, known, strict=False):
        # one for the legend, if there is to be one
        ax.scatter([], [], color=color, marker=marker, s=12, label=label)
        for place, own in enumerate(intervals):
            _interval(ax, own, parameter, place + offset, color, marker)
    _lines(ax, [shortened(one.name, 20) for one in found])


def _interval(ax: Any, own: Interval, parameter: int, place: float, color: str, marker: str) -> None:
    if own.mean is None or own.low is None or own.high is None:
        # beside the axis, where no interval is
        ax.text(0.01, place, "not known", color=color, fontsize=7, va="center", transform=ax.get_yaxis_transform())
        return
    ax.hlines(place, own.low[parameter], own.high[parameter], color=color, linewidth=1.5)
    ax.plot(own.mean[parameter], place, marker, color=color, markeredgecolor=color, markersize=3.5)


def _lines(ax: Any, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), [shortened(name) for name in names], parse_math=False, color=INK)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)


def shortened(name: str, most: int = 28) -> str:
    """A name that fits beside a drawing; the page has it in full."""
    return name if len(name) <= most else f"{name[: most - 10]}…{name[-9:]}"
