"""Importance weights given by their logarithms."""

from __future__ import annotations

import numpy as np


def of_mean_one(log_weight: np.ndarray) -> np.ndarray:
    """Weights of mean one, shape (point,), from their logarithms up to a constant."""
    w = np.exp(log_weight - log_weight.max())
    return w / w.mean()


def effective(log_weight: np.ndarray) -> float:
    """Effective draws: the number of independent draws with the same error (Kish)."""
    w = of_mean_one(log_weight)
    return float(w.sum() ** 2 / np.square(w).sum())
