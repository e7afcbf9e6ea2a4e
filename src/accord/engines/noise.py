"""Random numbers as a pure function of (seed, chain, round, agent, index).

Each number is one output of the Threefry block cipher at a counter. Any agent, chain or round can therefore be drawn
alone with the same values on any machine. There is one key per (seed, chain, round, stream), because a key per agent
costs ten times the numbers themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num, UInt32

# Agent number in counters of noise that all agents share.
EVERY_AGENT = 0xFFFFFFFF


class Stream(enum.IntEnum):
    """Purposes of random numbers. Each stream has its own keys."""

    NORMAL = 0
    BATCH = 1
    POSITION = 2
    FIRST_BATCH = 3
    LOCAL = 4
    KEY = 5
    ORDER = 6
    RESAMPLING = 7
    LINK = 8


def seed_words(seed: Any) -> UInt32[Array, 2]:
    """The two 32-bit words of a seed.

    Raises
    ------
    ValueError
        The seed is not a whole number from 0 to 2**64 - 1.
    """
    if isinstance(seed, bool) or not 0 <= int(seed) < 2**64 or int(seed) != seed:
        raise ValueError(f"seed must be a whole number from 0 to 2**64 - 1, found {seed!r}")
    return jax.device_put(np.array([int(seed) & 0xFFFFFFFF, int(seed) >> 32], dtype=np.uint32))


def bits(
    seed: UInt32[Array, 2],
    chains: int,
    round: Array,
    stream: Stream,
    agents: UInt32[Array, " agent"],
    count: int,
) -> tuple[UInt32[Array, "chain number"], UInt32[Array, "chain number"]]:
    """Random words, `count` per agent and chain, in two halves of (count + 1) // 2 words, agent after agent.

    All words of a chain are contiguous, so that loops over them are long for any number of agents and parameters.
    """
    chain = jnp.arange(chains, dtype=jnp.uint32)
    at_chain = _block((seed[0], seed[1]), (chain, jnp.zeros_like(chain)), (chains,))
    key = _block(at_chain, (jnp.asarray(round, jnp.uint32), jnp.uint32(stream)), (chains,))
    half = (count + 1) // 2
    shape = (chains, agents.size * half)
    number = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    owner = agents.at[number // jnp.uint32(half)].get(mode="promise_in_bounds")
    words = [jax.lax.broadcast_in_dim(word, shape, (0,)) for word in key]
    # depends on the round, otherwise XLA keeps this array, as large as half of the words, between rounds
    place = (number + none_of(round).astype(jnp.uint32)) % jnp.uint32(half)
    return _block(words, [owner, place], shape)


def none_of(x: Array) -> Int[Array, ""]:
    """Zero with an artificial data dependency on a number, so that sums with it are computed after the number.

    `jax.lax.optimization_barrier` has no such effect on CPUs, as XLA removes it before scheduling.
    """
    zero = jnp.int32(0)
    return jax.lax.clamp(zero, jnp.asarray(x).astype(jnp.int32), zero)


def at_links(
    seed: UInt32[Array, 2],
    rounds: Int[Array, " round"],
    stream: Stream,
    receivers: UInt32[Array, " agent"],
    senders: Int[Array, "agent slot"],
) -> tuple[UInt32[Array, "round agent slot"], UInt32[Array, "round agent slot"]]:
    """Two random words per round and link, shared by all chains, whose messages travel together."""
    key = _block((seed[0], seed[1]), (rounds.astype(jnp.uint32), jnp.uint32(stream)), rounds.shape)
    shape = (rounds.size, *senders.shape)
    return _block(
        [jax.lax.broadcast_in_dim(word, shape, (0,)) for word in key],
        [
            jax.lax.broadcast_in_dim(receivers, shape, (1,)),
            jax.lax.broadcast_in_dim(senders.astype(jnp.uint32), shape, (1, 2)),
        ],
        shape,
    )


def normals(words: tuple[Array, Array], dtype: Any) -> tuple[Array, Array]:
    """Standard normals from 24 bits of random words, symmetric about 0 and finite."""

    def convert(word: Array) -> Array:
        return jnp.asarray(2.0**0.5, dtype) * jax.lax.erf_inv(_symmetric(word, dtype))

    return convert(words[0]), convert(words[1])


def uniform(word: Array, dtype: Any) -> Array:
    """A number in (0, 1) from 24 bits of a random word."""
    return (_symmetric(word, dtype) + 1.0) / 2.0


def _symmetric(word: Array, dtype: Any) -> Array:
    """A number in (-1, 1) from 24 bits of a random word."""
    signed = jax.lax.shift_right_arithmetic(jax.lax.bitcast_convert_type(word, jnp.int32), jnp.int32(8))
    # signed + 1/2 and its product with a power of two are exact in single precision
    return (signed.astype(dtype) + jnp.asarray(0.5, dtype)) * jnp.asarray(2.0**-23, dtype)


def paired(halves: tuple[Array, Array]) -> Num[Array, "chain number"]:
    """Two halves of real numbers as one complex array.

    XLA computes one array in one loop, and the words of both halves once. It computes two arrays in two loops with all
    words each, which takes half as long again.
    """
    return jax.lax.complex(*halves)


def parted(pairs: Num[Array, "chain number"]) -> tuple[Array, Array]:
    """The two halves of a `paired` array."""
    return jax.lax.real(pairs), jax.lax.imag(pairs)


def disguised(words: tuple[Array, Array]) -> tuple[Array, Array]:
    """Words reinterpreted as single-precision numbers, to be paired and `revealed`, not read as numbers."""
    first, second = (jax.lax.bitcast_convert_type(word, jnp.float32) for word in words)
    return first, second


def revealed(numbers: tuple[Array, Array]) -> tuple[Array, Array]:
    """The words of `disguised` numbers."""
    first, second = (jax.lax.bitcast_convert_type(number, jnp.uint32) for number in numbers)
    return first, second


def joined(halves: tuple[Array, Array], count: int) -> Num[Array, "agent count chain"]:
    """The two halves as one array of `count` numbers per agent and chain."""
    half = (count + 1) // 2
    parts = [part.reshape(part.shape[0], -1, half).transpose(1, 2, 0) for part in halves]
    return jax.lax.slice_in_dim(jnp.concatenate(parts, axis=1), 0, count, axis=1)


# Rotations of Threefry-2x32 (Salmon et al. 2011), in groups of four rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Constant of its third key word.
_PARITY = 0x1BD11BDA


def _block(key: Sequence[Array], counter: Sequence[Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """A Threefry block, with unrolled rounds for one pass over the numbers."""
    one, other, first, second = (jnp.broadcast_to(word, shape) for word in (*key, *counter))
    keys = one, other, one ^ other ^ jnp.uint32(_PARITY)
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = (second << jnp.uint32(rotation)) | (second >> jnp.uint32(32 - rotation))
            second = first ^ second
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second
