"""What is known beforehand of an agent's Hessian, by which systems with others like it are solved in few steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

# Above so many parameters an agent's Hessian, and what is made of it, costs more than it saves.
HESSIAN_DIM = 300


class Curvature(NamedTuple):
    """The Hessian of one agent's potential at init (or of all, stacked over agents), as V diag(values) V'."""

    # Shapes (dim,), not negative, and (dim, dim).
    values: Any
    vectors: Any

    def solve(self, strength: Array, b: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The solution x of (H + strength I) x = b."""
        return self.vectors @ ((self.vectors.T @ b) / (self.values + strength))


def curvature(hessians: Float[np.ndarray, "agent dim dim"]) -> Curvature:
    """Those of all agents; no curvature where a Hessian is not finite, nor where it is negative."""
    finite = np.isfinite(hessians).all(axis=(1, 2), keepdims=True)
    values, vectors = np.linalg.eigh(np.where(finite, hessians, 0.0))
    return Curvature(np.maximum(values, 0.0), vectors)
