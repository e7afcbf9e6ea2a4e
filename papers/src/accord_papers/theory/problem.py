"""The constants of the papers' results, and their values for a Gaussian posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from accord import Network, Posterior
from accord.posterior import starting_law


class Constants(NamedTuple):
    """The constants of a problem F = sum_i f_i with strongly convex and smooth f_i.

    Parameters
    ----------
    dim : int
        d, the number of parameters.
    strong_convexity : np.ndarray, (agent,)
        m_i > 0, a lower bound on the eigenvalues of the Hessian of f_i.
    smoothness : np.ndarray, (agent,)
        M_i >= m_i, an upper bound on the eigenvalues of the Hessian of f_i.
    total_strong_convexity : float
        Strong convexity of F, at least sum_i m_i, and the log-Sobolev constant of the posterior.
    mode : np.ndarray, (dim,)
        x*, the minimiser of F.
    gradients_at_mode : np.ndarray, (agent, dim)
        grad f_i(x*), a measure of heterogeneity.
    excess_at_zero : float
        sum_i (f_i(0) - min f_i).
    """

    dim: int
    strong_convexity: np.ndarray
    smoothness: np.ndarray
    total_strong_convexity: float
    mode: np.ndarray
    gradients_at_mode: np.ndarray
    excess_at_zero: float

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.strong_convexity)

    @property
    def smallest(self) -> float:
        """min_i m_i: mu in the DE-SGLD slides, m_f in D-ADMMS, alpha in Gibbs."""
        return float(np.min(self.strong_convexity))

    @property
    def largest(self) -> float:
        """max_i M_i: L in the DE-SGLD slides and GT-DULA, M_f in D-ADMMS, beta in Gibbs."""
        return float(np.max(self.smoothness))


class Start(NamedTuple):
    """Moments of the agents' independent initial positions.

    Parameters
    ----------
    mean : np.ndarray, (agent, dim)
        Mean of each position.
    cov : np.ndarray, (agent, dim, dim)
        Covariance of each position.
    """

    mean: np.ndarray
    cov: np.ndarray

    def spread(self, center: np.ndarray) -> float:
        """`sum_i E |x_i - center|^2`, center of shape (dim,)."""
        return float(np.sum((self.mean - center) ** 2) + np.trace(self.cov, axis1=1, axis2=2).sum())

    def average_spread(self, center: np.ndarray) -> float:
        """`E |xbar - center|^2` for the average xbar of the agents."""
        noise = np.trace(self.cov, axis1=1, axis2=2).sum() / len(self.mean) ** 2
        return float(np.sum((self.mean.mean(axis=0) - center) ** 2) + noise)


def constants(post: Posterior) -> Constants:
    """The sharpest constants of a Gaussian posterior.

    Parameters
    ----------
    post
        A posterior with quadratic potentials. Use `post.laplace()` to approximate others.

    Returns
    -------
    Constants

    Raises
    ------
    TypeError
        The potentials are not quadratic.
    ValueError
        A potential is not strongly convex, which every theorem here assumes. The error names the agent.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 0.5, 0.25])
    >>> found = theory.constants(post)
    >>> found.smallest, found.largest, found.total_strong_convexity
    (1.0, 4.0, 7.0)
    """
    if not post.quadratic:
        raise TypeError("only quadratic potentials have known constants; use constants(post.laplace()) for others")
    hessians = post.hessians()
    values = np.linalg.eigvalsh(hessians)
    low, high = values[:, 0], values[:, -1]
    flat = ~(low > 1e-12 * high)
    if flat.any():
        agent = int(np.argmax(flat))
        raise ValueError(f"every potential must be strongly convex, agent {agent} has the eigenvalue {low[agent]:.3g}")
    mode = post.exact().mean
    at_zero = post.gradients(np.zeros(post.dim))
    excess = np.einsum("ni,ni->", at_zero, np.linalg.solve(hessians, at_zero[..., None])[..., 0]) / 2.0
    total = float(np.linalg.eigvalsh(hessians.sum(axis=0))[0])
    return Constants(post.dim, low, high, total, mode, post.gradients(mode), float(excess))


def start(post: Posterior, init: Any = None) -> Start:
    """The moments of a start. `init` as in `accord.law`: None, an array, a `Gaussian`, or one `Gaussian` per agent.

    Raises
    ------
    ValueError
        The shapes do not fit the posterior.
    """
    means, factors = starting_law(init, post)
    if factors is None:
        factors = np.zeros((*means.shape, post.dim))
    return Start(np.asarray(means, np.float64), factors @ np.swapaxes(factors, 1, 2))


def check_problem(network: Network, problem: Constants) -> None:
    """Raise `ValueError` unless the network is connected and has the problem's agents, and 0 < m_i <= M_i."""
    network.require_connected()
    if network.num_agents != problem.num_agents:
        raise ValueError(f"the network has {network.num_agents} agents, the problem {problem.num_agents}")
    check_curvature(problem)


def check_curvature(problem: Constants) -> None:
    """Raise `ValueError` unless 0 < m_i <= M_i for every agent."""
    m, M = problem.strong_convexity, problem.smoothness
    wrong = ~((m > 0) & (m <= M) & np.isfinite(M))
    if wrong.any():
        agent = int(np.argmax(wrong))
        raise ValueError(f"0 < m_i <= M_i must hold, agent {agent} has m_i = {m[agent]:.6g} and M_i = {M[agent]:.6g}")


def below(name: str, value: float, bound: float, condition: str) -> None:
    """Raise `ValueError` unless 0 < value < bound. The error names the condition behind the bound."""
    if not 0 < value < bound:
        raise ValueError(f"{name} must be in (0, {bound:.6g}), {condition}, found {value:.6g}")
