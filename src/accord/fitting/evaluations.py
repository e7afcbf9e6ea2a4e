"""Evaluations of F at many points of coordinates in one sum: values, gradients, expansions."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..posterior.coordinates import Coordinates
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from .network_sums import NetworkSums, expansion_of, finite, unpacked
from .proposal import Drawn

# The potential of a position that an agent finds no number for: beyond what any posterior gives mass to. Where a value
# is as high as a part of it, an agent found none.
_NO_MASS = 1e12
NOWHERE = 1e11


def values(sums: NetworkSums, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn) -> np.ndarray:
    """F, (point,), at some points of coordinates, or of the user's; one sum."""
    return np.asarray(sums(value_of, points=points, values=len(points), coordinates=place), np.float64)


def slopes(
    sums: NetworkSums, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn
) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradient, (point,) and (point, dim), at some points of coordinates, or of the user's; one sum."""
    numbers = np.asarray(sums(slope_of, points=points, gradients=len(points), coordinates=place), np.float64)
    return numbers[:, 0], numbers[:, 1:]


class Expansions(NamedTuple):
    """Expansions of F about some positions: value (position,), gradient (position, dim), Hessian (..., dim, dim)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


def expansions(sums: NetworkSums, place: Coordinates, points: Float[np.ndarray, "position dim"]) -> Expansions:
    """F's value, gradient and Hessian at each of some positions; one sum of (dim + 1)(dim + 2) / 2 numbers each."""
    count, dim = points.shape
    # one after another: all Hessians at once would take memory
    found = sums(expansion_of, _NO_MASS, points=points, at_once=1, gradients=count * (1 + dim), coordinates=place)
    numbers = np.asarray(found, np.float64)
    return Expansions(numbers[:, 0], numbers[:, 1 : 1 + dim], unpacked(numbers[:, 1 + dim :], dim))


# --- what agents add up ---


@of_rows
def value_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, ""]:
    """An agent's potential."""
    return finite(potential.value(shard, x)[None], _NO_MASS)[0]


@of_rows
def slope_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """An agent's potential and gradient."""
    value, gradient = potential.slope(shard, x)
    return finite(jnp.concatenate([value[None], gradient]), _NO_MASS)
