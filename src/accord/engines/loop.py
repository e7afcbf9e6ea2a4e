"""The loop over rounds, its carry, and the records of kept draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int

from ..samplers.agent import Noise
from ..samplers.protocol import Monitored, Weighted
from .collectives import Collectives
from .draws import RawNoise, assemble, draw_batch, draw_noise
from .noise import EVERY_AGENT, Stream, bits, joined, none_of, normals, uniform
from .round import Problem, everywhere, initial_state, monitored, network_transition, positions

# Row length below which a loop along rows is slow.
_SHORT = 32


class Records(NamedTuple):
    """Kept draws and their statistics."""

    draws: Float[Array, "draw kept dim chain"]
    average: Float[Array, "draw dim chain"]
    # statistics by name
    statistics: dict[str, Float[Array, "draw chain"]]


class Carry(NamedTuple):
    """The loop carry with the states and the noise of the next round.

    Noise is drawn one round ahead. Otherwise XLA fuses its transcendental functions into the gathers of the exchange
    and evaluates them one number at a time.
    """

    state: Any
    noise: RawNoise
    round: Int[Array, ""]
    # the method's infos so far by agent: sums of integers, maxima of other numbers
    infos: Any


def _step(problem: Problem, carry: Carry, chains: int) -> Carry:
    raw = carry.noise
    order = None if raw.order is None else jnp.argsort(joined(raw.order, 1), axis=0)
    state, infos = network_transition(problem, carry.state, assemble(problem, raw, chains), carry.round, order)
    state = _in_order(_resampled(problem, state, carry.round, chains))
    following = once_known(state, carry.round + 1)
    noise = jax.tree.map(_in_long_rows, draw_noise(problem, following, chains))
    infos = jax.tree.map(_accumulated, carry.infos, infos)
    return Carry(state, noise, following, infos)


def once_known(state: Any, round: Array) -> Array:
    """The round number with an artificial data dependency on all arrays of a state.

    XLA then draws the next noise after this state is computed, into the buffer of the used noise. Otherwise XLA draws
    it earlier, keeps both buffers alive, and copies them.
    """
    firsts = [jax.lax.slice_in_dim(leaf.reshape(-1), 0, 1)[0] for leaf in jax.tree.leaves(state) if leaf.size]
    return round + sum(map(none_of, firsts))


def _in_order(arrays: Any) -> Any:
    """The arrays in row-major memory layout.

    Sums over neighbours read states along the chains. Outputs of a program need this layout because JAX (0.10)
    misreads an argument in another layout.
    """

    def one(leaf: Array) -> Array:
        return with_layout_constraint(leaf, Layout(major_to_minor=tuple(range(leaf.ndim)))) if leaf.ndim else leaf

    return jax.tree.map(one, arrays)


def _in_long_rows(leaf: Array) -> Array:
    """Noise (chain, number), row-major in memory, or column-major if rows are short."""
    chains, numbers = leaf.shape
    short = numbers < min(chains, _SHORT)
    return with_layout_constraint(leaf, Layout(major_to_minor=(1, 0))) if short else leaf


def _accumulated(before: Array, now: Array) -> Array:
    return before + now if jnp.issubdtype(before.dtype, jnp.integer) else jnp.maximum(before, now)


def _resampled(problem: Problem, state: Any, round: Array, chains: int) -> Any:
    """The state after systematic resampling of the chains, if the method has weights."""
    if not isinstance(problem.sampler, Weighted):
        return state
    shares = everywhere(problem.sampler.log_weight, problem.acting(round), (state,))
    if shares is None:
        return state
    log_weights = problem.collectives.at(round).total(shares)
    everyone = jnp.full((1,), EVERY_AGENT, jnp.uint32)
    word, _ = bits(problem.seed, 1, round, Stream.RESAMPLING, everyone, 1)
    places = (uniform(word[0, 0], log_weights.dtype) + jnp.arange(chains)) / chains

    def resample(state: Any) -> Any:
        chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_weights)), places)
        # by rounding the weights may sum to less than the last place
        chosen = jnp.minimum(chosen, chains - 1)
        return jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=-1), state)

    differ = jnp.any(log_weights != log_weights[0])
    return jax.lax.cond(differ, resample, lambda state: state, state)


def start(problem: Problem, mean: Array, factor: Array | None, chains: int) -> Carry:
    """The carry before round 0."""
    position = jnp.broadcast_to(mean[:, :, None] if mean.ndim == 2 else mean, (*mean.shape[:2], chains))
    if factor is not None:
        words = bits(problem.seed, chains, jnp.uint32(0), Stream.POSITION, problem.index, position.shape[1])
        normal = joined(normals(words, position.dtype), position.shape[1])
        position = position + jnp.einsum("nij,njc->nic", factor, normal)
    batch = draw_batch(problem, jnp.int32(0), chains, Stream.FIRST_BATCH)
    noise = assemble(problem, RawNoise(None, batch, None, None, None), chains)
    state = initial_state(problem, position, noise)
    return Carry(state, draw_noise(problem, jnp.int32(0), chains), jnp.int32(0), _no_infos(problem, state, chains))


def state_bytes(problem: Problem) -> int:
    """Bytes of the method's state of one agent in one chain, found without making it."""
    dtype, alone = problem.degree.dtype, replace(problem, collectives=Collectives(), links=None)
    position = jax.ShapeDtypeStruct((problem.index.size, problem.dim, 1), dtype)
    state = jax.eval_shape(initial_state, alone, position, Noise(None, None, None, None))
    return sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def _no_infos(problem: Problem, state: Any, chains: int) -> Any:
    """The infos of no round: zeros in the shapes of a round's."""
    if not isinstance(problem.sampler, Monitored):
        return None

    def first() -> Any:
        raw = draw_noise(problem, jnp.int32(0), chains)
        return network_transition(problem, state, assemble(problem, raw, chains), 0)[1]

    shapes = jax.eval_shape(first)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def advance(problem: Problem, carry: Carry, rounds: Array, chains: int) -> Carry:
    """The carry after `rounds` rounds."""
    return jax.lax.fori_loop(0, rounds, lambda _, c: _step(problem, c, chains), carry)


def record(
    problem: Problem, carry: Carry, draws: Array, thin: Array, keep: Array, chains: int, capacity: int
) -> tuple[Carry, Records]:
    """The carry after `draws * thin` rounds, and records of every `thin`-th round in buffers of `capacity` draws."""

    def records(carry: Carry) -> Records:
        x = positions(problem, carry.state)
        average = problem.collectives.total(x) / problem.num_agents
        distance = problem.collectives.total(jnp.sum((x - average[None]) ** 2, axis=1)) / problem.num_agents
        statistics = {"consensus_error": jnp.sqrt(distance), **monitored(problem, carry.infos)}
        return Records(problem.collectives.chosen(x, keep), average, statistics)

    return observed(problem, carry, draws, thin, records, chains, capacity)


def observed(
    problem: Problem,
    carry: Carry,
    draws: Array,
    thin: Array,
    observe: Callable[[Carry], Any],
    chains: int,
    capacity: int,
) -> tuple[Carry, Any]:
    """The carry after `draws * thin` rounds, and `observe` of every `thin`-th in buffers of `capacity` draws."""

    def one(t: Array, both: tuple[Carry, Any]) -> tuple[Carry, Any]:
        carry, buffers = both
        carry = advance(problem, carry, thin, chains)
        seen = observe(carry)
        put = jax.tree.map(lambda buffer, x: jax.lax.dynamic_update_index_in_dim(buffer, x, t, 0), buffers, seen)
        return carry, put

    shapes = jax.eval_shape(observe, carry)
    empty = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)
    last, buffers = jax.lax.fori_loop(0, draws, one, (carry, empty))
    return last._replace(noise=_in_order(last.noise)), buffers


def finite(problem: Problem, carry: Carry) -> Bool[Array, " agent"]:
    """Whether each agent's position is finite in all chains."""
    return jnp.isfinite(positions(problem, carry.state)).all(axis=(1, 2))
