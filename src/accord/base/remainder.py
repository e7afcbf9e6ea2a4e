"""Remainders of random words, without divisions of integers, which CPUs make one at a time."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32


def remainder(words: UInt32[Array, ...], count: Int[Array, ""]) -> Int[Array, ...]:
    """`words % count`, exactly, of any words and a whole number 1 <= count <= 2^30.

    The quotient in single precision misses by up to 1 + 2^10 / count, as its four roundings make 2^-22 of it; that of
    what it leaves misses by one.
    """
    share = 1.0 / count.astype(jnp.float32)
    quotient = (words.astype(jnp.float32) * share).astype(jnp.uint32)
    # of a size up to count + 2^10, so that words that wrap around are right
    left = (words - quotient * count.astype(jnp.uint32)).astype(jnp.int32)
    count = count.astype(jnp.int32)
    left = left - jnp.floor(left.astype(jnp.float32) * share).astype(jnp.int32) * count
    left = jnp.where(left < 0, left + count, left)
    return jnp.where(left >= count, left - count, left)
