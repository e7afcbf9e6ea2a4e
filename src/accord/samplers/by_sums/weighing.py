"""Points of all batches and their weights: adaptive multiple importance sampling (Cornuet et al. 2012)."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

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
        What they were drawn from.
    points
        Shape (point, dim), in coordinates whose origin is the mode.
    rise
        F there above its value at the origin, shape (point,).
    gradient
        F's gradient there, shape (point, dim), where it was asked for.
    local
        Whether they are around some places only, and alone say nothing of the posterior.
    """

    proposal: Mixture
    points: np.ndarray
    rise: np.ndarray
    gradient: np.ndarray | None = None
    local: bool = False


class Weighing:
    """Points of several batches, each weighed against the mixture of all proposals that any batch was drawn from.

    Parameters
    ----------
    batch
        The last batch.
    before
        The batches before it, weighed; None: there are none.
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
            # every proposal at every point: only what is new is evaluated
            theirs = np.stack([other.proposal.log_density(batch.points) for other in before.batches])
            ours = batch.proposal.log_density(before.points)[None]
            self._densities = np.block([[before._densities, theirs], [ours, own]])
        # where F is no number there is no mass
        self.rise = np.where(np.isfinite(rise), rise, np.inf)
        counts = np.array([len(one.rise) for one in self.batches])
        self.log_proposal = logsumexp(self._densities, axis=0, b=(counts / counts.sum())[:, None])

    def with_batch(self, batch: Batch) -> Weighing:
        """The points of one batch more."""
        return Weighing(batch, self)

    @cached_property
    def log_weight(self) -> np.ndarray:
        """Log weights, shape (point,), whose exponentials have the integral of exp(-rise) as their mean."""
        return -self.rise - self.log_proposal

    @cached_property
    def weight(self) -> np.ndarray:
        """Weights of mean one, shape (point,)."""
        return of_mean_one(self.log_weight)

    @property
    def effective(self) -> float:
        """Effective draws: the number of independent draws with the same error (Kish)."""
        return effective(self.log_weight)

    def log_squares(self, place: Coordinates) -> np.ndarray:
        """Log squared distances of points from the mean, in sds of the parameter that each is furthest in, (point,)."""
        mean, cov = self.moments()
        apart = (self.points - mean) @ place.factor.T
        squares = np.square(apart) / np.diagonal(place.factor @ cov @ place.factor.T)
        return np.log(squares.max(axis=1))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The posterior's mean (dim,) and covariance (dim, dim)."""
        return moments(self.points, self.weight)
