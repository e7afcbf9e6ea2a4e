"""The local engine: all agents and chains of a run in arrays of one device.

Arrays have the agent first and the chain last, (agent, ..., chain): neighbours are then slices or rows of contiguous
numbers, and every product with an agent's data is one matrix product for all chains.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ..mixing import chebyshev_coefficients
from ..network import Network
from ..noise import EVERY_AGENT, Stream, bits, joined, normals, seed_words
from ..posterior import Posterior, Potential, Shard
from ..pytree import pytree, static, unchecked
from ..sampler import Agent, Facts, Inbox, Noise, Sampler
from .exchange import Operator, operator, over_agents


@pytree
class Exchange:
    """What the network does to the messages of one round."""

    mix: Operator | None
    neighbours: Operator | None
    # (a_k, b_k) of the Chebyshev recursion over the exchanges of one step
    coefficients: tuple[tuple[float, float], ...] = static()
    total: bool = static()

    def __call__(self, messages: Any) -> Inbox:
        """What every agent's inbox holds after all agents sent their messages."""
        mixed = summed = totalled = None
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
        return Inbox(mixed, summed, totalled)


@pytree
class Problem:
    """Everything that the compiled round reads, on the device."""

    sampler: Sampler
    potential: Potential
    shards: Shard
    index: UInt32[Array, " agent"]
    degree: Float[Array, " agent"]
    facts: Facts
    exchange: Exchange
    seed: UInt32[Array, 2]

    def agents(self, round: Any) -> Agent:
        """All agents, stacked, at a round."""
        return Agent(self.index, self.degree, self.shards, jnp.asarray(round, jnp.int32), self.facts, self.potential)


# Which parts of stacked agents carry the agent axis.
AGENT_AXES = unchecked(Agent, index=0, degree=0, shard=0, round=None, facts=None, potential=None)


class RawNoise(NamedTuple):
    """Noise of one round for all agents as it is carried between rounds: two halves of normals, words for batches."""

    normal: tuple[Array, Array] | None
    batch: tuple[Array, Array] | None


def build_problem(post: Posterior, network: Network, sampler: Sampler, seed: int) -> Problem:
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
    index = jnp.arange(network.num_agents, dtype=jnp.uint32)
    shards = post.stacked(spectral=sampler.proximal)
    return Problem(sampler, post.potential, shards, index, jnp.asarray(degrees), facts, exchange, seed_words(seed))


def draw_noise(problem: Problem, round: Any, chains: int) -> RawNoise:
    """The noise of a round, for all agents and chains."""
    sampler, dim = problem.sampler, _dim(problem)
    normal = None
    if sampler.temperature > 0:
        shared = sampler.noise == "common"
        agents = jnp.full((1,), EVERY_AGENT, jnp.uint32) if shared else problem.index
        normal = normals(bits(problem.seed, chains, round, Stream.NORMAL, agents, dim), problem.degree.dtype)
    return RawNoise(normal, draw_batch(problem, round, chains, Stream.BATCH))


def draw_batch(problem: Problem, round: Any, chains: int, stream: Stream) -> tuple[Array, Array] | None:
    """Random words that choose the rows of all agents' minibatches, or None for full gradients."""
    rows = problem.sampler.rows_per_gradient()
    return None if rows is None else bits(problem.seed, chains, round, stream, problem.index, rows)


def assemble(problem: Problem, raw: RawNoise, chains: int) -> Noise:
    """Noise as `network_round` takes it: normals (agent or 1, dim, chain), batches (agent, rows, chain) or None."""
    dim, rows = _dim(problem), problem.sampler.rows_per_gradient()
    if raw.normal is None:
        normal = jnp.zeros((1, dim, chains), problem.degree.dtype)
    else:
        normal = joined(raw.normal, dim)
    return Noise(normal, None if raw.batch is None or rows is None else joined(raw.batch, rows))


def initial_state(problem: Problem, position: Float[Array, "agent dim chain"], noise: Noise) -> Any:
    """The state of all agents and chains before round 0."""

    def one(agent: Agent, x: Array, own: Noise) -> Any:
        return problem.sampler.init(agent, x, _scaled(problem.sampler, agent, own))

    return everywhere(one, problem.agents(0), (position, _for_every_agent(problem, noise)))


def network_round(problem: Problem, state: Any, noise: Noise, round: Any) -> Any:
    """One round of all agents and chains: messages, exchange, updates. On quadratic potentials an affine map."""
    sampler, agents = problem.sampler, problem.agents(round)
    inbox = problem.exchange(everywhere(sampler.message, agents, (state,)))

    def update(agent: Agent, own_state: Any, own_inbox: Inbox, own_noise: Noise) -> Any:
        return sampler.update(agent, own_state, own_inbox, _scaled(sampler, agent, own_noise))

    return everywhere(update, agents, (state, inbox, _for_every_agent(problem, noise)))


def positions(problem: Problem, state: Any) -> Float[Array, "agent dim chain"]:
    """The draws that a state stands for."""
    return everywhere(lambda agent, own: problem.sampler.position(own), problem.agents(0), (state,))


def everywhere(function: Any, agents: Agent, arguments: tuple[Any, ...]) -> Any:
    """Call a function of one agent for all agents (first axis) and chains (last axis)."""
    count = len(arguments)
    over_chains = jax.vmap(function, in_axes=(None, *[-1] * count), out_axes=-1)
    return jax.vmap(over_chains, in_axes=(AGENT_AXES, *[0] * count), out_axes=0)(agents, *arguments)


def _for_every_agent(problem: Problem, noise: Noise) -> Noise:
    shape = (problem.index.size, *noise.normal.shape[1:])
    return noise._replace(normal=jnp.broadcast_to(noise.normal, shape))


def _scaled(sampler: Sampler, agent: Agent, noise: Noise) -> Noise:
    scale = sampler.temperature**0.5
    if sampler.noise == "common":
        scale = scale * sampler.common_scale(agent)
    return noise._replace(normal=scale * noise.normal)


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
    state = network_round(problem, carry.state, assemble(problem, carry.noise, chains), carry.round)
    following = carry.round + 1
    watched = jax.tree.map(jnp.maximum, carry.watched, _watched(problem, state))
    return Carry(state, draw_noise(problem, following, chains), following, watched)


def _watched(problem: Problem, state: Any) -> dict[str, Array]:
    found = everywhere(lambda agent, own: problem.sampler.diagnostics(own), problem.agents(0), (state,))
    return {name: value.max(axis=0) for name, value in found.items()}


@partial(jax.jit, static_argnames="chains")
def _start(problem: Problem, mean: Array, factor: Array | None, chains: int) -> Carry:
    position = jnp.broadcast_to(mean[:, :, None] if mean.ndim == 2 else mean, (*mean.shape[:2], chains))
    if factor is not None:
        words = bits(problem.seed, chains, jnp.uint32(0), Stream.POSITION, problem.index, position.shape[1])
        normal = joined(normals(words, position.dtype), position.shape[1])
        position = position + jnp.einsum("nij,njc->nic", factor, normal)
    batch = draw_batch(problem, jnp.int32(0), chains, Stream.FIRST_BATCH)
    state = initial_state(problem, position, assemble(problem, RawNoise(None, batch), chains))
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
        self.problem = build_problem(post, network, sampler, seed)
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
            lambda p, s: everywhere(p.sampler.message, p.agents(0), (s,)), self.problem, carry.state
        )
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(messages))
        return total // (self.problem.index.size * self.chains)
