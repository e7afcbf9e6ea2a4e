"""One round of all agents and chains in arrays.

Arrays have shape (agent, ..., chain). Neighbours are then slices or rows of contiguous numbers, and a product with an
agent's data is one matrix product for all chains. A device holds all agents or some of them, and `Collectives`
communicate with the other devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from ..base.pytree import altered, pytree, static, unchecked
from ..posterior.potential import Potential, Shard
from ..samplers.agent import Agent, Facts, Inbox, Noise
from ..samplers.protocol import Monitored, Needs, Sampler
from .collectives import Collectives, neighbour_sums
from .links import Linked, LinkedExchange
from .operators import Operator


@pytree
class Exchange:
    """Turns all agents' messages of a round into their inboxes."""

    mix: Operator | None
    neighbours: Operator | None
    # coefficients (a_k, b_k) of the Chebyshev recursion over the exchanges of a step
    coefficients: Float[Array, "exchange 2"] | None
    total: bool = static()
    # N if all agents' messages are averaged instead of the neighbours', else None
    averaged: int | None = static()
    # whether the method reads differences from the others' messages
    differences: bool = static()

    def __call__(self, messages: Any, degree: Array, collectives: Collectives, order: Array | None = None) -> Inbox:
        """All agents' inboxes."""
        mixed = summed = apart = differenced = totalled = exchanged = None
        if self.mix is not None:
            assert self.coefficients is not None
            if self.differences:
                differenced = self._given(self.mix, self.coefficients, messages, collectives)
                mixed = jax.tree.map(jnp.subtract, messages, differenced)
            else:
                mixed = self._mixed(self.mix, self.coefficients, messages, collectives)
        if self.neighbours is not None:
            apart = collectives.differences(self.neighbours, messages)
            summed = neighbour_sums(messages, apart, degree)
            differenced = apart if self.differences else None
        if self.averaged is not None:
            sums = collectives.total(messages)
            mixed = jax.tree.map(lambda sum, leaf: jnp.broadcast_to(sum / self.averaged, leaf.shape), sums, messages)
            differenced = jax.tree.map(jnp.subtract, messages, mixed) if self.differences else None
        if self.total:
            sums = collectives.total(messages)
            totalled = jax.tree.map(lambda sum, leaf: jnp.broadcast_to(sum, leaf.shape), sums, messages)
        if order is not None:
            exchanged = collectives.permuted(messages, order)
        return Inbox(mixed, summed, apart, differenced, totalled, exchanged)

    @staticmethod
    def _mixed(mix: Operator, coefficients: Array, messages: Any, collectives: Collectives) -> Any:
        """Messages after all exchanges of a step, by the three-term Chebyshev recursion."""

        def exchange(two: tuple[Any, Any], ab: Array) -> tuple[tuple[Any, Any], None]:
            previous, mixed = two
            following = collectives.apply(mix, mixed)
            return (mixed, jax.tree.map(lambda w, y: ab[0] * w - ab[1] * y, following, previous)), None

        first = messages, collectives.apply(mix, messages)
        if len(coefficients) == 1:
            return first[1]
        # scan: unrolled, each exchange adds most of a second of compilation
        return jax.lax.scan(exchange, first, coefficients[1:])[0][1]

    @staticmethod
    def _given(mix: Operator, coefficients: Array, messages: Any, collectives: Collectives) -> Any:
        """Messages minus their `_mixed` values, x - y_K, computed from differences only.

        With D = I - W and a_k - b_k = 1 the recursion of e_k = x - y_k is
        `e_{k+1} = a_k (e_k + D x - D e_k) - b_k e_{k-1}`. Its sum over the agents stays zero.
        """
        first = collectives.differences(mix, messages)
        if len(coefficients) == 1:
            return first

        def exchange(two: tuple[Any, Any], ab: Array) -> tuple[tuple[Any, Any], None]:
            previous, given = two

            def following(e: Array, d: Array, apart: Array, before: Array) -> Array:
                return ab[0] * (e + d - apart) - ab[1] * before

            apart = collectives.differences(mix, given)
            return (given, jax.tree.map(following, given, first, apart, previous)), None

        nothing = jax.tree.map(jnp.zeros_like, messages)
        return jax.lax.scan(exchange, (nothing, first), coefficients[1:])[0][1]


@pytree
class Problem:
    """All inputs of a compiled round, on the device."""

    sampler: Sampler
    potential: Potential
    shards: Shard
    index: UInt32[Array, " agent"]
    degree: Float[Array, " agent"]
    # the agents of each colour if colours take turns in a round, padded with an out-of-range number
    members: Int[Array, "color slot"] | None
    own: Any
    facts: Facts
    shared: Any
    exchange: Exchange
    # replaces `exchange` if links are unreliable, states are then `Linked`
    links: LinkedExchange | None
    seed: UInt32[Array, 2]
    collectives: Collectives
    num_agents: int = static()

    @property
    def dim(self) -> int:
        """Number of flat parameters."""
        return self.potential.dim

    def agents(self, round: Any) -> Agent:
        """All agents in a round, stacked."""
        return Agent(
            self.index,
            self.degree,
            self.shards,
            self.own,
            jnp.asarray(round, jnp.int32),
            self.facts,
            self.shared,
            self.potential,
        )

    @property
    def needs(self) -> Needs:
        """The method's `Needs`."""
        return self.sampler.needs(self.dim)

    def acting(self, round: Any) -> Agent:
        """The agents that have a state, stacked: all of them, or the hub only."""
        agents = self.agents(round)
        if not self.needs.at_hub:
            return agents
        # the hub uses the random numbers of agent 0
        return dataclasses.replace(_some(agents, slice(1)), index=jnp.zeros(1, jnp.uint32))


# Fields of stacked agents with an agent axis.
AGENT_PARTS = ("index", "degree", "shard", "own")
AGENT_AXES = unchecked(Agent, **{f.name: 0 if f.name in AGENT_PARTS else None for f in dataclasses.fields(Agent)})


def _some(agents: Agent, chosen: Any) -> Agent:
    """The stacked agents selected by a slice or indices."""
    return altered(
        agents, **{name: jax.tree.map(lambda leaf: leaf[chosen], getattr(agents, name)) for name in AGENT_PARTS}
    )


def initial_state(problem: Problem, position: Float[Array, "agent dim chain"], noise: Noise) -> Any:
    """The state of all agents and chains before round 0."""
    acting = problem.acting(0)

    def one(agent: Agent, x: Array, own: Noise) -> Any:
        return problem.sampler.init(agent, x, _scaled(problem.sampler, agent, own))

    first = problem.collectives.everyones(position)[:1] if problem.needs.at_hub else position
    state = everywhere(one, acting, (first, _for_each(acting, noise)))
    if problem.links is None:
        return state
    return Linked(state, problem.links.begin(everywhere(problem.sampler.message, acting, (state,))))


def own_state(problem: Problem, state: Any) -> Any:
    """The method's state without the links' state."""
    return state if problem.links is None else state.own


def network_round(problem: Problem, state: Any, noise: Noise, round: Any, order: Array | None = None) -> Any:
    """The state of all agents and chains after one round, on quadratic potentials an affine map."""
    return network_transition(problem, state, noise, round, order)[0]


def network_transition(
    problem: Problem, state: Any, noise: Noise, round: Any, order: Array | None = None
) -> tuple[Any, Any]:
    """The states of all agents and chains after one round, and the method's infos or None.

    `order` is a random order of the agents in each chain, (agent, 1, chain), for methods that permute messages.
    """
    sampler, agents, acting = problem.sampler, problem.agents(round), problem.acting(round)
    at_hub = problem.needs.at_hub
    spread, collectives = _for_each(acting, noise), problem.collectives.at(round)

    def answer(state: Any) -> Any:
        return jax.vmap(sampler.message, in_axes=(AGENT_AXES, None))(agents, state)

    def query(state: Any) -> Any:
        return collectives.query(state, answer, problem.num_agents)

    def update(agent: Agent, own_state: Any, own_inbox: Inbox, own_noise: Noise) -> tuple[Any, Any]:
        if at_hub:
            own_inbox = own_inbox._replace(evaluate=query)
        scaled = _scaled(sampler, agent, own_noise)
        if isinstance(sampler, Monitored):
            return sampler.transition(agent, own_state, own_inbox, scaled)
        return sampler.update(agent, own_state, own_inbox, scaled), None

    if at_hub:
        return everywhere(update, acting, (state, Inbox(), spread))

    def deliver(state: Any, collectives: Collectives) -> Inbox:
        messages = everywhere(sampler.message, agents, (state,))
        return problem.exchange(messages, problem.degree, collectives, order)

    if problem.links is not None:
        messages = everywhere(sampler.message, agents, (state.own,))
        numbers = problem.index, problem.degree, agents.round
        inbox, held = problem.links(messages, state.held, *numbers, collectives)
        new, infos = everywhere(update, agents, (state.own, inbox, spread))
        return Linked(new, held), infos
    if problem.members is None:
        return everywhere(update, agents, (state, deliver(state, collectives), spread))

    def turn(color: Array, members: Array, both: tuple[Any, Any]) -> tuple[Any, Any]:
        state, _ = both
        own = jax.tree.map(lambda leaf: leaf[members], (state, deliver(state, collectives.in_turn(color)), spread))
        new = everywhere(update, _some(agents, members), own)
        return jax.tree.map(lambda old, leaf: old.at[members].set(leaf, mode="drop"), both, new)

    members = problem.members
    # the turns overwrite these zeros for every agent
    shapes = jax.eval_shape(lambda: everywhere(update, agents, (state, deliver(state, collectives), spread)))
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[1])
    return jax.lax.fori_loop(0, len(members), lambda c, both: turn(c, members[c], both), (state, empty))


def messages_of(problem: Problem, state: Any) -> Any:
    """All agents' messages in an exchange, (agent, ..., chain), over unreliable links with running sums."""
    messages = everywhere(problem.sampler.message, problem.acting(0), (own_state(problem, state),))
    return messages if problem.links is None else problem.links.sent(messages, state.held)


def monitored(problem: Problem, infos: Any) -> dict[str, Array]:
    """The method's infos by name, each the maximum over the agents, (chain,)."""
    named = {} if infos is None else infos._asdict()
    return {name: problem.collectives.largest(value) for name, value in named.items() if value is not None}


def positions(problem: Problem, state: Any) -> Float[Array, "agent dim chain"]:
    """The draws of a state, in the user's coordinates."""
    state = own_state(problem, state)
    x = everywhere(lambda agent, own: problem.sampler.position(own), problem.acting(0), (state,))
    return jnp.broadcast_to(problem.potential.reported(x), (problem.index.size, *x.shape[1:]))


def everywhere(function: Any, agents: Agent, arguments: tuple[Any, ...]) -> Any:
    """Map a function of one agent over all agents (first axis) and chains (last axis)."""
    count = len(arguments)
    over_chains = jax.vmap(function, in_axes=(None, *[-1] * count), out_axes=-1)
    return jax.vmap(over_chains, in_axes=(AGENT_AXES, *[0] * count), out_axes=0)(agents, *arguments)


def _for_each(agents: Agent, noise: Noise) -> Noise:
    size = agents.index.size
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape[1:])), noise)


def _scaled(sampler: Sampler, agent: Agent, noise: Noise) -> Noise:
    root = sampler.temperature**0.5
    scale = root * sampler.common_scale(agent) if sampler.noise == "common" else root
    normal, local = noise.normal, noise.local
    return noise._replace(
        normal=None if normal is None else scale * normal, local=None if local is None else root * local
    )
