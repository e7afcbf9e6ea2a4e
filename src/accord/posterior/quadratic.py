"""Closed forms of quadratic potentials, and the likelihood and prior of Gaussian posteriors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.linear import product

# Largest dimension for products by elementwise sums, which avoid one matrix-product call per agent.
_FEW = 16
# Largest dimension for which one matrix per agent is cheaper than a second product per chain.
_FEWER = 6
# Relative gap per parameter below which eigenvalues count as equal, the accuracy of eigh.
_SAME = 8 * np.finfo(float).eps
# Largest error of an eigendecomposition, in units of the Hessian's diagonal.
_MISSED = 1e-3
# Smallest eigenvalue ratio of the scaled total Hessian for values in closed form. Flatter directions lose precision.
_FLAT = 1e-7


class Quadratic(NamedTuple):
    """f(x) = x' H x / 2 - b' x + constant, of one agent (or of all, stacked over agents).

    `value` expands f about a center: f(x) = level + slope' d + d' H d / 2 with d = x - center. For data far from zero,
    x' H x and b' x are large and cancel, the terms of the expansion are not.
    """

    # H, (dim, dim), and b, (dim,).
    hessian: Any
    linear: Any
    # Center (dim,), value () and gradient (dim,) there, computed from rows. None: no closed form of the value.
    center: Any = None
    level: Any = None
    slope: Any = None
    # Eigenvalues (dim,) and eigenvectors V (dim, dim) of H, and V' b (dim,), for proximal steps, else None.
    eigenvalues: Any = None
    eigenvectors: Any = None
    rotated: Any = None

    def gradient(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """H x - b of one agent."""
        return product(self.hessian, x, _FEW) - self.linear

    def value(self, x: Float[Array, " dim"]) -> Array:
        """f(x) of one agent."""
        away = x - self.center
        return self.level + (self.slope + product(self.hessian, away, _FEW) / 2.0) @ away

    def from_center(self) -> Quadratic:
        """The same form minus its value at the center, which is large for data far from zero."""
        return self if self.center is None else self._replace(level=jnp.zeros_like(self.level))

    def proximal_point(self, strength: Array, center: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """argmin_x f(x) + strength |x - center|^2 / 2 of one agent, center - (H + strength I)^-1 (H center - b).

        The equal form (H + strength I)^-1 (strength center + b) would round at the size of the center in every round,
        and these errors accumulate over the chain's memory.
        """
        values, vectors = self.eigenvalues, self.eigenvectors
        inverse = 1.0 / (values + strength)
        if center.size > _FEWER:
            slope = values * product(vectors.T, center, _FEW) - self.rotated
            return center - product(vectors, inverse * slope, _FEW)
        # one matrix per agent, shared by its chains; an unrolled product, because a sum over an axis would recompute
        # the center for each use
        matrix = jnp.sum(((values * inverse)[None] * vectors)[:, None] * vectors[None], axis=2)
        offset = jnp.sum((inverse * self.rotated)[None] * vectors, axis=1)
        rows = range(center.size)
        return jnp.stack([center[j] - (sum(matrix[j, k] * center[k] for k in rows) - offset[j]) for j in rows])

    def spread(self, strength: Array, normal: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A vector with covariance (H + strength I)^-1 of one agent, from standard normal numbers."""
        return product(self.eigenvectors / jnp.sqrt(self.eigenvalues + strength)[None], normal, _FEW)

    def placed(self, origin: Float[Array, " dim"], factor: Float[Array, "dim dim"]) -> Quadratic:
        """The form of one agent in z, x = origin + factor z, without eigenvectors. Its center, if any, is z = 0."""
        hessian = factor.T @ self.hessian @ factor
        if self.center is None:
            return Quadratic(hessian, factor.T @ (self.linear - self.hessian @ origin))
        away = origin - self.center
        slope = factor.T @ (self.slope + self.hessian @ away)
        return Quadratic(hessian, -slope, jnp.zeros_like(away), self.value(origin), slope)


def units_of(hessian: Float[np.ndarray, "*agent dim dim"]) -> Float[np.ndarray, "*agent dim"]:
    """The units of parameters that scale a Hessian to unit diagonal. 1 for parameters without curvature."""
    root = np.sqrt(np.abs(np.diagonal(hessian, axis1=-2, axis2=-1)))
    return 1.0 / np.where(root > 0, root, 1.0)


def minimum(hessian: Float[np.ndarray, "dim dim"], linear: Float[np.ndarray, " dim"]) -> np.ndarray | None:
    """The minimum of x' H x / 2 - b' x, (dim,). None if H is nearly singular."""
    # columns may have any units
    units = units_of(hessian)
    scaled = hessian * units[:, None] * units
    values = np.linalg.eigvalsh(scaled)
    return units * np.linalg.solve(scaled, units * linear) if values[0] > _FLAT * values[-1] else None


def quadratic_likelihood(x: Float[Array, " dim"], shard: dict[str, Array]) -> Array:
    """The log likelihood b' x - x' H x / 2 of a shard {"hessian": H, "linear": b}."""
    return shard["linear"] @ x - x @ shard["hessian"] @ x / 2.0


def flat_prior(x: Float[Array, " dim"]) -> Array:
    """The log density 0."""
    return jnp.zeros((), x.dtype)


def with_eigenvectors(form: Quadratic) -> Quadratic:
    """Quadratic forms of stacked agents, with eigenvectors that do not depend on the other agents.

    Draws depend on the signs of eigenvectors, and on their rotation if eigenvalues are equal, as with few rows under a
    flat prior. LAPACK's choice depends on the last digits of the Hessian. Here, a fixed random matrix determines the
    basis of each eigenspace, so that all engines draw the same.

    Raises
    ------
    ValueError
        Units of parameters differ so much that the eigenvectors of an agent are inaccurate.
    """
    values, vectors = np.linalg.eigh(form.hessian)
    dim = values.shape[1]
    compass = np.random.default_rng(0).standard_normal((dim, dim))
    for own_values, own_vectors in zip(values, vectors, strict=True):
        ends = np.flatnonzero(np.diff(own_values) > dim * _SAME * np.abs(own_values).max()) + 1
        for space in np.split(np.arange(dim), ends):
            basis = own_vectors[:, space]
            rotation, triangle = np.linalg.qr(basis.T @ compass[:, : space.size])
            own_vectors[:, space] = basis @ (rotation * np.where(np.diagonal(triangle) < 0, -1.0, 1.0))
    _require_hessians(form.hessian, values, vectors)
    rotated = np.einsum("iab,ia->ib", vectors, form.linear)
    return form._replace(eigenvalues=values, eigenvectors=vectors, rotated=rotated)


def _require_hessians(hessians: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> None:
    """Raise `ValueError` if an agent's eigendecomposition differs from its Hessian, in units of the diagonal."""
    units = units_of(hessians)
    found = vectors * values[:, None] @ vectors.swapaxes(1, 2)
    missed = np.abs((found - hessians) * units[:, :, None] * units[:, None]).max(axis=(1, 2))
    if not (missed <= _MISSED).all():
        worst = int(np.argmax(missed))
        diagonal = np.abs(np.diagonal(hessians[worst]))
        raise ValueError(
            "the units of the parameters differ too much: an agent's Hessian has diagonal entries from "
            f"{diagonal.min():.3g} to {diagonal.max():.3g}, and its eigendecomposition is off by {missed[worst]:.1%}. "
            "Use whiten=True, or scale the columns"
        )
