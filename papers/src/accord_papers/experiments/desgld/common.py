"""Linear regression of the DE-SGLD and DE-SGHMC slides: data, exact moments by round, runs, 2-Wasserstein distances.

The slides state x in R^2, xi = 1, lambda = 10, 5,000 points divided at random over 100 agents, and 100 runs. They omit
these choices: 50 points for each agent, x drawn from its prior, the start x_i = 0 (and v_i = 0), and the Metropolis
weights W, which on these networks are I - delta L with delta = 1 / (1 + degree). The potentials are corrected to
`sum_j (y_j - x'X_j)^2 / (2 xi^2) + |x|^2 / (2 lambda N)`. The slides omit the square and the 2 xi^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag

from accord import Gaussian, Law, Network, Posterior, Sampler
from accord.models import linear_regression

from ...base.figures import COLORS
from ..agreement import Tally, batches, bound

PAPER = (
    "Gurbuzbalaban, Gao, Hu and Zhu: Decentralized Stochastic Gradient Langevin Dynamics and Hamiltonian Monte Carlo "
    "(2021), the slides"
)
XI, PRIOR_VARIANCE, DIM, ROWS = 1.0, 10.0, 2, 50
RUNS = 100  # "Based on 100 runs"
NETWORKS: dict[str, Callable[[int], Network]] = {
    "fully connected": Network.complete,
    "circular": Network.ring,
    "disconnected": Network.empty,
}
STYLE = dict(zip(NETWORKS, ((COLORS["blue"], "o"), (COLORS["vermillion"], "s"), (COLORS["green"], "^")), strict=True))


@dataclass(frozen=True, eq=False)
class Data:
    """Rows X (agent, row, dim) and y (agent, row) of all agents."""

    X: np.ndarray
    y: np.ndarray

    @cached_property
    def post(self) -> Posterior:
        """The posterior."""
        return linear_regression(list(zip(self.X, self.y, strict=True)), XI, PRIOR_VARIANCE)


def regression(agents: int, rng: np.random.Generator) -> Data:
    """Random data."""
    x = PRIOR_VARIANCE**0.5 * rng.standard_normal(DIM)
    X = rng.standard_normal((agents, ROWS, DIM))
    return Data(X, X @ x + XI * rng.standard_normal((agents, ROWS)))


@dataclass(frozen=True, eq=False)
class Moments:
    """Means (round, agent + 1, dim) and covariances (round, agent + 1, dim, dim) of agents and, last, their average."""

    means: np.ndarray
    covs: np.ndarray

    def distances(self, target: Gaussian) -> np.ndarray:
        """2-Wasserstein distances of Gaussians with these moments to a Gaussian, shape (round, agent + 1)."""
        values, vectors = np.linalg.eigh(self.covs)
        roots = vectors * np.sqrt(np.clip(values, 0.0, None))[..., None, :]
        # as metrics.wasserstein2, for a batch
        overlap = np.linalg.svd(np.swapaxes(roots, -1, -2) @ target.factor(), compute_uv=False).sum(axis=-1)
        spread = np.trace(self.covs, axis1=-2, axis2=-1) + np.trace(target.cov) - 2.0 * overlap
        return np.sqrt(np.clip(((self.means - target.mean) ** 2).sum(axis=-1) + spread, 0.0, None))


def split(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of each agent and, last, of the average, from the joint moments of all agents."""
    agents = mean.size // DIM
    m, P = mean.reshape(agents, DIM), cov.reshape(agents, DIM, agents, DIM)
    own = np.einsum("iaib->iab", P)
    return np.vstack([m, m.mean(axis=0)]), np.concatenate([own, P.mean(axis=(0, 2))[None]])


def by_law(exact: Law, rounds: int) -> Moments:
    """Exact moments from `accord.law`, from round 1 on."""
    joints = [exact.at(k).joint for k in range(1, rounds + 1)]
    means, covs = zip(*(split(joint.mean, joint.cov) for joint in joints), strict=True)
    return Moments(np.array(means), np.array(covs))


def by_recursion(data: Data, network: Network, step: float, rounds: int, batch: int | None = None) -> Moments:
    """Exact moments of DE-SGLD by eq. 2, with gradients from `batch` rows drawn with replacement, or from all rows.

    Minibatch noise adds a covariance that depends only on the mean and covariance of x_i. The moments are therefore
    exact, although the law is not Gaussian.
    """
    agents = len(data.y)
    H = np.einsum("ija,ijb->iab", data.X, data.X) / XI**2 + np.eye(DIM) / (PRIOR_VARIANCE * agents)
    b = np.einsum("ija,ij->ia", data.X, data.y) / XI**2
    A = np.kron(network.mixing(), np.eye(DIM)) - step * block_diag(*H)
    m, P = np.zeros(agents * DIM), np.zeros((agents * DIM, agents * DIM))
    means, covs = [], []
    for _ in range(rounds):
        noise = np.broadcast_to(2.0 * step * np.eye(DIM), H.shape)
        if batch is not None:
            own, spread = split(m, P)
            noise = noise + step**2 * ROWS**2 / batch * _row_covariance(data, own[:-1], spread[:-1])
        m, P = A @ m + step * b.ravel(), A @ P @ A.T + block_diag(*noise)
        mean, cov = split(m, P)
        means.append(mean)
        covs.append(cov)
    return Moments(np.array(means), np.array(covs))


def _row_covariance(data: Data, m: np.ndarray, P: np.ndarray) -> np.ndarray:
    """The mean over x_i ~ (m_i, P_i) of the covariance over agent i's rows of their gradients, (agent, dim, dim)."""
    residual = np.einsum("ija,ia->ij", data.X, m) - data.y
    square = residual**2 + np.einsum("ija,iab,ijb->ij", data.X, P, data.X)
    rows = np.einsum("ij,ija,ijb->iab", square, data.X, data.X) / ROWS
    gram, mean = np.einsum("ija,ijb->iab", data.X, data.X) / ROWS, np.einsum("ij,ija->ia", residual, data.X) / ROWS
    return (rows - gram @ P @ gram - mean[:, :, None] * mean[:, None, :]) / XI**4


def simulate(
    post: Posterior, network: Network, sampler: Sampler, rounds: int, runs: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions of all agents and last of their average, shape (run, round, agent + 1, dim)."""
    made = batches(post, network, sampler, rounds=rounds, chains=runs, rng=rng)
    return np.concatenate([np.concatenate([run.draws, run.average[:, :, None]], axis=2) for run in made])


def fitted(drawn: np.ndarray) -> Moments:
    """Moments of Gaussians fitted to the runs, as in the slides."""
    mean = drawn.mean(axis=0)
    off = drawn - mean
    return Moments(mean, np.einsum("crna,crnb->rnab", off, off) / (len(drawn) - 1))


def floor(target: Gaussian, runs: int, rng: np.random.Generator) -> float:
    """The mean distance to the target of a Gaussian fitted to `runs` draws of the target itself."""
    exact = rng.standard_normal((runs, 1, 400, target.dim)) @ target.factor().T + target.mean
    return float(fitted(exact).distances(target).mean())


def worst_score(drawn: np.ndarray, moments: Moments, gaussian: bool, curves: int) -> tuple[float, float]:
    """The largest score of the runs against exact moments, and its bound for `curves` curves together.

    The scores are of means of agents and average and, for a Gaussian law, of their variances. For other laws, where the
    chi-square law is wrong, they are of each round's mean over agents of (x - mean)^2 / variance, with its empirical
    error.
    """
    variances = np.einsum("rnaa->rna", moments.covs)
    runs, rounds = drawn.shape[:2]
    tally = Tally(moments.means.reshape(rounds, -1), variances.reshape(rounds, -1))
    tally.add(drawn.reshape(runs, rounds, -1))
    scores = [tally.mean_scores()]
    if gaussian:
        scores.append(tally.variance_scores())
    else:
        square = ((drawn - moments.means) ** 2 / variances)[:, :, :-1].mean(axis=(2, 3))
        scores.append((square.mean(axis=0) - 1.0) / (square.std(axis=0, ddof=1) / runs**0.5))
    return max(float(np.abs(score).max()) for score in scores), bound(curves * sum(score.size for score in scores))
