"""DE-SGLD: Theorem 1 and Lemmas 2, 3 and 5 of the slides (Gurbuzbalaban et al. 2021)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from accord import Network
from accord.network import extreme_eigenvalues

from ..base.checks import whole_number
from .problem import Constants, Start, below, check_problem


class Bound(NamedTuple):
    """Bounds on 2-Wasserstein distances to the posterior, in the units of the parameters.

    Parameters
    ----------
    average : float
        For the network average.
    agents : float
        For the mean distance over agents.
    """

    average: float
    agents: float


def max_step(network: Network, problem: Constants, *, mixing: Any = "metropolis") -> float:
    """Theorem 1: the bound holds for step sizes below min((1 + lambda_N(W)) / L, 1 / (L + mu)).

    Parameters
    ----------
    network
        A connected network.
    problem
        L = `problem.largest`, mu = `problem.smallest`.
    mixing
        Weights W, as in `DESGLD`.

    Returns
    -------
    float
        In units of 1 / L.

    Raises
    ------
    ValueError
        The network is not connected, or does not fit the problem.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> theory.de_sgld.max_step(accord.Network.ring(3), theory.constants(post))
    0.2
    """
    check_problem(network, problem)
    lowest, _ = extreme_eigenvalues(network.weights(mixing))
    return min((1.0 + lowest) / problem.largest, 1.0 / (problem.largest + problem.smallest))


def gradient_bound(
    network: Network,
    problem: Constants,
    start: Start,
    *,
    step_size: float,
    gradient_noise: float = 0.0,
    mixing: Any = "metropolis",
) -> float:
    """Lemma 2, eqs. 16-17: D with `E |grad F(x^(k))|^2 <= D^2` at every round, for stacked agents.

    Parameters and errors as in `bound`.
    """
    _check(network, problem, step_size, gradient_noise, mixing)
    N, d, mu, L = problem.num_agents, problem.dim, problem.smallest, problem.largest
    lowest, _ = extreme_eigenvalues(network.weights(mixing))
    off_consensus = 1.0 - network.spectral_gap(mixing)
    reach = np.sqrt(2.0 * L * problem.excess_at_zero) * (1.0 + 2.0 * (L + mu) / mu)
    return float(
        np.sqrt(
            4.0 * L**2 * start.spread(problem.mode)
            + 8.0 * L**2 * reach**2 * step_size**2 * N / (1.0 - off_consensus) ** 2
            + 2.0 * L**2 * (step_size * gradient_noise**2 * N + 2.0 * d * N) / (mu * (1.0 + lowest - step_size * L))
            + 4.0 * np.sum(problem.gradients_at_mode**2)
        )
    )


def consensus_bound(
    network: Network,
    problem: Constants,
    start: Start,
    *,
    step_size: float,
    rounds: int,
    gradient_noise: float = 0.0,
    mixing: Any = "metropolis",
) -> float:
    """Lemma 3: a bound on `sum_i E |x_i - xbar|^2` after `rounds` rounds. Parameters as in `bound`."""
    k = whole_number("rounds", rounds, 0)
    options: dict[str, Any] = {"step_size": step_size, "gradient_noise": gradient_noise, "mixing": mixing}
    D = gradient_bound(network, problem, start, **options)
    N, d = problem.num_agents, problem.dim
    g = 1.0 - network.spectral_gap(mixing)
    return float(
        4.0 * g ** (2 * k) * start.spread(np.zeros(d))
        + 4.0 * D**2 * step_size**2 / (1.0 - g) ** 2
        + (4.0 * gradient_noise**2 * N * step_size**2 + 8.0 * d * N * step_size) / (1.0 - g**2)
    )


def bound(
    network: Network,
    problem: Constants,
    start: Start,
    *,
    step_size: float,
    rounds: int,
    gradient_noise: float = 0.0,
    mixing: Any = "metropolis",
) -> Bound:
    """Theorem 1: bounds on W2 to the posterior after `rounds` rounds, for the average and (eq. 13) for the agents.

    E1 comes from Lemma 5. Theorem 1 prints it with D^2 instead of sigma^2 and 1 - gamma^2 instead of (1 - gamma)^2,
    against its proof. Eq. 13 prints the law of the average on its left side instead of an agent's.

    Parameters
    ----------
    network
        A connected network.
    problem
        `theory.constants(post)`, or the numbers of another strongly convex problem.
    start
        `theory.start(post, init)`.
    step_size
        eta, in (0, `max_step(network, problem)`).
    rounds
        k >= 0.
    gradient_noise
        sigma >= 0, the root mean square error of an agent's minibatch gradient (Assumption 1). 0 for full gradients.
    mixing
        Weights W, as in `DESGLD`.

    Returns
    -------
    Bound

    Raises
    ------
    ValueError
        A number is out of range, or the network is not connected or does not fit.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> net, problem = accord.Network.ring(3), theory.constants(post)
    >>> found = theory.de_sgld.bound(net, problem, theory.start(post), step_size=0.01, rounds=1000)
    >>> found.average < found.agents
    True
    """
    k = whole_number("rounds", rounds, 0)
    options: dict[str, Any] = {"step_size": step_size, "gradient_noise": gradient_noise, "mixing": mixing}
    D = gradient_bound(network, problem, start, **options)
    N, d, mu, L = problem.num_agents, problem.dim, problem.smallest, problem.largest
    eta, sigma, g = step_size, gradient_noise, 1.0 - network.spectral_gap(mixing)
    slowed = mu * (1.0 - eta * L / 2.0)
    first_moment = np.sqrt(start.spread(np.zeros(d)))
    transient = (1.0 - mu * eta) ** k * (
        np.sqrt(start.average_spread(problem.mode)) + np.sqrt(2.0 * d / (mu * N))
    ) + np.sqrt(_mixed_powers(g**2, 1.0 - eta * slowed, k)) * g * 2.0 * L / np.sqrt(N) * first_moment
    drift = np.sqrt(eta / slowed + (1.0 + eta * L) ** 2 / slowed**2) * np.sqrt(
        4.0 * L**2 * D**2 * eta / (N * (1.0 - g) ** 2) + (4.0 * L**2 * sigma**2 * eta + 8.0 * L**2 * d) / (1.0 - g**2)
    )
    E1 = 1.65 * L / mu * np.sqrt(d / N) + sigma / np.sqrt(slowed * N) + drift
    E2 = E1 + 2.0 * np.sqrt(2.0 * d) / np.sqrt(1.0 - g**2)
    E3 = 2.0 * D / (np.sqrt(N) * (1.0 - g)) + 2.0 * sigma / np.sqrt(1.0 - g**2)
    average = transient + np.sqrt(eta) * E1
    agents = transient + 2.0 * g**k / np.sqrt(N) * first_moment + np.sqrt(eta) * E2 + eta * E3
    return Bound(float(average), float(agents))


def _mixed_powers(a: float, b: float, k: int) -> float:
    """(a^k - b^k) / (a - b) = sum_j a^j b^(k - 1 - j), also for a = b."""
    return k * a ** max(k - 1, 0) if np.isclose(a, b, rtol=1e-9) else (a**k - b**k) / (a - b)


def _check(network: Network, problem: Constants, step_size: float, gradient_noise: float, mixing: Any) -> None:
    below("step_size", step_size, max_step(network, problem, mixing=mixing), "min((1 + lambda_N) / L, 1 / (L + mu))")
    if not 0 <= gradient_noise < np.inf:
        raise ValueError(f"gradient_noise must be a finite number >= 0, found {gradient_noise}")
