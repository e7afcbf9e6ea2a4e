"""Evaluations of F by one sum over the agents: values, gradients and expansions at many points."""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...base.memory import require_matrices
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.newton import Expansion, spectrum
from ...posterior.potential import Potential, Shard
from ...posterior.totals import Together, of_rows
from ..session import Session
from .proposal import Drawn

# An agent's potential at positions at which it is not finite.
_NO_MASS = 1e12
# Sums of potentials from which on the density counts as 0: at least one agent returned `_NO_MASS`.
NOWHERE = 1e11
# Most Newton steps of an agent to the mode of its own rows, and lengths of each step to choose from.
_MODE_STEPS = 10
_SHORTER = np.array([1.0, 0.5, 0.25, 0.06, 0.01])
# Length of the last of these steps, in standard deviations. Rough is enough, as the next sum corrects it.
_NEAR = 0.1
# Least curvature of a direction for a step, relative to the largest one after scaling.
_FLAT = 1e-9
# Least radius of a position of a search, relative to that of near points.
_BESIDE = 1.0 + 1e-6
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


class Answers(NamedTuple):
    """F at points of several kinds.

    Parameters
    ----------
    slopes
        F and its gradient at the points with gradients, (point,) and (point, dim).
    values
        F at the other points, (point,).
    """

    slopes: tuple[np.ndarray, np.ndarray]
    values: np.ndarray


def ask(
    session: Session,
    place: Coordinates,
    sloped: Float[np.ndarray, "point dim"] | Drawn,
    valued: Float[np.ndarray, "point dim"] | Drawn,
) -> Answers:
    """F at points in the coordinates `place`, with its gradient at the points `sloped`.

    One sum, or two if sums are made by gossip.
    """
    if session.gossip is not None or not len(sloped) or not len(valued):
        own = np.zeros(0), np.zeros((0, place.origin.size))
        if len(sloped):
            own = slopes(session, place, sloped)
        return Answers(own, values(session, place, valued) if len(valued) else np.zeros(0))
    count, dim = len(sloped), place.origin.size
    both = session.totals(
        Together((slope_of, value_of)),
        points=(sloped, valued),
        gradients=count,
        values=len(valued),
        coordinates=place,
    )
    numbers = np.asarray(both, np.float64)
    first = numbers[: count * (1 + dim)].reshape(count, 1 + dim)
    return Answers((first[:, 0], first[:, 1:]), numbers[count * (1 + dim) :])


class Jet(NamedTuple):
    """A function's value, gradient (dim,), Hessian (dim, dim) and third derivatives (dim, dim, dim) at a position."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    third: np.ndarray

    def minus(self, other: Jet) -> Jet:
        """The jet of the difference of two functions."""
        return Jet(
            self.value - other.value,
            self.gradient - other.gradient,
            self.hessian - other.hessian,
            self.third - other.third,
        )


def jet(session: Session, place: Coordinates) -> Jet:
    """F's derivatives up to the third at the origin of coordinates; one sum of (dim + 1)(dim + 2)(dim + 3) / 6 numbers.

    The value is at least `NOWHERE` if an agent has a number that is not finite.
    """
    dim = place.origin.size
    (found,) = session.totals(
        jet_of, points=np.zeros((1, dim)), at_once=1, gradients=1 + dim + dim * (dim // 2 + 1), coordinates=place
    )
    return jet_from(np.asarray(found, np.float64), dim)


def jet_from(numbers: Float[np.ndarray, " number"], dim: int) -> Jet:
    """The jet that `jet_of` returns as numbers."""
    pairs = 1 + dim + dim * (dim + 1) // 2
    third = np.zeros((dim, dim, dim))
    places = _triples(dim)
    for order in permutations(range(3)):
        third[tuple(places[k] for k in order)] = numbers[pairs:]
    return Jet(float(numbers[0]), numbers[1 : 1 + dim], unpacked(numbers[1 + dim : pairs], dim), third)


class UndeterminedError(ArithmeticError):
    """Raised if the modes of the agents do not determine a position."""


def combined(session: Session, place: Coordinates | None = None) -> tuple[float, np.ndarray, np.ndarray]:
    """F at init, the position combined from the modes of all agents, (dim,), and their total curvature; one sum.

    Each agent finds the mode of its own f_i. With Hessians H_i at the modes x_i, the position is
    (sum H_i)^-1 sum H_i x_i. An agent without a mode sends H_i x_i - g_i at the position where it stopped.

    With `place`, agents begin at the origin of these coordinates, in which position and curvature are.

    Raises
    ------
    UndeterminedError
        The total curvature is not positive definite.
    """
    dim, noise = session.job.post.dim, session.noise
    points = session.job.post.init[None] if place is None else np.zeros((1, dim))
    (found,) = session.totals(mode_of, points=points, at_once=1, gradients=_MODE_STEPS * (1 + dim), coordinates=place)
    return combination(np.asarray(found, np.float64), dim, 0.0 if noise is None else noise.blur)


def combination(
    numbers: Float[np.ndarray, " number"], dim: int, blur: float = 0.0
) -> tuple[float, np.ndarray, np.ndarray]:
    """`combined`, from the agents' sum of `mode_of`. Curvatures below `blur` are raised to it, as noise hides them."""
    hessian = unpacked(numbers[1 + dim :], dim)
    if not np.isfinite(numbers).all() or (blur == 0.0 and not spectrum(hessian).enough.all()):
        raise UndeterminedError("the agents' curvatures together do not determine a position")
    if blur > 0.0:
        hessian = raised(hessian, blur)
    return float(numbers[0]), np.linalg.solve(hessian, numbers[1 : 1 + dim]), hessian


class Expansions(NamedTuple):
    """Second-order expansions of F: value (position,), gradient (position, dim), Hessian (position, dim, dim)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def steepness(self) -> np.ndarray:
        """The radius of a standard normal's point as steep as F: by gradient, or root of curvature, (position,)."""
        bend = np.linalg.norm(self.hessian, 2, axis=(1, 2))
        return np.asarray(np.maximum(np.linalg.norm(self.gradient, axis=1), np.sqrt(bend)))


def expansions(
    session: Session,
    place: Coordinates,
    points: Float[np.ndarray, "position dim"],
    steepness: Float[np.ndarray, " position"] | None = None,
) -> Expansions:
    """F's value, gradient and Hessian at each point; one sum of (dim + 1)(dim + 2) / 2 numbers per point.

    With coarse answers, noise grows with the expected `steepness` of points, see `Expansions`. An agent with a much
    steeper potential shows no mass there. None: near points, of which agents show all derivatives.
    """
    count, dim = points.shape
    radii = {}
    if session.noise is not None and steepness is not None:
        radii["radii"] = np.maximum(steepness, _BESIDE * session.noise.near)
    # one after another, as all Hessians at once may not fit in memory
    found = session.totals(
        expansion_of, _NO_MASS, points=points, at_once=1, gradients=count * (1 + dim), coordinates=place, **radii
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


def raised(matrix: Float[np.ndarray, "dim dim"], least: float) -> np.ndarray:
    """A symmetric matrix with its eigenvalues raised to a least value, (dim, dim)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


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
@coarse("jet")
def jet_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Derivatives of an agent's potential up to the third: each pair and each triple of parameters once."""
    dim, axes = x.size, jnp.eye(x.size, dtype=x.dtype)

    def along(first: Array) -> Float[Array, "partner dim"]:
        # each parameter with itself and the half of the others that follow it in a circle: all pairs
        seconds = axes[(first + jnp.arange(dim // 2 + 1)) % dim]

        def curvature(x: Array) -> tuple[Array, ...]:
            _, change = jax.linearize(lambda x: potential.slope(shard, x)[1], x)
            return (jax.vmap(change)(seconds),)

        (found,) = jax.jvp(curvature, (x,), (axes[first],))[1]
        return found

    # one parameter after another, as all at once may not fit in memory
    third = jax.lax.map(along, jnp.arange(dim))
    i, j, k = _triples(dim)
    follows = j - i <= dim // 2
    numbers = third[np.where(follows, i, j), np.where(follows, j - i, i - j + dim), k]
    return finite(jnp.concatenate([expansion_at(potential, shard, x), numbers]), _NO_MASS)


@of_rows
@coarse("expansion")
def mode_of(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """An agent's potential at `x`, and its own mode and curvature: H x - g, and the upper triangle of H.

    Newton's method with absolute eigenvalues starts at `x`, with a few shorter steps to choose from. H has no negative
    eigenvalue.
    """

    def scaled(hessian: Array) -> tuple[Array, Array, Array]:
        scale = jnp.maximum(jnp.abs(jnp.diagonal(hessian)), np.finfo(float).tiny) ** -0.5
        values, vectors = jnp.linalg.eigh(hessian * jnp.outer(scale, scale))
        return scale, values, vectors

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, value, gradient, hessian, count, _ = state
        scale, values, vectors = scaled(hessian)
        size = jnp.maximum(jnp.abs(values), _FLAT * jnp.abs(values).max())
        slope = vectors.T @ (scale * gradient)
        length = jnp.sqrt((slope**2 / size).sum())
        trials = x[None] - jnp.outer(_SHORTER, scale * (vectors @ (slope / size)))
        risen = jax.lax.map(lambda one: potential.value(shard, one), trials) - value
        best = jnp.argmin(jnp.where(jnp.isfinite(risen), risen, jnp.inf))
        moves = (risen[best] < 0.0) & (length > _NEAR)
        there = potential.expansion(shard, trials[best])
        here = (x, value, gradient, hessian)
        new = jax.tree.map(lambda new, old: jnp.where(moves, new, old), (trials[best], *there), here)
        return *new, count + 1, moves

    first = potential.expansion(shard, x)
    state: tuple[Array, ...] = (x, *first, jnp.zeros((), jnp.int32), jnp.isfinite(first[0]))
    x, _, gradient, hessian, *_ = jax.lax.while_loop(lambda s: s[-1] & (s[-2] < _MODE_STEPS), step, state)
    scale, values, vectors = scaled(hessian)
    curved = (vectors * jnp.maximum(values, 0.0)[None]) @ vectors.T / jnp.outer(scale, scale)
    numbers = jnp.concatenate([curved @ x - gradient, curved[np.triu_indices(x.size)]])
    # an agent without density at init adds nothing
    numbers = jnp.where(jnp.isfinite(numbers).all(), numbers, 0.0)
    return jnp.concatenate([finite(first[0][None], _NO_MASS), numbers])


def _triples(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices i <= j <= k of all triples of parameters."""
    i, j, k = np.indices((dim, dim, dim)).reshape(3, -1)
    kept = (i <= j) & (j <= k)
    return i[kept], j[kept], k[kept]


@of_rows
def mean_expansion(
    potential: Potential, shard: Shard, origin: Float[Array, " dim"], offsets: Float[Array, "offset dim"]
) -> Float[Array, " number"]:
    """Means over positions of value, gradient and upper triangle of the Hessian of an agent's potential."""
    # one after another, as all Hessians at once may not fit in memory
    return jax.lax.map(lambda offset: expansion_at(potential, shard, origin + offset), offsets).mean(axis=0)
