"""Where chains begin: at weighted points, at the mode, or around the posterior's init."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ..base.counters import generator
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..posterior.newton import own_scale
from ..tuning.network_sums import NetworkSums, expand
from .laplace import laplace


class Start(NamedTuple):
    """Coordinates in which the posterior is about standard normal, and weighted points there, or None.

    Parameters
    ----------
    place
        The coordinates.
    points, log_weight
        Shapes (point, dim) and (point,); None: a standard normal stands for the posterior.
    """

    place: Coordinates
    points: np.ndarray | None = None
    log_weight: np.ndarray | None = None

    def positions(self, count: int, seed: int) -> np.ndarray:
        """Some positions that stand for the posterior, shape (count, dim)."""
        numbers = generator(seed, "starts")
        if self.points is None or self.log_weight is None:
            return numbers.standard_normal((count, self.place.origin.size))
        # few points may hold all the weight: flattened until as many as there are starts share it
        power = 1.0
        while _effective(power * self.log_weight) < count and power > 1e-3:
            power *= 0.8
        weight = np.exp(power * (self.log_weight - self.log_weight.max()))
        edges = (np.arange(count) + numbers.random()) / count
        chosen = np.searchsorted(np.cumsum(weight) / weight.sum(), edges).clip(0, weight.size - 1)
        return numbers.permutation(self.points[chosen])


def start_without_points(sums: NetworkSums, post: Posterior) -> Start:
    """At the mode, with the scale of the curvature there; where there is no mode, at init with its curvature's.

    Raises
    ------
    ArithmeticError
        The potential is not finite at init.
    """
    try:
        return Start(laplace(sums, post))
    except ArithmeticError:
        here = expand(sums, post.init)
        if not here.finite:
            raise
        return Start(Coordinates(post.init, np.diag(own_scale(np.abs(np.diagonal(here.hessian))))))


def _effective(log_w: np.ndarray) -> float:
    return float(np.exp(2.0 * logsumexp(log_w) - logsumexp(2.0 * log_w)))
