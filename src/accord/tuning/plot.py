"""The plot of a plan: bias against cost for each method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Line colours. Further methods repeat the colours with other markers.
_COLORS = (*figures.COLORS.values(), figures.INK, "#8c564b", "#005f5f", "#bcbd22")
_MARKERS = "osD^v<>PX*"
# Lower limit of the drawn bias, as a share of the allowed bias: the axis is logarithmic.
_LEAST = 1e-2
# Distance between two names beside the lines, as a share of the axes' height.
_APART = 0.085


class Curve(NamedTuple):
    """The settings of a method: bytes sent for all draws, and the largest bias. None for unbiased draws."""

    label: str
    sent: list[float]
    bias: list[float] | None


def drawn(curves: list[Curve], allowed: float, texts: tuple[str, str, str], ax: Axes | None) -> Axes:
    """Axes with the curves and the allowed bias. `texts` are the labels of the allowed bias and of the x and y axes."""
    figures.require()
    import matplotlib.pyplot as plt

    ax = plt.subplots(figsize=(9, 5.5), layout="constrained")[1] if ax is None else ax
    ax.set(xscale="log", yscale="log", xlabel=texts[1], ylabel=texts[2])
    ends: list[tuple[float, float, str, str]] = []
    looks: dict[str, tuple[str, str]] = {}
    for label, sent, bias in curves:
        method = label.split(",")[0].split(" (")[0]
        again, which = divmod(len(looks), len(_COLORS))
        color, marker = looks.setdefault(method, (_COLORS[which], _MARKERS[(which + again) % len(_MARKERS)]))
        if bias is None:
            ax.axvline(sent[0], color=color, linestyle=":", linewidth=1.5)
            place: dict[str, Any] = {"rotation": 90, "va": "bottom", "ha": "right", "color": color, "fontsize": 8}
            ax.text(sent[0], 0.02, label, transform=ax.get_xaxis_transform(), **place)
            continue
        least = _LEAST * allowed
        points = [(x, max(y, least)) for x, y in zip(sent, bias, strict=True) if np.isfinite(y) and x > 0]
        if points:
            dash = "--" if "common noise" in label else "-"
            ax.plot(*np.transpose(points), color=color, marker=marker, linestyle=dash, markersize=4, linewidth=1.2)
            ends.append((*max(points), label, color))
    ax.axhline(allowed, color="grey", linewidth=1)
    ax.text(0.01, allowed, texts[0], transform=ax.get_yaxis_transform(), va="bottom", fontsize=8, color="dimgrey")
    _name(ax, ends)
    return ax


def _name(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write names, (x, y, name, colour), right of the axes without overlap, with lines to the curves' ends."""
    ax.autoscale_view()
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for x, y, *_ in ends]
    order = np.argsort(heights)
    apart = min(_APART, 1.0 / max(len(ends), 1))
    placed, lowest = np.zeros(len(ends)), 0.0
    for rank in order:
        placed[rank] = lowest = max(heights[rank], lowest)
        lowest += apart
    # names pushed above the axes move down again, and push the names below them
    highest = 1.0
    for rank in order[::-1]:
        placed[rank] = highest = min(placed[rank], highest)
        highest -= apart
    for (x, y, name, color), height in zip(ends, placed, strict=True):
        ax.annotate(
            name.replace(", ", ",\n", 1) if len(name) > 28 else name,
            (x, y),
            (1.02, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=color,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.6},
        )
