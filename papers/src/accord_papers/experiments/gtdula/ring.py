"""The stationary law of the average of DULA and GT-DULA on a ring, scalar parameters, for a batch of data splits."""

from __future__ import annotations

import numpy as np

from accord import Gaussian, Network

from .common import POINTS, SIGMA, SIGMA_THETA, gaussian_kl

# Lowest frequency, panels of equal width in log frequency, and Gauss-Legendre nodes in each, for nine digits.
_LOWEST, _PANELS, _NODES = 1e-12, 16, 8


def split(x: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """H_i and b_i of n agents, shapes (agent,), for a random even split of the points x (sigma, point)."""
    precision = np.repeat(SIGMA**-2, POINTS)
    chosen = rng.permutation(x.size).reshape(n, -1)
    hessians = precision[chosen].sum(axis=1) + 1.0 / (n * SIGMA_THETA**2)
    return hessians, (precision * x.ravel())[chosen].sum(axis=1)


def asymptotic(name: str, hessians: np.ndarray, b: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """KL of the average's stationary law to the posterior in nats, shape (split,), for inputs (split, agent)."""
    precision = hessians.sum(axis=1)
    # in posterior sds every split has the same target
    off = (average_mean(name, hessians, b, alpha, beta) - b.sum(axis=1) / precision) * np.sqrt(precision)
    variance = average_variance(name, hessians, alpha, beta) * precision
    return gaussian_kl(off, variance, Gaussian(np.zeros(1), np.ones(1)))


def average_mean(name: str, hessians: np.ndarray, b: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Stationary mean of the average, shape (split,), for inputs (split, agent). GT-DULA's is exact."""
    if name == "GT-DULA":
        return b.sum(axis=1) / hessians.sum(axis=1)
    n = b.shape[1]
    return _solved(beta, 0.0, alpha * n * hessians, alpha * n * b).mean(axis=-1)


def average_variance(name: str, hessians: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Stationary variance of the average, shape (split,), for H_i of shape (split, agent)."""
    return {"DULA": _plain, "GT-DULA": _tracked}[name](hessians, alpha, beta)


def _plain(hessians: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """The variance for w+ = A w + noise with symmetric A, by (I - A^2)^-1 = ((I - A)^-1 + (I + A)^-1) / 2."""
    n, one = hessians.shape[1], np.ones(hessians.shape)
    inverse = _solved(beta, 0.0, alpha * n * hessians, one) + _solved(-beta, 0.0, 2.0 - alpha * n * hessians, one)
    return alpha / n * inverse.sum(axis=-1)


def _tracked(hessians: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """The variance by the power spectrum, because some modes decay too slowly for sums over rounds.

    With z = 1 + e on the unit circle and K = beta L, the transfer function from noise to the average is y / n with
    y = (e I + K) u and ((e I + K)^2 + e alpha n H) u = 1.
    """
    n = hessians.shape[1]
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    edges = np.linspace(np.log(_LOWEST), np.log(np.pi), _PANELS + 1)
    half = np.diff(edges)[:, None] / 2.0
    angle = np.exp(edges[:-1, None] + half * (1.0 + nodes)).ravel()
    weight = (half * weights).ravel() * angle
    # z - 1 without cancellation
    e = (2j * np.sin(angle / 2.0) * np.exp(0.5j * angle))[:, None]
    diagonal = (e**2)[..., None] + e[..., None] * alpha * n * hessians
    u = _solved(2.0 * e * beta, beta**2, diagonal, np.ones(diagonal.shape))
    y = e[..., None] * u + beta * (2.0 * u - np.roll(u, 1, axis=-1) - np.roll(u, -1, axis=-1))
    power = (np.abs(y) ** 2).sum(axis=-1)
    return 2.0 * alpha / n * (weight[:, None] * power).sum(axis=0) / np.pi


def _solved(first: np.ndarray | float, second: float, diagonal: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(first L + second L^2 + diagonal)^-1 right on a ring, for a batch of shape (..., split, agent).

    In the order 0, n - 1, 1, n - 2, ... the ring is a band matrix, and in blocks of four or five block tridiagonal. The
    code avoids BLAS, whose threads are ten times slower on matrices of this size.
    """
    n = diagonal.shape[-1]
    place = np.arange(n)
    fold = np.where(place % 2 == 0, place // 2, n - (place + 1) // 2)
    L = Network.ring(n).laplacian[np.ix_(fold, fold)]
    square, own, wanted = L @ L, diagonal[..., fold], right[..., fold, None]
    blocks = np.array_split(place, max(1, n // 4))
    scale = np.asarray(first)[..., None, None]

    def block(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        same = (p[:, None] == q) * own[..., p, None]
        return scale * L[np.ix_(p, q)] + second * square[np.ix_(p, q)] + same

    D, f = block(blocks[0], blocks[0]), wanted[..., blocks[0], :]
    known = []
    for here, there in zip(blocks[:-1], blocks[1:], strict=True):
        both = np.linalg.solve(D, np.concatenate([block(here, there), f], axis=-1))
        taken = np.einsum("...ij,...jk->...ik", block(there, here), both)
        known.append(both)
        D, f = block(there, there) - taken[..., :-1], wanted[..., there, :] - taken[..., -1:]
    u = [np.linalg.solve(D, f)]
    for both in reversed(known):
        u.insert(0, both[..., -1:] - np.einsum("...ij,...jk->...ik", both[..., :-1], u[0]))
    found = np.empty(u[0].shape[:-2] + (n,), u[0].dtype)
    found[..., fold] = np.concatenate(u, axis=-2)[..., 0]
    return found
