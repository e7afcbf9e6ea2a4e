"""Pairwise masks: each agent's numbers travel as words that look random, and the masks cancel in the sum of all agents.

Secure aggregation after Bonawitz et al. (2017), without recovery of agents that drop out. Each pair of agents agrees on
a key by X25519 and HKDF-SHA256, and makes of it, for each sum, one ChaCha20 keystream, which the agent of the lower
number adds to its words and the other subtracts: in the sum over all agents nothing of it is left.

Words are fixed point: two's complement of 128 bits, 64 of them after the point, kept as two uint64 of which the low one
comes first, shape (2, number). They are added mod 2^128, so that the sum is the same in whatever order it is made.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt64

Words = UInt64[np.ndarray, "2 number"]

# Sums stay below 2^62, so that a sign fits too.
_RANGE_BITS = 62
_FRACTION_BITS = 64
_KEY_BYTES = 32
_MOST_COUNTS = 2**64
# Fewest agents of a masked sum: of two, each knows the numbers of the other.
FEWEST = 3


def require_masks(num_agents: int) -> None:
    """Raise unless so many agents can mask their sums here.

    Raises
    ------
    ValueError
        There are fewer than 3 agents.
    ImportError
        `cryptography` is not installed.
    """
    if num_agents < FEWEST:
        raise ValueError(
            f"masked sums need at least {FEWEST} agents, found {num_agents}: of two, each knows the other's numbers by "
            "subtracting its own from the sum"
        )
    _cryptography()


def _cryptography() -> tuple[Any, Any, Any, Any]:
    """X25519's keys, ciphers, HKDF and hashes."""
    try:
        from cryptography.hazmat.primitives import ciphers, hashes
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError as error:
        raise ImportError('masked sums need cryptography: pip install "accord[masks]"') from error
    return x25519, ciphers, hkdf, hashes


# --- keys ---


class Masks:
    """The masks of one agent, of which nobody else has the keys; for one run.

    They stay in the process that made them: they cannot be pickled, and a forked copy of the process cannot use them,
    because two messages under one mask differ by what they hide.

    Parameters
    ----------
    agent
        Its index.
    num_agents
        Agents of the sum, >= 3.

    Attributes
    ----------
    public
        The agent's public key, 32 bytes, for all other agents.

    Raises
    ------
    ValueError, ImportError
        As `require_masks`.
    """

    def __init__(self, agent: int, num_agents: int) -> None:
        require_masks(num_agents)
        self.agent, self.num_agents = agent, num_agents
        self._private, self.public = new_private_key()
        # by agent, of all others
        self._keys: dict[int, bytes] = {}
        self._last, self._lock, self._process = 0, threading.Lock(), os.getpid()

    def __reduce__(self) -> NoReturn:
        raise TypeError("masks stay in the process that made them")

    def agree(self, publics: Sequence[bytes], run: bytes = b"") -> None:
        """Make the keys of all pairs that this agent is in; the private key is forgotten.

        Parameters
        ----------
        publics
            The public keys of all agents, in their order.
        run
            What tells this run from others, the same for all agents. Keys hold for it and for these public keys only.

        Raises
        ------
        ValueError
            The agent's own key is not in its place, there are too few or two of a kind, or one is none.
        RuntimeError
            Keys have been agreed on already: new ones need new masks.
        """
        if self._private is None:
            raise RuntimeError(f"agent {self.agent} has agreed on keys already: another run needs new masks")
        publics = [bytes(one) for one in publics]
        if len(publics) != self.num_agents or len(set(publics)) != self.num_agents:
            raise ValueError(f"public keys must be {self.num_agents} different ones, found {len(set(publics))}")
        if publics[self.agent] != self.public:
            raise ValueError(f"the public key that is given out for agent {self.agent} is not its own")
        self._keys, self._private = pair_keys(self._private, self.agent, publics, run), None

    def masked(self, count: int, words: Words) -> Words:
        """The agent's words under its masks.

        Parameters
        ----------
        count
            The number of the sum: the same for all agents, and larger than those of the sums before, >= 1.
        words
            The agent's own, as `encoded` makes them.

        Raises
        ------
        ValueError
            `count` is not larger than that of the sum before: its masks have been used.
        RuntimeError
            No keys have been agreed on, or this is a copy of the process that made them.
        """
        if not self._keys:
            raise RuntimeError(f"agent {self.agent} has not agreed on keys")
        if os.getpid() != self._process:
            raise RuntimeError("masks stay in the process that made them: this one is a copy of it")
        with self._lock:
            if not self._last < count < _MOST_COUNTS:
                raise ValueError(
                    f"the masks of sum {count} may have been used: agent {self.agent} has masked sum {self._last}, and "
                    "two messages under one mask would tell their difference"
                )
            self._last = count
        return under_masks(words, self.agent, self._keys, count)


def new_private_key() -> tuple[Any, bytes]:
    """A private key, and the public one of 32 bytes that belongs to it."""
    x25519, *_ = _cryptography()
    private = x25519.X25519PrivateKey.generate()
    return private, private.public_key().public_bytes_raw()


def pair_keys(private: Any, agent: int, publics: Sequence[bytes], run: bytes) -> dict[int, bytes]:
    """The keys of an agent with all others, by their numbers; arguments as `Masks.agree` has them."""
    x25519, _, hkdf, hashes = _cryptography()
    # who was given another list has other keys with everybody, and no sum comes out
    everyones, keys = _digest(publics), {}
    for other, public in enumerate(publics):
        if other == agent:
            continue
        try:
            secret = private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise ValueError(f"the public key of agent {other} is none: {error}") from error
        first, second = sorted((agent, other))
        pair = first.to_bytes(8, "little") + second.to_bytes(8, "little")
        info = b"accord masks 1" + pair + everyones + hashlib.sha256(run).digest()
        keys[other] = hkdf.HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=info).derive(secret)
    return keys


def under_masks(words: Words, agent: int, keys: Mapping[int, bytes], count: int) -> Words:
    """Words of an agent under the masks of one sum, which no other words may ever be under."""
    mask = np.zeros_like(words)
    for other, key in keys.items():
        stream = _keystream(key, count, words.shape[1])
        mask = added(mask, stream if agent < other else negated(stream))
    return added(words, mask)


def fingerprint(publics: Sequence[bytes]) -> str:
    """A short text of the public keys of all agents, in their order, for people to compare.

    Sites that do not trust who passes the keys on compare it by another way: where all have the same, nobody has put
    keys of their own between them. 128 bits, as 8 groups of 4 hexadecimal digits.
    """
    digits = _digest([bytes(one) for one in publics]).hex()[:32]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def _digest(publics: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"accord public keys 1" + b"".join(publics)).digest()


def _keystream(key: bytes, count: int, length: int) -> Words:
    _, ciphers, *_ = _cryptography()
    # the first 8 bytes count blocks within the stream
    nonce = bytes(8) + count.to_bytes(8, "little")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(16 * length))
    return np.frombuffer(stream, "<u8").reshape(2, length)


# --- words ---


def added(*terms: Words) -> Words:
    """The sum of words mod 2^128."""
    low, high = terms[0]
    for other_low, other_high in terms[1:]:
        low = low + other_low
        carry = low < other_low
        high = high + other_high + carry
    return np.stack([low, high])


def negated(words: Words) -> Words:
    """What words have to be added to for zero, mod 2^128."""
    low, high = ~words
    low = low + np.uint64(1)
    return np.stack([low, high + (low == 0)])


def masked_bytes(count: int) -> int:
    """Bytes of the message that carries so many numbers: two words each, and one more number for what did not fit."""
    return 16 * (count + 1)


def largest(num_agents: int) -> float:
    """What each agent's numbers must be below in size: 2^62 / num_agents."""
    return 2.0**_RANGE_BITS / num_agents


def encoded(leaves: Sequence[Any], num_agents: int) -> Words:
    """An agent's numbers as words, rounded to multiples of 2^-64, and last whether they could not be.

    Where a number is NaN, infinite or not below `largest`, noise is in the place of all of them: the sum is to tell how
    many agents that was, and nothing else.

    Parameters
    ----------
    leaves
        Arrays of floats or integers, of any shapes.
    num_agents
        Agents of the sum.

    Returns
    -------
    array (2, number + 1)
        The words of all arrays, one after another; the last is 0, or 1 of an agent that could not.

    Raises
    ------
    TypeError
        An array holds neither floats nor integers.
    """
    limit = largest(num_agents)
    numbers = [_numbers(leaf) for leaf in leaves]
    whole = np.zeros((2, 1), np.uint64)
    if all(np.all((one < limit) & (one > -limit)) for one in numbers):
        return np.concatenate([*map(_fixed, numbers), whole], axis=1)
    noise = np.frombuffer(os.urandom(16 * sum(one.size for one in numbers)), np.uint64).reshape(2, -1)
    whole[1] = 1
    return np.concatenate([noise, whole], axis=1)


def decoded(words: Words, like: Sequence[Any], num_agents: int) -> list[np.ndarray]:
    """The sums that words of all agents hold, in the order and shapes of one agent's arrays.

    They miss the exact sums by at most num_agents * 2^-65, and then by rounding to double precision, a part in 2^52, or
    to what `sum_type` says.

    Raises
    ------
    ArithmeticError
        Some agents had numbers that could not be carried, or a sum of integers is too large for its type.
    RuntimeError
        The masks did not cancel.
    """
    low, high = words
    if low[-1] != 0 or high[-1] > num_agents:
        raise RuntimeError("the masks did not cancel: agents have different keys, or a message was changed on its way")
    if high[-1] > 0:
        raise ArithmeticError(
            f"{high[-1]} of {num_agents} agents have numbers that a masked sum cannot carry: NaN, infinite, or not "
            f"below 2^{_RANGE_BITS} / {num_agents} = {largest(num_agents):.3g} in size"
        )
    sums, start = [], 0
    for leaf in like:
        place = slice(start, start := start + int(np.prod(leaf.shape, dtype=int)))
        dtype = sum_type(leaf.dtype)
        if np.issubdtype(dtype, np.integer):
            found = high[place].view(np.int64)
            bounds = np.iinfo(dtype)
            if not ((found >= bounds.min) & (found <= bounds.max)).all():
                raise ArithmeticError(f"a sum of integers does not fit {dtype}")
        else:
            found = _floats(words[:, place])
        sums.append(found.astype(dtype).reshape(leaf.shape))
    return sums


def sum_type(dtype: Any) -> np.dtype:
    """The type of a sum: double precision where it is enabled, else that of its terms; of integers, JAX's."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64 if jnp.result_type(float) == np.float64 else dtype)
    carried = jax.ShapeDtypeStruct((1,), jax.dtypes.canonicalize_dtype(dtype))
    return np.dtype(jax.eval_shape(jnp.sum, carried).dtype)


def _numbers(leaf: Any) -> np.ndarray:
    """An array as flat doubles or integers."""
    leaf = np.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.astype(np.float64).ravel()
    if jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool:
        return leaf.astype(np.int64 if leaf.dtype == bool else leaf.dtype).ravel()
    raise TypeError(f"masked sums are of floats and integers, found {leaf.dtype}")


def _fixed(numbers: np.ndarray) -> Words:
    """Words of flat numbers that fit."""
    if np.issubdtype(numbers.dtype, np.integer):
        return np.stack([np.zeros(numbers.size, np.uint64), numbers.astype(np.int64).view(np.uint64)])
    # of sizes, whose part after the point is exact: that of 1 - 2^-70 would not be
    size = np.abs(numbers)
    whole = np.floor(size)
    low = np.rint(np.ldexp(size - whole, _FRACTION_BITS)).astype(np.uint64)
    words = np.stack([low, whole.astype(np.uint64)])
    return np.where(numbers < 0, negated(words), words)


def _floats(words: Words) -> np.ndarray:
    """Doubles of words."""
    negative = words[1].view(np.int64) < 0
    low, high = np.where(negative, negated(words), words)
    size = high.astype(np.float64) + np.ldexp(low.astype(np.float64), -_FRACTION_BITS)
    return np.where(negative, -size, size)
