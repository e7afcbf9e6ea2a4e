"""Client-only Gibbs: Theorems 4.2, 4.3, 5.3, 5.4 and Proposition 5.5 of the client-only distributed MCMC paper."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from accord import Network
from accord.network import extreme_eigenvalues

from ..base.checks import positive
from .problem import Constants, check_curvature, check_problem


class Bias(NamedTuple):
    """Bounds on the distance between the augmented law and the posterior.

    Parameters
    ----------
    kl : float
        A bound on `KL(posterior || augmented law)`, in nats.
    total_variation : float
        A bound on their total variation distance, by Pinsker's inequality. Above 1 it is void.
    """

    kl: float
    total_variation: float


class Plan(NamedTuple):
    """Settings for an accuracy.

    Parameters
    ----------
    eta : float
        Variance of the ties.
    rounds : int
        Number of sweeps over all colours.
    """

    eta: float
    rounds: int


def pair_contraction(problem: Constants, *, eta: float) -> float:
    """Theorem 4.2: the factor 1 / ((1 + eta alpha_f)^2 (1 + eta alpha_g)^2) that bounds `KL(nu_k || pi^X)` per round.

    Parameters
    ----------
    problem
        Constants of two agents, f and g.
    eta
        Variance of their tie, > 0: `exp(-|x - y|^2 / (2 eta))`. `samplers.Gibbs(eta=e)` on `Network.path(2)` has
        the tie sigma_01 / (2 e), which is eta = e / sigma_01 here.

    Returns
    -------
    float
        In (0, 1).

    Raises
    ------
    ValueError
        The number of agents is not two, or eta is out of range.
    """
    _check_pair(problem, eta)
    f, g = problem.strong_convexity
    return float(((1.0 + eta * f) * (1.0 + eta * g)) ** -2.0)


def pair_bias(problem: Constants, *, eta: float) -> Bias:
    """Theorem 4.3, eqs. 11 and 3: the law of x under `exp(-f(x) - g(y) - |x - y|^2 / (2 eta))` against the posterior.

    f and g must share their minimiser (Assumption 4.1). x belongs to agent 0, which has f. Parameters and errors as in
    `pair_contraction`, and a `ValueError` if the minimisers differ.
    """
    _check_pair(problem, eta)
    _check_minimiser(problem)
    f, g = problem.strong_convexity
    smooth = problem.smoothness[1]
    softened = eta * g + 1.0
    kl = smooth**2 * problem.dim / (f + g / softened) * (eta**2 * smooth**2 / (f + g) + eta / softened)
    return _by_pinsker(float(kl))


def contraction(network: Network, problem: Constants, *, eta: float, mixing: Any = "metropolis") -> float:
    """Theorem 5.3, eq. 18: C such that KL after k sweeps is at most exp(-C k) times the initial KL.

    Parameters
    ----------
    network
        A connected bipartite network with the colours A and B.
    problem
        alpha = `problem.smallest`.
    eta
        As in `Gibbs`, > 0.
    mixing
        Weights sigma, as in `Gibbs`.

    Returns
    -------
    float
        > 0.

    Raises
    ------
    ValueError
        The network is not bipartite, not connected or does not fit, or eta is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([0.0, 0.0, 0.0], [1.0, 0.5, 0.25])
    >>> rate = theory.gibbs.contraction(accord.Network.path(3), theory.constants(post), eta=0.1)
    >>> f"{rate:.3f}"
    '0.254'
    """
    check_problem(network, problem)
    positive("eta", eta)
    colors = network.coloring()
    if colors.max() != 1:
        raise ValueError(f"Theorem 5.3 needs a bipartite network of two sets, found {int(colors.max()) + 1} colours")
    alpha = problem.smallest
    tied = 1.0 - network.weights(mixing).diagonal()

    def half(color: int) -> float:
        members = colors == color
        # the smallest sum of an agent's ties in the set, and the size of the set
        weakest, size = float(tied[members].min()), int(members.sum())

        def integrand(t: float) -> float:
            return 1.0 / (eta * t * (1.0 - t) / weakest + ((1.0 - t) ** 2 * size + t**2) / alpha)

        return scipy.integrate.quad(integrand, 0.0, 1.0, epsabs=0.0, epsrel=1e-10)[0]

    return float(eta * (half(0) + half(1)))


def bias(network: Network, problem: Constants, *, eta: float, mixing: Any = "metropolis") -> Bias:
    """Theorem 5.4, eqs. 20 and 23-26: the average of all agents under the augmented law against the posterior.

    The factor that O(.) hides comes from the proof: TV^2 <= n beta^2 d / (2 alpha) times the bracket of eq. 20. The
    augmented law is eq. 16, with every edge once. Eq. 19 prints every edge twice, and its proof uses every edge once.
    All potentials must share their minimiser (Assumption 5.1), as with `Gibbs(recentre=True)`.

    Parameters
    ----------
    network
        A connected network of two agents or more, bipartite or not.
    problem
        alpha = `problem.smallest`, beta = `problem.largest`.
    eta, mixing
        As in `contraction`.

    Returns
    -------
    Bias

    Raises
    ------
    ValueError
        The minimisers differ, the network is not connected or does not fit, or eta is out of range.
    """
    check_problem(network, problem)
    positive("eta", eta)
    _check_minimiser(problem)
    n, alpha, beta = problem.num_agents, problem.smallest, problem.largest
    gap = _gap(network, mixing)
    spread = (n - 1) / (alpha + n * gap / eta)
    shift = eta**2 * beta**2 / (gap**2 * alpha)
    return _by_pinsker(n * beta**2 * problem.dim / alpha * (spread + shift))


def plan(
    network: Network, problem: Constants, *, accuracy: float, initial_kl: float, mixing: Any = "metropolis"
) -> Plan:
    """Proposition 5.5 with explicit constants: eta and sweeps for a total variation distance.

    Bias and mixing each get half of the accuracy. Theorem 5.4, with its quadratic term at most the linear one, gives
    `eta <= alpha accuracy^2 (1 - lambda_2) / (4 n beta^2 d)`. Theorem 5.3 gives `log(2 initial_kl / accuracy^2) / C`
    sweeps. eta is lowered if the quadratic term would be larger than the linear one.

    Parameters
    ----------
    network, problem, mixing
        As in `contraction` and `bias`.
    accuracy
        epsilon, in (0, 1), the total variation distance between the law of the average and the posterior.
    initial_kl
        `KL(nu_0 || augmented law)` > 0 for the set of agents that moves last, in nats.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        As in `contraction` and `bias`, or a number is out of range.
    """
    check_problem(network, problem)
    _check_minimiser(problem)
    positive("initial_kl", initial_kl)
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy must be in (0, 1), found {accuracy}")
    n, alpha, beta, gap = problem.num_agents, problem.smallest, problem.largest, _gap(network, mixing)
    eta = alpha * accuracy**2 * gap / (4.0 * n * beta**2 * problem.dim)
    # the proposition assumes eta beta^2 (alpha eta + n gap) <= (n - 1) gap^2 alpha, a quadratic inequality in eta
    a, b, c = alpha * beta**2, n * gap * beta**2, (n - 1) * gap**2 * alpha
    eta = min(eta, 2.0 * c / (b + np.sqrt(b**2 + 4.0 * a * c)))
    C = contraction(network, problem, eta=eta, mixing=mixing)
    return Plan(float(eta), max(0, int(np.ceil(np.log(2.0 * initial_kl / accuracy**2) / C))))


def _by_pinsker(kl: float) -> Bias:
    return Bias(kl, float(np.sqrt(kl / 2.0)))


def _gap(network: Network, mixing: Any) -> float:
    return 1.0 - extreme_eigenvalues(network.weights(mixing))[1]


def _check_pair(problem: Constants, eta: float) -> None:
    positive("eta", eta)
    check_curvature(problem)
    if problem.num_agents != 2:
        raise ValueError(f"Algorithm 1 has two agents, found {problem.num_agents}")


def _check_minimiser(problem: Constants) -> None:
    largest = float(np.abs(problem.gradients_at_mode).max())
    if largest > 1e-6 * problem.largest * (1.0 + float(np.abs(problem.mode).max())):
        raise ValueError(
            f"all potentials must share their minimiser (Assumptions 4.1 and 5.1), found a gradient of {largest:.3g} "
            "at the mode. Tilt each potential by its gradient there, as samplers.Gibbs(recentre=True) does"
        )
