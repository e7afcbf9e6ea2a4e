"""Mixing weights: named rules, and validation of custom matrices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from .spectrum import check_doubly_stochastic, extreme_eigenvalues, largest_entry, off_diagonal

# Rounding error of a single-precision matrix. It is removed after the checks.
_TOLERANCE = 1e-6


class MixingMatrix:
    """A custom mixing matrix that compares and hashes by content and has a short repr.

    Methods hold it as static data: it is part of the key of compiled programs, and runs record its repr.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix if scipy.sparse.issparse(matrix) else np.asarray(matrix)
        entries = scipy.sparse.csr_array(self.matrix) if self.matrix.ndim == 2 else None
        parts = (self.matrix,) if entries is None else (entries.indptr, entries.indices, entries.data)
        content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        self._digest = hashlib.sha256(repr(self.matrix.shape).encode() + content).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingMatrix) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"<mixing matrix {self.matrix.shape}, sha256 {self._digest[:12]}>"


class Edges(NamedTuple):
    """Properties of a network that mixing rules use.

    Parameters
    ----------
    degrees
        Degrees of the two agents of each edge, (edge, 2).
    max_degree
        The largest degree.
    laplacian_extremes
        Returns (lambda_2, lambda_max) of the Laplacian. lambda_2 is 0 for a disconnected network.
    """

    degrees: np.ndarray
    max_degree: int
    laplacian_extremes: Callable[[], tuple[float, float]]


def _metropolis(edges: Edges) -> np.ndarray:
    return 1.0 / (1 + edges.degrees.max(axis=1))


def _max_degree(edges: Edges) -> np.ndarray:
    return np.full(len(edges.degrees), 1.0 / (1 + edges.max_degree))


def _laplacian(edges: Edges, delta: float | None = None) -> np.ndarray:
    smallest, largest = edges.laplacian_extremes()
    if delta is None and smallest == 0:
        return _max_degree(edges)
    if delta is None:
        delta = 2.0 / (smallest + largest)
    bound = 2.0 / largest if largest > 0 else np.inf
    if not 0 < delta < bound:
        raise ValueError(f"delta must be in (0, 2 / lambda_max(L)) = (0, {bound:.10g}), found {delta!r}")
    return np.full(len(edges.degrees), float(delta))


def _lazy(edges: Edges) -> np.ndarray:
    return _metropolis(edges) / 2


# The weight of each edge, (edge,). Self weights follow from rows that sum to 1.
RULES: dict[str, Callable[..., np.ndarray]] = {
    "metropolis": _metropolis,
    "max-degree": _max_degree,
    "laplacian": _laplacian,
    "lazy": _lazy,
}


def checked_weights(adjacency: scipy.sparse.csr_array, mixing: Any) -> scipy.sparse.csr_array:
    """The off-diagonal part of a validated custom matrix."""
    if isinstance(mixing, MixingMatrix):
        mixing = mixing.matrix
    mixing = mixing if scipy.sparse.issparse(mixing) else np.asarray(mixing)
    if mixing.dtype.kind not in "iuf":
        raise ValueError(f"the mixing matrix must contain real numbers, found dtype {mixing.dtype}")
    if mixing.ndim != 2:
        raise ValueError(f"the mixing matrix must have 2 axes, found shape {mixing.shape}")
    W = scipy.sparse.csr_array(mixing, dtype=np.float64)
    on_edges = check_weights(adjacency, W)
    smallest, second = extreme_eigenvalues(W, _TOLERANCE)
    if smallest <= -1.0 or second > 1.0 + _TOLERANCE:
        wrong = smallest if smallest <= -1.0 else second
        raise ValueError(f"the mixing matrix must not let disagreement grow, found the eigenvalue {wrong:.10g}")
    return (on_edges + on_edges.T) / 2


def check_weights(adjacency: scipy.sparse.csr_array, W: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Raise `ValueError` unless W is symmetric, has rows that sum to 1, and is zero between agents without an edge.

    Returns the part of W on the edges.
    """
    check_doubly_stochastic(W, adjacency.shape[0], _TOLERANCE)
    sent = off_diagonal(W)
    on_edges = sent.multiply(adjacency).tocsr()
    value, i, j = largest_entry(sent - on_edges)
    if value > _TOLERANCE:
        found = f"W[{i}, {j}] = {W[i, j]:.10g}"
        raise ValueError(f"the mixing matrix must be zero between agents without an edge, found {found}")
    return on_edges
