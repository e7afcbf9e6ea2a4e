"""Where a posterior of mild shape is: a few hundred points around its mode, weighed.

Where a t distribution around the mode has a fair part of the posterior's mass, weighted points with gradients tell mean
and covariance better than thousands of steps of chains do, and in a few sums.
"""

from __future__ import annotations

import numpy as np

from ..posterior.coordinates import Coordinates
from ..samplers.by_sums.adaptation import Main, Proposals, adapted, truncated
from ..samplers.by_sums.evaluations import slopes
from ..samplers.by_sums.proposal import Drawn
from ..samplers.by_sums.weighing import Batch, Weighing
from ..samplers.session import Session
from .whitened import Told, Whitened

# Points of a batch: for each dimension, and the fewest; and batches at most, the later ones larger.
_POINTS, _FEWEST, _BATCHES = 8, 128, 4
# Degrees of freedom of the first proposal, at least.
_FREEDOM = 5
# Effective points for each dimension below which batches are given up, and from which on their moments are believed.
_LOST, _ENOUGH = 1.0, 6.0
# Draws for which points stand by their weights: those of less than about one have none.
_DRAWS = 1024


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
        told = Told.by(found.points, gradient, truncated(found.log_weight), np.arange(len(gradient)) % 2 == 0)
        if found.effective >= _ENOUGH * dim and told.settled:
            which = _resampled(found)
            return told.whitened(place, found.points[which], gradient[which])
        proposals = proposals.shared(found, main)
        main, _ = adapted(found, main, proposals)
    return None


def _resampled(found: Weighing) -> np.ndarray:
    """The points that stand for some draws, by their weights."""
    log_w = truncated(found.log_weight)
    share = np.cumsum(np.exp(log_w - log_w.max()))
    return np.unique(np.searchsorted(share / share[-1], (np.arange(_DRAWS) + 0.5) / _DRAWS))
