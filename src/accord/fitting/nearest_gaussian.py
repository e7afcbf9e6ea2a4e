"""The Gaussian nearest to a posterior, by sums over the network."""

from __future__ import annotations

import warnings

import numpy as np

from ..posterior.coordinates import Coordinates
from ..posterior.newton import change
from .network_sums import NetworkSums, expand

# Most iterations.
_MOST_MOVES = 20


def nearest_gaussian(sums: NetworkSums, start: Coordinates, *, looks: int = 32, still: float = 0.25) -> Coordinates:
    """Coordinates of the Gaussian nearest to the posterior (variational; Opper & Archambeau 2009).

    Its mean gradient of F is zero, and its inverse covariance is the mean of F's Hessian.

    Parameters
    ----------
    sums
        Sums over the network: one an iteration, of (dim + 1)(dim + 2) / 2 numbers.
    start
        Those of the mode, or of another Gaussian to begin at; they are returned where there is no nearest one.
    looks
        Antithetic draws (z and -z) for each expectation.
    still
        Step, in standard deviations, at which iterations stop. Rough is enough: it is a start.
    """
    dim = start.origin.size
    half = np.random.default_rng(0).standard_normal((looks // 2, dim))
    z = np.concatenate([half, -half])
    # in those of the mode, where units are gone
    place, precision = Coordinates(np.zeros(dim), np.eye(dim)), np.eye(dim)
    for _ in range(_MOST_MOVES):
        mean = expand(sums, *(place.origin + z @ place.factor.T), coordinates=start)
        # half the way: the mean Hessian moves with the Gaussian
        following = (precision + mean.hessian) / 2.0
        if not np.isfinite(following).all() or np.linalg.eigvalsh(following)[0] <= 0:
            warnings.warn(
                "the posterior is not log-concave on average where its draws are: coordinates are those of its "
                "curvature at one position",
                stacklevel=4,
            )
            return start
        step = -np.linalg.solve(following, mean.gradient) / 2.0
        length = float(np.sqrt(step @ following @ step))
        changed = change(precision, mean.hessian)
        place, precision = Coordinates.whitening(place.origin + step, following), following
        if length <= still and changed <= 2.0 * still:
            break
    return start.after(place)
