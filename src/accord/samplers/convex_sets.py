"""Convex sets for restricted parameters, with their projections."""

from __future__ import annotations

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..base.checks import positive
from ..base.errors import unknown_name_error
from ..base.pytree import pytree

Points = Float[Array, "*point dim"]


class ConvexSet(abc.ABC):
    """A closed convex set of parameters."""

    @abc.abstractmethod
    def project(self, x: Points) -> Points:
        """The nearest point of the set to each point, shape (..., dim)."""

    def check(self, dim: int) -> None:
        """Raise `ValueError` if the set does not fit `dim` parameters."""
        return None


def as_bound(name: str, bound: Any) -> ArrayLike:
    """A validated bound: a number, or one per parameter, without NaN."""
    array = np.asarray(bound, float)
    if array.ndim > 1 or np.isnan(array).any():
        raise ValueError(f"{name} must be a number, or one per parameter, found {bound}")
    return float(array) if array.ndim == 0 else array


@pytree
class Box(ConvexSet):
    """Parameters between bounds.

    Parameters
    ----------
    lower, upper
        A number, or one per parameter. The defaults -inf and inf mean no bound.

    Raises
    ------
    ValueError
        A lower bound that is not below the upper one, or a wrong number of bounds.

    Examples
    --------
    >>> import accord
    >>> accord.samplers.convex_sets.Box(0.0, [1.0, 5.0]).project([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """

    lower: ArrayLike = -np.inf
    upper: ArrayLike = np.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", as_bound("lower", self.lower))
        object.__setattr__(self, "upper", as_bound("upper", self.upper))
        shapes = {np.shape(bound) for bound in (self.lower, self.upper)} - {()}
        if len(shapes) > 1 or not np.all(np.asarray(self.lower) < np.asarray(self.upper)):
            raise ValueError(f"lower must be below upper, found {self.lower} and {self.upper}")

    def project(self, x: Points) -> Points:
        x = jnp.asarray(x)
        lower, upper = (jnp.broadcast_to(jnp.asarray(b, x.dtype), x.shape) for b in (self.lower, self.upper))
        return jnp.clip(x, lower, upper)

    def check(self, dim: int) -> None:
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if np.shape(bound) not in ((), (dim,)):
                raise ValueError(f"{name} must be one number, or one per parameter ({dim}), found {np.shape(bound)[0]}")


@pytree
class Simplex(ConvexSet):
    """Parameters >= 0 that sum to `total` (1 by default).

    Examples
    --------
    >>> import accord
    >>> accord.samplers.convex_sets.Simplex().project([1.0, 0.5, -2.0]).tolist()
    [0.75, 0.25, 0.0]
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        positive("total", self.total)

    def project(self, x: Points) -> Points:
        return _onto_simplex(jnp.asarray(x), self.total)


@pytree
class L1Ball(ConvexSet):
    """Parameters whose absolute values sum to at most `radius`: the lasso's constraint.

    Examples
    --------
    >>> import accord
    >>> accord.samplers.convex_sets.L1Ball(1.0).project([1.0, -0.5]).tolist()
    [0.75, -0.25]
    """

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    def project(self, x: Points) -> Points:
        x = jnp.asarray(x)
        size = jnp.abs(x)
        inside = jnp.sum(size, axis=-1, keepdims=True) <= self.radius
        return jnp.where(inside, x, jnp.sign(x) * _onto_simplex(size, self.radius))


def _onto_simplex(x: Points, total: Any) -> Points:
    """The nearest points that are >= 0 and sum to `total`: coordinates minus a constant, clipped at 0."""
    sorted_x = -jnp.sort(-x, axis=-1)
    excess = jnp.cumsum(sorted_x, axis=-1) - total
    count = jnp.broadcast_to(jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype), x.shape)
    # number of coordinates that stay above 0: the largest ones that satisfy this
    kept = jnp.sum(sorted_x * count > excess, axis=-1, keepdims=True)
    fall = jnp.take_along_axis(excess, kept - 1, axis=-1) / kept.astype(x.dtype)
    return jnp.maximum(x - fall, 0.0)


NAMED: dict[str, ConvexSet] = {"positive": Box(0.0), "unit_interval": Box(0.0, 1.0), "simplex": Simplex()}


def as_convex_set(name: str, given: Any) -> ConvexSet:
    """A convex set by name, or the given instance."""
    if isinstance(given, ConvexSet):
        return given
    if given not in NAMED:
        raise unknown_name_error(name, given, NAMED)
    return NAMED[given]
