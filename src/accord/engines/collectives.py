"""Collective operations between devices: sums, maxima, gathers, neighbour exchange. No-ops on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from ..base.pytree import pytree
from .operators import Operator, over_agents


@pytree
class Collectives:
    """One device that holds all agents."""

    def at(self, round: Any) -> Collectives:
        """The collectives in a round; those that send messages write it on them."""
        return self

    def in_turn(self, color: Any) -> Collectives:
        """The collectives while the agents of one colour take their turn; only their messages need to arrive."""
        return self

    def apply(self, operator: Operator, messages: Any) -> Any:
        """A matrix over the agents times their messages, a pytree of arrays (agent, ...)."""
        return over_agents(operator, messages)

    def differences(self, operator: Operator, messages: Any) -> Any:
        """Of each agent the sum of what its messages are more than the others', times the matrix' entries."""
        return over_agents(lambda x: operator.differences(x, x), messages)

    def gathered(self, senders: Int[Array, "agent slot"], messages: Any) -> Any:
        """The messages of each agent's neighbours, arrays (agent, slot, ...)."""
        return jax.tree.map(lambda x: self.everyones(x)[senders], messages)

    def permuted(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        """Messages, a pytree of arrays (agent, ..., chain), in another order of the agents in each chain."""
        return jax.tree.map(lambda x: reordered(x, order), messages)

    def query(self, state: Any, answer: Callable[[Any], Any], num_agents: int) -> Any:
        """The sum of all agents' answers to a state of the hub; `answer(state)` has those of the agents here.

        The sum is in the same order on any number of devices: a chain that accepts and rejects would leave another one
        for good over a last digit.
        """
        return jax.tree.map(lambda leaf: self.everyones(leaf)[:num_agents].sum(axis=0), answer(state))

    def total(self, values: Any) -> Any:
        """The sum over all agents of every array (agent, ...) of a pytree."""
        return jax.tree.map(lambda x: x.sum(axis=0), values)

    def largest(self, x: Shaped[Array, "agent ..."]) -> Array:
        """The maximum over all agents."""
        return x.max(axis=0)

    def everyones(self, x: Shaped[Array, "agent ..."]) -> Shaped[Array, "everyone ..."]:
        """The rows of all agents."""
        return x

    def own(self, x: Shaped[Array, "everyone ..."]) -> Shaped[Array, "agent ..."]:
        """Of the rows of all agents those that this device holds."""
        return x

    def chosen(self, x: Shaped[Array, "agent ..."], which: Int[Array, " kept"]) -> Shaped[Array, "kept ..."]:
        """The rows of some agents, by their numbers."""
        return x[which]


def reordered(messages: Array, order: Array) -> Array:
    """Messages (agent, ..., chain) in another order of the agents in each chain."""
    flat = messages.reshape(messages.shape[0], -1, messages.shape[-1])
    agents = order.shape[0]
    # rows after the last agent's stand for none and stay
    return flat.at[:agents].set(jnp.take_along_axis(flat[:agents], order, axis=0)).reshape(messages.shape)


def neighbour_sums(messages: Any, apart: Any, degree: Array) -> Any:
    """The sums of the neighbours' messages, from what an agent's own are more than each of them, added up."""
    return jax.tree.map(lambda own, more: along(degree, own) * own - more, messages, apart)


def along(x: Array, like: Array) -> Array:
    """An array (agent, ...) with axes of one until it has as many as another."""
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))
