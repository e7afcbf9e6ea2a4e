"""The noise of a round, drawn for all agents and chains."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..samplers.agent import Noise
from .noise import EVERY_AGENT, Stream, bits, disguised, joined, normals, paired, parted, revealed
from .round import Problem

Halves = tuple[Array, Array]


class RawNoise(NamedTuple):
    """Noise of one round for all agents, in the two halves of `noise.bits`.

    Normals and batches have both halves in one array, see `noise.paired`.
    """

    normal: Array | None
    batch: Array | None
    local: Array | None
    key: Halves | None
    order: Halves | None


def draw_noise(problem: Problem, round: Any, chains: int) -> RawNoise:
    """The noise of a round for all agents and chains."""
    sampler, dtype = problem.sampler, problem.degree.dtype
    needs, index = problem.needs, problem.acting(round).index

    def words(stream: Stream, count: int, agents: Array = index) -> Halves:
        return bits(problem.seed, chains, round, stream, agents, count)

    everyone = jnp.full((1,), EVERY_AGENT, jnp.uint32)
    normal = local = key = order = None
    if needs.normal and sampler.temperature > 0:
        agents = everyone if needs.common else index
        normal = paired(normals(words(Stream.NORMAL, math.prod(_normal_shape(problem)), agents), dtype))
    if needs.local is not None and sampler.temperature > 0:
        local = paired(normals(words(Stream.LOCAL, math.prod(needs.local)), dtype))
    if needs.key:
        key = words(Stream.KEY, 2, everyone if needs.key == "common" else index)
    if needs.inbox == "permuted":
        order = words(Stream.ORDER, 1, jnp.arange(problem.num_agents, dtype=jnp.uint32))
    return RawNoise(normal, draw_batch(problem, round, chains, Stream.BATCH), local, key, order)


def draw_batch(problem: Problem, round: Any, chains: int, stream: Stream) -> Array | None:
    """Random words that select the rows of all agents' minibatches, None for full gradients."""
    count = _batch_words(problem)
    if count is None:
        return None
    return paired(disguised(bits(problem.seed, chains, round, stream, problem.index, count)))


def _normal_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of an agent's `noise.normal`."""
    steps = problem.needs.steps
    return (problem.dim,) if steps is None else (steps, problem.dim)


def _batch_words(problem: Problem) -> int | None:
    needs = problem.needs
    return None if needs.batch_size is None else needs.batch_size * int(np.max(needs.gradients))


def zero_noise(problem: Problem, chains: int) -> Noise:
    """The noise of a round at temperature zero with full gradients, in the shapes of `network_round`."""
    num_agents, dtype, needs = problem.index.size, problem.degree.dtype, problem.needs
    shape = 1 if needs.common else num_agents, *_normal_shape(problem), chains
    normal = jnp.zeros(shape, dtype) if needs.normal else None
    local = None if needs.local is None else jnp.zeros((num_agents, *needs.local, chains), dtype)
    return Noise(normal, None, local, None)


def assemble(problem: Problem, raw: RawNoise, chains: int) -> Noise:
    """Noise in the shapes of `network_round`, arrays (agent or 1, ..., chain)."""
    noise, needs, words = zero_noise(problem, chains), problem.needs, _batch_words(problem)
    if raw.normal is not None:
        shape = _normal_shape(problem)
        flat = joined(parted(raw.normal), math.prod(shape))
        noise = noise._replace(normal=flat.reshape(flat.shape[0], *shape, chains))
    if raw.local is not None and needs.local is not None:
        flat = joined(parted(raw.local), math.prod(needs.local))
        noise = noise._replace(local=flat.reshape(flat.shape[0], *needs.local, chains))
    if raw.batch is not None and words is not None:
        noise = noise._replace(batch=joined(revealed(parted(raw.batch)), words))
    if raw.key is not None:
        noise = noise._replace(key=joined(raw.key, 2))
    return noise
