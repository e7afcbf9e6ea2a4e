"""Evaluations of F in one sum: values, gradients and expansions at many points of coordinates."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...base.memory import require_matrices
from ...posterior.coordinates import Coordinates
from ...posterior.newton import Expansion
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ..session import Session
from .proposal import Drawn

# The potential of a position that an agent finds no number for: beyond what any posterior gives mass to. Where a value
# is as high as a part of it, an agent found none.
_NO_MASS = 1e12
NOWHERE = 1e11
# Matrices that Newton's method holds beside the agents' own: the sum, scaled, its eigenvectors, and the next one.
_MATRICES = 4


def values(session: Session, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn) -> np.ndarray:
    """F, (point,), at some points of coordinates, or of the user's; one sum."""
    return np.asarray(session.totals(value_of, points=points, values=len(points), coordinates=place), np.float64)


def slopes(
    session: Session, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn
) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradient, (point,) and (point, dim), at some points of coordinates, or of the user's; one sum."""
    numbers = np.asarray(session.totals(slope_of, points=points, gradients=len(points), coordinates=place), np.float64)
    return numbers[:, 0], numbers[:, 1:]


class Expansions(NamedTuple):
    """Expansions of F about some positions: value (position,), gradient (position, dim), Hessian (..., dim, dim)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


def expansions(session: Session, place: Coordinates, points: Float[np.ndarray, "position dim"]) -> Expansions:
    """F's value, gradient and Hessian at each of some positions; one sum of (dim + 1)(dim + 2) / 2 numbers each."""
    count, dim = points.shape
    # one after another: all Hessians at once would take memory
    found = session.totals(
        expansion_of, _NO_MASS, points=points, at_once=1, gradients=count * (1 + dim), coordinates=place
    )
    numbers = np.asarray(found, np.float64)
    return Expansions(numbers[:, 0], numbers[:, 1 : 1 + dim], unpacked(numbers[:, 1 + dim :], dim))


def expand(session: Session, *positions: np.ndarray, coordinates: Coordinates | None = None) -> Expansion:
    """The mean of F's expansions at some positions, each (dim,); one sum of (d + 1)(d + 2) / 2 numbers."""
    dim = positions[0].size
    require_hessians(dim, len(session.job.post.held))
    points, gradients = np.stack(positions), len(positions) * (1 + dim)
    if len(positions) == 1:
        # by the program that expansions in coordinates have too, which takes seconds to compile
        place = Coordinates(np.zeros(dim), np.eye(dim)) if coordinates is None else coordinates
        (found,) = session.totals(
            expansion_of, np.inf, points=points, at_once=1, gradients=gradients, coordinates=place
        )
    else:
        offsets = points - points[0]
        found = session.totals(mean_expansion, points[0], offsets, gradients=gradients, coordinates=coordinates)
    numbers = np.asarray(found, np.float64)
    return Expansion(float(numbers[0]), numbers[1 : 1 + dim], unpacked(numbers[1 + dim :], dim))


def require_hessians(dim: int, agents: int) -> None:
    """Raise `ValueError` unless memory holds the Hessians of so many agents and what is made of their sum."""
    require_matrices(
        "Hessians of the agents here and what Newton's method makes of their sum",
        dim,
        agents + _MATRICES,
        f"they grow with the square of {dim:,} parameters; give all numbers of a method that walks, as DESGLD(1e-6)",
    )


def unpacked(upper: np.ndarray, dim: int) -> np.ndarray:
    """Symmetric matrices (..., dim, dim) from their upper halves, (..., number) as `np.triu_indices` orders them."""
    rows, columns = np.triu_indices(dim)
    whole = np.zeros((*upper.shape[:-1], dim, dim))
    whole[..., rows, columns] = whole[..., columns, rows] = upper
    return whole


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


def finite(numbers: Float[Array, " number"], most: Float[Array, ""] | float) -> Float[Array, " number"]:
    """A value and its derivatives; where one of them is no number, the value is `most` and there is no slope.

    Masks carry no others. No number is larger than `most`; where that is infinite, numbers stay as they are.
    """
    nowhere = jnp.zeros_like(numbers).at[0].set(most)
    return jnp.where(jnp.isfinite(numbers).all() | jnp.isinf(most), jnp.clip(numbers, -most, most), nowhere)


def expansion_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian at a position."""
    value, gradient, hessian = potential.expansion(shard, x)
    return jnp.concatenate([value[None], gradient, hessian[np.triu_indices(x.size)]])


@of_rows
def expansion_of(
    potential: Potential, shard: Shard, x: Float[Array, " dim"], most: Float[Array, ""]
) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian; `most` as `finite` has it."""
    return finite(expansion_at(potential, shard, x), most)


@of_rows
def mean_expansion(
    potential: Potential, shard: Shard, origin: Float[Array, " dim"], offsets: Float[Array, "look dim"]
) -> Float[Array, " number"]:
    """An agent's value, gradient and upper half of the Hessian: their means over positions."""
    # one after another: all Hessians at once would take memory
    return jax.lax.map(lambda offset: expansion_at(potential, shard, origin + offset), offsets).mean(axis=0)
