"""Eigendecompositions of agents' Hessians at init, which precondition linear systems with similar Hessians."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

# Largest number of parameters for which a Hessian per agent saves time.
HESSIAN_DIM = 300


class Curvature(NamedTuple):
    """The Hessian V diag(values) V' of one agent's potential at init (or of all agents, stacked)."""

    # Eigenvalues >= 0, (dim,), and eigenvectors V, (dim, dim).
    values: Any
    vectors: Any

    def solve(self, strength: Array, b: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The solution x of (H + strength I) x = b."""
        return self.vectors @ ((self.vectors.T @ b) / (self.values + strength))


def curvature(hessians: Float[np.ndarray, "agent dim dim"]) -> Curvature:
    """The curvature of all agents. Negative eigenvalues and Hessians that are not finite become 0."""
    finite = np.isfinite(hessians).all(axis=(1, 2), keepdims=True)
    values, vectors = np.linalg.eigh(np.where(finite, hessians, 0.0))
    return Curvature(np.maximum(values, 0.0), vectors)
