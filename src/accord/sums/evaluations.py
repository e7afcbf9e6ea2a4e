"""Evaluations of F at many points of coordinates in one sum: values, gradients, expansions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..posterior.coordinates import Coordinates
from ..posterior.potential import Potential, Shard
from ..tuning.network_sums import NetworkSums, expansion_at, unpacked

# Numbers, one a row and point, that agents hold at a time.
_NUMBERS = 4_000_000
# The potential of a position that an agent finds no number for: beyond what any posterior gives mass to.
_NO_MASS = 1e12


def rises(sums: NetworkSums, place: Coordinates, points: Float[np.ndarray, "point dim"]) -> tuple[np.ndarray, float]:
    """The rise of F above its value at the origin, at some points of coordinates, and that value; one sum."""
    found = np.asarray(sums(_rises, points, values=len(points) + 1, coordinates=place), np.float64)
    return found[1:], float(found[0])


def slopes(
    sums: NetworkSums, place: Coordinates | None, points: Float[np.ndarray, "point dim"]
) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradient, (point,) and (point, dim), at some points of coordinates, or of the user's; one sum."""
    numbers = np.asarray(sums(_slopes, points, gradients=len(points), coordinates=place), np.float64)
    return numbers[:, 0], numbers[:, 1:]


class Expansions(NamedTuple):
    """Expansions of F about some positions: rise (position,), gradient (position, dim), Hessian (..., dim, dim)."""

    rise: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


def expansions(sums: NetworkSums, place: Coordinates, points: Float[np.ndarray, "position dim"]) -> Expansions:
    """F's rise, gradient and Hessian at each of some positions; one sum of (dim + 1)(dim + 2) / 2 numbers each."""
    count, dim = points.shape
    found = np.asarray(sums(_expansions, points, gradients=count * (1 + dim), coordinates=place), np.float64)
    return Expansions(found[:, 0], found[:, 1 : 1 + dim], unpacked(found[:, 1 + dim :], dim))


# --- what agents add up ---


def _at_once(potential: Potential, shard: Shard) -> int:
    """Points at which all agents' rows are evaluated at a time, so that memory holds what they are worth there."""
    rows = max((leaf.shape[0] for leaf in jax.tree.leaves(shard.rows) if leaf.ndim), default=1)
    return max(1, _NUMBERS // (rows * potential.num_agents))


def _rises(potential: Potential, shard: Shard, points: Float[Array, "point dim"]) -> Float[Array, " number"]:
    """An agent's potential at the origin, and above that at some points."""

    def value(x: Float[Array, " dim"]) -> Array:
        return potential.value(shard, x)

    origin = value(jnp.zeros_like(points[0]))
    rise = _over(value, points, _at_once(potential, shard)) - origin
    # a number in any case: masks carry no others, and where an agent's potential is none there is no mass
    return jnp.concatenate([origin[None], jnp.where(jnp.isfinite(rise), jnp.clip(rise, -_NO_MASS, _NO_MASS), _NO_MASS)])


def _slopes(potential: Potential, shard: Shard, points: Float[Array, "point dim"]) -> Float[Array, "point _"]:
    """An agent's potential and gradient at each point."""

    def one(x: Float[Array, " dim"]) -> Float[Array, " number"]:
        return _finite(jnp.concatenate([potential.value(shard, x)[None], potential.gradient(shard, x)]))

    return _over(one, points, _at_once(potential, shard) // 4)


def _finite(numbers: Float[Array, " number"]) -> Float[Array, " number"]:
    """A value and its derivatives; where one of them is no number, no mass and no slope."""
    nowhere = jnp.zeros_like(numbers).at[0].set(_NO_MASS)
    return jnp.where(jnp.isfinite(numbers).all(), jnp.clip(numbers, -_NO_MASS, _NO_MASS), nowhere)


def _over(function: Callable[[Array], Array], points: Array, at_once: int) -> Array:
    """A function of one point at many, some of them at a time."""
    if at_once >= len(points):
        return jax.vmap(function)(points)
    return jax.lax.map(function, points, batch_size=max(1, at_once))


def _expansions(potential: Potential, shard: Shard, points: Float[Array, "position dim"]) -> Float[Array, "position _"]:
    """An agent's rise, gradient and upper half of the Hessian at each position."""
    origin = potential.value(shard, jnp.zeros_like(points[0]))

    def one(x: Float[Array, " dim"]) -> Float[Array, " number"]:
        return _finite(expansion_at(potential, shard, x).at[0].add(-origin))

    # one after another: all Hessians at once would take memory
    return jax.lax.map(one, points)
