"""Weighted points: all that importance sampling found out about a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp


@dataclass(frozen=True, eq=False)
class Points:
    """Points, and the log density of the posterior and of what they were drawn from there.

    Parameters
    ----------
    positions
        In the user's parameters, shape (point, dim).
    log_density
        -F = -sum_i f_i, the log of likelihood times prior as the posterior has them, shape (point,).
    log_proposal
        The log density of the mixture of all proposals, normalised, shape (point,).
    """

    positions: np.ndarray
    log_density: np.ndarray
    log_proposal: np.ndarray

    @property
    def log_weight(self) -> np.ndarray:
        """Log weights, shape (point,); the mean of their exponentials is the evidence."""
        return self.log_density - self.log_proposal

    @cached_property
    def weight(self) -> np.ndarray:
        """Weights of mean one, shape (point,)."""
        w = np.exp(self.log_weight - self.log_weight.max())
        return w / w.mean()

    @property
    def effective(self) -> float:
        """Effective draws (Kish)."""
        return float(self.weight.sum() ** 2 / np.square(self.weight).sum())

    @property
    def log_evidence(self) -> tuple[float, float]:
        """The log of the integral of likelihood times prior, and its standard error."""
        value = float(logsumexp(self.log_weight) - np.log(self.log_weight.size))
        return value, float(self.weight.std(ddof=1) / np.sqrt(self.weight.size))

    @property
    def mean(self) -> np.ndarray:
        """The posterior's mean, shape (dim,)."""
        return self.weight @ self.positions / self.weight.size

    @property
    def sd(self) -> np.ndarray:
        """The posterior's standard deviations, shape (dim,)."""
        return np.sqrt(self.weight @ np.square(self.positions - self.mean) / self.weight.size)
