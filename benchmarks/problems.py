"""Posteriors that several benchmarks measure on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import accord


def table(count: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal covariates, and answers of 0 and 1 by a logistic regression on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, dim))
    y = rng.random(count) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(dim) / dim**0.5))
    return X, y.astype(float)


def split(X: np.ndarray, y: np.ndarray, agents: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(X, agents), np.array_split(y, agents), strict=True))


def logistic(agents: int, dim: int, rows: int, prior_variance: float = 1.0) -> accord.Posterior:
    """Logistic regression on so many rows an agent."""
    return accord.models.logistic_regression(split(*table(agents * rows, dim), agents), prior_variance)


def linear(agents: int, dim: int, rows: int) -> accord.Posterior:
    """Linear regression, whose potential is quadratic, on so many rows an agent."""
    X, noise = table(agents * rows, dim)
    return accord.models.linear_regression(split(X, X.sum(axis=1) + noise, agents), noise_scale=1.0)


def gaussian(agents: int, dim: int, seed: int = 0) -> accord.Posterior:
    """Gaussian potentials with full covariances."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((agents, dim, dim))
    covariances = np.eye(dim) + factor @ np.swapaxes(factor, 1, 2) / dim
    return accord.models.gaussian(rng.standard_normal((agents, dim)), covariances)


def _log_likelihood(x, rows):
    return -jnp.sum((rows - x[None]) ** 2, axis=1) / 2.0


def _flat(x):
    return jnp.zeros(())


def spheres(agents: int, dim: int) -> accord.Posterior:
    """|x - c_i|^2 / 2, as a model of the user's own: a gradient that costs as little as one can."""
    rows = np.random.default_rng(0).standard_normal((agents, 1, dim))
    return accord.Posterior(_log_likelihood, _flat, list(rows), np.zeros(dim))


def lenet(agents: int, pictures: int) -> accord.Posterior:
    """LeNet-5 on random pictures; the time of a round does not depend on what is on them. Needs accord-papers."""
    from accord_papers.experiments.gtdula import fig3

    rng = np.random.default_rng(0)
    shards = [
        (rng.integers(0, 256, (pictures, 28, 28), np.uint8), rng.integers(0, 10, pictures).astype(np.uint8))
        for _ in range(agents)
    ]
    return fig3.posterior(shards, 0)
