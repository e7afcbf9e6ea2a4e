"""Whitening coordinates by importance sampling with a few hundred weighted points.

If a t distribution around the mode covers the posterior well, weighted points with gradients estimate mean and
covariance better than thousands of MCMC steps, in a few sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import linalg

from ..base import weights
from ..posterior.coordinates import Coordinates
from ..samplers.by_sums.adaptation import Main, Proposals, adapted, moments, truncated
from ..samplers.by_sums.evaluations import slopes
from ..samplers.by_sums.proposal import Drawn
from ..samplers.by_sums.weighing import Batch, Weighing
from ..samplers.session import Session

# Largest divergence per dimension between the estimates of two halves. 0.04 is a ratio of 1.5 between variances.
_AGREE = 0.04
# Number of random draws, and of draws with the largest gradients, at most.
_DRAWS = 64

Moments = tuple[np.ndarray, np.ndarray]


class Whitened(NamedTuple):
    """Coordinates in which the posterior has mean zero and covariance one, and draws in them.

    Parameters
    ----------
    coordinates
        The coordinates.
    draws
        Random draws, shape (draw, dim).
    steep
        The draws with the largest gradients, shape (draw, dim), where F's curvature tends to be largest.
    """

    coordinates: Coordinates
    draws: np.ndarray
    steep: np.ndarray


class Estimates(NamedTuple):
    """Moments of a posterior, estimated from weighted points.

    Parameters
    ----------
    mean, cov
        The moments, shapes (dim,) and (dim, dim).
    apart
        The divergence per dimension between the estimates of two halves of the points.
    """

    mean: np.ndarray
    cov: np.ndarray
    apart: float

    @classmethod
    def by(
        cls,
        points: Float[np.ndarray, "point dim"],
        gradients: Float[np.ndarray, "point dim"],
        log_weight: Float[np.ndarray, " point"],
        half: Bool[np.ndarray, " point"],
    ) -> Estimates:
        """Estimates with or without F's gradients, whichever makes the two halves agree better.

        Gradients remove most of the noise if the posterior is nearly Gaussian, and add noise if it is not.
        """
        found = []
        for estimate in (_plain, moments):
            one, other = (estimate(points[which], gradients[which], log_weight[which]) for which in (half, ~half))
            found.append(cls(*estimate(points, gradients, log_weight), _apart(one, other)))
        return min(found, key=lambda estimates: estimates.apart)

    @property
    def settled(self) -> bool:
        """Whether the two halves agree within the tolerance of warm-up."""
        return self.apart <= _AGREE

    def whitened(
        self,
        start: Coordinates,
        draws: Float[np.ndarray, "draw dim"],
        gradients: Float[np.ndarray, "draw dim"],
    ) -> Whitened:
        """Whitening coordinates and a selection of draws. Estimates, draws and gradients are in coordinates `start`."""
        inner = Coordinates(self.mean, np.linalg.cholesky(self.cov))
        some = np.random.default_rng(2).permutation(len(draws))[:_DRAWS]
        steep = np.argsort(np.linalg.norm(gradients @ inner.factor, axis=1))[-_DRAWS:]
        return Whitened(start.after(inner), inner.inverse(draws[some]), inner.inverse(draws[steep]))


def _plain(points: np.ndarray, gradients: np.ndarray, log_weight: np.ndarray) -> Moments:
    """Weighted mean and covariance without gradients."""
    return weights.moments(points, weights.of_mean_one(log_weight))


def _apart(one: Moments, other: Moments) -> float:
    """Half the Jeffreys divergence of two Gaussians per dimension, with means compared by the average covariance.

    Infinite if a covariance is singular, as with very few points.
    """
    (mean, cov), (other_mean, other_cov) = one, other
    dim, off = mean.size, mean - other_mean
    try:
        # not by traces, which rounding may make negative for a nearly singular covariance
        ratios = linalg.eigvalsh(cov, other_cov)
    except linalg.LinAlgError:
        return np.inf
    # singular up to rounding
    if ratios[0] <= dim * np.finfo(float).eps * ratios[-1]:
        return np.inf
    both = (ratios + 1.0 / ratios - 2.0).sum()
    return float((both / 4.0 + off @ np.linalg.solve((cov + other_cov) / 2.0, off) / 2.0) / dim)


# Points of a batch per dimension.
_POINTS = 8
# Smallest number of points of a batch.
_FEWEST = 128
# Largest number of batches. Later batches are larger.
_BATCHES = 4
# Smallest degrees of freedom of the first proposal.
_FREEDOM = 5
# Effective points per dimension below which importance sampling gives up.
_LOST = 1.0
# Effective points per dimension required for reliable moments.
_ENOUGH = 6.0
# Draws of the systematic resampling.
_RESAMPLED = 1024


def weighed(session: Session, place: Coordinates) -> Whitened | None:
    """Whitening coordinates by importance sampling, or None if the effective sample size is too small.

    Parameters
    ----------
    session
        Sums over the network.
    place
        Coordinates that whiten the Gaussian at the mode.
    """
    dim = place.origin.size
    size = max(_FEWEST, _POINTS * dim)
    main, proposals = Main(np.zeros(dim), np.eye(dim), float(max(_FREEDOM, dim))), Proposals([], None)
    found, gradient, lowest = None, np.empty((0, dim)), None
    for batch in range(_BATCHES):
        proposal = proposals.around(main)
        drawn = Drawn(proposal, size << max(0, batch - 1), 0, batch)
        value, slope = slopes(session, place, drawn)
        # importance weights are relative, so that a constant may be subtracted from F in all batches
        lowest = value.min() if lowest is None else lowest
        batched = Batch(proposal, drawn.points, value - lowest, slope)
        found = Weighing(batched) if found is None else found.with_batch(batched)
        gradient = np.concatenate([gradient, slope])
        if found.effective < _LOST * dim:
            return None
        estimates = Estimates.by(found.points, gradient, truncated(found.log_weight), np.arange(len(gradient)) % 2 == 0)
        if found.effective >= _ENOUGH * dim and estimates.settled:
            which = _resampled(found)
            return estimates.whitened(place, found.points[which], gradient[which])
        proposals = proposals.shared(found, main)
        main, _ = adapted(found, main, proposals)
    return None


def _resampled(found: Weighing) -> np.ndarray:
    """Indices of the points that systematic resampling selects."""
    log_w = truncated(found.log_weight)
    share = np.cumsum(np.exp(log_w - log_w.max()))
    return np.unique(np.searchsorted(share / share[-1], (np.arange(_RESAMPLED) + 0.5) / _RESAMPLED))
