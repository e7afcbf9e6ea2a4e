"""Distances between distributions and draws, and predictive accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .base.gaussian import Gaussian


def wasserstein2(p: Gaussian | np.ndarray, q: Gaussian | np.ndarray) -> float:
    """2-Wasserstein distance between two Gaussians (closed form) or between two sets of draws (optimal transport).

    Parameters
    ----------
    p, q
        Both `Gaussian`, or both arrays of draws, shapes (draw, dim) or (draw,) for dim = 1. Draws need POT
        (`pip install 'accord[metrics]'`). In more than one dimension the time grows as the cube of their number.

    Returns
    -------
    float
        The distance, in the units of the parameters.
    """
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        _same_dim(p.dim, q.dim)
        root = p.factor()
        # nuclear norm of S_p^1/2 S_q^1/2, because the trace of a matrix root loses half the digits
        overlap = np.linalg.svd(root.T @ q.factor(), compute_uv=False).sum()
        squared = np.sum((p.mean - q.mean) ** 2) + np.trace(p.cov) + np.trace(q.cov) - 2.0 * overlap
        return float(np.sqrt(max(squared, 0.0)))
    if isinstance(p, Gaussian) or isinstance(q, Gaussian):
        raise TypeError("wasserstein2 compares two Gaussians or two sets of draws, found one of each")
    import ot

    a, b = _draws(p), _draws(q)
    _same_dim(a.shape[1], b.shape[1])
    if a.shape[1] == 1:
        return float(np.sqrt(ot.wasserstein_1d(a[:, 0], b[:, 0], p=2)))
    return float(np.sqrt(ot.emd2(np.empty(0), np.empty(0), ot.dist(a, b), numItermax=10_000_000)))


def kl(p: Gaussian, q: Gaussian) -> float:
    """Kullback-Leibler divergence KL(p || q) between two Gaussians, in nats. `q.cov` must be positive definite."""
    _same_dim(p.dim, q.dim)
    sign_p, logdet_p = np.linalg.slogdet(p.cov)
    sign_q, logdet_q = np.linalg.slogdet(q.cov)
    if sign_q <= 0:
        raise ValueError("the covariance of q must be positive definite")
    if sign_p <= 0:
        return float("inf")
    shift = q.mean - p.mean
    trace = np.trace(np.linalg.solve(q.cov, p.cov))
    return float((trace + shift @ np.linalg.solve(q.cov, shift) - p.dim + logdet_q - logdet_p) / 2.0)


def consensus_error(draws: np.ndarray) -> np.ndarray:
    """Root mean square distance of the agents from their average.

    Parameters
    ----------
    draws
        Shape (..., agent, dim).

    Returns
    -------
    np.ndarray
        Shape (...).
    """
    distance = draws - draws.mean(axis=-2, keepdims=True)
    return np.sqrt((distance**2).sum(axis=-1).mean(axis=-1))


def hpd_error(
    potential: Callable[[np.ndarray], Any], draws: np.ndarray, reference: np.ndarray, level: float = 0.95
) -> float:
    """Relative error of the highest-posterior-density threshold (DG-LMC paper, section 4.2).

    The HPD region of a level is {x: F(x) <= eta}; eta is the `level` quantile of F over the draws.

    Parameters
    ----------
    potential
        F on a flat position, shape (dim,) -> a number.
    draws, reference
        Shapes (..., dim): the draws to evaluate, and exact draws.
    level
        Posterior mass of the region, between 0 and 1.

    Returns
    -------
    float
        `|eta - eta_reference| / |eta_reference|`.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, found {level}")

    def threshold(x: np.ndarray) -> float:
        return float(np.quantile([float(potential(row)) for row in x.reshape(-1, x.shape[-1])], level))

    truth = threshold(np.asarray(reference))
    return abs(threshold(np.asarray(draws)) - truth) / abs(truth)


def accuracy(
    probability: Callable[[np.ndarray, np.ndarray], Any], draws: np.ndarray, X: np.ndarray, y: np.ndarray
) -> float:
    """Share of labels that the posterior predictive classifies correctly.

    Parameters
    ----------
    probability
        `probability(x, X)`: P(y = 1) of each row at one flat position, shapes (dim,), (row, column) -> (row,).
    draws
        Shape (..., dim). The predictive probability is the average over all draws.
    X, y
        Rows, and labels 0 or 1.
    """
    positions = np.asarray(draws).reshape(-1, np.shape(draws)[-1])
    mean = np.mean([np.asarray(probability(x, X)) for x in positions], axis=0)
    return float(np.mean((mean > 0.5) == (np.asarray(y) == 1)))


def _draws(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or len(x) == 0 or not np.isfinite(x).all():
        raise ValueError(f"draws must be finite with shape (draw, dim) or (draw,), found shape {x.shape}")
    return x


def _same_dim(a: int, b: int) -> None:
    if a != b:
        raise ValueError(f"both distributions must have the same dimension, found {a} and {b}")
