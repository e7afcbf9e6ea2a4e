"""Weighted points: all that importance sampling found out about a posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from ..base.counters import generator
from ..base.weights import effective, moments, of_mean_one


@dataclass(frozen=True, eq=False)
class Points:
    """Points, and the log density of the posterior and of what they were drawn from there.

    Parameters
    ----------
    positions
        In the unconstrained numbers that methods move in, shape (point, dim).
    log_density
        -F = -sum_i f_i, the log of likelihood times prior as the posterior has them, shape (point,).
    log_proposal
        The log density of the mixture of all proposals, normalised, shape (point,).
    values
        The points in the user's scale, shape (point, number).
    """

    positions: np.ndarray
    log_density: np.ndarray
    log_proposal: np.ndarray
    values: np.ndarray

    def __repr__(self) -> str:
        return f"<Points: {self.log_density.size} points worth {self.effective:.0f} draws>"

    @property
    def log_weight(self) -> np.ndarray:
        """Log weights, shape (point,); the mean of their exponentials is the evidence."""
        return self.log_density - self.log_proposal

    @cached_property
    def weight(self) -> np.ndarray:
        """Weights of mean one, shape (point,)."""
        return of_mean_one(self.log_weight)

    @property
    def effective(self) -> float:
        """Effective draws (Kish)."""
        return effective(self.log_weight)

    @property
    def log_evidence(self) -> tuple[float, float]:
        """The log of the integral of likelihood times prior, and its standard error."""
        value = float(logsumexp(self.log_weight) - np.log(self.log_weight.size))
        return value, float(self.weight.std(ddof=1) / np.sqrt(self.weight.size))

    def chains(self, chains: int, draws: int, seed: int) -> np.ndarray:
        """Draws by systematic resampling of the points in a random order: which point each is, shape (chain, draw).

        Each point comes as often as its weight says, up to less than one, and its copies one after another. So
        autocorrelation shows what the draws are worth, as it does for any chain: some n_k copies of points are worth
        (sum n_k)^2 / sum n_k^2 draws, which is Kish's count. Chains have points of their own, but for one at an end.

        Raises
        ------
        ValueError
            The points are fewer than the draws.
        """
        count, numbers = chains * draws, generator(seed, "chains")
        if self.weight.size < count:
            raise ValueError(f"{self.weight.size} points are too few for {chains} chains of {draws} draws")
        order = numbers.permutation(self.weight.size)
        cumulative = np.cumsum(self.weight[order])
        at = np.searchsorted(cumulative / cumulative[-1], (np.arange(count) + numbers.random()) / count)
        return order[at.clip(0, order.size - 1)].reshape(chains, draws)

    def reweighted(self, log_ratio: np.ndarray) -> Points:
        """The same points for a posterior whose log density is another one by so much, shape (point,)."""
        return replace(self, log_density=self.log_density + log_ratio)

    @property
    def mean(self) -> np.ndarray:
        """The posterior's mean in the user's scale, shape (number,)."""
        return self.weight @ self.values / self.weight.size

    @property
    def cov(self) -> np.ndarray:
        """The posterior's covariances in the user's scale, shape (number, number)."""
        return moments(self.values, self.weight)[1]

    @property
    def sd(self) -> np.ndarray:
        """The posterior's standard deviations in the user's scale, shape (number,)."""
        return np.sqrt(self.weight @ np.square(self.values - self.mean) / self.weight.size)
