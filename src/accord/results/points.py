"""Weighted points: all that importance sampling found out about a posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from ..base.counters import generator
from ..base.weights import effective, of_mean_one


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

    def chains(self, chains: int, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Chains of an independence Metropolis sampler over the points, (chain, draw, dim), and acceptance rates.

        Each chain begins at a point drawn by the weights, and proposes one point after another of its share of them, in
        an order drawn once: the points are draws of the mixture that is their proposal. Rates are shares of proposals
        accepted from one draw to the next, (chain, draw).

        Raises
        ------
        ValueError
            The points are fewer than the draws.
        """
        log_w, numbers = self.log_weight, generator(seed, "chains")
        steps = log_w.size // (chains * draws)
        if steps == 0:
            raise ValueError(f"{log_w.size} points are too few for {chains} chains of {draws} draws")
        cumulative = np.cumsum(self.weight)
        at = np.searchsorted(cumulative, numbers.random(chains) * cumulative[-1]).clip(0, log_w.size - 1)
        proposed = numbers.permutation(log_w.size)[: chains * draws * steps].reshape(draws, steps, chains)
        level = np.log(numbers.random(proposed.shape))
        taken, acceptance = np.empty((draws, chains), int), np.zeros((draws, chains))
        for draw in range(draws):
            for step in range(steps):
                candidate = proposed[draw, step]
                # not a number where neither has any mass
                with np.errstate(invalid="ignore"):
                    accepted = level[draw, step] < log_w[candidate] - log_w[at]
                at = np.where(accepted, candidate, at)
                acceptance[draw] += accepted / steps
            taken[draw] = at
        return self.positions[taken.T], acceptance.T

    def reweighted(self, log_ratio: np.ndarray) -> Points:
        """The same points for a posterior whose log density is another one by so much, shape (point,)."""
        return replace(self, log_density=self.log_density + log_ratio)

    @property
    def mean(self) -> np.ndarray:
        """The posterior's mean, shape (dim,)."""
        return self.weight @ self.positions / self.weight.size

    @property
    def sd(self) -> np.ndarray:
        """The posterior's standard deviations, shape (dim,)."""
        return np.sqrt(self.weight @ np.square(self.positions - self.mean) / self.weight.size)
