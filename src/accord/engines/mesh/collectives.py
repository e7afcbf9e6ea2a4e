"""Collective operations between the devices of a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from ...base.pytree import pytree
from ..collectives import Collectives, along, reordered

# Name of the mesh axis over which agents are sharded.
AGENTS = "agents"


@pytree
class MeshCollectives(Collectives):
    """Collective operations between devices with equal numbers of rows, the last of which may be padding."""

    active: Bool[Array, " agent"]

    def total(self, values: Any) -> Any:
        """The sum over all agents of every array (agent, ...) of a pytree."""
        return jax.tree.map(lambda x: jax.lax.psum(jnp.where(along(self.active, x), x, 0).sum(axis=0), AGENTS), values)

    def permuted(self, messages: Any, order: Int[Array, "everyone 1 chain"]) -> Any:
        """Messages, a pytree of arrays (agent, ..., chain), permuted over the agents in each chain."""
        return jax.tree.map(lambda x: self.own(reordered(self.everyones(x), order)), messages)

    def largest(self, x: Shaped[Array, "agent ..."]) -> Array:
        """The maximum over all agents."""
        if x.shape[0] != self.active.size:
            # the hub has one row, replicated on all devices
            return x.max(axis=0)
        lowest = jnp.iinfo(x.dtype).min if jnp.issubdtype(x.dtype, jnp.integer) else -jnp.inf
        return jax.lax.pmax(jnp.where(along(self.active, x), x, lowest).max(axis=0), AGENTS)

    def everyones(self, x: Shaped[Array, "agent ..."]) -> Shaped[Array, "everyone ..."]:
        """The rows of all agents, an all-gather."""
        return jax.lax.all_gather(x, AGENTS, tiled=True)

    def own(self, x: Shaped[Array, "everyone ..."]) -> Shaped[Array, "agent ..."]:
        """The rows of this device, from an array over all agents."""
        rows = self.active.size
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AGENTS) * rows, rows)

    def chosen(self, x: Shaped[Array, "agent ..."], which: Int[Array, " kept"]) -> Shaped[Array, "kept ..."]:
        """The rows of some agents, by their numbers."""
        place = which - jax.lax.axis_index(AGENTS) * self.active.size
        here = (place >= 0) & (place < self.active.size)
        rows = x[jnp.clip(place, 0, self.active.size - 1)]
        return jax.lax.psum(jnp.where(along(here, x), rows, 0), AGENTS)
