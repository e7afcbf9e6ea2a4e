"""Evaluations of F by one sum over the agents: values, gradients and expansions at many points."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...base.memory import require_matrices
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.newton import Expansion
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ..session import Session
from .proposal import Drawn

# An agent's potential at positions at which it is not finite.
_NO_MASS = 1e12
# Sums of potentials from which on the density counts as 0: at least one agent returned `_NO_MASS`.
NOWHERE = 1e11
# Matrices of Newton's method in addition to the agents' Hessians: the sum, scaled, its eigenvectors, and the next one.
_MATRICES = 4


def values(session: Session, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn) -> np.ndarray:
    """F at points in the coordinates `place`, or in the posterior's own if None, shape (point,); one sum."""
    return np.asarray(session.totals(value_of, points=points, values=len(points), coordinates=place), np.float64)


def slopes(
    session: Session, place: Coordinates | None, points: Float[np.ndarray, "point dim"] | Drawn
) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradient at points in the coordinates `place`, shapes (point,) and (point, dim); one sum."""
    numbers = np.asarray(session.totals(slope_of, points=points, gradients=len(points), coordinates=place), np.float64)
    return numbers[:, 0], numbers[:, 1:]


class Expansions(NamedTuple):
    """Second-order expansions of F: value (position,), gradient (position, dim), Hessian (position, dim, dim)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


def expansions(session: Session, place: Coordinates, points: Float[np.ndarray, "position dim"]) -> Expansions:
    """F's value, gradient and Hessian at each point; one sum of (dim + 1)(dim + 2) / 2 numbers per point."""
    count, dim = points.shape
    # one after another, as all Hessians at once may not fit in memory
    found = session.totals(
        expansion_of, _NO_MASS, points=points, at_once=1, gradients=count * (1 + dim), coordinates=place
    )
    numbers = np.asarray(found, np.float64)
    return Expansions(numbers[:, 0], numbers[:, 1 : 1 + dim], unpacked(numbers[:, 1 + dim :], dim))


def expand(session: Session, *positions: np.ndarray, coordinates: Coordinates | None = None) -> Expansion:
    """The mean of F's expansions at positions, each (dim,); one sum of (dim + 1)(dim + 2) / 2 numbers."""
    dim = positions[0].size
    require_hessians(dim, len(session.job.post.held))
    points, gradients = np.stack(positions), len(positions) * (1 + dim)
    if len(positions) == 1:
        # shares a compiled program with `expansions`, which takes seconds to compile
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
    """Raise `ValueError` unless the Hessians of this many agents and Newton's work arrays fit in memory."""
    require_matrices(
        "the agents' Hessians and the work arrays of Newton's method",
        dim,
        agents + _MATRICES,
        f"they grow with the square of {dim:,} parameters; use a round-based method with all numbers: DESGLD(1e-6)",
    )


def unpacked(upper: np.ndarray, dim: int) -> np.ndarray:
    """Symmetric matrices (..., dim, dim) from upper triangles (..., number) in the order of `np.triu_indices`."""
    rows, columns = np.triu_indices(dim)
    whole = np.zeros((*upper.shape[:-1], dim, dim))
    whole[..., rows, columns] = whole[..., columns, rows] = upper
    return whole


# --- the agents' terms of the sums ---


@of_rows
@coarse("value")
def value_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, ""]:
    """The potential of an agent."""
    return finite(potential.value(shard, x)[None], _NO_MASS)[0]


@of_rows
@coarse("slope")
def slope_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """The potential of an agent and its gradient."""
    value, gradient = potential.slope(shard, x)
    return finite(jnp.concatenate([value[None], gradient]), _NO_MASS)


def finite(numbers: Float[Array, " number"], most: Float[Array, ""] | float) -> Float[Array, " number"]:
    """Numbers clipped to [-most, most]. If one of them is not finite, the value is `most` and its derivatives are 0.

    Masked sums need finite numbers. With infinite `most` the numbers are unchanged.
    """
    nowhere = jnp.zeros_like(numbers).at[0].set(most)
    return jnp.where(jnp.isfinite(numbers).all() | jnp.isinf(most), jnp.clip(numbers, -most, most), nowhere)


def expansion_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Value, gradient and upper triangle of the Hessian of an agent's potential."""
    value, gradient, hessian = potential.expansion(shard, x)
    return jnp.concatenate([value[None], gradient, hessian[np.triu_indices(x.size)]])


@of_rows
@coarse("expansion")
def expansion_of(
    potential: Potential, shard: Shard, x: Float[Array, " dim"], most: Float[Array, ""]
) -> Float[Array, " number"]:
    """Value, gradient and upper triangle of the Hessian of an agent's potential.

    They are made `finite` by `most`.
    """
    return finite(expansion_at(potential, shard, x), most)


@of_rows
def mean_expansion(
    potential: Potential, shard: Shard, origin: Float[Array, " dim"], offsets: Float[Array, "offset dim"]
) -> Float[Array, " number"]:
    """Means over positions of value, gradient and upper triangle of the Hessian of an agent's potential."""
    # one after another, as all Hessians at once may not fit in memory
    return jax.lax.map(lambda offset: expansion_at(potential, shard, origin + offset), offsets).mean(axis=0)
