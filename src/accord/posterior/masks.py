"""Pairwise masks: each agent sends words that look random, and the masks cancel in the sum over all agents.

Secure aggregation after Bonawitz et al. (2017), without recovery from dropouts. Each pair of agents agrees on a key by
X25519 and HKDF-SHA256. For each sum, the key gives one keystream of AES-256 in counter mode, which R has too. The agent
with the lower index adds it to its words, the other agent subtracts it.

Words are 128-bit fixed-point numbers in two's complement with 64 fractional bits, stored as two uint64 with the low one
first, shape (2, number). Addition is mod 2^128, so that the order of summation does not matter.
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

# Bits of the largest sum. One more bit is the sign.
_RANGE_BITS = 62
_FRACTION_BITS = 64
_KEY_BYTES = 32
_MOST_COUNTS = 2**64
# Fewest agents of a masked sum. With two agents, each could subtract its own numbers.
FEWEST = 3


def require_masks(num_agents: int) -> None:
    """Raise unless masked sums of this number of agents are possible here.

    Raises
    ------
    ValueError
        There are fewer than 3 agents.
    ImportError
        `cryptography` is not installed.
    """
    if num_agents < FEWEST:
        raise ValueError(
            f"masked sums need at least {FEWEST} agents, found {num_agents}: each of two agents could subtract its own "
            "numbers from the sum"
        )
    _cryptography()


def _cryptography() -> tuple[Any, Any, Any, Any]:
    """The modules for X25519, ciphers, HKDF and hashes."""
    try:
        from cryptography.hazmat.primitives import ciphers, hashes
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError as error:
        raise ImportError('masked sums need cryptography: pip install "accord[masks]"') from error
    return x25519, ciphers, hkdf, hashes


# --- keys ---


class Masks:
    """The masks of one agent for one run.

    They stay in their process: they cannot be pickled, and a fork cannot use them. A mask that is used twice reveals
    the difference of two messages.

    Parameters
    ----------
    agent
        The agent's index.
    num_agents
        Number of agents of the sum, >= 3.

    Attributes
    ----------
    public
        The agent's public key, 32 bytes, to be sent to all other agents.

    Raises
    ------
    ValueError, ImportError
        As in `require_masks`.
    """

    def __init__(self, agent: int, num_agents: int) -> None:
        require_masks(num_agents)
        self.agent, self.num_agents = agent, num_agents
        self._private, self.public = new_private_key()
        # one key per other agent
        self._keys: dict[int, bytes] = {}
        self._last, self._lock, self._process = 0, threading.Lock(), os.getpid()

    def __reduce__(self) -> NoReturn:
        raise TypeError("masks cannot be pickled: they stay in the process that made them")

    def agree(self, publics: Sequence[bytes], run: bytes = b"") -> None:
        """Derive this agent's keys with all other agents, and drop the private key.

        Parameters
        ----------
        publics
            The public keys of all agents, in order.
        run
            An identifier of the run, the same for all agents. Keys are bound to it and to these public keys.

        Raises
        ------
        ValueError
            The agent's own key is not at its index, the number of keys is wrong, two are equal, or one is invalid.
        RuntimeError
            Keys have been agreed on already.
        """
        if self._private is None:
            raise RuntimeError(f"agent {self.agent} has agreed on keys already: another run needs new masks")
        publics = [bytes(one) for one in publics]
        if len(publics) != self.num_agents or len(set(publics)) != self.num_agents:
            raise ValueError(f"masks need {self.num_agents} different public keys, found {len(set(publics))}")
        if publics[self.agent] != self.public:
            raise ValueError(f"the public key at index {self.agent} is not the key of agent {self.agent}")
        self._keys, self._private = pair_keys(self._private, self.agent, publics, run), None

    def masked(self, count: int, words: Words) -> Words:
        """The agent's words plus its masks.

        Parameters
        ----------
        count
            The sequence number of the sum, >= 1, the same for all agents and larger than in all sums before.
        words
            The agent's words, from `encoded`.

        Raises
        ------
        ValueError
            `count` is not larger than in the sum before, so its masks may have been used.
        RuntimeError
            No keys have been agreed on, or this process is a fork.
        """
        self._use(count)
        return under_masks(words, self.agent, self._keys, count)

    def masked_integers(self, count: int, integers: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """The agent's integers plus its masks, mod `largest` + 1, shape (number,).

        `count` and errors are as in `masked`, with which no count may be shared. Moduli are powers of 2, at most 2^63.
        """
        self._use(count)
        return integers_under_masks(integers, largest, self.agent, self._keys, count)

    def _use(self, count: int) -> None:
        """Mark the masks of a sum as used."""
        if not self._keys:
            raise RuntimeError(f"agent {self.agent} has not agreed on keys")
        if os.getpid() != self._process:
            raise RuntimeError("masks stay in the process that made them: this process is a fork of it")
        with self._lock:
            if not self._last < count < _MOST_COUNTS:
                raise ValueError(
                    f"the masks of sum {count} may have been used: agent {self.agent} has masked sum {self._last}, and "
                    "two messages under one mask would reveal their difference"
                )
            self._last = count


def new_private_key() -> tuple[Any, bytes]:
    """A private key and its public key, 32 bytes."""
    x25519, *_ = _cryptography()
    private = x25519.X25519PrivateKey.generate()
    return private, private.public_key().public_bytes_raw()


def require_public_key(public: bytes) -> None:
    """Raise `ValueError` for bytes that are no public key, or one with which all keys of pairs are known."""
    x25519, *_ = _cryptography()
    x25519.X25519PrivateKey.generate().exchange(x25519.X25519PublicKey.from_public_bytes(public))


def pair_keys(private: Any, agent: int, publics: Sequence[bytes], run: bytes) -> dict[int, bytes]:
    """The keys of an agent with all others, by agent index. Arguments as in `Masks.agree`."""
    x25519, _, hkdf, hashes = _cryptography()
    # an agent with another list of public keys gets other keys, and its masks do not cancel
    digest, keys = _digest(publics), {}
    for other, public in enumerate(publics):
        if other == agent:
            continue
        try:
            secret = private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise ValueError(f"the public key of agent {other} is invalid: {error}") from error
        first, second = sorted((agent, other))
        pair = first.to_bytes(8, "little") + second.to_bytes(8, "little")
        info = b"accord masks 2" + pair + digest + hashlib.sha256(run).digest()
        keys[other] = hkdf.HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=info).derive(secret)
    return keys


def under_masks(words: Words, agent: int, keys: Mapping[int, bytes], count: int) -> Words:
    """An agent's words plus the masks of sum number `count`. No other words may ever use the same masks."""
    mask = np.zeros_like(words)
    for other, key in keys.items():
        stream = _keystream(key, count, words.shape[1])
        mask = added(mask, stream if agent < other else negated(stream))
    return added(words, mask)


def fingerprint(publics: Sequence[bytes]) -> str:
    """A 128-bit fingerprint of all agents' public keys, in order, as 8 groups of 4 hexadecimal digits.

    Sites that do not trust the relay of the keys compare it over another channel. If all fingerprints agree, the relay
    has not replaced any key.
    """
    digits = _digest([bytes(one) for one in publics]).hex()[:32]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def integers_under_masks(
    integers: np.ndarray, largest: np.ndarray, agent: int, keys: Mapping[int, bytes], count: int
) -> np.ndarray:
    """An agent's integers plus masks, mod `largest` + 1, a power of 2 up to 2^63. As `under_masks` otherwise.

    Masks have 32 bits, or 64 bits if a modulus is larger than 2^32.
    """
    found, wide = integers.astype(np.int64), bool(np.max(largest) >= 2**32)
    length = -(-integers.size // (2 if wide else 4))
    for other, key in keys.items():
        stream = _keystream(key, count, length).ravel().view(np.uint64 if wide else np.uint32)[: integers.size]
        own = stream.astype(np.int64) & largest
        found = (found + own if agent < other else found - own) & largest
    return found


def _digest(publics: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"accord public keys 1" + b"".join(publics)).digest()


def _keystream(key: bytes, count: int, length: int) -> Words:
    _, ciphers, *_ = _cryptography()
    # the last 8 bytes are the block counter
    nonce = count.to_bytes(8, "big") + bytes(8)
    cipher = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(nonce))
    stream = cipher.encryptor().update(bytes(16 * length))
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
    """Minus the words, mod 2^128."""
    low, high = ~words
    low = low + np.uint64(1)
    return np.stack([low, high + (low == 0)])


def masked_bytes(count: int) -> int:
    """Size of a masked message of `count` numbers, in bytes. It has one more number, the overflow flag."""
    return 16 * (count + 1)


def largest(num_agents: int) -> float:
    """The bound on the size of each agent's numbers, 2^62 / num_agents."""
    return 2.0**_RANGE_BITS / num_agents


def encoded(leaves: Sequence[Any], num_agents: int) -> Words:
    """An agent's numbers as words, rounded to multiples of 2^-64, with a flag at the end.

    If a number is NaN, infinite or not below `largest`, the flag is 1 and noise replaces all words. The sum of flags
    then reveals the number of such agents and nothing else.

    Parameters
    ----------
    leaves
        Arrays of floats or integers, of any shapes.
    num_agents
        Number of agents of the sum.

    Returns
    -------
    array (2, number + 1)
        The words of all arrays in order, and the flag.

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
    """The sums in the summed words of all agents, in the order and shapes of one agent's arrays.

    They are exact up to num_agents * 2^-65 and rounding to the dtype of `sum_type`.

    Raises
    ------
    ArithmeticError
        Some agents had numbers that a masked sum cannot carry, or a sum of integers is too large for its dtype.
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
    """The dtype of a sum: of floats, double if enabled, else the dtype of the terms. Of integers, JAX's."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64 if jnp.result_type(float) == np.float64 else dtype)
    carried = jax.ShapeDtypeStruct((1,), jax.dtypes.canonicalize_dtype(dtype))
    return np.dtype(jax.eval_shape(jnp.sum, carried).dtype)


def _numbers(leaf: Any) -> np.ndarray:
    """An array as a flat array of doubles or integers."""
    leaf = np.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.astype(np.float64).ravel()
    if jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool:
        return leaf.astype(np.int64 if leaf.dtype == bool else leaf.dtype).ravel()
    raise TypeError(f"masked sums are of floats and integers, found {leaf.dtype}")


def _fixed(numbers: np.ndarray) -> Words:
    """The words of flat numbers within the range."""
    if np.issubdtype(numbers.dtype, np.integer):
        return np.stack([np.zeros(numbers.size, np.uint64), numbers.astype(np.int64).view(np.uint64)])
    # of absolute values: the fraction of -2^-70, 1 - 2^-70, would be rounded
    size = np.abs(numbers)
    whole = np.floor(size)
    low = np.rint(np.ldexp(size - whole, _FRACTION_BITS)).astype(np.uint64)
    words = np.stack([low, whole.astype(np.uint64)])
    return np.where(numbers < 0, negated(words), words)


def _floats(words: Words) -> np.ndarray:
    """Words in double precision."""
    negative = words[1].view(np.int64) < 0
    low, high = np.where(negative, negated(words), words)
    size = high.astype(np.float64) + np.ldexp(low.astype(np.float64), -_FRACTION_BITS)
    return np.where(negative, -size, size)
