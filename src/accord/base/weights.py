"""Importance weights given by their logarithms, and weighted moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def of_mean_one(log_weight: np.ndarray) -> np.ndarray:
    """Weights of mean one, shape (point,), from their logarithms up to a constant."""
    w = np.exp(log_weight - log_weight.max())
    return w / w.mean()


def effective(log_weight: np.ndarray) -> float:
    """Effective draws: the number of independent draws with the same error (Kish)."""
    w = of_mean_one(log_weight)
    return float(w.sum() ** 2 / np.square(w).sum())


def moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (number,) and covariance (number, number) of weighted values (point, number), weights of any sum."""
    share = weight / weight.sum()
    mean = share @ values
    apart = values - mean
    return mean, (apart.T * share) @ apart


def quantiles(values: np.ndarray, weight: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles of weighted values (point, dim), one row a share: the least value with as much weight up to it."""
    found = np.empty((len(shares), values.shape[1]))
    for d in range(values.shape[1]):
        order = np.argsort(values[:, d], kind="stable")
        cumulative = np.cumsum(weight[order])
        place = np.searchsorted(cumulative, np.asarray(shares) * cumulative[-1])
        found[:, d] = values[order[place.clip(0, len(order) - 1)], d]
    return found
