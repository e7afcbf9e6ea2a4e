"""Mixing more than once in a step, and mixing by a consensus step along the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from .schedules import Step, at

if TYPE_CHECKING:
    from .network import Network


def chebyshev_coefficients(weights: scipy.sparse.csr_array, rounds: int) -> list[tuple[float, float]]:
    """Coefficients (a_k, b_k) of `y_{k+1} = a_k W y_k - b_k y_{k-1}`, y_0 = x, y_{-1} = 0, that ends in P(W) x.

    P = T_K(W/s) / T_K(1/s), s the second largest absolute eigenvalue of W: the polynomial of degree K = `rounds` with
    P(1) = 1 that is smallest on [-s, s]. The recursion runs on ratios of Chebyshev numbers, which stay near one where
    the numbers themselves overflow.
    """
    coefficients = [(1.0, 0.0)]
    if rounds == 1:
        return coefficients
    from .network import extreme_eigenvalues

    smallest, second = extreme_eigenvalues(weights)
    s = max(abs(smallest), abs(second))
    # ratio_k = T_k(1/s) / T_{k+1}(1/s); T_{k+1}(t) = 2 t T_k(t) - T_{k-1}(t), so ratio_k = s / (2 - s ratio_{k-1})
    ratio = s
    for _ in range(rounds - 1):
        following = s / (2.0 - s * ratio)
        # for s = 0 (one exchange averages exactly) the limits are 1 and 0: mixing again changes nothing
        coefficients.append((2.0 * following / s if s > 0 else 1.0, following * ratio))
        ratio = following
    return coefficients


def chebyshev(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """The matrix P(W) that `rounds` exchanges apply; W itself for one."""
    previous = scipy.sparse.csr_array(weights.shape)
    present = scipy.sparse.eye_array(weights.shape[0], format="csr")
    for a, b in chebyshev_coefficients(weights, rounds):
        previous, present = present, a * (weights @ present) - b * previous
    return scipy.sparse.csr_array(present)


def consensus_weights(network: Network, name: str, step: Step) -> scipy.sparse.csr_array:
    """W = I - step L at round 0 of a consensus step along the edges.

    Raises
    ------
    ValueError
        The step is not below 2 / lambda_max(L), beyond which disagreement grows; the bound is printed.
    """
    value = float(at(step, 0))
    if network.edges.size == 0:
        return network.weights("max-degree")
    bound = 2.0 / network.laplacian_extremes()[1]
    if not value < bound:
        raise ValueError(f"{name} must be below 2 / lambda_max(L) = {bound:.6g} on this network, found {value:.6g}")
    return network.weights("laplacian", delta=value)


def identity_plus(weights: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """I + W."""
    return scipy.sparse.csr_array(scipy.sparse.eye_array(weights.shape[0], format="csr") + weights)


def largest_curvature(hessians: np.ndarray, metric: scipy.sparse.csr_array) -> float:
    """The largest eigenvalue of (metric kron I)^-1 blockdiag(H_1, ..., H_N): what a step size is bounded by.

    Parameters
    ----------
    hessians
        Shape (agent, dim, dim).
    metric
        A symmetric positive definite (agent, agent) matrix.
    """
    num_agents, dim, _ = hessians.shape
    size = num_agents * dim
    if size <= 500:
        inverse = np.linalg.inv(np.linalg.cholesky(metric.toarray()))
        whitened = np.einsum("ik,kab,jk->iajb", inverse, hessians, inverse).reshape(size, size)
        return float(np.linalg.eigvalsh(whitened)[-1])
    solve = scipy.sparse.linalg.splu(scipy.sparse.csc_array(metric)).solve
    values, vectors = np.linalg.eigh(hessians)
    roots = np.einsum("nij,nj,nkj->nik", vectors, np.sqrt(np.clip(values, 0.0, None)), vectors)

    def apply(x: np.ndarray) -> np.ndarray:
        inner = np.einsum("nij,nj->ni", roots, x.reshape(num_agents, dim))
        return np.einsum("nij,nj->ni", roots, solve(inner)).ravel()

    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    return float(scipy.sparse.linalg.eigsh(operator, k=1, which="LA", tol=1e-6, v0=start, return_eigenvectors=False)[0])
