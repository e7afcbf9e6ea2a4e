"""The drawing of a posterior predictive check."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.figures import COLORS, INK
from .predictive import Histogram


def histogram(ax: Any, check: Histogram) -> None:
    """Observed rows in each bin, and what the model's own responses make of them: the median and nine of ten draws."""
    place = np.arange(len(check.labels))
    low, middle, high = np.quantile(check.replicated, [0.05, 0.5, 0.95], axis=0)
    ax.bar(place, check.observed, width=0.8, color=COLORS["sky"], alpha=0.55, label="observed")
    ax.vlines(place, low, high, color=INK, linewidth=1.5, label="model, 9 of 10")
    ax.plot(place, middle, "o", color=INK, markeredgecolor=INK, markersize=3.5, label="model, median")
    crowded = len(place) > 6
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(place, check.labels, parse_math=False, **turned)
    ax.set_ylabel("rows")
    ax.grid(False, axis="x")
    # over all bars
    ax.set_ylim(0.0, 1.1 * max(check.observed.max(), high.max(), 1.0))
    handles, labels = ax.get_legend_handles_labels()
    # the data first
    order = sorted(range(len(labels)), key=lambda i: labels[i] != "observed")
    ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        ncols=3,
        loc="lower center",
        columnspacing=1.0,
        bbox_to_anchor=(0.5, 1.0),
    )


def outside(check: Histogram) -> np.ndarray:
    """Bins whose observed count is outside what 98 of 100 replicated ones are in."""
    low, high = np.quantile(check.replicated, [0.01, 0.99], axis=0)
    return np.flatnonzero((check.observed < low) | (check.observed > high))
