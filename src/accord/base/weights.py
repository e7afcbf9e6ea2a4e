"""Importance weights from their logarithms, weighted moments and quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def of_mean_one(log_weight: np.ndarray) -> np.ndarray:
    """Weights with mean one, shape (point,), from their logarithms up to a constant."""
    w = np.exp(log_weight - log_weight.max())
    return w / w.mean()


def effective(log_weight: np.ndarray) -> float:
    """Kish's effective sample size."""
    w = of_mean_one(log_weight)
    return float(w.sum() ** 2 / np.square(w).sum())


def moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (number,) and covariance (number, number) of values (point, number) with unnormalised weights."""
    share = weight / weight.sum()
    mean = share @ values
    apart = values - mean
    return mean, (apart.T * share) @ apart


def quantiles(values: np.ndarray, weight: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Weighted quantiles of values (point, dim), shape (share, dim), without interpolation."""
    found = np.empty((len(shares), values.shape[1]))
    for d in range(values.shape[1]):
        order = np.argsort(values[:, d], kind="stable")
        cumulative = np.cumsum(weight[order])
        place = np.searchsorted(cumulative, np.asarray(shares) * cumulative[-1])
        found[:, d] = values[order[place.clip(0, len(order) - 1)], d]
    return found
