"""What an engine hands to a method: the agent, its noise and its inbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..base.pytree import pytree
from ..posterior.potential import Potential, Shard

if TYPE_CHECKING:
    pass


class Prepared(NamedTuple):
    """What a method works out once, before round 0, from the posterior, the network and its own numbers."""

    # Numbers of each agent, every array with a leading agent axis; a method reads its agent's as `agent.own`.
    own: PyTree = ()
    # Numbers that all agents know; read as `agent.shared`.
    shared: PyTree = ()
    # What finding them took: exchanges one after another, and bytes that each agent sent, (agent,) or 0.
    exchanges: int = 0
    bytes_sent: Any = 0


class Randomness(NamedTuple):
    """What a round of one agent draws; see `Noise`."""

    # Whether it reads `noise.normal`.
    normal: bool = True
    # Shape (steps, width) of `noise.local`, or None.
    local: tuple[int, int] | None = None
    # Whether it reads `noise.key`.
    key: bool = False
    # Whether `normal` is the same for all agents: a hub's, or that of `noise="common"`.
    shared: bool = False


class Facts(NamedTuple):
    """What every agent knows of the network as a whole."""

    num_agents: Array
    degree_sum: Array
    degree_square_sum: Array


@pytree
class Agent:
    """One agent, as a method sees it: its place, its data behind f_i and its gradients, and the round."""

    # with a leading agent axis where an engine holds all agents in one
    index: UInt32[Array, "*agent"]
    degree: Float[Array, "*agent"]
    shard: Shard
    own: PyTree
    round: Int[Array, ""]
    facts: Facts
    shared: PyTree
    potential: Potential

    @property
    def num_agents(self) -> Array:
        """Number of agents N, as a float."""
        return self.facts.num_agents

    def value(self, x: Float[Array, " dim"]) -> Array:
        """The potential f_i(x)."""
        return self.potential.value(self.shard, x)

    def gradient(self, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """Gradient of f_i, of all rows or estimated from `batch` (unbiased, scaled by n_i / b)."""
        return self.potential.gradient(self.shard, x, batch)

    def hessian(self, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        return self.potential.hessian(self.shard, x)


class Noise(NamedTuple):
    """The randomness of one agent in one round, a pure function of (seed, chain, round, agent)."""

    # Standard normals, scaled by the square root of the temperature, and by `common_scale` if `noise="common"`.
    normal: Float[Array, " dim"] | None
    # Random words that choose the rows of the round's minibatches (with replacement), or None for all rows.
    batch: UInt32[Array, " batch"] | None
    # Standard normals of the agent's local steps, scaled by the square root of the temperature, never shared.
    local: Float[Array, "step width"] | None
    # Words of a `jax.random` key, for what takes a random number of random numbers.
    key: UInt32[Array, 2] | None

    def random_key(self) -> Array:
        """The key of this agent and round, for `jax.random`."""
        assert self.key is not None
        return jax.random.wrap_key_data(self.key, impl="threefry2x32")


class Inbox(NamedTuple):
    """What arrived in a round, in the forms that the method declared in `receives`."""

    mixed: PyTree = None
    summed: PyTree = None
    totalled: PyTree = None
    visiting: PyTree = None
    asked: Callable[[Any], PyTree] | None = None

    def mix(self) -> PyTree:
        """The messages averaged by the mixing weights, the agent's own included: sum_j W_ij message_j."""
        return self._declared(self.mixed, "mix")

    def neighbour_sum(self) -> PyTree:
        """The sum of the neighbours' messages, without the agent's own."""
        return self._declared(self.summed, "neighbour_sum")

    def total(self) -> PyTree:
        """The sum of all agents' messages: what a hub computes."""
        return self._declared(self.totalled, "total")

    def visitor(self) -> PyTree:
        """The message of one agent, all agents' messages being handed out in random order: what a hub passes on."""
        return self._declared(self.visiting, "visitor")

    def ask(self, state: Any) -> PyTree:
        """The sum over all agents of `message(agent, state)`, for a state that the hub makes within a round."""
        return self._declared(self.asked, "ask")(state)

    @staticmethod
    def _declared(content: Any, name: str) -> Any:
        if content is None:
            raise TypeError(f"the method reads inbox.{name}() but its `receives` does not name {name!r}")
        return content
