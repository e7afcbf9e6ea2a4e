"""Random numbers are standard normal, independent across counters and reproducible in any slice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.extend.random import threefry2x32_p, threefry_2x32

import accord
from accord.engines.local import LocalEngine
from accord.engines.noise import (
    EVERY_AGENT,
    Stream,
    _block,
    bits,
    disguised,
    joined,
    normals,
    paired,
    parted,
    revealed,
    seed_words,
)

SEED = 12345678901234


def draw(agents, count, chains, round=0, stream=Stream.NORMAL, seed=SEED):
    words = bits(seed_words(seed), chains, jnp.uint32(round), stream, jnp.asarray(agents, jnp.uint32), count)
    return np.asarray(joined(normals(words, jnp.float32), count))


def test_normals_are_standard():
    x = draw(np.arange(1000), 5, 200).ravel()
    assert scipy.stats.kstest(x, "norm").pvalue > 1e-3
    # the first four moments, within five standard errors
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x.astype(float) ** power).mean() - expected) < 5 * np.sqrt(variance / x.size)
    assert np.isfinite(x).all()


def test_normals_are_the_quantiles_of_their_words():
    words = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    # midpoints of the intervals of the upper 24 bits
    signed = words.view(np.int32) >> 8
    expected = scipy.stats.norm.ppf((signed + 0.5 + 2.0**23) / 2.0**24)
    with jax.enable_x64(True):
        found = normals((jnp.asarray(words), jnp.asarray(words)), jnp.float64)
    for half in found:
        np.testing.assert_allclose(half, expected, rtol=1e-9, atol=1e-12)


def test_parted_inverts_paired():
    words = bits(seed_words(3), 2, jnp.uint32(5), Stream.NORMAL, jnp.arange(4, dtype=jnp.uint32), 5)
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            halves = normals(words, dtype)
            for half, again in zip(halves, parted(paired(halves)), strict=True):
                assert again.dtype == dtype
                np.testing.assert_array_equal(half, again)


def test_revealed_inverts_disguised():
    # including bits of infinities, subnormal numbers and NaN with a payload
    words = jnp.array([[0, 1, 0x7F800000, 0x7F800001, 0x7FC00123, 0xFFFFFFFF, 0x80000000, 0x00012345]], jnp.uint32)

    @jax.jit
    def carried(words):
        def swapped(_, pairs):
            first, second = parted(pairs)
            return paired((second, first))

        return revealed(parted(jax.lax.fori_loop(0, 4, swapped, paired(disguised((words, ~words))))))

    for found, expected in zip(carried(words), (words, ~words), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_extreme_words_give_finite_symmetric_normals():
    words = jnp.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], jnp.uint32)
    x = np.asarray(normals((words, ~words), jnp.float32)[0])
    mirrored = np.asarray(normals((words, ~words), jnp.float32)[1])
    assert np.isfinite(x).all()
    np.testing.assert_array_equal(x, -mirrored)
    assert np.abs(x).max() > 5


@pytest.mark.parametrize("what", ["agent", "round", "chain", "stream", "seed", "index"])
def test_counters_do_not_share_numbers(what):
    base = draw(np.arange(20_000), 2, 2)
    other = {
        "agent": draw(np.arange(20_000, 40_000), 2, 2),
        "round": draw(np.arange(20_000), 2, 2, round=1),
        "chain": base[:, :, ::-1],
        "stream": draw(np.arange(20_000), 2, 2, stream=Stream.POSITION),
        "seed": draw(np.arange(20_000), 2, 2, seed=SEED + 2**40),
        "index": base[:, ::-1],
    }[what]
    correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
    # a reversal of the same numbers counts pairs twice
    assert abs(correlation) < 5 * np.sqrt(2.0 / base.size)


def test_any_slice_can_be_drawn_alone():
    everything = draw(np.arange(50), 7, 3)
    np.testing.assert_array_equal(draw([17, 4], 7, 3), everything[[17, 4]])
    np.testing.assert_array_equal(draw(np.arange(50), 7, 2), everything[:, :, :2])


def test_words_are_threefry_at_their_counters():
    # JAX's block cipher, pair by pair
    first, second = bits(seed_words(SEED), 2, jnp.uint32(9), Stream.BATCH, jnp.array([3, 5], jnp.uint32), 4)
    for chain in range(2):
        key = threefry_2x32(seed_words(SEED), jnp.array([chain, 0], jnp.uint32))
        key = threefry_2x32(key, jnp.array([9, Stream.BATCH], jnp.uint32))
        for a, agent in enumerate((3, 5)):
            for index in range(2):
                expected = threefry_2x32(key, jnp.array([agent, index], jnp.uint32))
                place = chain, 2 * a + index
                assert (int(first[place]), int(second[place])) == tuple(map(int, expected))


def test_common_noise_differs_from_every_agents_noise():
    common = draw([EVERY_AGENT], 4, 3)
    own = draw(np.arange(2000), 4, 3)
    assert not np.isin(common, own).any()


def test_bad_seeds():
    for seed in (-1, 2**64, 0.5, True):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            seed_words(seed)


# Key, counter and block of test vectors from Random123, the authors' library.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("shape", [(3,), (1, 40), (3, 2, 5)])
def test_blocks_are_threefry_in_every_shape(shape):
    for key, counter, block in KNOWN:
        found = _block([jnp.uint32(word) for word in key], [jnp.uint32(word) for word in counter], shape)
        for word, expected in zip(found, block, strict=True):
            np.testing.assert_array_equal(word, np.full(shape, expected, np.uint32))
    rng = np.random.default_rng(0)
    words = jnp.asarray(rng.integers(0, 2**32, (4, *shape), np.uint32))
    for one, other in zip(_block(list(words[:2]), list(words[2:]), shape), threefry2x32_p.bind(*words), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("chains", [2, 40])
def test_noise_is_the_same_in_one_program_and_in_several(chains):
    # many chains with few numbers have a column-major layout within a program
    post, net = accord.models.gaussian(np.zeros((3, 3)), np.stack([np.eye(3)] * 3)), accord.Network.ring(3)
    bound = accord.samplers.DESGLD(0.1, noise="common").bind(post, net)
    engine = LocalEngine(post, net, bound, chains=chains, seed=SEED, keep=np.arange(3))
    engine.capacity = 6
    first = engine.start(np.zeros((3, 3)), None)
    whole = engine.record(first, 6, 1)[1].draws
    carry, parts = first, []
    for count in (1, 3, 2):
        carry, records = engine.record(carry, count, 1)
        parts.append(records.draws)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
