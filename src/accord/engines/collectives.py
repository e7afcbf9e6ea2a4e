"""Collective operations between devices, such as sums, maxima, gathers and neighbour exchange."""

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
    """Collective operations on one device with all agents."""

    def at(self, round: Any) -> Collectives:
        """The collectives in a round, whose number labels messages between processes."""
        return self

    def in_turn(self, color: Any) -> Collectives:
        """The collectives in the turn of one colour, when only its agents need messages."""
        return self

    def apply(self, operator: Operator, messages: Any) -> Any:
        """A matrix over the agents times their messages, a pytree of arrays (agent, ...)."""
        return over_agents(operator, messages)

    def differences(self, operator: Operator, messages: Any) -> Any:
        """sum_j A_ij (m_i - m_j) for each agent i, with messages m and the matrix A of the operator."""
        return over_agents(lambda x: operator.differences(x, x), messages)

    def gathered(self, senders: Int[Array, "agent slot"], messages: Any) -> Any:
        """The messages of each agent's neighbours, arrays (agent, slot, ...)."""
        return jax.tree.map(lambda x: self.everyones(x)[senders], messages)

    def permuted(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        """Messages, a pytree of arrays (agent, ..., chain), permuted over the agents in each chain."""
        return jax.tree.map(lambda x: reordered(x, order), messages)

    def query(self, state: Any, answer: Callable[[Any], Any], num_agents: int) -> Any:
        """The sum of all agents' answers to a state of the hub. `answer(state)` returns the answers of agents here.

        The order of summation is the same on any number of devices, because a rounding error can change an accept
        decision and with it all later draws.
        """
        return jax.tree.map(lambda leaf: self.everyones(leaf)[:num_agents].sum(axis=0), answer(state))

    def total(self, values: Any) -> Any:
        """The sum over all agents of every array (agent, ...) of a pytree."""
        return jax.tree.map(lambda x: x.sum(axis=0), values)

    def largest(self, x: Shaped[Array, "agent ..."]) -> Array:
        """The maximum over all agents."""
        return x.max(axis=0)

    def everyones(self, x: Shaped[Array, "agent ..."]) -> Shaped[Array, "everyone ..."]:
        """The rows of all agents, an all-gather."""
        return x

    def own(self, x: Shaped[Array, "everyone ..."]) -> Shaped[Array, "agent ..."]:
        """The rows of this device, from an array over all agents."""
        return x

    def chosen(self, x: Shaped[Array, "agent ..."], which: Int[Array, " kept"]) -> Shaped[Array, "kept ..."]:
        """The rows of some agents, by their numbers."""
        return x[which]


def reordered(messages: Array, order: Array) -> Array:
    """Messages (agent, ..., chain) permuted over the agents in each chain."""
    flat = messages.reshape(messages.shape[0], -1, messages.shape[-1])
    agents = order.shape[0]
    # padding rows after the last agent stay
    return flat.at[:agents].set(jnp.take_along_axis(flat[:agents], order, axis=0)).reshape(messages.shape)


def neighbour_sums(messages: Any, apart: Any, degree: Array) -> Any:
    """The sums of the neighbours' messages, from the summed differences `apart` to an agent's own messages."""
    return jax.tree.map(lambda own, more: along(degree, own) * own - more, messages, apart)


def along(x: Array, like: Array) -> Array:
    """An array (agent, ...) with trailing axes of length one to the number of axes of `like`."""
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))
