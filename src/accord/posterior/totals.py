"""Totals: sums over all agents of functions of their data, of which nothing but the sum is heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from .coordinates import Coordinates, place_shard
from .masks import Masks, Words, added, decoded, encoded
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

    def each(self, function: Callable[..., PyTree], *arguments: Any, coordinates: Coordinates | None = None) -> PyTree:
        """What is summed: these agents' own, on a leading axis."""
        return jax.tree.map(np.asarray, _each(function, self.potential, self.shards, coordinates, arguments))


class MaskedTotals:
    """Totals of words that each agent masks before anybody else has them; see `masks`.

    Sums miss the exact ones by at most num_agents * 2^-65 and by rounding to double precision. They come back as
    doubles where these are enabled, else in the types that the function returns.

    Parameters
    ----------
    here
        The agents whose data lies in this process.
    masks
        Theirs, in the same order; they have agreed on keys with those of all other agents.
    gathered
        `gathered(count, words)`: the sum over all processes of their words, of the sum with this number; None: there is
        no other process.

    Raises
    ------
    ArithmeticError
        When called: some agents have numbers that are NaN, infinite, or not below 2^62 / num_agents in size. Who that
        is is not known, and nothing of the sum is.
    RuntimeError
        When called: the masks did not cancel.
    """

    def __init__(
        self, here: TotalsHere, masks: Sequence[Masks], gathered: Callable[[int, Words], Words] | None = None
    ) -> None:
        self.here, self.masks, self._gathered = here, masks, gathered
        self._count, self._lock = 0, threading.Lock()

    def __call__(
        self, function: Callable[..., PyTree], *arguments: Any, coordinates: Coordinates | None = None
    ) -> PyTree:
        """The sum over all agents."""
        return self.numbered(None, function, *arguments, coordinates=coordinates)

    def numbered(
        self,
        count: int | None,
        function: Callable[..., PyTree],
        *arguments: Any,
        coordinates: Coordinates | None = None,
    ) -> PyTree:
        """The sum with a number, which no sum before may have had; None: the next one."""
        leaves: list[np.ndarray]
        treedef: Any
        leaves, treedef = jax.tree.flatten(self.here.each(function, *arguments, coordinates=coordinates))
        num_agents = self.masks[0].num_agents
        plain = [encoded([leaf[row] for leaf in leaves], num_agents) for row in range(len(self.masks))]
        # sums of several threads, one after another
        with self._lock:
            self._count = self._count + 1 if count is None else count
            words = added(*(own.masked(self._count, one) for own, one in zip(self.masks, plain, strict=True)))
            if self._gathered is not None:
                words = self._gathered(self._count, words)
        shapes = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        return treedef.unflatten(decoded(words, shapes, num_agents))


def masked_here(here: TotalsHere, num_agents: int) -> MaskedTotals:
    """Masked totals over agents that all have their data in this process, each with keys of its own."""
    masks = [Masks(agent, num_agents) for agent in range(num_agents)]
    publics = [one.public for one in masks]
    for one in masks:
        one.agree(publics)
    return MaskedTotals(here, masks)


@partial(jax.jit, static_argnames="function")
def _total(
    function: Callable[..., PyTree],
    potential: Potential,
    shards: Shard,
    coordinates: Coordinates | None,
    arguments: tuple[Any, ...],
) -> PyTree:
    values = _values(function, potential, shards, coordinates, arguments)
    return jax.tree.map(lambda leaf: leaf.sum(axis=0), values)


def _values(
    function: Callable[..., PyTree],
    potential: Potential,
    shards: Shard,
    coordinates: Coordinates | None,
    arguments: tuple[Any, ...],
) -> PyTree:
    """Each agent's own, on a leading axis."""
    moved = potential if coordinates is None else potential.within(coordinates)

    def one(shard: Shard) -> PyTree:
        return function(moved, shard if coordinates is None else place_shard(shard, coordinates), *arguments)

    return jax.vmap(one)(shards)


_each = jax.jit(_values, static_argnames="function")
