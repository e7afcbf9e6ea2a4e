"""Affine coordinates x = origin + factor z: methods move in z, users see x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PyTree

from ..base.pytree import pytree


@pytree
class Coordinates:
    """The map x = origin + factor z.

    Parameters
    ----------
    origin
        Shape (dim,).
    factor
        Shape (dim, dim), invertible, or (dim,) for a diagonal matrix.

    Raises
    ------
    ValueError
        The shapes do not fit, a value is not finite, or the factor is singular.
    """

    origin: Any
    factor: Any

    def __post_init__(self) -> None:
        origin, factor = np.asarray(self.origin, np.float64), np.asarray(self.factor, np.float64)
        if origin.ndim != 1 or factor.shape not in (origin.shape, 2 * origin.shape):
            raise ValueError(
                f"coordinates need an origin of shape (dim,) and a factor of shape (dim, dim) or (dim,), found "
                f"{origin.shape} and {factor.shape}"
            )
        if not (np.isfinite(origin).all() and np.isfinite(factor).all()):
            raise ValueError("coordinates must be finite, found NaN or infinity")
        smallest = np.abs(factor).min() if factor.ndim == 1 else np.linalg.svd(factor, compute_uv=False)[-1]
        if not smallest > 0:
            raise ValueError("the factor of coordinates must be invertible, found a singular one")
        object.__setattr__(self, "origin", origin)
        object.__setattr__(self, "factor", factor)

    @classmethod
    def whitening(cls, mode: np.ndarray, hessian: np.ndarray) -> Self:
        """The coordinates in which a Gaussian with this mode and this inverse covariance is standard normal.

        Parameters
        ----------
        mode
            Shape (dim,).
        hessian
            Shape (dim, dim), positive definite, or (dim,) to whiten by a diagonal only.
        """
        if hessian.ndim == 1:
            return cls(mode, hessian**-0.5)
        # L L' = H, so that x - mode = inv(L)' z has covariance inv(H). Substitution does not mix units.
        lower = np.linalg.cholesky(hessian)
        return cls(mode, scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True).T)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The user's x at a position z."""
        return self.spread(z[:, None])[:, 0]

    def spread(self, z: Float[Array, "dim chain"]) -> Float[Array, "dim chain"]:
        """The user's x at several positions, one per column."""
        moved = self.factor[:, None] * z if self.factor.ndim == 1 else jnp.matmul(self.factor, z)
        return self.origin[:, None] + moved

    def after(self, inner: Coordinates) -> Coordinates:
        """The composition x = self(inner(z)). Both factors must be matrices."""
        return Coordinates(self.origin + self.factor @ inner.origin, self.factor @ inner.factor)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """The positions z of points x, (..., dim)."""
        return self.unspread(x - self.origin)

    def unspread(self, directions: np.ndarray) -> np.ndarray:
        """Directions in x, (..., dim), transformed to z."""
        if self.factor.ndim == 1:
            return directions / self.factor
        flat = directions.reshape(-1, self.factor.shape[0])
        return np.linalg.solve(self.factor, flat.T).T.reshape(directions.shape)


def moved(function: Callable[..., PyTree], potential: Any, shard: Any, place: Coordinates, *arguments: Any) -> PyTree:
    """Evaluate a function of one agent's potential and shard in coordinates, for `Posterior.each`."""
    return function(potential.within(place), place_shard(shard, place), *arguments)


def place_shard(shard: Any, place: Coordinates) -> Any:
    """A shard with its quadratic form, if any, transformed to coordinates."""
    form = shard.quadratic
    if form is None:
        return shard
    root = jnp.diag(place.factor) if place.factor.ndim == 1 else place.factor
    return shard._replace(quadratic=form.placed(jnp.asarray(place.origin), root))
