"""DE-SGHMC: the ranges and rate of Theorem 7 of the slides (Gurbuzbalaban et al. 2021)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from accord import Network
from accord.network import extreme_eigenvalues

from .problem import Constants, below, check_problem


class FrictionRange(NamedTuple):
    """The frictions low <= gamma <= high of Theorem 7, with the unit of 1 / step_size.

    Parameters
    ----------
    low, high : float
        high = 1 / step_size.
    velocity_kept : float
        beta = 1 - gamma step_size at `low`, the largest share of a velocity that is kept for the next round.
    """

    low: float
    high: float
    velocity_kept: float


def max_step(network: Network, problem: Constants, *, mixing: Any = "metropolis") -> float:
    """Theorem 7, eq. 23: step sizes below sqrt((1 + lambda_N(W)) / (2 (L + mu))).

    Parameters
    ----------
    network, problem, mixing
        As in `theory.de_sgld.max_step`, with W as in `DESGHMC`.

    Returns
    -------
    float
        In units of 1 / sqrt(L).

    Raises
    ------
    ValueError
        The network is not connected, or does not fit the problem.
    """
    check_problem(network, problem)
    lowest, _ = extreme_eigenvalues(network.weights(mixing))
    return float(np.sqrt((1.0 + lowest) / (2.0 * (problem.largest + problem.smallest))))


def friction_range(
    network: Network, problem: Constants, *, step_size: float, mixing: Any = "metropolis"
) -> FrictionRange:
    """Theorem 7, eq. 24: the frictions for which the theorem holds.

    beta = 1 - gamma eta may be at most min((1 + lambda_N - 4 eta^2 mu) / 4, eta^3 sqrt(c_1 mu^3 (1 + lambda_N) / 64)).
    c_1 falls as beta grows, so that all betas up to `velocity_kept` are allowed. At beta = 0 the method is DE-SGLD with
    the step eta^2. The bounds of eqs. 25-26 are not implemented: the slides do not give their constants E_4 and E_5.

    Parameters
    ----------
    network, problem, mixing
        As in `max_step`.
    step_size
        eta, in (0, `max_step(network, problem)`).

    Returns
    -------
    FrictionRange

    Raises
    ------
    ValueError
        As in `max_step`, or the step is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> net, problem = accord.Network.ring(3), theory.constants(post)
    >>> found = theory.de_sghmc.friction_range(net, problem, step_size=0.2)
    >>> 0.999 * found.high < found.low < found.high
    True
    """
    below("step_size", step_size, max_step(network, problem, mixing=mixing), "sqrt((1 + lambda_N) / (2 (L + mu)))")
    lowest, second = extreme_eigenvalues(network.weights(mixing))
    mu, h = problem.smallest, step_size**2
    # 1 - lambda_N, as in the slides, is the largest eigenvalue of I - W
    pull = h * mu / (1.0 - lowest + h * problem.largest)

    def room(beta: float) -> float:
        c1 = 0.5 * h * mu / ((1.0 + beta) + (1.0 - beta) * pull)
        return step_size**3 * np.sqrt(c1 * mu**3 * (1.0 + lowest) / 64.0) - beta

    kept = min((1.0 + lowest - 4.0 * h * mu) / 4.0, scipy.optimize.brentq(room, 0.0, 1.0, xtol=1e-300))
    return FrictionRange((1.0 - kept) / step_size, 1.0 / step_size, float(kept))


def rate(network: Network, problem: Constants, *, step_size: float, mixing: Any = "metropolis") -> float:
    """Theorem 7, eqs. 25-26: the factor per round by which the influence of the start falls.

    The root of the larger of gamma^2 (gamma the second largest eigenvalue of W in size) and
    1 - eta^2 mu (1 - eta^2 L / 2), which exceeds the other factor, 1 - eta^2 mu. Parameters and errors as in
    `friction_range`.
    """
    below("step_size", step_size, max_step(network, problem, mixing=mixing), "sqrt((1 + lambda_N) / (2 (L + mu)))")
    h = step_size**2
    slow = 1.0 - h * problem.smallest * (1.0 - h * problem.largest / 2.0)
    return float(np.sqrt(max((1.0 - network.spectral_gap(mixing)) ** 2, slow)))
