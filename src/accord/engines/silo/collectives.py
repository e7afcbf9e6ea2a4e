"""Collective operations of one agent, by callbacks from the compiled round to its communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ...base.pytree import pytree, static
from ..collectives import Collectives
from ..operators import Operator
from .messages import EVERY_COLOR, Communicator


@pytree
class Row:
    """One row of a matrix over the agents, with weights for the agent and its neighbours."""

    own: Float[Array, ""]
    neighbours: Float[Array, " neighbour"]

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        """The product of the row with the agent's own values, in the first row of x, and the neighbours'."""
        return (self.own * x[0] + self.neighbours @ x[1:])[None]

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        """The weighted sum of differences between the agent's own values and the neighbours'."""
        return (self.neighbours @ (own - x[1:]))[None]


def row(matrix: scipy.sparse.csr_array, agent: int, neighbours: list[int]) -> Row:
    """An agent's row of a sparse matrix over the agents."""
    dense = scipy.sparse.csr_array(matrix)[[agent]].toarray()[0]
    return Row(jnp.asarray(dense[agent]), jnp.asarray(dense[neighbours]))


@pytree
class SiloCollectives(Collectives):
    """Collective operations of a process with one agent, by messages to other processes."""

    round: Array | None = None
    color: Array | None = None
    communicator: Communicator = static(default=None)

    def at(self, round: Any) -> SiloCollectives:
        return replace(self, round=jnp.asarray(round, jnp.int32))

    def in_turn(self, color: Any) -> SiloCollectives:
        return replace(self, color=jnp.asarray(color, jnp.int32))

    def apply(self, operator: Operator, messages: Any) -> Any:
        return self._with_neighbours(operator, messages)

    def differences(self, operator: Operator, messages: Any) -> Any:
        return self._with_neighbours(lambda held: operator.differences(held[:1], held), messages)

    def _with_neighbours(self, row: Callable[[Array], Array], messages: Any) -> Any:
        """Apply a function to arrays (1 + neighbour, rest) of the agent's own and the neighbours' messages."""

        def of(own: Array, others: Array) -> Array:
            held = jnp.concatenate([own, others])
            return row(held.reshape(len(held), -1)).reshape(own.shape)

        return jax.tree.map(of, messages, self._neighbours(messages))

    def gathered(self, senders: Int[Array, "agent slot"], messages: Any) -> Any:
        return jax.tree.map(lambda x: x[None], self._neighbours(messages))

    def _neighbours(self, messages: Any) -> Any:
        """Exchange messages with the neighbours. Returns theirs in the order of the neighbours."""
        leaves: list[Array]
        treedef: Any
        leaves, treedef = jax.tree.flatten(messages)
        degree = len(self.communicator.neighbours)
        shapes = [jax.ShapeDtypeStruct((degree, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        color = jnp.int32(EVERY_COLOR) if self.color is None else self.color
        return treedef.unflatten(self._called(self.communicator.swap, shapes, color, *leaves))

    def permuted(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        leaves: list[Array]
        treedef: Any
        leaves, treedef = jax.tree.flatten(messages)
        return treedef.unflatten(self._called(self.communicator.permute, _shapes(leaves), order, *leaves))

    def query(self, state: Any, answer: Callable[[Any], Any], num_agents: int) -> Any:
        question, _ = ravel_pytree(state)
        own, restore = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], answer(state)))
        shape = jax.ShapeDtypeStruct((num_agents, own.size), own.dtype)
        # one query for all chains
        found = jax.pure_callback(self.communicator.query, shape, question, own, vmap_method="broadcast_all")
        return restore(found.sum(axis=0))

    def total(self, values: Any) -> Any:
        leaves: list[Array]
        treedef: Any
        leaves, treedef = jax.tree.flatten(jax.tree.map(lambda x: x[0], values))
        return treedef.unflatten(self._called(self.communicator.total, _shapes(leaves), *leaves))

    def _called(self, function: Callable[..., Any], shapes: Any, *arguments: Any) -> Any:
        # one call per operation, because independent calls may run in any order
        if jax.default_backend() != "cpu":
            return io_callback(function, shapes, self.round, *arguments)
        # avoids copies to and from a device, 0.1 ms per round
        return buffer_callback(partial(_in_place, function), shapes, has_side_effect=True)(self.round, *arguments)


def _in_place(function: Callable[..., Any], context: Any, results: Any, *arguments: Any) -> None:
    """Call a function with buffers of a compiled program as arrays, and write its results into output buffers."""
    for buffer, result in zip(results, function(*map(np.asarray, arguments)), strict=True):
        np.asarray(buffer)[...] = result


def _shapes(leaves: list[Array]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
