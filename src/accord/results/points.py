"""Weighted points: the result of importance sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from ..base.counters import generator
from ..base.weights import effective, moments, of_mean_one


@dataclass(frozen=True, eq=False)
class Points:
    """Points with their log density under the posterior and under the proposals.

    Parameters
    ----------
    positions
        Unconstrained coordinates, shape (point, dim).
    log_density
        -F = -sum_i f_i, the log of likelihood times prior without normalisation, shape (point,).
    log_proposal
        Normalised log density of the mixture of all proposals, shape (point,).
    values
        The points in the user's parameters, shape (point, number).
    shared_error
        Sd of an error that all log densities share, from coarse answers.
    """

    positions: np.ndarray
    log_density: np.ndarray
    log_proposal: np.ndarray
    values: np.ndarray
    shared_error: float = 0.0

    def __repr__(self) -> str:
        return f"<Points: {self.log_density.size} points, {self.effective:.0f} effective draws>"

    @property
    def log_weight(self) -> np.ndarray:
        """Log importance weights, shape (point,). The mean of their exponentials estimates the evidence."""
        return self.log_density - self.log_proposal

    @cached_property
    def weight(self) -> np.ndarray:
        """Importance weights scaled to mean 1, shape (point,)."""
        return of_mean_one(self.log_weight)

    @property
    def effective(self) -> float:
        """Number of effective draws (Kish)."""
        return effective(self.log_weight)

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log of the integral of likelihood times prior, and its standard error."""
        value = float(logsumexp(self.log_weight) - np.log(self.log_weight.size))
        error = float(self.weight.std(ddof=1) / np.sqrt(self.weight.size))
        return value, float(np.hypot(error, self.shared_error)) if self.shared_error else error

    def chains(self, chains: int, draws: int, seed: int) -> np.ndarray:
        """Indices of points drawn by systematic resampling in random order, shape (chain, draw).

        The number of copies of a point differs from its expectation by less than 1. Copies of a point follow one
        another, so that autocorrelation gives the usual ESS: n_k copies of point k are (sum n_k)^2 / sum n_k^2
        effective draws, which is Kish's formula. Successive chains share at most one point.

        Raises
        ------
        ValueError
            There are fewer points than draws.
        """
        count, numbers = chains * draws, generator(seed, "chains")
        if self.weight.size < count:
            raise ValueError(f"{self.weight.size} points are too few for {chains} chains of {draws} draws")
        order = numbers.permutation(self.weight.size)
        cumulative = np.cumsum(self.weight[order])
        at = np.searchsorted(cumulative / cumulative[-1], (np.arange(count) + numbers.random()) / count)
        return order[at.clip(0, order.size - 1)].reshape(chains, draws)

    def reweighted(self, log_ratio: np.ndarray) -> Points:
        """The same points for another posterior, whose log density differs by `log_ratio`, shape (point,)."""
        return replace(self, log_density=self.log_density + log_ratio)

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean in the user's parameters, shape (number,)."""
        return self.weight @ self.values / self.weight.size

    @property
    def cov(self) -> np.ndarray:
        """Posterior covariance in the user's parameters, shape (number, number)."""
        return moments(self.values, self.weight)[1]

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations in the user's parameters, shape (number,)."""
        return np.sqrt(self.weight @ np.square(self.values - self.mean) / self.weight.size)
