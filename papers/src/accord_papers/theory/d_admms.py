"""D-ADMMS: Lemma 2 and Theorem 3 of the paper (Tzikas et al.): condition, best rho, rate and bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accord import Gaussian, Network

from ..base.checks import positive, whole_number
from .problem import Constants, Start, check_problem


class Condition(NamedTuple):
    """The sufficient condition of Theorem 3, eq. 93.

    Parameters
    ----------
    tau_f : float
        M_f / m_f, the condition number of the potentials.
    tau_G : float
        The condition number of the network.
    left, right : float
        The two sides. The theorem needs left > right = 1 / m_f.
    """

    tau_f: float
    tau_G: float  # noqa: N815  the paper's letter
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether some rho has a < 1."""
        return self.left > self.right


class BestRho(NamedTuple):
    """The maximiser of delta in eq. 20.

    Parameters
    ----------
    rho : float
        Eq. 86.
    kappa : float
        > 1.
    delta : float
        Eq. 90.
    """

    rho: float
    kappa: float
    delta: float


class Contraction(NamedTuple):
    """Eqs. 20-21 at one rho.

    Parameters
    ----------
    delta : float
        Eq. 20 at the best kappa for this rho.
    a : float
        The square of the factor per round. The theorem needs a < 1.
    """

    delta: float
    a: float


class Bound(NamedTuple):
    """Theorem 3: a bound on W2 between all agents' positions and N independent draws of the posterior.

    Parameters
    ----------
    transient : float
        The remaining influence of the start, in the units of the parameters.
    floor : float
        The limit: the other four terms.
    """

    transient: float
    floor: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.transient + self.floor


def graph_condition(network: Network) -> float:
    """Eq. 89: `tau_G = sigma_max(M_+) / sigma_min(M_-) = sqrt(lambda_max(D + A) / lambda_2(D - A))`.

    Parameters
    ----------
    network
        A connected network of two agents or more.

    Returns
    -------
    float
        >= 1. The paper has 1.7 for a ring of 5 agents, and 1.26 for a complete network of 5.

    Raises
    ------
    ValueError
        The network is not connected, or has one agent.

    Examples
    --------
    >>> import accord
    >>> from accord_papers import theory
    >>> f"{theory.d_admms.graph_condition(accord.Network.ring(5)):.2f}"
    '1.70'
    """
    return float(np.sqrt(np.divide(*_incidence(network))))


def condition(network: Network, problem: Constants) -> Condition:
    """Theorem 3, eq. 93: sqrt(1 + 4 tau_f^2 / tau_G^2) - 1 > tau_f^2 / m_f, sufficient for some rho with a < 1.

    It depends on units, because m_f is a curvature. In closed form, tau_f^2 < 4 m_f^2 / tau_G^2 - 2 m_f.

    Parameters
    ----------
    network
        A connected network of two agents or more.
    problem
        m_f = `problem.smallest`, M_f = `problem.largest`.

    Returns
    -------
    Condition

    Raises
    ------
    ValueError
        The network is not connected, has one agent, or does not fit the problem.
    """
    check_problem(network, problem)
    tau_f, tau_g = problem.largest / problem.smallest, graph_condition(network)
    left = np.sqrt(tau_f**-2.0 + 4.0 * tau_g**-2.0) / tau_f - tau_f**-2.0
    return Condition(tau_f, tau_g, float(left), 1.0 / problem.smallest)


def best_rho(network: Network, problem: Constants) -> BestRho:
    """Eqs. 86, 88 and 90: the rho and kappa with the largest delta, and so the smallest a.

    With r = tau_G / tau_f, kappa = 1 + r^2 / 2 + sqrt(4 r^2 + r^4) / 2. Eq. 88 prints r^2 / 2 under the root, which
    neither makes the two terms of eq. 87 equal nor gives eq. 90. Parameters and errors as in `condition`.
    """
    check_problem(network, problem)
    r = graph_condition(network) / (problem.largest / problem.smallest)
    kappa = 1.0 + r**2 / 2.0 + np.sqrt(4.0 * r**2 + r**4) / 2.0
    plus, minus = _incidence(network)
    return BestRho(
        float(2.0 * np.sqrt(kappa / (plus * minus)) * problem.largest),
        float(kappa),
        float((1.0 - 1.0 / kappa) * minus / plus),
    )


def contraction(network: Network, problem: Constants, *, rho: float) -> Contraction:
    """Lemma 2, eqs. 20-21: delta and a at a given rho, with the best kappa for this rho.

    Parameters
    ----------
    network, problem
        As in `condition`.
    rho
        Penalty > 0.

    Returns
    -------
    Contraction

    Raises
    ------
    ValueError
        As in `condition`, or rho is not positive.
    """
    check_problem(network, problem)
    positive("rho", rho)
    plus, minus = _incidence(network)
    m, M = problem.smallest, problem.largest
    # The first term of eq. 20 grows with kappa and the second falls. They are equal at the positive root of
    # Q kappa^2 + (P - Q - m tau_G^2) kappa - P, P = rho sigma_max^2 / 4 and Q = M_f^2 / (rho sigma_min^2).
    P, Q = rho * plus / 4.0, M**2 / (rho * minus)
    b = P - Q - m * plus / minus
    root = np.sqrt(b**2 + 4.0 * P * Q)
    kappa = (root - b) / (2.0 * Q) if b < 0 else 2.0 * P / (root + b)
    delta = m / (P + kappa * Q)
    return Contraction(float(delta), float((2.0 * m + 1.0) / (2.0 * m * (1.0 + delta))))


def bound(
    network: Network,
    problem: Constants,
    target: Gaussian,
    start: Start,
    *,
    rho: float,
    rounds: int,
    calibration: str = "calibrated",
) -> Bound:
    """Theorem 3: W2 between the joint law of all agents after `rounds` rounds and N independent draws of the posterior.

    Three corrections follow the proof. c of eq. 21 has a factor 1 / rho, as in eq. 52, which eq. 57 drops. The last
    two terms have 1 / (sqrt(2) m_f), as in eqs. 63 and 73, not the printed 1 / sqrt(2 m_f). The noise sqrt(2) D w
    is the published one, "calibrated" has another. E(y) and E(r) are bounded by `E |D w| <= sqrt(E |D w|^2)`.

    Parameters
    ----------
    network, problem
        As in `condition`.
    target
        The posterior, `post.exact()`, for the last term.
    start
        `theory.start(post, init)`. The dual variables start at 0.
    rho
        Penalty > 0 with a < 1.
    rounds
        k >= 1.
    calibration
        "calibrated" or "published", as in `DADMMS`.

    Returns
    -------
    Bound

    Raises
    ------
    ValueError
        As in `contraction`, or the calibration is unknown, or a >= 1.
    """
    k = whole_number("rounds", rounds, 1)
    if calibration not in _NOISE:
        raise ValueError(f'calibration must be "calibrated" or "published", found {calibration!r}')
    delta, a = contraction(network, problem, rho=rho)
    if not a < 1:
        raise ValueError(f"Theorem 3 needs a < 1, found a = {a:.6g} at rho = {rho:.6g}; see condition and best_rho")
    plus, minus = _incidence(network)
    largest = 2.0 * float(network.laplacian_extremes()[1])
    m = problem.smallest
    square = problem.dim * float(_NOISE[calibration](rho, network.degrees).sum())
    noise = np.sqrt(square)
    # eq. 21
    b = 1.0 / (2.0 * (1.0 + delta))
    c = 2.0 * np.sqrt(2.0) * delta / ((1.0 + delta) * rho * minus)
    d = rho * largest / 2.0
    e = 2.0 * delta / ((1.0 + delta) * rho * minus)
    # eqs. 18-19, w_bar = |D w| (1 / (sqrt(2) m_f) + sqrt(2))
    ratio = 1.0 / (np.sqrt(2.0) * m) + np.sqrt(2.0)
    Y = noise * (2.0 * b * ratio / np.sqrt(m) + c * np.sqrt(largest * rho) + c * d / np.sqrt(m))
    R = square * abs(np.sqrt(2.0) * b * ratio / m + b * ratio**2 + b / (2.0 * m**2) + np.sqrt(2.0) * c * d / m - e)
    root = np.sqrt(a)
    transient = root ** (k - 1) * start_distance(network, problem, start, rho=rho) / np.sqrt(m)
    kick = noise / (np.sqrt(2.0) * m)
    sd = np.sqrt(np.clip(np.linalg.eigvalsh(target.cov), 0.0, None))
    own = np.sqrt(_NOISE[calibration](rho, network.degrees)) / (np.sqrt(2.0) * m)
    last = np.sqrt(np.sum((own[:, None] - sd) ** 2) + network.num_agents * np.sum((target.mean - problem.mode) ** 2))
    return Bound(
        float(transient),
        float(Y / (np.sqrt(a * m) * (1.0 - root)) + np.sqrt(R / m) / (1.0 - root) + kick + last),
    )


def start_distance(network: Network, problem: Constants, start: Start, *, rho: float) -> float:
    """W_G(mu_U0, mu_U*) of Theorem 3: the initial distance of edge variables Z and multipliers beta to their solution.

    The root of `rho E |Z0 - Z*|^2 + |beta*|^2 / rho`, with `|Z0 - Z*|^2 = (X0 - X*)' (D + A) (X0 - X*) / 2`. `beta*` is
    the shortest solution of `M_- beta* = -grad f(X*)`, so that `|beta*|^2` is `grad f(X*)' L^+ grad f(X*) / 2`.
    Parameters and errors as in `contraction`.
    """
    check_problem(network, problem)
    positive("rho", rho)
    signless = np.diag(network.degrees) + network.adjacency.toarray()
    away = start.mean - problem.mode
    edges = np.einsum("ij,id,jd->", signless, away, away)
    edges += np.sum(network.degrees * np.trace(start.cov, axis1=1, axis2=2))
    g = problem.gradients_at_mode
    multipliers = np.einsum("ij,id,jd->", np.linalg.pinv(network.laplacian, hermitian=True), g, g)
    return float(np.sqrt(rho * edges / 2.0 + multipliers / (2.0 * rho)))


# (rho, degrees) -> half of the variance of the noise in an agent's gradient, deg_i^2 in the paper.
_NOISE = {
    "calibrated": lambda rho, degrees: 2.0 * rho * degrees,
    "published": lambda rho, degrees: degrees.astype(np.float64) ** 2,
}


def _incidence(network: Network) -> tuple[float, float]:
    """sigma_max(M_+)^2 and sigma_min(M_-)^2, twice the eigenvalues of D + A and D - A, as every edge is two arcs."""
    network.require_connected()
    if network.num_agents == 1:
        raise ValueError("D-ADMMS needs a neighbour for every agent, found one agent")
    signless = np.diag(network.degrees) + network.adjacency.toarray()
    return 2.0 * float(np.linalg.eigvalsh(signless)[-1]), 2.0 * float(network.laplacian_extremes()[0])
