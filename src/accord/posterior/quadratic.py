"""Quadratic potentials: their closed forms, and the likelihood and prior of Gaussian posteriors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.linear import product

# Parameters of few: a matrix product is a call for each of many agents.
_FEW = 16
# Parameters of fewer: making a matrix takes less than a second product for each chain.
_FEWER = 6
# Eigenvalues closer than so many roundings of the largest, for each parameter, count as one: eigh tells no more.
_SAME = 8 * np.finfo(float).eps
# What eigenvectors may miss of a Hessian in units of its diagonal.
_MISSED = 1e-3
# Least eigenvalue of the summed forms, relative to the largest and in no units, down to which values are those of the
# closed form: along flatter directions products with the Hessian cancel where residuals of rows do not.
_FLAT = 1e-7


class Quadratic(NamedTuple):
    """f(x) = x' H x / 2 - b' x + constant, of one agent (or of all, stacked over agents).

    Values are told about a center, f(x) = level + slope' d + d' H d / 2 with d = x - center: where that is near, no
    term is larger than f, while x' H x and b' x of data far from zero are large and cancel.
    """

    # Shapes (dim, dim) and (dim,).
    hessian: Any
    linear: Any
    # Shapes (dim,), () and (dim,): a point, and the value and gradient there, as the rows have them; None where values
    # are to be those of the rows.
    center: Any = None
    level: Any = None
    slope: Any = None
    # Eigenvalues (dim,) and eigenvectors V (dim, dim) of the Hessian, and V' b (dim,); only where proximal steps need
    # them, else None.
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
        """The same but for a constant, values being told from the center's: of data far from zero that is large."""
        return self if self.center is None else self._replace(level=jnp.zeros_like(self.level))

    def proximal_point(self, strength: Array, center: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """argmin_x f(x) + strength |x - center|^2 / 2 of one agent, center - (H + strength I)^-1 (H center - b).

        As what it is away from the center: (H + strength I)^-1 (strength center + b) has errors of the center's own
        rounding, the same in every round, which add up over as many rounds as draws take to forget.
        """
        values, vectors = self.eigenvalues, self.eigenvectors
        inverse = 1.0 / (values + strength)
        if center.size > _FEWER:
            slope = values * product(vectors.T, center, _FEW) - self.rotated
            return center - product(vectors, inverse * slope, _FEW)
        # a matrix and a vector of an agent, which all its chains share; the product is written out, as a sum over an
        # axis would have the center made anew for each of its uses
        matrix = jnp.sum(((values * inverse)[None] * vectors)[:, None] * vectors[None], axis=2)
        offset = jnp.sum((inverse * self.rotated)[None] * vectors, axis=1)
        rows = range(center.size)
        return jnp.stack([center[j] - (sum(matrix[j, k] * center[k] for k in rows) - offset[j]) for j in rows])

    def spread(self, strength: Array, normal: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Of standard normal numbers a vector of one agent whose covariance is (H + strength I)^-1."""
        return product(self.eigenvectors / jnp.sqrt(self.eigenvalues + strength)[None], normal, _FEW)

    def placed(self, origin: Float[Array, " dim"], factor: Float[Array, "dim dim"]) -> Quadratic:
        """The form of one agent in z, x = origin + factor z, without eigenvectors; its center, if any, is z = 0."""
        hessian = factor.T @ self.hessian @ factor
        if self.center is None:
            return Quadratic(hessian, factor.T @ (self.linear - self.hessian @ origin))
        away = origin - self.center
        slope = factor.T @ (self.slope + self.hessian @ away)
        return Quadratic(hessian, -slope, jnp.zeros_like(away), self.value(origin), slope)


def units_of(hessian: Float[np.ndarray, "*agent dim dim"]) -> Float[np.ndarray, "*agent dim"]:
    """Units of the parameters in which the diagonal of a Hessian is one in size; 1 of a parameter that has none."""
    root = np.sqrt(np.abs(np.diagonal(hessian, axis1=-2, axis2=-1)))
    return 1.0 / np.where(root > 0, root, 1.0)


def minimum(hessian: Float[np.ndarray, "dim dim"], linear: Float[np.ndarray, " dim"]) -> np.ndarray | None:
    """Where x' H x / 2 - b' x is least, (dim,); None where H is nearly singular."""
    # columns may be in any units
    units = units_of(hessian)
    scaled = hessian * units[:, None] * units
    values = np.linalg.eigvalsh(scaled)
    return units * np.linalg.solve(scaled, units * linear) if values[0] > _FLAT * values[-1] else None


def quadratic_likelihood(x: Float[Array, " dim"], shard: dict[str, Array]) -> Array:
    """Log likelihood b' x - x' H x / 2 of a shard {"hessian": H, "linear": b}."""
    return shard["linear"] @ x - x @ shard["hessian"] @ x / 2.0


def flat_prior(x: Float[Array, " dim"]) -> Array:
    """Log density 0 everywhere."""
    return jnp.zeros((), x.dtype)


def with_eigenvectors(form: Quadratic) -> Quadratic:
    """Quadratic forms of stacked agents with the eigenvectors of their Hessians, the same whoever else is stacked.

    Draws by eigenvectors depend on which are chosen: on their signs, and on their rotation where eigenvalues coincide,
    as a flat prior makes them where rows are few. LAPACK's choice turns on the last digits of the Hessian; this one,
    fixed by what a random matrix is to the eigenspace, does not, so that all engines draw the same.

    Raises
    ------
    ValueError
        Parameters' units lie so far apart that the eigenvectors of an agent are not those of its Hessian.
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
    """Raise `ValueError` where eigenvectors of an agent are not those of its Hessian, in units of its diagonal."""
    units = units_of(hessians)
    found = vectors * values[:, None] @ vectors.swapaxes(1, 2)
    missed = np.abs((found - hessians) * units[:, :, None] * units[:, None]).max(axis=(1, 2))
    if not (missed <= _MISSED).all():
        worst = int(np.argmax(missed))
        diagonal = np.abs(np.diagonal(hessians[worst]))
        raise ValueError(
            "parameters have units too far apart: an agent's Hessian has diagonal entries from "
            f"{diagonal.min():.3g} to {diagonal.max():.3g}, and its eigenvectors miss {missed[worst]:.1%} of it; take "
            "whiten=True, or scale the columns"
        )
