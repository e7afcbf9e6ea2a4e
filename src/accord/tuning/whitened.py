"""Coordinates that whiten a posterior of mild shape, and draws in them, by a few hundred weighted points.

Where a t distribution around the mode has a fair part of the posterior's mass, weighted points with gradients give mean
and covariance better than thousands of steps of chains do, and in a few sums.
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

# How far the moments that two halves tell may be apart, for each dimension: of variances that is half as much again on
# one side, and what both tell together is a fifth off.
_AGREE = 0.04
# Draws that are kept at random, and of the steepest, at most.
_DRAWS = 64

Moments = tuple[np.ndarray, np.ndarray]


class Whitened(NamedTuple):
    """Coordinates in which the posterior has mean zero and covariance one, and some of its draws.

    Parameters
    ----------
    coordinates
        The coordinates.
    draws
        In them, shape (draw, dim).
    steep
        Those with the largest gradients of all that there were, likewise: F's curvature is largest about there.
    """

    coordinates: Coordinates
    draws: np.ndarray
    steep: np.ndarray


class Estimates(NamedTuple):
    """What points tell of a posterior.

    Parameters
    ----------
    mean, cov
        Its moments, shapes (dim,) and (dim, dim).
    apart
        How far those that either half of the points tells are apart.
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
        """By the points alone, or with F's gradients: whichever the two halves are nearer by.

        Where the posterior is nearly Gaussian, gradients take most of the noise of few points away; where it is far
        from that, they add some.
        """
        found = []
        for estimate in (_plain, moments):
            one, other = (estimate(points[which], gradients[which], log_weight[which]) for which in (half, ~half))
            found.append(cls(*estimate(points, gradients, log_weight), _apart(one, other)))
        return min(found, key=lambda estimates: estimates.apart)

    @property
    def settled(self) -> bool:
        """Whether the halves are as near as warm-up needs them."""
        return self.apart <= _AGREE

    def whitened(
        self,
        start: Coordinates,
        draws: Float[np.ndarray, "draw dim"],
        gradients: Float[np.ndarray, "draw dim"],
    ) -> Whitened:
        """The coordinates that whiten it, and some of many draws; all are given in the coordinates `start`."""
        inner = Coordinates(self.mean, np.linalg.cholesky(self.cov))
        some = np.random.default_rng(2).permutation(len(draws))[:_DRAWS]
        steep = np.argsort(np.linalg.norm(gradients @ inner.factor, axis=1))[-_DRAWS:]
        return Whitened(start.after(inner), inner.inverse(draws[some]), inner.inverse(draws[steep]))


def _plain(points: np.ndarray, gradients: np.ndarray, log_weight: np.ndarray) -> Moments:
    """Weighted mean and covariance; gradients are left out."""
    return weights.moments(points, weights.of_mean_one(log_weight))


def _apart(one: Moments, other: Moments) -> float:
    """Half of Jeffreys' divergence of two Gaussians, for each dimension; means by the average covariance.

    Infinite where a covariance has no width in some direction, as that of a few points.
    """
    (mean, cov), (other_mean, other_cov) = one, other
    dim, off = mean.size, mean - other_mean
    try:
        # not as traces, whose rounding errors may make them negative where a covariance is nearly singular
        ratios = linalg.eigvalsh(cov, other_cov)
    except linalg.LinAlgError:
        return np.inf
    # no width but rounding, of either sign
    if ratios[0] <= dim * np.finfo(float).eps * ratios[-1]:
        return np.inf
    both = (ratios + 1.0 / ratios - 2.0).sum()
    return float((both / 4.0 + off @ np.linalg.solve((cov + other_cov) / 2.0, off) / 2.0) / dim)


# Points of a batch: for each dimension, and the fewest; and batches at most, the later ones larger.
_POINTS, _FEWEST, _BATCHES = 8, 128, 4
# Degrees of freedom of the first proposal, at least.
_FREEDOM = 5
# Effective points for each dimension below which batches are given up, and from which on their moments are believed.
_LOST, _ENOUGH = 1.0, 6.0
# Draws for which points stand by their weights: those of less than about one have none.
_RESAMPLED = 1024


def weighed(session: Session, place: Coordinates) -> Whitened | None:
    """Coordinates by the moments of weighted points; None where too few points share the weight.

    Parameters
    ----------
    session
        Sums over the network, which count this.
    place
        Coordinates of the Gaussian at the mode.
    """
    dim = place.origin.size
    size = max(_FEWEST, _POINTS * dim)
    main, proposals = Main(np.zeros(dim), np.eye(dim), float(max(_FREEDOM, dim))), Proposals([], None)
    found, gradient, lowest = None, np.empty((0, dim)), None
    for batch in range(_BATCHES):
        proposal = proposals.around(main)
        drawn = Drawn(proposal, size << max(0, batch - 1), 0, batch)
        value, slope = slopes(session, place, drawn)
        # weights are relative: any value of F's may be taken off, the same from all batches
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
    """The points that stand for some draws, by their weights."""
    log_w = truncated(found.log_weight)
    share = np.cumsum(np.exp(log_w - log_w.max()))
    return np.unique(np.searchsorted(share / share[-1], (np.arange(_RESAMPLED) + 0.5) / _RESAMPLED))
