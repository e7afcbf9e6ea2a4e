"""What the devices that share the agents tell one another; on one device nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from ..pytree import pytree
from .exchange import Operator, over_agents

# The axis of a mesh of devices over which agents are spread.
AGENTS = "agents"


@pytree
class Team:
    """One device that holds all agents."""

    def at(self, round: Any) -> Team:
        """The team in a round; those that send messages write it on them."""
        return self

    def in_turn(self, color: Any) -> Team:
        """The team while the agents of one colour take their turn; only their messages need to arrive."""
        return self

    def apply(self, operator: Operator, messages: Any) -> Any:
        """A matrix over the agents times their messages, a pytree of arrays (agent, ...)."""
        return over_agents(operator, messages)

    def handed_out(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        """Messages, a pytree of arrays (agent, ..., chain), in another order of the agents in each chain."""
        return jax.tree.map(lambda x: _reordered(x, order), messages)

    def asked(self, state: Any, answers: Any, num_agents: int) -> Any:
        """The sum of all agents' answers to a state of the hub, of which those of the agents here are given.

        The sum is in the same order on any number of devices: a chain that accepts and rejects would leave another one
        for good over a last digit.
        """
        return jax.tree.map(lambda leaf: self.everyones(leaf)[:num_agents].sum(axis=0), answers)

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


@pytree
class MeshTeam(Team):
    """Several devices, equally many rows each; some rows at the end stand for no agent."""

    active: Bool[Array, " agent"]

    def total(self, values: Any) -> Any:
        """The sum over all agents of every array (agent, ...) of a pytree."""
        return jax.tree.map(lambda x: jax.lax.psum(jnp.where(self._along(x), x, 0).sum(axis=0), AGENTS), values)

    def handed_out(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        """Messages, a pytree of arrays (agent, ..., chain), in another order of the agents in each chain."""
        return jax.tree.map(lambda x: self.own(_reordered(self.everyones(x), order)), messages)

    def largest(self, x: Shaped[Array, "agent ..."]) -> Array:
        """The maximum over all agents."""
        if x.shape[0] != self.active.size:
            # of the hub, which is the same on all devices
            return x.max(axis=0)
        lowest = jnp.iinfo(x.dtype).min if jnp.issubdtype(x.dtype, jnp.integer) else -jnp.inf
        return jax.lax.pmax(jnp.where(self._along(x), x, lowest).max(axis=0), AGENTS)

    def everyones(self, x: Shaped[Array, "agent ..."]) -> Shaped[Array, "everyone ..."]:
        """The rows of all agents."""
        return jax.lax.all_gather(x, AGENTS, tiled=True)

    def own(self, x: Shaped[Array, "everyone ..."]) -> Shaped[Array, "agent ..."]:
        """Of the rows of all agents those that this device holds."""
        rows = self.active.size
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AGENTS) * rows, rows)

    def chosen(self, x: Shaped[Array, "agent ..."], which: Int[Array, " kept"]) -> Shaped[Array, "kept ..."]:
        """The rows of some agents, by their numbers."""
        place = which - jax.lax.axis_index(AGENTS) * self.active.size
        here = (place >= 0) & (place < self.active.size)
        rows = x[jnp.clip(place, 0, self.active.size - 1)]
        return jax.lax.psum(jnp.where(here.reshape(-1, *[1] * (x.ndim - 1)), rows, 0), AGENTS)

    def _along(self, x: Any) -> Array:
        return self.active.reshape(-1, *[1] * (x.ndim - 1))


def _reordered(messages: Array, order: Array) -> Array:
    """Messages (agent, ..., chain) in another order of the agents in each chain."""
    flat = messages.reshape(messages.shape[0], -1, messages.shape[-1])
    agents = order.shape[0]
    # rows after the last agent's stand for none and stay
    return flat.at[:agents].set(jnp.take_along_axis(flat[:agents], order, axis=0)).reshape(messages.shape)
