"""Extreme eigenvalues of matrices over the agents, for mixing speeds and stability bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

_DENSE_AGENTS = 1000  # eigvalsh takes a fraction of a second up to here


def extreme_eigenvalues(W: Any, tolerance: float = 1e-8) -> tuple[float, float]:
    """(lambda_min, lambda_2) of a symmetric matrix with rows that sum to 1, without one eigenvalue 1.

    Circulant matrices, such as the weights of a ring, have a closed form. Others use a dense solver up to 1000 agents
    and Lanczos above.

    Parameters
    ----------
    W : array_like or sparse array, shape (agent, agent)
        A mixing matrix, as `Network.weights` returns it.
    tolerance : float
        Allowed error of symmetry and row sums.

    Returns
    -------
    tuple of float
        (0, 0) for one agent.

    Raises
    ------
    ValueError
        W is not square, finite and symmetric, or a row does not sum to 1.
    """
    W = sp.csr_array(W, dtype=np.float64)
    check_doubly_stochastic(W, W.shape[0], tolerance)
    if W.shape[0] == 1:
        return 0.0, 0.0
    smallest, largest = extremes_off_average(off_diagonal(W))
    return 1.0 - largest, 1.0 - smallest


def check_doubly_stochastic(W: sp.csr_array, n: int, tolerance: float) -> None:
    """Raise `ValueError` unless W is an (n, n) finite symmetric matrix whose rows sum to 1."""
    if W.shape != (n, n):
        raise ValueError(f"the mixing matrix must have shape ({n}, {n}), found {W.shape}")
    value, i, j = largest_entry(W)
    if not np.isfinite(value):
        raise ValueError(f"the mixing matrix must be finite, found W[{i}, {j}] = {W[i, j]}")
    value, i, j = largest_entry(W - W.T)
    if value > tolerance:
        found = f"W[{i}, {j}] = {W[i, j]:.10g} and W[{j}, {i}] = {W[j, i]:.10g}"
        raise ValueError(f"the mixing matrix must be symmetric, found {found}")
    sums = row_sums(W)
    i = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[i] - 1) > tolerance:
        raise ValueError(f"the rows of the mixing matrix must sum to 1, found {sums[i]:.10g} in row {i}")


def largest_entry(matrix: sp.csr_array) -> tuple[float, int, int]:
    """The largest absolute value of a sparse matrix with its row and column. NaN counts as largest."""
    entries = matrix.tocoo()
    if entries.nnz == 0:
        return 0.0, 0, 0
    k = int(np.argmax(np.abs(entries.data)))
    return float(abs(entries.data[k])), int(entries.coords[0][k]), int(entries.coords[1][k])


def off_diagonal(W: sp.csr_array) -> sp.csr_array:
    """W without its diagonal."""
    return (W - sp.diags_array(W.diagonal())).tocsr()


def row_sums(S: sp.csr_array) -> np.ndarray:
    """The row sums, (agent,)."""
    return np.asarray(S.sum(axis=1)).ravel()


def laplacian_of(S: sp.csr_array) -> sp.csr_array:
    """diag(row sums) - S."""
    return (sp.diags_array(row_sums(S)) - S).tocsr()


def extremes_off_average(S: sp.csr_array) -> tuple[float, float]:
    """The smallest and largest eigenvalue of L = diag(row sums) - S, without the one of the constant vector.

    S is symmetric with zero diagonal: the adjacency matrix, or mixing weights with L = I - W.
    """
    n = S.shape[0]
    if n == 1:
        return 0.0, 0.0
    circulant = _circulant_row(S)
    if circulant is not None:
        # Eigenvalue k is sum_d s_d (1 - cos(2 pi d k / n)). The sine form keeps all digits near 0.
        k = np.arange(1, n // 2 + 1)
        eigenvalues = np.zeros(len(k))
        for d, s in circulant:
            turn = d * k % n
            eigenvalues += 2 * s * np.sin(np.pi * np.minimum(turn, n - turn) / n) ** 2
        return float(eigenvalues.min()), float(eigenvalues.max())
    L = laplacian_of(S)
    if n <= _DENSE_AGENTS:
        eigenvalues = np.linalg.eigvalsh(L.toarray())
        eigenvalues = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues)))
        smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    else:
        smallest, largest = _extreme_by_lanczos(L, "SA"), _extreme_by_lanczos(L, "LA")
    if csgraph.connected_components(S, directed=False)[0] > 1 and S.min() >= 0:
        smallest = 0.0
    return smallest, largest


def _circulant_row(S: sp.csr_array) -> list[tuple[int, float]] | None:
    """(offset, value) of each entry of row 0 if every row is a shift of row 0, else None."""
    n, row_length = S.shape[0], int(S.indptr[1])
    if np.any(np.diff(S.indptr) != row_length):
        return None
    offsets = (S.indices.reshape(n, row_length) - np.arange(n)[:, None]) % n
    order = np.argsort(offsets, axis=1)
    offsets = np.take_along_axis(offsets, order, axis=1)
    values = np.take_along_axis(S.data.reshape(n, row_length), order, axis=1)
    if np.any(offsets != offsets[0]) or np.any(values != values[0]):
        return None
    return list(zip(offsets[0].tolist(), values[0].tolist(), strict=True))


def _extreme_by_lanczos(L: sp.csr_array, which: str) -> float:
    """The smallest ("SA") or largest ("LA") eigenvalue of L, without the one of the constant vector."""
    n, diagonal = L.shape[0], L.diagonal()
    # Gershgorin: every eigenvalue lies in [low, high]. low is 0 unless weights are negative.
    radius = row_sums(abs(L)) - np.abs(diagonal)
    low, high = float((diagonal - radius).min()), float((diagonal + radius).max())
    start = np.random.default_rng(0).standard_normal(n)  # fixed, so that all processes compute the same digits
    settings: dict[str, Any] = {"k": 1, "v0": start - start.mean(), "ncv": 40, "return_eigenvectors": False}
    moved = high if which == "SA" else low  # shift of the constant vector to the other end of the spectrum
    operator = LinearOperator((n, n), lambda x: L @ x + moved * np.mean(x), dtype=float)
    # Plain Lanczos is fast on expanders, whose factorisations fill in. Long thin networks and trees are the opposite
    # case,
    # so that networks with few more edges than a tree get few restarts.
    restarts = 150 if L.nnz - n > 2.1 * n else 5
    try:
        return float(eigsh(operator, which=which, maxiter=restarts, tol=1e-11, **settings)[0])
    except ArpackNoConvergence:
        pass
    # Just outside the spectrum L - shift is diagonally dominant, so that its factorisation needs no pivots.
    shift = low - 1e-10 * (high - low) if which == "SA" else high + 1e-10 * (high - low)
    factors = splu(
        (L - shift * sp.eye_array(n)).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )

    def solve(x: np.ndarray) -> np.ndarray:
        y = factors.solve(x - np.mean(x))
        return y - np.mean(y)

    inverse = LinearOperator((n, n), solve, dtype=float)
    return float(eigsh(L, sigma=shift, OPinv=inverse, which="LM", tol=1e-11, **settings)[0])


def largest_curvature(hessians: np.ndarray, metric: sp.csr_array) -> float:
    """The largest eigenvalue of (metric kron I)^-1 blockdiag(H_1, ..., H_N), which bounds a step size.

    Parameters
    ----------
    hessians
        Shape (agent, dim, dim).
    metric
        A symmetric positive definite (agent, agent) matrix.

    Returns
    -------
    float
        >= 0, because negative curvature bounds no step.
    """
    num_agents, dim, _ = hessians.shape
    size = num_agents * dim
    if size <= 500:
        inverse = np.linalg.inv(np.linalg.cholesky(metric.toarray()))
        whitened = np.einsum("ik,kab,jk->iajb", inverse, hessians, inverse).reshape(size, size)
        return max(0.0, float(np.linalg.eigvalsh(whitened)[-1]))
    solve = splu(sp.csc_array(metric)).solve
    values, vectors = np.linalg.eigh(hessians)
    roots = np.einsum("nij,nj,nkj->nik", vectors, np.sqrt(np.clip(values, 0.0, None)), vectors)

    def apply(x: np.ndarray) -> np.ndarray:
        inner = np.einsum("nij,nj->ni", roots, x.reshape(num_agents, dim))
        return np.einsum("nij,nj->ni", roots, solve(inner)).ravel()

    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    return max(0.0, float(eigsh(operator, k=1, which="LA", tol=1e-6, v0=start, return_eigenvectors=False)[0]))


def reciprocal(curvature: float) -> float:
    """1 / curvature, or infinity if curvature <= 0 and every step is stable."""
    return 1.0 / curvature if curvature > 0 else np.inf
