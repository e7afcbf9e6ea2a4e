"""Section 5.1 of the GT-DULA paper: its data, and its recursions as matrices.

The section states sigma_i, 80 points for each agent and a ring of five. It omits sigma_theta (1 here) and the start (0
here). Its count "200 in total" contradicts 80 points for each of five sigma_i. Figure 2 has 400 points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from accord import Gaussian, Network, Posterior, Sampler
from accord.models import quadratic
from accord.samplers import DULA, GTDULA

from ..agreement import Tally, batches, bound, laws

PAPER = (
    "Bhar, Bai, George and Busart: Scalability Enhancement and Data-Heterogeneity Awareness in Gradient Tracking based "
    "Decentralized Bayesian Learning (L4DC 2025)"
)
SIGMA = np.array([10.0, 5.0, 16.0, 2.0, 18.0])
POINTS, POINTS_OF_200 = 80, 40
SIGMA_THETA = 1.0
N = len(SIGMA)
NETWORK = Network.ring(N)
METHODS = ("DULA", "GT-DULA")


def potentials(count: int, rng: np.random.Generator, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Potentials f_i(w) = H_i w^2 / 2 - b_i w of random data sets, each with its own theta.

    Parameters
    ----------
    count
        Number of data sets.
    rng
        Random generator.
    points
        Points of each agent.

    Returns
    -------
    H, b : np.ndarray
        H has shape (agent,) and is equal for all data sets. b_i = sum_j x_ij / sigma_i^2 has shape (agent, count).
    """
    theta = SIGMA_THETA * rng.standard_normal(count)
    noise = rng.standard_normal((N, count))
    hessians = points / SIGMA**2 + 1.0 / (N * SIGMA_THETA**2)
    return hessians, points / SIGMA[:, None] ** 2 * theta + np.sqrt(points) / SIGMA[:, None] * noise


class Equations:
    """Eq. 3 of DULA, or eqs. 7 and 8 of GT-DULA, from w = 0, on s = (w, d): s+ = A s + c + noise of covariance Q.

    For DULA, d are the agents' own gradients. The matrices are independent of the samplers. They check `accord.law`,
    and they have the law of the trackers, which `accord.law` does not.

    Parameters
    ----------
    tracked
        True for GT-DULA, False for DULA.
    network
        N agents.
    hessians, linear
        H_i and b_i, shapes (agent,) and (agent, case). Cases share their covariance.
    alpha, beta
        The step, and beta = gamma.
    """

    def __init__(
        self, tracked: bool, network: Network, hessians: np.ndarray, linear: np.ndarray, alpha: float, beta: float
    ) -> None:
        n = network.num_agents
        eye, H, W = np.eye(n), np.diag(hessians), np.eye(n) - beta * network.laplacian
        # d+ = W d + H (w+ - w), or d+ = H w+ - b, with w+ = W w - alpha n d + noise
        lower = [H @ W - H, W - alpha * n * H] if tracked else [H @ W, -alpha * n * H]
        self.A = np.block([[W, -alpha * n * eye], lower])
        self.c = np.concatenate([0.0 * linear, 0.0 * linear if tracked else -linear])
        B = np.sqrt(2.0 * alpha * n) * np.vstack([eye, H])
        self.Q = B @ B.T
        self.start = np.concatenate([0.0 * linear, -linear])
        # d - 1 ubar = T s + t, where ubar = mean_i (H_i wbar - b_i)
        self.T = np.hstack([np.full((n, n), -hessians.mean() / n), eye])
        self.t = linear.mean(axis=0)
        # sum_i d_i - H_i w_i = -sum_i b_i at every round of both methods
        self.conserved = np.concatenate([-hessians, np.ones(n)])

    def gradient_error(self, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of sum_i |d_i - ubar|^2 (Theorem 4) for Gaussian (w, d), shapes (case,)."""
        u, V = self.T @ mean + self.t, self.T @ cov @ self.T.T
        return (u**2).sum(axis=0) + np.trace(V), 2.0 * (V**2).sum() + 4.0 * (u * (V @ u)).sum(axis=0)

    @property
    def forgetting(self) -> np.ndarray:
        """A without the eigenvalue 1 of the conserved sum."""
        return self.A - self._inverse * (self.conserved @ self.A)

    @property
    def _inverse(self) -> np.ndarray:
        return self.conserved[:, None] / (self.conserved @ self.conserved)

    def stationary(self) -> tuple[np.ndarray, np.ndarray]:
        """Stationary means (2 agent, case) and covariance of a stable recursion."""
        # with the eigenvalue 1, doubling would amplify rounding errors
        power, cov = self.forgetting, self.Q
        mean = self.c + self._inverse * (self.conserved @ (self.start - self.c))
        # doubling: sums of the first 2^k powers
        for _ in range(48):
            cov, mean, power = cov + power @ cov @ power.T, mean + power @ mean, power @ power
        return mean, cov


def trackers(gradients: np.ndarray, start: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The trackers d_k for given gradients, by eq. 8.

    Parameters
    ----------
    gradients
        Gradients from round 1 on, shape (chain, round, agent).
    start
        The gradients at the start, shape (agent,).
    W
        I - gamma L.

    Returns
    -------
    np.ndarray
        Trackers from round 1 on, shape (chain, round, agent).
    """
    found, held, before = np.empty_like(gradients), start, start
    for k in range(gradients.shape[1]):
        held = held @ W + gradients[:, k] - before
        before = gradients[:, k]
        found[:, k] = held
    return found


def method(name: str, step: Any, beta: float) -> Sampler:
    """DULA or GT-DULA, with gamma = beta."""
    return DULA(step, beta) if name == "DULA" else GTDULA(step, beta, beta)


@dataclass(frozen=True, eq=False)
class Problem:
    """One data set of section 5.1, and beta = gamma.

    Parameters
    ----------
    hessians, b
        As in `potentials`, both of shape (agent,).
    beta
        The consensus step of both methods, and the tracking step.
    """

    hessians: np.ndarray
    b: np.ndarray
    beta: float

    @cached_property
    def post(self) -> Posterior:
        """The posterior of all data."""
        return quadratic(self.hessians[:, None, None], self.b[:, None])

    @cached_property
    def target(self) -> Gaussian:
        """The posterior's law."""
        return self.post.exact()


@dataclass
class Curve:
    """One method under one schedule, with arrays by round from 1 on.

    Parameters
    ----------
    steps
        alpha, shape (round,).
    kl
        KL to the posterior in nats by the equations, of each agent and last of the average, shape (round, agent + 1).
    gradient
        The gradient error by the equations, shape (round,).
    positions, gradients
        Tallies of the chains' positions (agents, then the average) and of their gradient errors.
    """

    steps: np.ndarray
    kl: np.ndarray
    gradient: np.ndarray
    positions: Tally
    gradients: Tally
    target: Gaussian

    @property
    def drawn_kl(self) -> np.ndarray:
        """As `kl`, for Gaussians fitted to the chains, with a bias of about 1 / chains."""
        return gaussian_kl(self.positions.means, self.positions.variances, self.target)

    @property
    def drawn_gradient(self) -> np.ndarray:
        """As `gradient`, averaged over chains."""
        return self.gradients.means[:, 0]

    def worst(self) -> tuple[float, float]:
        """The largest score of the chains against the equations, and the bound for a false alarm rate of 0.001."""
        scores = [self.positions.mean_scores(), self.positions.variance_scores(), self.gradients.mean_scores()]
        return max(float(np.abs(score).max()) for score in scores), bound(sum(score.size for score in scores))


def gaussian_kl(means: np.ndarray, variances: np.ndarray | float, target: Gaussian) -> np.ndarray:
    """KL of scalar Gaussians to the target in nats, in the shape of `means`."""
    ratio = variances / target.cov[0, 0]
    return ((means - target.mean[0]) ** 2 / target.cov[0, 0] + ratio - 1.0 - np.log(ratio)) / 2.0


def walk(problem: Problem, name: str, steps: np.ndarray) -> Iterator[tuple[Equations, np.ndarray, np.ndarray]]:
    """Yield the equations of each round, and the mean (2 agent, 1) and covariance of (w, d) after it, from w = 0."""
    b = problem.b[:, None]
    m, P = np.concatenate([0.0 * b, -b]), np.zeros((2 * N, 2 * N))
    for alpha in steps:
        equations = Equations(name == "GT-DULA", NETWORK, problem.hessians, b, alpha, problem.beta)
        m, P = equations.A @ m + equations.c, equations.A @ P @ equations.A.T + equations.Q
        yield equations, m, P


def apart(problem: Problem, name: str, step: Callable[[Any], Any], rounds: int) -> float:
    """Largest difference between `accord.law` and the equations, means in posterior sds, covariances in variances."""
    exact = laws(problem.post, NETWORK, method(name, step, problem.beta), rounds)
    steps, target, off = np.array([float(step(k)) for k in range(rounds)]), problem.target, 0.0
    for (mean, cov), (_, m, P) in zip(exact, walk(problem, name, steps), strict=True):
        far = np.abs(m[:N, 0] - mean).max() / target.sd[0], np.abs(P[:N, :N] - cov).max() / target.cov[0, 0]
        off = max(off, float(max(far)))
    return off


def curve(
    problem: Problem,
    name: str,
    step: Callable[[Any], Any],
    *,
    rounds: int,
    chains: int,
    rng: np.random.Generator,
    progress: Callable[[float], None],
) -> Curve:
    """Equations and chains of one method from w = 0. `progress` is a callback with the finished share."""
    hessians, b, target, sampler = problem.hessians, problem.b, problem.target, method(name, step, problem.beta)
    steps = np.array([float(step(k)) for k in range(rounds)])
    means, variances, gradient = np.empty((rounds, N + 1)), np.empty((rounds, N + 1)), np.empty((2, rounds, 1))
    for k, (equations, m, P) in enumerate(walk(problem, name, steps)):
        gradient[:, k] = equations.gradient_error(m, P)
        means[k] = [*m[:N, 0], m[:N].mean()]
        variances[k] = [*np.diag(P)[:N], P[:N, :N].mean()]
    positions, gradients = Tally(means, variances), Tally(gradient[0], gradient[1])
    W = np.eye(N) - problem.beta * NETWORK.laplacian
    for run in batches(problem.post, NETWORK, sampler, rounds=rounds, chains=chains, rng=rng):
        w, average = run.draws[..., 0], run.average
        positions.add(np.concatenate([w, average], axis=2))
        own = hessians * w - b
        held = own if name == "DULA" else trackers(own, -b, W)
        # ubar = mean_i (H_i wbar - b_i)
        error = held - (hessians.mean() * average - b.mean())
        gradients.add((error**2).sum(axis=2, keepdims=True))
        progress(positions.chains / chains)
    return Curve(steps, gaussian_kl(means, variances, target), gradient[0, :, 0], positions, gradients, target)


def asymptotic(
    name: str, hessians: np.ndarray, b: np.ndarray, alpha: float, beta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Stationary KL of the average and gradient error, shapes (set,), for data sets with b of shape (agent, set)."""
    equations = Equations(name == "GT-DULA", NETWORK, hessians, b, alpha, beta)
    mean, cov = equations.stationary()
    precision = hessians.sum()
    off = mean[:N].mean(axis=0) - b.sum(axis=0) / precision
    standard = Gaussian(np.zeros(1), 1.0 / precision)
    return gaussian_kl(off, cov[:N, :N].mean(), standard), equations.gradient_error(mean, cov)[0]
