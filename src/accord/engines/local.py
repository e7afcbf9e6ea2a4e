"""The local engine: all agents and chains of a run in arrays of one device.

Arrays have the agent first and the chain last, (agent, ..., chain): neighbours are then slices or rows of contiguous
numbers, and every product with an agent's data is one matrix product for all chains.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ..mixing import chebyshev_coefficients
from ..network import Network
from ..noise import EVERY_AGENT, Stream, bits, joined, normals, seed_words, uniform
from ..posterior import Posterior, Potential, Shard
from ..pytree import pytree, static, unchecked
from ..sampler import Agent, Facts, Inbox, Noise, Prepared, Sampler
from .exchange import Operator, operator, over_agents


@pytree
class Exchange:
    """What the network does to the messages of one round."""

    mix: Operator | None
    neighbours: Operator | None
    # (a_k, b_k) of the Chebyshev recursion over the exchanges of one step
    coefficients: tuple[tuple[float, float], ...] = static()
    total: bool = static()

    def __call__(self, messages: Any, order: Array | None = None) -> Inbox:
        """What every agent's inbox holds after all agents sent their messages."""
        mixed = summed = totalled = visiting = None
        if self.mix is not None:
            previous, mixed = None, messages
            for a, b in self.coefficients:
                following = over_agents(self.mix, mixed)
                if previous is not None:
                    following = jax.tree.map(lambda w, y, a=a, b=b: a * w - b * y, following, previous)
                previous, mixed = mixed, following
        if self.neighbours is not None:
            summed = over_agents(self.neighbours, messages)
        if self.total:
            totalled = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf.sum(axis=0), leaf.shape), messages)
        if order is not None:
            visiting = jax.tree.map(lambda leaf: _reordered(leaf, order), messages)
        return Inbox(mixed, summed, totalled, visiting)


def _reordered(messages: Array, order: Array) -> Array:
    """Messages (agent, ..., chain) in another order of the agents in each chain."""
    flat = messages.reshape(messages.shape[0], -1, messages.shape[-1])
    return jnp.take_along_axis(flat, order, axis=0).reshape(messages.shape)


@pytree
class Problem:
    """Everything that the compiled round reads, on the device."""

    sampler: Sampler
    potential: Potential
    shards: Shard
    index: UInt32[Array, " agent"]
    degree: Float[Array, " agent"]
    # the agents of each colour, where colours take turns in a round; a short row repeats its first agent
    members: Int[Array, "color slot"] | None
    own: Any
    facts: Facts
    shared: Any
    exchange: Exchange
    seed: UInt32[Array, 2]

    def agents(self, round: Any) -> Agent:
        """All agents, stacked, at a round."""
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

    def acting(self, round: Any) -> Agent:
        """The agents that have a state, stacked: all of them, or the one at the hub."""
        agents = self.agents(round)
        return _some(agents, slice(1)) if self.sampler.at_hub else agents


# Which parts of stacked agents carry the agent axis.
AGENT_PARTS = ("index", "degree", "shard", "own")
AGENT_AXES = unchecked(Agent, **{f.name: 0 if f.name in AGENT_PARTS else None for f in dataclasses.fields(Agent)})


def _some(agents: Agent, chosen: Any) -> Agent:
    """Some of stacked agents, by a slice or indices."""
    parts = {f.name: getattr(agents, f.name) for f in dataclasses.fields(agents)}
    own = {name: jax.tree.map(lambda leaf: leaf[chosen], parts[name]) for name in AGENT_PARTS}
    return unchecked(Agent, **{**parts, **own})


Halves = tuple[Array, Array]


class RawNoise(NamedTuple):
    """Noise of one round for all agents as it is carried between rounds: numbers in two halves, see `noise.bits`."""

    normal: Halves | None
    batch: Halves | None
    local: Halves | None
    key: Halves | None
    order: Halves | None


def build_problem(post: Posterior, network: Network, sampler: Sampler, seed: int, prepared: Prepared) -> Problem:
    """Put a posterior, a network and a method on the device."""
    degrees = network.degrees.astype(np.float64)
    weights = sampler.weights(network) if "mix" in sampler.receives else None
    exchange = Exchange(
        operator(weights) if weights is not None else None,
        operator(network.adjacency) if "neighbour_sum" in sampler.receives else None,
        () if weights is None else tuple(chebyshev_coefficients(weights, sampler.exchanges_per_round())),
        "total" in sampler.receives,
    )
    facts = Facts(*(jnp.asarray(float(fact)) for fact in (network.num_agents, degrees.sum(), (degrees**2).sum())))
    return Problem(
        sampler=sampler,
        potential=post.potential,
        shards=post.stacked(spectral=sampler.proximal),
        index=jnp.arange(network.num_agents, dtype=jnp.uint32),
        degree=jnp.asarray(degrees),
        members=jnp.asarray(_by_color(network.coloring()), jnp.int32) if sampler.by_color else None,
        own=jax.tree.map(jnp.asarray, prepared.own),
        facts=facts,
        shared=jax.tree.map(jnp.asarray, prepared.shared),
        exchange=exchange,
        seed=seed_words(seed),
    )


def _by_color(colors: np.ndarray) -> np.ndarray:
    classes = [np.flatnonzero(colors == color) for color in range(int(colors.max()) + 1)]
    most = max(map(len, classes))
    return np.stack([np.concatenate([agents, np.full(most - len(agents), agents[0])]) for agents in classes])


def draw_noise(problem: Problem, round: Any, chains: int) -> RawNoise:
    """The noise of a round, for all agents and chains."""
    sampler, dtype = problem.sampler, problem.degree.dtype
    needs, index = sampler.randomness(_dim(problem)), problem.acting(round).index

    def words(stream: Stream, count: int, agents: Array = index) -> Halves:
        return bits(problem.seed, chains, round, stream, agents, count)

    normal = local = key = order = None
    if needs.normal and sampler.temperature > 0:
        agents = jnp.full((1,), EVERY_AGENT, jnp.uint32) if needs.shared else index
        normal = normals(words(Stream.NORMAL, _dim(problem), agents), dtype)
    if needs.local is not None and sampler.temperature > 0:
        local = normals(words(Stream.LOCAL, math.prod(needs.local)), dtype)
    if needs.key:
        key = words(Stream.KEY, 2)
    if "visitor" in sampler.receives:
        order = words(Stream.ORDER, 1)
    return RawNoise(normal, draw_batch(problem, round, chains, Stream.BATCH), local, key, order)


def draw_batch(problem: Problem, round: Any, chains: int, stream: Stream) -> Halves | None:
    """Random words that choose the rows of all agents' minibatches, or None for full gradients."""
    count = _batch_words(problem)
    return None if count is None else bits(problem.seed, chains, round, stream, problem.index, count)


def _batch_words(problem: Problem) -> int | None:
    rows = problem.sampler.rows_per_gradient()
    return None if rows is None else rows * int(np.max(problem.sampler.gradients_per_round()))


def silence(problem: Problem, chains: int) -> Noise:
    """The noise of a round at temperature zero with full gradients, in the shapes that `network_round` takes."""
    dim, num_agents, dtype = _dim(problem), problem.index.size, problem.degree.dtype
    needs = problem.sampler.randomness(dim)
    normal = jnp.zeros((1 if needs.shared else num_agents, dim, chains), dtype) if needs.normal else None
    local = None if needs.local is None else jnp.zeros((num_agents, *needs.local, chains), dtype)
    return Noise(normal, None, local, None)


def assemble(problem: Problem, raw: RawNoise, chains: int) -> Noise:
    """Noise as `network_round` takes it, arrays (agent or 1, ..., chain)."""
    noise, needs, words = silence(problem, chains), problem.sampler.randomness(_dim(problem)), _batch_words(problem)
    if raw.normal is not None:
        noise = noise._replace(normal=joined(raw.normal, _dim(problem)))
    if raw.local is not None and needs.local is not None:
        flat = joined(raw.local, math.prod(needs.local))
        noise = noise._replace(local=flat.reshape(flat.shape[0], *needs.local, chains))
    if raw.batch is not None and words is not None:
        noise = noise._replace(batch=joined(raw.batch, words))
    if raw.key is not None:
        noise = noise._replace(key=joined(raw.key, 2))
    return noise


def initial_state(problem: Problem, position: Float[Array, "agent dim chain"], noise: Noise) -> Any:
    """The state of all agents and chains before round 0."""
    acting = problem.acting(0)

    def one(agent: Agent, x: Array, own: Noise) -> Any:
        return problem.sampler.init(agent, x, _scaled(problem.sampler, agent, own))

    return everywhere(one, acting, (position[: acting.index.size], _for_each(acting, noise)))


def network_round(problem: Problem, state: Any, noise: Noise, round: Any, order: Array | None = None) -> Any:
    """One round of all agents and chains: messages, exchange, updates. On quadratic potentials an affine map.

    `order` holds a random order of the agents in each chain, (agent, 1, chain), where messages are handed out in it.
    """
    sampler, agents, acting = problem.sampler, problem.agents(round), problem.acting(round)
    spread = _for_each(acting, noise)

    def ask(state: Any) -> Any:
        answers = jax.vmap(sampler.message, in_axes=(AGENT_AXES, None))(agents, state)
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), answers)

    def update(agent: Agent, own_state: Any, own_inbox: Inbox, own_noise: Noise) -> Any:
        if sampler.at_hub:
            own_inbox = own_inbox._replace(asked=ask)
        return sampler.update(agent, own_state, own_inbox, _scaled(sampler, agent, own_noise))

    if sampler.at_hub:
        return everywhere(update, acting, (state, Inbox(), spread))

    def deliver(state: Any) -> Inbox:
        return problem.exchange(everywhere(sampler.message, agents, (state,)), order)

    if problem.members is None:
        return everywhere(update, agents, (state, deliver(state), spread))

    def turn(members: Array, state: Any) -> Any:
        own = jax.tree.map(lambda leaf: leaf[members], (state, deliver(state), spread))
        new = everywhere(update, _some(agents, members), own)
        return jax.tree.map(lambda old, leaf: old.at[members].set(leaf), state, new)

    return jax.lax.fori_loop(0, len(problem.members), lambda c, state: turn(problem.members[c], state), state)


def positions(problem: Problem, state: Any) -> Float[Array, "agent dim chain"]:
    """The draws that a state stands for."""
    x = everywhere(lambda agent, own: problem.sampler.position(own), problem.acting(0), (state,))
    return jnp.broadcast_to(x, (problem.index.size, *x.shape[1:]))


def everywhere(function: Any, agents: Agent, arguments: tuple[Any, ...]) -> Any:
    """Call a function of one agent for all agents (first axis) and chains (last axis)."""
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


def _dim(problem: Problem) -> int:
    return sum(int(np.prod(shape, dtype=int)) for shape in problem.potential.shapes)


class Records(NamedTuple):
    """What is recorded of each kept draw."""

    draws: Float[Array, "draw kept dim chain"]
    average: Float[Array, "draw dim chain"]
    # named numbers of each chain and draw
    statistics: dict[str, Float[Array, "draw chain"]]


class Carry(NamedTuple):
    """What goes from round to round: the states, and the noise of the coming round.

    Noise is drawn one round ahead so that the compiler does not fuse its transcendental functions into the gathers of
    the exchange, which would run them one number at a time.
    """

    state: Any
    noise: RawNoise
    round: Int[Array, ""]
    # the largest over agents and rounds so far of what the method watches, by name
    watched: dict[str, Float[Array, " chain"]]


def _step(problem: Problem, carry: Carry, chains: int) -> Carry:
    raw = carry.noise
    order = None if raw.order is None else jnp.argsort(joined(raw.order, 1), axis=0)
    state = network_round(problem, carry.state, assemble(problem, raw, chains), carry.round, order)
    state = _resampled(problem, state, carry.round, chains)
    following = carry.round + 1
    watched = jax.tree.map(jnp.maximum, carry.watched, _watched(problem, state))
    return Carry(state, draw_noise(problem, following, chains), following, watched)


def _resampled(problem: Problem, state: Any, round: Array, chains: int) -> Any:
    """The chains after systematic resampling by the weights that the method gives them, if it does."""
    shares = everywhere(problem.sampler.log_weight, problem.acting(round), (state,))
    if shares is None:
        return state
    log_weights = shares.sum(axis=0)
    everyone = jnp.full((1,), EVERY_AGENT, jnp.uint32)
    word, _ = bits(problem.seed, 1, round, Stream.RESAMPLING, everyone, 1)
    places = (uniform(word[0, 0, 0], log_weights.dtype) + jnp.arange(chains)) / chains

    def resample(state: Any) -> Any:
        chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_weights)), places)
        # rounding may leave the sum of the weights a little below the last place
        chosen = jnp.minimum(chosen, chains - 1)
        return jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=-1), state)

    differ = jnp.any(log_weights != log_weights[0])
    return jax.lax.cond(differ, resample, lambda state: state, state)


def _watched(problem: Problem, state: Any) -> dict[str, Array]:
    found = everywhere(lambda agent, own: problem.sampler.diagnostics(own), problem.acting(0), (state,))
    return {name: value.max(axis=0) for name, value in found.items()}


@partial(jax.jit, static_argnames="chains")
def _start(problem: Problem, mean: Array, factor: Array | None, chains: int) -> Carry:
    position = jnp.broadcast_to(mean[:, :, None] if mean.ndim == 2 else mean, (*mean.shape[:2], chains))
    if factor is not None:
        words = bits(problem.seed, chains, jnp.uint32(0), Stream.POSITION, problem.index, position.shape[1])
        normal = joined(normals(words, position.dtype), position.shape[1])
        position = position + jnp.einsum("nij,njc->nic", factor, normal)
    batch = draw_batch(problem, jnp.int32(0), chains, Stream.FIRST_BATCH)
    noise = assemble(problem, RawNoise(None, batch, None, None, None), chains)
    state = initial_state(problem, position, noise)
    return Carry(state, draw_noise(problem, jnp.int32(0), chains), jnp.int32(0), _watched(problem, state))


@partial(jax.jit, static_argnames="chains")
def _advance(problem: Problem, carry: Carry, rounds: Array, chains: int) -> Carry:
    return jax.lax.fori_loop(0, rounds, lambda _, c: _step(problem, c, chains), carry)


@partial(jax.jit, static_argnames=("chains", "capacity"))
def _record(
    problem: Problem, carry: Carry, draws: Array, thin: Array, keep: Array, chains: int, capacity: int
) -> tuple[Carry, Records]:
    def observe(carry: Carry) -> Records:
        x = positions(problem, carry.state)
        average = x.mean(axis=0)
        distance = jnp.sum((x - average[None]) ** 2, axis=1)
        return Records(x[keep], average, {"consensus_error": jnp.sqrt(distance.mean(axis=0)), **carry.watched})

    def one(t: Array, both: tuple[Carry, Records]) -> tuple[Carry, Records]:
        carry, records = both
        carry = _advance(problem, carry, thin, chains)
        seen = observe(carry)
        put = jax.tree.map(lambda buffer, x: jax.lax.dynamic_update_index_in_dim(buffer, x, t, 0), records, seen)
        return carry, put

    shapes = jax.eval_shape(observe, carry)
    empty = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, draws, one, (carry, empty))


@jax.jit
def _finite(problem: Problem, carry: Carry) -> Bool[Array, " agent"]:
    return jnp.isfinite(positions(problem, carry.state)).all(axis=(1, 2))


class LocalEngine:
    """Runs a method on one device.

    Parameters
    ----------
    post, network, sampler
        What to run; already checked to fit.
    chains
        Independent chains, the last axis of every array.
    seed
        From 0 to 2**64 - 1.
    keep
        Indices of the agents whose draws are recorded, shape (kept,).
    """

    # Recorded draws held on the device before they are copied out, in bytes.
    buffer_bytes = 64 * 2**20

    def __init__(
        self, post: Posterior, network: Network, sampler: Sampler, *, chains: int, seed: int, keep: np.ndarray
    ) -> None:
        self.prepared = sampler.prepare(post, network)
        self.problem = build_problem(post, network, sampler, seed, self.prepared)
        self.chains = chains
        self.keep = jnp.asarray(keep, jnp.int32)
        dtype = self.problem.degree.dtype
        per_draw = chains * post.dim * (keep.size + 1) * dtype.itemsize
        self.capacity = int(np.clip(self.buffer_bytes // per_draw, 1, 1024))

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Carry:
        """Before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` (agent, dim, dim) or None."""
        dtype = self.problem.degree.dtype
        factor = None if factors is None else jnp.asarray(factors, dtype)
        with np.errstate(over="ignore"):  # what the run's float width cannot hold becomes infinite, and is then named
            mean = jnp.asarray(np.asarray(means, dtype))
        return _start(self.problem, mean, factor, self.chains)

    def advance(self, carry: Carry, rounds: int) -> Carry:
        """Run rounds and keep nothing of them."""
        return _advance(self.problem, carry, jnp.int32(rounds), self.chains)

    def record(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        """Run `draws * thin` rounds and record every `thin`-th; at most `capacity` draws a call.

        The records are host arrays, cut to the number of draws.
        """
        carry, records = _record(
            self.problem, carry, jnp.int32(draws), jnp.int32(thin), self.keep, self.chains, self.capacity
        )
        return carry, jax.tree.map(lambda leaf: np.asarray(leaf)[:draws], records)

    def finite(self, carry: Carry) -> np.ndarray:
        """Whether each agent's position is finite in all chains, shape (agent,)."""
        return np.asarray(_finite(self.problem, carry))

    def message_bytes(self, carry: Carry) -> int:
        """Bytes of the message that one agent of one chain sends in one exchange."""
        messages = jax.eval_shape(
            lambda p, s: everywhere(p.sampler.message, p.acting(0), (s,)), self.problem, carry.state
        )
        leaves = jax.tree.leaves(messages)
        return sum(math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in leaves)
