"""Posteriors that several benchmarks share."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import accord


def table(count: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal covariates, and responses 0 or 1 from a logistic regression."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, dim))
    y = rng.random(count) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(dim) / dim**0.5))
    return X, y.astype(float)


def split(X: np.ndarray, y: np.ndarray, agents: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(X, agents), np.array_split(y, agents), strict=True))


def logistic(agents: int, dim: int, rows: int, prior_variance: float = 1.0) -> accord.Posterior:
    """Logistic regression with `rows` rows for each agent."""
    return accord.models.logistic_regression(split(*table(agents * rows, dim), agents), prior_variance)


def linear(agents: int, dim: int, rows: int) -> accord.Posterior:
    """Linear regression, a quadratic potential, with `rows` rows for each agent."""
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
    """The potentials |x - c_i|^2 / 2 as a custom model, with the cheapest gradient."""
    rows = np.random.default_rng(0).standard_normal((agents, 1, dim))
    return accord.Posterior(_log_likelihood, _flat, list(rows), np.zeros(dim))


def breast_cancer(agents: int) -> accord.Posterior:
    """Logistic regression, prior variance 10, on scikit-learn's breast cancer data, sorted by the first covariate."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    order = np.argsort(X[:, 0], kind="stable")
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    return accord.models.logistic_regression(split(X[order], y[order].astype(float), agents), 10.0)
