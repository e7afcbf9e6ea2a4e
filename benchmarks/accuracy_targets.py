"""Posteriors for the comparison of all methods, with their true moments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from arviz_stats.base.array import array_stats

import accord
from accord.cli import demo
from accord.posterior.reference import nuts


@dataclass(frozen=True, eq=False)
class Target:
    """A posterior over a network with its true mean and covariance.

    `surrogate` is a Gaussian posterior with similar local potentials. Its curvatures set the steps.
    """

    name: str
    title: str
    post: accord.Posterior
    net: accord.Network
    reference: accord.Gaussian
    surrogate: accord.Posterior
    # effective draws behind the reference. None: the reference is exact
    reference_draws: float | None = None

    @property
    def agents(self) -> int:
        return self.post.num_agents

    @cached_property
    def curvatures(self) -> np.ndarray:
        """Eigenvalues of the surrogate's Hessian, ascending."""
        return np.linalg.eigvalsh(self.surrogate.hessians().sum(axis=0))

    def fitted(self, draws: np.ndarray) -> tuple[accord.Gaussian, accord.Gaussian]:
        """Gaussian with the draws' moments, and the reference, in units of the reference's sds."""
        scale, dim = self.reference.sd, self.post.dim
        flat = draws.reshape(-1, dim) / scale
        own = accord.Gaussian(flat.mean(axis=0), np.cov(flat.T, ddof=0).reshape(dim, dim))
        return own, accord.Gaussian(self.reference.mean / scale, self.reference.cov / np.outer(scale, scale))


def linear(small: bool) -> Target:
    """Section 6.2 of the D-ADMMS paper: 50 rows for each agent, xi = 4, lambda = 10."""
    agents = 4 if small else 20
    rng = np.random.default_rng(0)
    shards = []
    for _ in range(agents):
        Z = rng.standard_normal((50, 2))
        shards.append((Z, Z @ np.array([1.0, -1.0]) + 4.0 * rng.standard_normal(50)))
    post = accord.models.linear_regression(shards, noise_scale=4.0, prior_variance=10.0)
    return Target("linear", "Linear regression", post, accord.Network.ring(agents), post.exact(), post)


def logistic(small: bool) -> Target:
    """The posterior of `accord demo`."""
    agents, draws = demo.AGENTS, 200 if small else 5000
    post = demo.breast_cancer(agents)
    found = nuts(post, draws=draws, warmup=1000, chains=4, seed=0).astype(np.float64)
    flat = found.reshape(-1, post.dim)
    effective = float(array_stats.ess(found, chain_axis=0, draw_axis=1).min())
    reference = accord.Gaussian(flat.mean(axis=0), np.cov(flat.T))
    return Target(
        "logistic", "Logistic regression", post, accord.Network.ring(agents), reference, post.laplace(), effective
    )


def power(small: bool) -> Target:
    """Section 6 of the client-only Gibbs paper in two dimensions, with reference moments by quadrature."""
    centers, exponent, dim = np.array([0.0, 0.5, 1.0, 1.5]), 1.5, 2
    post = accord.models.power(np.repeat(centers[:, None], dim, axis=1), exponent)
    x = np.linspace(-10.0, 12.0, 400_001)
    away = x - centers[:, None]
    density = np.exp(-np.sum(np.abs(away) ** exponent, axis=0))
    weight = density / density.sum()
    mean = weight @ x
    variance = weight @ (x - mean) ** 2
    slopes = exponent * np.sign(away) * np.abs(away) ** (exponent - 1.0)
    # the least-squares line through an agent's gradient under the reference: the Hessian at the mode is infinite at a
    # centre, and this surrogate has the reference's mean and covariance
    curvature = slopes @ (weight * (x - mean)) / variance
    hessians = curvature[:, None, None] * np.eye(dim)
    surrogate = accord.models.quadratic(hessians, np.repeat((curvature * mean - slopes @ weight)[:, None], dim, axis=1))
    reference = accord.Gaussian(np.full(dim, mean), variance * np.eye(dim))
    return Target("power", "Power potentials", post, accord.Network.path(len(centers)), reference, surrogate)


TARGETS = {"linear": linear, "logistic": logistic, "power": power}
