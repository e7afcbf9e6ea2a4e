"""Quadratic potentials: their closed forms, and the likelihood and prior of Gaussian posteriors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.linear import product

# Parameters of few: a matrix product is a call for each of many agents.
_FEW = 16


class Quadratic(NamedTuple):
    """f(x) = x' H x / 2 - b' x + constant, of one agent (or of all, stacked over agents)."""

    # Shapes (dim, dim) and (dim,).
    hessian: Any
    linear: Any
    # Eigenvalues (dim,) and eigenvectors (dim, dim) of the Hessian; only where proximal steps need them, else None.
    eigenvalues: Any = None
    eigenvectors: Any = None

    def gradient(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """H x - b of one agent."""
        return product(self.hessian, x, _FEW) - self.linear


def quadratic_likelihood(x: Float[Array, " dim"], shard: dict[str, Array]) -> Array:
    """Log likelihood b' x - x' H x / 2 of a shard {"hessian": H, "linear": b}."""
    return shard["linear"] @ x - x @ shard["hessian"] @ x / 2.0


def flat_prior(x: Float[Array, " dim"]) -> Array:
    """Log density 0 everywhere."""
    return jnp.zeros((), x.dtype)


# Eigenvalues closer than this, relative to the largest, count as one.
_SAME = 1e-10


def with_eigenvectors(form: Quadratic) -> Quadratic:
    """Quadratic forms of stacked agents with the eigenvectors of their Hessians, the same whoever else is stacked.

    Draws by eigenvectors depend on which are chosen: on their signs, and on their rotation where eigenvalues coincide,
    as a flat prior makes them where rows are few. LAPACK's choice turns on the last digits of the Hessian; this one,
    fixed by what a random matrix is to the eigenspace, does not, so that all engines draw the same.
    """
    values, vectors = np.linalg.eigh(form.hessian)
    dim = values.shape[1]
    compass = np.random.default_rng(0).standard_normal((dim, dim))
    for own_values, own_vectors in zip(values, vectors, strict=True):
        ends = np.flatnonzero(np.diff(own_values) > _SAME * np.abs(own_values).max()) + 1
        for space in np.split(np.arange(dim), ends):
            basis = own_vectors[:, space]
            rotation, triangle = np.linalg.qr(basis.T @ compass[:, : space.size])
            own_vectors[:, space] = basis @ (rotation * np.where(np.diagonal(triangle) < 0, -1.0, 1.0))
    return form._replace(eigenvalues=values, eigenvectors=vectors)
