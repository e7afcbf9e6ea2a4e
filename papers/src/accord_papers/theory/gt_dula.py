"""GT-DULA: Condition 1, Theorems 1 and 2, Corollary 3 and the table of section 4.4 of the paper."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accord import Network

from ..base.checks import whole_number
from .problem import Constants, below, check_problem


class Ranges(NamedTuple):
    """Condition 1: upper bounds on the parameters of the method.

    Parameters
    ----------
    consensus_step, step_size, tracking_step : float
        Bounds on beta, alpha and gamma.
    """

    consensus_step: float
    step_size: float
    tracking_step: float


class Biases(NamedTuple):
    """A column of the table of section 4.4: errors after infinitely many rounds.

    Parameters
    ----------
    consensus : float
        B: a bound on `sum_i E |x_i - xbar|^2`.
    kl : float
        O: a bound on `KL(law of the average || posterior)`, in nats.
    gradient : float
        E: a bound on `sum_i E |d_i - ubar|^2`, where ubar is the mean gradient at the average and d_i the agent's
        estimate of ubar (for D-ULA its own gradient).
    """

    consensus: float
    kl: float
    gradient: float


class Budget(NamedTuple):
    """Corollary 3.

    Parameters
    ----------
    step_size : float
        The largest alpha that satisfies eq. 19 and Condition 1.
    rounds : int
        Eq. 20 at that alpha.
    """

    step_size: float
    rounds: int


def ranges(network: Network, problem: Constants, *, consensus_step: float) -> Ranges:
    """Condition 1 for a given beta: bounds on beta, alpha and gamma.

    alpha < min(beta lambda_2 / (2 n L), rho_U / (4 n L^2)) and gamma < min(beta, 1 / lambda_2) are as printed, with the
    log-Sobolev constant rho_U = `problem.total_strong_convexity`. The printed bound on beta, min(1, n / lambda_n), is
    1 because lambda_n <= n, and allows I - beta L with norm above 1. The bound here is min(1, 1 / lambda_n). Then
    I - beta L has no negative eigenvalue, and the method is stable under the other two conditions.

    Parameters
    ----------
    network
        A connected network of two agents or more.
    problem
        L = `problem.largest`.
    consensus_step
        beta, in (0, min(1, 1 / lambda_n)].

    Returns
    -------
    Ranges

    Raises
    ------
    ValueError
        beta is out of range, or the network is not connected or does not fit.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> net, problem = accord.Network.ring(3), theory.constants(post)
    >>> found = theory.gt_dula.ranges(net, problem, consensus_step=0.2)
    >>> f"{found.consensus_step:.3f} {found.step_size:.3f} {found.tracking_step:.3f}"
    '0.333 0.025 0.200'
    """
    check_problem(network, problem)
    if network.num_agents == 1:
        raise ValueError("GT-DULA needs a neighbour for every agent, found one agent")
    low, high = network.laplacian_extremes()
    bound = min(1.0, 1.0 / high)
    below("consensus_step", consensus_step, bound * (1.0 + 1e-9), "min(1, 1 / lambda_n)")
    n, L = problem.num_agents, problem.largest
    return Ranges(
        bound,
        min(consensus_step * low / (2.0 * n * L), problem.total_strong_convexity / (4.0 * n * L**2)),
        min(consensus_step, 1.0 / low),
    )


def contraction(network: Network, problem: Constants, *, step_size: float, consensus_step: float) -> float:
    """Theorem 1, eq. 13: sigma = 1 - beta lambda_2 + 4 alpha^2 n^2 L^2 / (beta lambda_2) < 1.

    Parameters
    ----------
    network, problem, consensus_step
        As in `ranges`.
    step_size
        alpha, within Condition 1.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As in `ranges`, or the step is out of range.
    """
    allowed = ranges(network, problem, consensus_step=consensus_step)
    below("step_size", step_size, allowed.step_size, "Condition 1(ii)")
    mixed = consensus_step * network.laplacian_extremes()[0]
    return 1.0 - mixed + 4.0 * (step_size * problem.num_agents * problem.largest) ** 2 / mixed


def consensus_bound(
    network: Network,
    problem: Constants,
    *,
    step_size: float,
    consensus_step: float,
    rounds: int,
    initial_error: float,
) -> float:
    """Theorem 1, eq. 12, as printed: a bound on `sum_i E |x_i - xbar|^2` after `rounds` rounds, wrong for far starts.

    The start enters as `sigma^k E |Psi_0|^2`. A far start matters for longer, until the average reaches the mode after
    about 1 / (alpha rho_U) rounds: docs/theory.md has a counterexample. The limit is B of `tracked_biases`.

    Parameters
    ----------
    network, problem, step_size, consensus_step
        As in `contraction`.
    rounds
        k >= 0.
    initial_error
        `E |Psi_0|^2 >= 0`, which is `sum_i E |x_i - xbar|^2 + alpha^2 sum_i E |grad f_i(x_i)|^2` at the start.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As in `contraction`, or a number is out of range.
    """
    k = whole_number("rounds", rounds, 0)
    sigma = contraction(network, problem, step_size=step_size, consensus_step=consensus_step)
    _not_negative(initial_error=initial_error)
    return sigma**k * initial_error + _consensus(network, problem, step_size, consensus_step)


def kl_bound(
    network: Network,
    problem: Constants,
    *,
    step_size: float,
    consensus_step: float,
    rounds: int,
    initial_error: float,
    initial_kl: float,
    second_moment: float,
) -> float:
    """Theorem 2, eqs. 16-18: a bound on `KL(law of the average || posterior)` after `rounds` rounds, in nats.

    Parameters
    ----------
    network, problem, step_size, consensus_step, rounds, initial_error
        As in `consensus_bound`.
    initial_kl
        `KL(law of the average || posterior)` >= 0 at the start.
    second_moment
        C_wbar, an upper bound on `E |xbar|^2` at every round. The paper proves its existence and gives no value.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As in `consensus_bound`.
    """
    k = whole_number("rounds", rounds, 0)
    sigma = contraction(network, problem, step_size=step_size, consensus_step=consensus_step)
    _not_negative(initial_error=initial_error, initial_kl=initial_kl, second_moment=second_moment)
    C = _start_constant(problem, step_size, sigma, initial_error)
    slow = np.exp(-step_size * problem.total_strong_convexity * k)
    limit = _average(problem, step_size, second_moment, _consensus(network, problem, step_size, consensus_step))
    return float((initial_kl + C) * slow + C * sigma**k + limit)


def budget(
    network: Network,
    problem: Constants,
    *,
    accuracy: float,
    consensus_step: float,
    initial_error: float,
    initial_kl: float,
    second_moment: float,
) -> Budget:
    """Corollary 3, eqs. 19-20: a step and rounds for `KL(law of the average || posterior)` <= accuracy.

    The last lambda of eq. 19, printed without an index, is lambda_2.

    Parameters
    ----------
    network, problem, consensus_step, initial_error, initial_kl, second_moment
        As in `kl_bound`. `initial_error` may be computed at the largest step of Condition 1.
    accuracy
        epsilon, in (0, 1), in nats.

    Returns
    -------
    Budget

    Raises
    ------
    ValueError
        As in `kl_bound`.
    """
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy must be in (0, 1), found {accuracy}")
    _not_negative(initial_error=initial_error, initial_kl=initial_kl, second_moment=second_moment)
    allowed = ranges(network, problem, consensus_step=consensus_step)
    n, d, L, total, rho = _numbers(problem)
    scale = (consensus_step * network.laplacian_extremes()[0]) ** 2 * rho * accuracy
    moments = second_moment + float(problem.mode @ problem.mode)
    step = min(
        (scale / (40.0 * (L**4 * total + L**4) * d * n**4)) ** (1.0 / 3.0),
        (scale / ((20.0 * total**2 * moments + 20.0 * L**2 * total * d + 12.0 * rho * L**2) * n**4)) ** 0.5,
        scale / (10.0 * (total + L**2) * d * n**3),
        # Condition 1 is a strict inequality
        allowed.step_size * (1.0 - 1e-9),
    )
    sigma = contraction(network, problem, step_size=step, consensus_step=consensus_step)
    C = _start_constant(problem, step, sigma, initial_error)
    # a start without error needs no rounds
    first = np.log(max(5.0 * (initial_kl + C) / accuracy, 1.0)) / (step * rho)
    second = np.log(max(5.0 * C / accuracy, 1.0)) / np.log(1.0 / sigma)
    return Budget(float(step), int(np.ceil(max(first, second))))


def tracked_biases(
    network: Network,
    problem: Constants,
    *,
    step_size: float,
    consensus_step: float,
    tracking_step: float,
    second_moment: float,
) -> Biases:
    """Section 4.4, column GT-DULA: eqs. 14, 18 and 22.

    The text does not define the constant c_4 of eq. 22. Its units and eq. 18 suggest sqrt(sum_i L_i^2).

    Parameters
    ----------
    network, problem, step_size, consensus_step
        As in `contraction`.
    tracking_step
        gamma, within Condition 1.
    second_moment
        As in `kl_bound`.

    Returns
    -------
    Biases

    Raises
    ------
    ValueError
        As in `contraction`, or a number is out of range.
    """
    contraction(network, problem, step_size=step_size, consensus_step=consensus_step)
    allowed = ranges(network, problem, consensus_step=consensus_step)
    below("tracking_step", tracking_step, allowed.tracking_step, "Condition 1(iii)")
    _not_negative(second_moment=second_moment)
    n, d, L, total, _ = _numbers(problem)
    moments = second_moment + float(problem.mode @ problem.mode)
    consensus = _consensus(network, problem, step_size, consensus_step)
    tracked = (tracking_step * network.laplacian_extremes()[0]) ** 2
    own = 16.0 * n * step_size**2 * total**2 * moments + 8.0 * n * step_size * d * (n * L**2 + total)
    gradient = (own + 8.0 * n * L**2 * (n + step_size**2 * total) * consensus) / tracked
    return Biases(consensus, _average(problem, step_size, second_moment, consensus), float(gradient))


def untracked_biases(
    network: Network, problem: Constants, *, step_size: float, consensus_step: float, second_moment: float
) -> Biases:
    """Section 4.4, column D-ULA.

    The second term of O lacks a factor 4 alpha in the table. With the factor, the term depends on B as in the other
    column and has no units. Parameters and errors as in `tracked_biases`.
    """
    contraction(network, problem, step_size=step_size, consensus_step=consensus_step)
    _not_negative(second_moment=second_moment)
    n, d, L, _, _ = _numbers(problem)
    extremum = float(problem.mode @ problem.mode)
    inner = 4.0 * step_size * n**2 * L**2 * (n * second_moment + extremum) + 2.0 * n**2 * d
    consensus = 2.0 * step_size * inner / _margin(network, problem, step_size, consensus_step)
    gradient = 2.0 * L**2 * consensus + 4.0 * L**2 * (n * second_moment + extremum)
    return Biases(float(consensus), _average(problem, step_size, second_moment, consensus), float(gradient))


def _numbers(problem: Constants) -> tuple[int, int, float, float, float]:
    """n, d, L, Lbar^2 = sum_i L_i^2 and rho_U."""
    total = float(np.sum(problem.smoothness**2))
    return problem.num_agents, problem.dim, problem.largest, total, problem.total_strong_convexity


def _margin(network: Network, problem: Constants, step_size: float, consensus_step: float) -> float:
    mixed = consensus_step * network.laplacian_extremes()[0]
    return mixed**2 - 4.0 * (step_size * problem.num_agents * problem.largest) ** 2


def _consensus(network: Network, problem: Constants, step_size: float, consensus_step: float) -> float:
    """Eq. 14."""
    n, d, L, _, _ = _numbers(problem)
    noise = 2.0 * step_size * n**2 * d * (1.0 + 2.0 * step_size**2 * L**2)
    return float(noise / _margin(network, problem, step_size, consensus_step))


def _average(problem: Constants, step_size: float, second_moment: float, consensus: float) -> float:
    """Eq. 18 for a given consensus error, in which the columns of the table differ."""
    n, d, L, total, rho = _numbers(problem)
    moments = second_moment + float(problem.mode @ problem.mode)
    own = 2.0 * n * step_size * total * d + 4.0 * n**2 * step_size**2 * total**2 * moments
    return float((own + (2.0 * n**2 * step_size**2 * L**2 * total + n * L**2) * consensus) / rho)


def _start_constant(problem: Constants, step_size: float, sigma: float, initial_error: float) -> float:
    """Eq. 17: C_F."""
    n, _, L, total, rho = _numbers(problem)
    weight = (2.0 * n**2 * step_size**2 * L**2 * total + n * L**2) * step_size
    return float(weight / abs(sigma - np.exp(-step_size * rho)) * initial_error)


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be a finite number >= 0, found {value}")
