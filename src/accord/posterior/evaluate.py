"""Functions of one agent's potential and shard, for `Posterior.each`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..base.compiler import compiled
from .potential import Potential, Shard
from .totals import of_rows


@compiled(static_argnames=("function", "at_once"))
def evaluate(
    function: Callable[..., PyTree],
    potential: Potential,
    shards: Shard,
    arguments: tuple[Any, ...],
    own: tuple[Any, ...],
    at_once: int | None,
) -> PyTree:
    """Evaluate a function of one agent's potential and shard for stacked agents."""

    def one(stacked: tuple[Shard, tuple[Any, ...]]) -> PyTree:
        shard, own_i = stacked
        return function(potential, shard, *arguments, *own_i)

    return jax.lax.map(one, (shards, own), batch_size=at_once)


def count(potential: Potential, shard: Shard) -> tuple[Array, ...]:
    """The number of rows, whether the likelihood is rowwise, the number of groups, and the smallest group size."""
    groups, fewest = (0, 0) if shard.groups is None else (shard.groups.count, shard.groups.fewest)
    return tuple(map(jnp.asarray, (shard.size, potential.rowwise, groups, fewest)))


@of_rows
def value_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Array:
    """f_i."""
    return potential.value(shard, x)


def gradient_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """The gradient of f_i."""
    # not from the quadratic form, which is checked against this gradient
    return jax.grad(potential.value, argnums=1)(shard, x)


def hessian_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """The Hessian of f_i."""
    return potential.hessian(shard, x)


def quadratic_at(
    potential: Potential, shard: Shard, x: Float[Array, " dim"]
) -> tuple[Float[Array, "dim dim"], Float[Array, " dim"], Float[Array, " dim"]]:
    """The Hessian and minus the gradient at zero, and the gradient at x as a check."""
    gradient, zero = partial(gradient_at, potential, shard), jnp.zeros_like(x)
    return jax.jacfwd(gradient)(zero), -gradient(zero), gradient(x)


@of_rows
def slope_at(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
    """f_i and its gradient."""
    return potential.slope(shard, x)
