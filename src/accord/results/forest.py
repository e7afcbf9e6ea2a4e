"""Forest plots: one line per parameter with its mean and two intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.figures import COLORS, INK, SOFT

# Height of a line, in inches.
LINE = 0.21
# Height above and below all lines, in inches.
EDGES = 0.75


def forest(
    ax: Any,
    names: Sequence[str],
    mean: np.ndarray,
    inner: np.ndarray,
    outer: np.ndarray,
) -> None:
    """Draw means with two intervals each, from top to bottom.

    Parameters
    ----------
    ax
        Matplotlib axes.
    names
        Names of the lines.
    mean
        Means, (line,).
    inner, outer
        Ends of the thick and of the thin interval, (2, line).
    """
    place = np.arange(len(names))
    ax.hlines(place, *outer, color=COLORS["blue"], linewidth=1.2)
    ax.hlines(place, *inner, color=COLORS["blue"], linewidth=3.5)
    ax.plot(mean, place, "o", color=COLORS["blue"], markeredgecolor=COLORS["blue"], markersize=4.5)
    ax.axvline(0.0, color=SOFT, linewidth=0.8, linestyle="--")
    ax.set(xlabel="value", ylabel="parameter")
    lines(ax, names)


def of_one_size(reach: np.ndarray, most: int) -> list[list[int]]:
    """Group lines by magnitude for plots with a common axis.

    Magnitudes `reach`, (line,), differ by a factor of at most 20 within a group. A group has at most `most` lines.
    """
    reach = np.maximum(reach, np.finfo(float).tiny)
    of_line, largest = np.zeros(len(reach), dtype=int), np.inf
    for place in np.argsort(-reach, kind="stable"):
        # far smaller than the largest line of the group: start a new group
        if 20.0 * reach[place] < largest:
            largest, own = reach[place], place
        of_line[place] = own
    groups = [np.flatnonzero(of_line == one).tolist() for one in dict.fromkeys(of_line.tolist())]
    return [group[begin : begin + most] for group in groups for begin in range(0, len(group), most)]


def lines(ax: Any, names: Sequence[str]) -> None:
    """Label the lines of a plot, from top to bottom."""
    ax.set_yticks(range(len(names)), [shortened(name) for name in names], parse_math=False, color=INK)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)


def shortened(name: str, most: int = 28) -> str:
    """A name cut in the middle to at most `most` characters."""
    return name if len(name) <= most else f"{name[: most - 10]}…{name[-9:]}"
