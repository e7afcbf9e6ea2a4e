"""Totals: sums over all agents of functions of their data, of which nothing but the sum is heard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from .coordinates import Coordinates, place_shard
from .potential import Potential, Shard


@runtime_checkable
class Totals(Protocol):
    """The sum over all agents of `function(potential, shard, *arguments)`, as arrays of NumPy.

    Many arguments go in one message: give them a leading axis, and let the function map over it. It is a function of a
    module that JAX can trace, and runs in the float width of a run. `coordinates` are those that potential and shard
    are to be in, where they are not the user's.
    """

    def __call__(
        self, function: Callable[..., PyTree], *arguments: Any, coordinates: Coordinates | None = None
    ) -> PyTree:
        """The sum."""
        ...


class TotalsHere:
    """Totals over agents whose shards lie in this process.

    Parameters
    ----------
    potential, shards
        A posterior's, in the user's parameters: its `potential` and what `stacked` returns.
    """

    def __init__(self, potential: Potential, shards: Shard) -> None:
        self.potential, self.shards = potential, shards

    def __call__(
        self, function: Callable[..., PyTree], *arguments: Any, coordinates: Coordinates | None = None
    ) -> PyTree:
        """The sum over these agents."""
        return jax.tree.map(np.asarray, _total(function, self.potential, self.shards, coordinates, arguments))


@partial(jax.jit, static_argnames="function")
def _total(
    function: Callable[..., PyTree],
    potential: Potential,
    shards: Shard,
    coordinates: Coordinates | None,
    arguments: tuple[Any, ...],
) -> PyTree:
    moved = potential if coordinates is None else potential.within(coordinates)

    def one(shard: Shard) -> PyTree:
        return function(moved, shard if coordinates is None else place_shard(shard, coordinates), *arguments)

    return jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one)(shards))
