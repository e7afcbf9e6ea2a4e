"""Coordinates of the Gaussian at the posterior's mode."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..fitting.network_sums import NetworkSums, expand
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..posterior.newton import newton, spectrum

# Length of the last Newton step, in standard deviations: the mode is where methods begin, no more.
_LAST_STEP = 0.3


def laplace(sums: NetworkSums, post: Posterior) -> Coordinates:
    """Coordinates in which the posterior is about standard normal at its mode.

    Directions without curvature are scaled as the flattest that has some; their tails are looked at like any other's.
    """
    mode, hessian = newton(partial(expand, sums), post.init, post.unconstrained_names, _LAST_STEP, post.remedy_at_init)
    found = spectrum(hessian)
    if not found.enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction")
    lifted = found.hessian(np.where(found.enough, found.values, found.values[found.enough].min()))
    return Coordinates.whitening(mode, lifted)
