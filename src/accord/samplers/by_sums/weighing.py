"""Weights of the points of all batches: adaptive multiple importance sampling (Cornuet et al. 2012)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.special import logsumexp

from ...base.weights import effective, moments, of_mean_one
from ...posterior.coordinates import Coordinates
from .proposal import Mixture


class Batch(NamedTuple):
    """The points of a batch.

    Parameters
    ----------
    proposal
        The mixture from which the points were drawn.
    points
        Shape (point, dim), in coordinates with the mode as origin.
    rise
        F minus F at the origin, shape (point,).
    gradient
        Gradient of F, shape (point, dim), or None.
    local
        Whether the proposal covers only some regions, so that the batch alone does not represent the posterior.
    """

    proposal: Mixture
    points: np.ndarray
    rise: np.ndarray
    gradient: np.ndarray | None = None
    local: bool = False


class Weighing:
    """Points of several batches, weighted against the mixture of the proposals of all batches.

    Parameters
    ----------
    batch
        The last batch.
    before
        The weighing of the earlier batches; None if there are none.
    """

    rise: np.ndarray

    def __init__(self, batch: Batch, before: Weighing | None = None) -> None:
        own = batch.proposal.log_density(batch.points)[None]
        if before is None:
            self.batches, self.points, rise, self._densities = [batch], batch.points, batch.rise, own
        else:
            self.batches = [*before.batches, batch]
            self.points = np.concatenate([before.points, batch.points])
            rise = np.concatenate([before.rise, batch.rise])
            # densities of every proposal at every point, of which only the new ones are evaluated
            theirs = np.stack([other.proposal.log_density(batch.points) for other in before.batches])
            ours = batch.proposal.log_density(before.points)[None]
            self._densities = np.block([[before._densities, theirs], [ours, own]])
        # points at which F is not finite get weight 0
        self.rise = np.where(np.isfinite(rise), rise, np.inf)
        counts = np.array([len(one.rise) for one in self.batches])
        self.log_proposal = logsumexp(self._densities, axis=0, b=(counts / counts.sum())[:, None])

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Self:
        """The weighing of several batches, at least one."""
        first, *others = batches
        found = cls(first)
        for batch in others:
            found = cls(batch, found)
        return found

    def with_batch(self, batch: Batch) -> Weighing:
        """The weighing with one more batch."""
        return Weighing(batch, self)

    @cached_property
    def log_weight(self) -> np.ndarray:
        """Log importance weights, shape (point,). The mean weight estimates the integral of exp(-rise)."""
        return -self.rise - self.log_proposal

    @cached_property
    def weight(self) -> np.ndarray:
        """Weights with mean one, shape (point,)."""
        return of_mean_one(self.log_weight)

    @property
    def effective(self) -> float:
        """Effective draws: the number of independent draws with the same standard error (Kish)."""
        return effective(self.log_weight)

    def log_squares(self, place: Coordinates) -> np.ndarray:
        """Log of each point's largest squared distance from the mean over all parameters, in sds, shape (point,)."""
        mean, cov = self.moments()
        apart = (self.points - mean) @ place.factor.T
        squares = np.square(apart) / np.diagonal(place.factor @ cov @ place.factor.T)
        return np.log(squares.max(axis=1))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The posterior's mean (dim,) and covariance (dim, dim)."""
        return moments(self.points, self.weight)
