"""Arguments that an engine passes to a method's functions: `Agent`, `Noise` and `Inbox`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..base.pytree import pytree
from ..posterior.potential import Potential, Shard

# Lower bound of a mass share used as a divisor.
_LEAST_SHARE = 0.1


class Facts(NamedTuple):
    """Properties of the network that every agent knows."""

    num_agents: Array
    degree_sum: Array
    degree_square_sum: Array
    # factor of steps that integrate differences, below 1 on unreliable links
    caution: Array


@pytree
class Agent:
    """One agent as a method sees it: its index, its potential f_i and gradients, and the round."""

    # an engine that holds all agents in one object adds a leading agent axis
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
        """Gradient of f_i over all rows, or an unbiased estimate from `batch` (scaled by n_i / b)."""
        return self.potential.gradient(self.shard, x, batch)

    def hessian(self, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        return self.potential.hessian(self.shard, x)


class Noise(NamedTuple):
    """The randomness of one agent in one round, a pure function of (seed, chain, round, agent)."""

    # Standard normals times sqrt(temperature), and times `common_scale` if `noise="common"`. One row per step if
    # `Needs.steps` is set.
    normal: Float[Array, "*step dim"] | None
    # Random words that select the rows of the minibatches, with replacement. None: all rows.
    batch: UInt32[Array, " batch"] | None
    # Standard normals of the agent's local steps times sqrt(temperature), independent between agents.
    local: Float[Array, "step width"] | None
    # Words of a `jax.random` key, for methods that need a variable number of random numbers.
    key: UInt32[Array, 2] | None

    def random_key(self) -> Array:
        """The key of this agent and round, for `jax.random`."""
        assert self.key is not None
        return jax.random.wrap_key_data(self.key, impl="threefry2x32")


class Inbox(NamedTuple):
    """Messages that arrived in a round, in the form declared by `Needs.inbox`."""

    mixed: PyTree = None
    summed: PyTree = None
    apart: PyTree = None
    differenced: PyTree = None
    totalled: PyTree = None
    exchanged: PyTree = None
    evaluate: Callable[[Any], PyTree] | None = None
    # mass shares before and after the round's exchanges, None on reliable links
    shares: tuple[Array, Array] | None = None

    def mix(self) -> PyTree:
        """The messages averaged by the mixing weights, including the agent's own: sum_j W_ij message_j."""
        return self._declared(self.mixed, "mix")

    def neighbour_sum(self) -> PyTree:
        """The sum of the neighbours' messages, without the agent's own."""
        return self._declared(self.summed, "neighbour_sum")

    def disagreement(self) -> PyTree:
        """Sum over neighbours of the agent's own message minus theirs, declared as `neighbour_sum`.

        This is the agent's row of the network's Laplacian applied to the messages. It is added up edge by edge, so that
        its rounding error scales with the differences and not with the messages' distance from zero.
        """
        return self._declared(self.apart, "disagreement")

    def differences(self) -> PyTree:
        """The agent's own message minus `mix()`, or `disagreement()`, added up edge by edge.

        Its sum over all agents is zero. Links that lose messages keep this property: each difference counts once, when
        a later message of the link arrives.
        """
        return self._declared(self.differenced, "differences")

    @property
    def share(self) -> Array | float:
        """Divisor that turns a pushed part of `mix()` into an average over the agents, 1 on reliable links.

        Unreliable links distribute a pushed sum unevenly. The divisor is the agent's share of a mass that is pushed
        along with it, at least 0.1: without that bound, an agent that receives no message for long would divide its own
        contributions by almost zero.
        """
        return 1.0 if self.shares is None else jnp.maximum(self.shares[1], _LEAST_SHARE)

    @property
    def share_before(self) -> Array | float:
        """The divisor for a pushed part that the agent held before the exchange, as in its state."""
        return 1.0 if self.shares is None else jnp.maximum(self.shares[0], _LEAST_SHARE)

    def total(self) -> PyTree:
        """The sum of all agents' messages, as a hub computes it."""
        return self._declared(self.totalled, "total")

    def permuted(self) -> PyTree:
        """The message of one agent, from a random permutation of all agents' messages by the hub."""
        return self._declared(self.exchanged, "permuted")

    def query(self, state: Any) -> PyTree:
        """The sum over all agents of `message(agent, state)`, for a state that the hub computes within a round."""
        return self._declared(self.evaluate, "query")(state)

    @staticmethod
    def _declared(content: Any, name: str) -> Any:
        if content is None:
            raise TypeError(f"the method reads inbox.{name}() but does not declare it: needs(dim).inbox names another")
        return content
