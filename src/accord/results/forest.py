"""Forest plots: lines of means with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.figures import COLORS, INK, SOFT

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
    lines(ax, names)


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


def lines(ax: Any, names: Sequence[str]) -> None:
    """Name the lines of a plot, from top to bottom."""
    ax.set_yticks(range(len(names)), [shortened(name) for name in names], parse_math=False, color=INK)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)


def shortened(name: str, most: int = 28) -> str:
    """A name that fits beside a drawing; the page has it in full."""
    return name if len(name) <= most else f"{name[: most - 10]}…{name[-9:]}"
