"""The toy Gaussian of DG-LMC's figure 2: posterior, stationary laws of both methods, and scores of chains."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy import stats
from scipy.optimize import brentq

from accord import Gaussian, Posterior
from accord.metrics import wasserstein2
from accord.models import quadratic
from accord.samplers import DGLMC

from ..agreement import bound
from .laws import gibbs

B = 10
SIGMA_0, SIGMA_1 = np.eye(2), np.array([[1.0, 0.6], [0.6, 1.5]])
FREE = np.tril_indices(2)  # distinct entries of a covariance
TESTED = (1, 10, 50)  # lags in the check


class Law(NamedTuple):
    """Stationary covariance, and autocorrelation along the flattest direction: kept * factor^lag for lags > 0."""

    cov: np.ndarray
    kept: float
    factor: float

    def memory(self, lag: int) -> float:
        """The autocorrelation at a lag."""
        return 1.0 if lag == 0 else self.kept * self.factor**lag

    @property
    def rounds(self) -> float:
        """The integrated autocorrelation time, in rounds."""
        return 1.0 + 2.0 * self.kept * self.factor / (1.0 - self.factor)


class Problem(NamedTuple):
    """The posterior with rows, an equal quadratic posterior with cheap gradients, its law, and H_i, equal for all i."""

    rows: np.ndarray
    post: Posterior
    cheap: Posterior
    target: Gaussian
    hessian: np.ndarray

    def error(self, one: Law) -> float:
        """W2 to the posterior of a Gaussian with the posterior mean."""
        return wasserstein2(Gaussian(self.target.mean, one.cov), self.target)


def problem(count: int, rng: np.random.Generator) -> Problem:
    """The problem with `count` random rows and a random theta."""
    theta = np.linalg.cholesky(SIGMA_0) @ rng.standard_normal(2)
    rows = theta + rng.standard_normal((B, count // B, 2)) @ np.linalg.cholesky(SIGMA_1).T
    precision, prior = np.linalg.inv(SIGMA_1), np.linalg.inv(SIGMA_0)
    hessian = count / B * precision + prior / B
    cheap = quadratic(np.broadcast_to(hessian, (B, 2, 2)), rows.sum(axis=1) @ precision)
    target = cheap.exact()
    post = Posterior(Partial(_log_rows), Partial(_log_prior), list(rows), target.mean, quadratic=True)
    return Problem(rows, post, cheap, target, hessian)


def _log_rows(x: Any, rows: Any) -> Any:
    off = rows - x[None]
    return -jnp.einsum("ja,ab,jb->j", off, np.linalg.inv(SIGMA_1), off) / 2.0


def _log_prior(x: Any) -> Any:
    return -x @ np.linalg.inv(SIGMA_0) @ x / 2.0


def similar_step(known: Problem, batch: float, wanted: float) -> float:
    """The step at which D-SGLD with one local step has W2 = `wanted` to the posterior."""
    most = 2.0 / (B * float(np.linalg.eigvalsh(known.hessian)[-1]))
    return float(brentq(lambda step: known.error(visits_law(known, batch, step, 1)) - wanted, 1e-6 * most, 0.99 * most))


def gibbs_law(known: Problem, method: DGLMC, steps: int) -> Law:
    """The stationary law of DG-LMC. Its mean is the posterior's."""
    values, vectors = np.linalg.eigh(B * known.hessian)
    found = gibbs(values, B, float(method.rho), float(method.step_size), steps)
    return Law(vectors * found.variance @ vectors.T, float(found.kept[0] / found.variance[0]), float(found.factor[0]))


def visits_law(known: Problem, batch: float, step: float, steps: int) -> Law:
    """The stationary law of D-SGLD, in which a chain takes `steps` steps at a random shard in every round.

    An infinite batch means full gradients. All H_i are equal, so minibatch noise has the same covariance everywhere.
    The mean is the posterior's.
    """
    A = np.eye(2) - step * B * known.hessian
    F, powers = np.linalg.matrix_power(A, steps), [np.linalg.matrix_power(A, j) for j in range(steps)]
    slopes = known.cheap.gradients(known.target.mean)
    rows, precision = known.rows, np.linalg.inv(SIGMA_1)
    off = (rows - rows.mean(axis=1, keepdims=True)) @ precision
    size = rows.shape[1]
    minibatch = size**2 / batch * np.einsum("ija,ijb->ab", off, off) / (B * size)
    once = 2.0 * step * np.eye(2) + (step * B) ** 2 * minibatch
    shift = step * B * slopes @ np.sum(powers, axis=0).T
    Q = shift.T @ shift / B + sum(power @ once @ power.T for power in powers)
    cov = np.linalg.solve(np.eye(4) - np.kron(F, F), Q.ravel()).reshape(2, 2)
    # the flattest direction has the largest factor
    return Law(cov, 1.0, float(np.linalg.eigvalsh(F)[-1]))


class Found(NamedTuple):
    """Results of one method with one N.

    Parameters
    ----------
    law
        Its stationary law.
    draws
        Draws minus the posterior mean, shape (chain, draw, agent, dim).
    along
        Values along the flattest direction with the autocorrelation of one chain, shape (chain, draw).
    """

    law: Law
    draws: np.ndarray
    along: np.ndarray

    def memory(self, lag: int) -> float:
        """The autocorrelation of the chains at a lag."""
        x = self.along
        return float((x[:, lag:] * x[:, : x.shape[1] - lag]).mean() / (x**2).mean())

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Means, second moments and lagged products of each chain, (chain, number), and their expectations."""
        x, y, size = self.draws, self.along, self.along.shape[1]
        products = np.einsum("ctna,ctnb->cab", x, x)[:, *FREE] / x[0, ..., 0].size
        before = [(y[:, : size - lag], y[:, lag:], self.law.memory(lag)) for lag in TESTED]
        # zero on average for any variance of y, which is not that of a chain
        late = np.stack([(now * (then - kept * now)).mean(axis=1) for now, then, kept in before], axis=1)
        return np.hstack([x.mean(axis=(1, 2)), products, late]), np.r_[
            0.0, 0.0, self.law.cov[FREE], np.zeros(len(TESTED))
        ]


def worst_score(found: dict[tuple[str, int], Found]) -> tuple[float, float]:
    """The largest score of chains' means, second moments and lagged products, and the bound for all of them."""
    scores = []
    for one in found.values():
        seen, expected = one.numbers()
        t = (seen.mean(axis=0) - expected) / (seen.std(axis=0, ddof=1) / len(seen) ** 0.5)
        scores.append(stats.norm.isf(stats.t.sf(np.abs(t), len(seen) - 1)))
    return float(np.max(scores)), bound(np.size(scores))
