"""The arguments of a method's functions: `Agent`, `Noise` and `Inbox`, as an engine hands them over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..base.pytree import pytree
from ..posterior.potential import Potential, Shard

# Of the mean mass, the least that a sum is divided by.
_LEAST_SHARE = 0.1


class Facts(NamedTuple):
    """What every agent knows of the network as a whole."""

    num_agents: Array
    degree_sum: Array
    degree_square_sum: Array
    # what integrates differences must be so much slower where they come late and in one piece; 1 on reliable links
    caution: Array


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

    # Standard normals, scaled by the square root of the temperature, and by `common_scale` if `noise="common"`; a row
    # for each step where the method needs so many.
    normal: Float[Array, "*step dim"] | None
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
    """What arrived in a round, in the form that the method declared as its `Needs.inbox`."""

    mixed: PyTree = None
    summed: PyTree = None
    apart: PyTree = None
    differenced: PyTree = None
    totalled: PyTree = None
    exchanged: PyTree = None
    evaluate: Callable[[Any], PyTree] | None = None
    # shares of the mass before and after the round's exchanges; None: one
    shares: tuple[Array, Array] | None = None

    def mix(self) -> PyTree:
        """The messages averaged by the mixing weights, the agent's own included: sum_j W_ij message_j."""
        return self._declared(self.mixed, "mix")

    def neighbour_sum(self) -> PyTree:
        """The sum of the neighbours' messages, without the agent's own."""
        return self._declared(self.summed, "neighbour_sum")

    def disagreement(self) -> PyTree:
        """What the agent's own message is more than each neighbour's, added up; declared as `neighbour_sum` is.

        Its row of the network's Laplacian times the messages. Made edge by edge, so that it is rounded by as little as
        agents are apart, however far all of them are from zero.
        """
        return self._declared(self.apart, "disagreement")

    def differences(self) -> PyTree:
        """The agent's own message less what `mix()` gives, or `disagreement()`; added up edge by edge as that is.

        Sums of it over all agents are zero, also where links lose messages: there every difference counts once, when
        a later message of the link arrives.
        """
        return self._declared(self.differenced, "differences")

    @property
    def share(self) -> Array | float:
        """What to divide a pushed part of `mix()` by, to read it as an average over the agents; 1 on reliable links.

        A part that is pushed is a sum over all agents that the links must not lose. Where they are unreliable it is
        handed on unevenly; this is the agent's share of a mass handed on in the same way, but not below a tenth: who
        hears nothing for long has hardly any, and what it adds itself would seem to be everybody's.
        """
        return 1.0 if self.shares is None else jnp.maximum(self.shares[1], _LEAST_SHARE)

    @property
    def share_before(self) -> Array | float:
        """The same of what the agent itself held before the exchange, as in its state."""
        return 1.0 if self.shares is None else jnp.maximum(self.shares[0], _LEAST_SHARE)

    def total(self) -> PyTree:
        """The sum of all agents' messages: what a hub computes."""
        return self._declared(self.totalled, "total")

    def permuted(self) -> PyTree:
        """The message of one agent, a random permutation of all agents' messages being handed out by a hub."""
        return self._declared(self.exchanged, "permuted")

    def query(self, state: Any) -> PyTree:
        """The sum over all agents of `message(agent, state)`, for a state that the hub makes within a round."""
        return self._declared(self.evaluate, "query")(state)

    @staticmethod
    def _declared(content: Any, name: str) -> Any:
        if content is None:
            raise TypeError(f"the method reads inbox.{name}() but does not declare it: needs(dim).inbox names another")
        return content
