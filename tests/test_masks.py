"""Masked totals: sums equal the plain ones, and messages on the way are noise."""

import copy
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from several import HERE, alone, environment
from tables import AGENTS, NETWORKS

import accord
from accord.engines.mesh.shares import Shares
from accord.engines.silo.messages import _UP, _WAYS
from accord.engines.silo.worker import Worker
from accord.engines.silo.workers import Limits, SetbackError, WorkerPool
from accord.posterior import masks as masks_module
from accord.posterior.masks import Masks, added, decoded, encoded, fingerprint, largest, negated

RANDOM = accord.Network.erdos_renyi(AGENTS, 0.5, seed=1)
PLACES = {"ring": NETWORKS["ring"], "star": NETWORKS["star"], "random": RANDOM}
# Probability with which a good mask fails one of some hundred tests.
CHANCE = 1e-9


def log_likelihood(params, rows):
    return jnp.zeros(rows.shape[0])


def log_prior(params):
    return jnp.zeros(())


def holding(numbers):
    """A posterior whose agents hold the rows of a matrix (agent, number)."""
    return accord.Posterior(log_likelihood, log_prior, [row[None] for row in np.asarray(numbers)], np.zeros(1))


def own_row(potential, shard):
    return shard.rows[0]


def row_and_size(potential, shard):
    return {"row": shard.rows[0], "size": shard.size}


def sevens_as(potential, shard, number):
    return jnp.where(shard.rows[0] == 7.0, number, shard.rows[0])


def wide(count=200):
    """Numbers of both signs from 1e-12 to 1e12, (agent, number)."""
    rng = np.random.default_rng(0)
    return 10.0 ** rng.uniform(-12, 12, (AGENTS, count)) * rng.choice([-1.0, 1.0], (AGENTS, count))


def agreed(count=AGENTS):
    masks = [Masks(agent, count) for agent in range(count)]
    for one in masks:
        one.agree([other.public for other in masks])
    return masks


def exact_sums(numbers):
    return [sum(map(Fraction, column)) for column in np.asarray(numbers, np.float64).T]


def assert_precise(found, numbers):
    for one, exact in zip(found, exact_sums(numbers), strict=True):
        allowed = len(numbers) * Fraction(1, 2**65) + abs(exact) * Fraction(1, 2**52)
        assert abs(Fraction(float(one)) - exact) <= allowed


class Threads(WorkerPool):
    """The silo's workers, in threads of this process instead of Ray actors."""

    def __init__(self, post):
        self.limits, self.size = Limits(timeout=60.0, late="raise", start_timeout=60.0), post.num_agents
        self.key, self.attempt = os.urandom(32), 0
        self.folder = tempfile.TemporaryDirectory()
        self.post, self.workers = post, [None] * self.size
        # (sender, content) of messages up the tree, and the agents to lose in the next sums
        self.sent, self.crashes = [], []
        for agent in range(self.size):
            self.renew(agent)

    def renew(self, agent):
        if self.workers[agent] is not None:
            self.workers[agent].channels.close()
        worker = self.workers[agent] = Worker(agent, "127.0.0.1", {})
        worker.load(self.post.alone(agent), {}, Path(self.folder.name), self.key)
        exchange = worker.channels.exchange

        def watched(label, outgoing, incoming, limit):
            if label.exchange % _WAYS == _UP:
                self.sent += [(agent, bytes(content)) for content in outgoing.values()]
            return exchange(label, outgoing, incoming, limit)

        worker.channels.exchange = watched
        self._loaded = [None if worker is None else worker.incarnation for worker in self.workers]

    def call(self, method, rows=None, *, agents=None, limit=None):
        def work(agent, row):
            # the float width is thread-local
            with jax.enable_x64(True):
                return getattr(self.workers[agent], method)(*row)

        with ThreadPoolExecutor(self.size) as pool:
            found = list(pool.map(work, range(self.size), [()] * self.size if rows is None else rows))
        if method == "total" and self.crashes:
            self.lost = self.crashes.pop()
            raise SetbackError("an agent is gone, and the sum with it", 0)
        return found

    def revive(self):
        for agent in self.lost:
            self.renew(agent)

    def close(self):
        for worker in self.workers:
            worker.channels.close()
        self.folder.cleanup()


@pytest.fixture
def sites():
    begun = []

    def begin(numbers):
        begun.append(Threads(holding(numbers)))
        return begun[-1]

    yield begin
    for pool in begun:
        pool.close()


# --- sums ---


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long
def test_masked_totals_equal_plain_totals(place, sites):
    numbers = wide()
    post, pool = holding(numbers), sites(numbers)
    with jax.enable_x64(True):
        plain = post.totals(PLACES[place])(own_row)
        here = post.totals(PLACES[place], masks=True)(own_row)
        there = post.with_data_at(pool).totals(PLACES[place], masks=True)(own_row)
        unmasked = post.with_data_at(pool).totals(PLACES[place])(own_row)
    assert here.dtype == np.float64
    assert_precise(here, numbers)
    # integer sums do not depend on their order
    np.testing.assert_array_equal(there, here)
    for sums in (plain, unmasked):
        rounding = AGENTS * 2.0**-53 * np.abs(numbers).sum(axis=0)
        assert np.all(np.abs(here - sums) <= rounding + AGENTS * 2.0**-65 + 2.0**-52 * np.abs(sums))


def test_masked_totals_of_potentials_and_several_arrays():
    post = accord.models.linear_regression([(np.ones((k + 1, 1)), np.arange(k + 1.0)) for k in range(AGENTS)], 1.0)
    place = accord.posterior.coordinates.Coordinates(np.array([0.5]), np.array([[2.0]]))

    def terms(potential, shard, x):
        return {"value": potential.value(shard, x), "gradient": potential.gradient(shard, x), "rows": shard.size}

    with jax.enable_x64(True):
        totals = [post.totals(NETWORKS["star"], masks=masks) for masks in (False, True)]
        plain, masked = (total(terms, jnp.array([0.3]), coordinates=place) for total in totals)
    assert jax.tree.structure(plain) == jax.tree.structure(masked)
    for name in plain:
        assert (masked[name].shape, masked[name].dtype) == (plain[name].shape, plain[name].dtype)
        np.testing.assert_allclose(masked[name], plain[name], rtol=1e-14)
    assert masked["rows"] == 21


def test_single_precision_is_kept():
    numbers = wide().astype(np.float32)
    found = holding(numbers).totals(NETWORKS["ring"], masks=True)(row_and_size)
    assert found["row"].dtype == np.float32 and found["size"].dtype == np.int32
    np.testing.assert_array_equal(found["row"], np.array([float(s) for s in exact_sums(numbers)], np.float32))


HARD = [0.0, -0.0, -1e-20, 2.0**-64, -(2.0**-64), 2.0**-65, 3 * 2.0**-65, 1 - 2.0**-53, -1 + 2.0**-53, 2.0**53 + 2]
HARD += [0.75 * largest(3), -0.75 * largest(3), -1.0, 1.0, -(2.0**-12) / 3, 1e12 / 3]


@pytest.mark.parametrize("others", [(0.0, 0.0), (1.0, -1.0), (-(2.0**-64), -(2.0**-64)), (0.5, 0.5), (-0.5, -1.5)])
def test_words_carry_and_borrow(others):
    numbers = np.array([HARD, *(np.full(len(HARD), other) for other in others)])
    words = added(*(encoded([row], 3) for row in numbers))
    with jax.enable_x64(True):
        (found,) = decoded(words, [numbers[0]], 3)
    assert_precise(found, numbers)
    np.testing.assert_array_equal(added(words, negated(words)), 0)


def test_the_largest_numbers_of_all_agents_do_not_wrap():
    for n in (3, 7, 1000):
        for sign in (-1.0, 1.0):
            number = sign * np.nextafter(largest(n), 0.0)
            with jax.enable_x64(True):
                (found,) = decoded(added(*[encoded([number], n)] * n), [np.zeros(())], n)
            np.testing.assert_allclose(found, n * number, rtol=2.0**-51)


def test_whole_numbers_are_exact():
    numbers = np.array([2**53 + 1, -(2**53) - 3, 5], np.int64)
    with jax.enable_x64(True):
        (found,) = decoded(added(*(encoded([one], 3) for one in numbers)), [numbers[0]], 3)
    assert found == 3 and found.dtype == np.int64
    with pytest.raises(ArithmeticError, match="a sum of integers does not fit int32"):
        decoded(added(*[encoded([np.int32(2**30)], 3)] * 3), [np.int32(0)], 3)
    with pytest.raises(TypeError, match="floats and integers, found complex128"):
        encoded([np.array([1j])], 3)


# --- messages are noise ---


def chance(words):
    """The smaller p-value of two tests of randomness of words, by byte values and by bits."""
    words = np.ascontiguousarray(words)
    seen = np.bincount(words.view(np.uint8).ravel(), minlength=256)
    values = scipy.stats.chisquare(seen).pvalue
    ones = np.unpackbits(words.view(np.uint8).reshape(2, -1, 8), axis=2).sum(axis=1)
    half = words.shape[1] / 2
    bits = scipy.stats.chi2.sf(((ones - half) ** 2 / (half / 2)).sum(), ones.size)
    return min(values, bits)


ALIKE = {"equal": 3.0, "tiny": 1e-12, "zero": 0.0}


@pytest.mark.parametrize("number", ALIKE.values(), ids=list(ALIKE))
def test_the_sum_of_any_subset_of_agents_is_noise(number):
    plain = encoded([np.full(4000, number)], AGENTS)
    masked = [one.masked(1, plain) for one in agreed()]
    subsets = [s for size in range(1, AGENTS) for s in itertools.combinations(range(AGENTS), size)]
    assert len(subsets) == 62
    for subset in subsets:
        assert chance(added(*(masked[i] for i in subset))) > CHANCE, subset
        # the test detects unmasked words
        assert chance(added(*[plain] * len(subset))) < 1e-100, subset
    np.testing.assert_array_equal(added(*masked), added(*[plain] * AGENTS))


def test_the_difference_of_two_messages_is_noise():
    plain = encoded([np.full(4000, 3.0)], AGENTS)
    masks = agreed()
    first, second = ([one.masked(count, plain) for one in masks] for count in (1, 2))
    for one, other in zip(first, second, strict=True):
        assert np.mean(one != other) > 0.999
        assert chance(added(one, negated(other))) > CHANCE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_from(1)
def test_messages_up_the_tree_are_noise(place, sites):
    pool = sites(np.full((AGENTS, 4000), 1e-12))
    for masks in (True, False):
        total = pool.totals(PLACES[place], masks=masks)
        pool.sent.clear()
        sums = [total(own_row) for _ in range(2)]
        np.testing.assert_allclose(sums, AGENTS * 1e-12, rtol=1e-7)
        senders = Counter(agent for agent, _ in pool.sent)
        # all agents except the root
        assert len(senders) == AGENTS - 1 and set(senders.values()) == {2}
        # equal numbers give different messages
        assert len({content for _, content in pool.sent}) == len(pool.sent) or not masks
        for _, content in pool.sent:
            if masks:
                assert len(content) == 16 * 4001
                assert chance(np.frombuffer(content, np.uint64).reshape(2, -1)) > CHANCE
            else:
                assert chance(np.frombuffer(content, np.uint64).reshape(2, -1)) < 1e-100


# --- numbers that cannot be carried ---


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.0001 * largest(AGENTS), -1e18, 1e300])
@pytest.mark.long_from(2)
def test_nan_infinity_and_large_numbers_raise(bad, sites):
    numbers = np.ones((AGENTS, 3))
    numbers[2, 1] = 7.0
    pool = sites(numbers)
    with jax.enable_x64(True):
        post = holding(numbers)
        for owned in (post, post.with_data_at(pool)):
            total = owned.totals(NETWORKS["star"], masks=True)
            expected = (
                r"1 of 6 agents have numbers that a masked sum cannot carry: NaN, infinite, or not below 2\^62 / 6"
            )
            with pytest.raises(ArithmeticError, match=expected):
                total(sevens_as, bad)
            # the next sum is right, also with numbers just below the bound
            np.testing.assert_array_equal(total(sevens_as, 1.0), AGENTS)
            np.testing.assert_allclose(total(sevens_as, 0.9999 * largest(AGENTS))[1], 0.9999 * largest(AGENTS) + 5)


def test_a_sum_with_bad_numbers_reveals_only_the_number_of_agents():
    good, bad = np.full(4000, 3.0), np.full(4000, 3.0)
    bad[17] = np.nan
    total = added(encoded([good], 3), encoded([good], 3), encoded([bad], 3))
    np.testing.assert_array_equal(total[:, -1], [0, 1])
    assert chance(total[:, :-1]) > CHANCE


def test_masks_that_do_not_cancel_raise():
    masks, words = agreed(3), encoded([np.zeros(4)], 3)
    part = added(masks[0].masked(1, words), masks[1].masked(1, words))
    for last in (masks[2].masked(2, words), agreed(3)[2].masked(1, words)):
        with pytest.raises(RuntimeError, match="the masks did not cancel"):
            decoded(added(part, last), [np.zeros(4)], 3)


# --- keys ---


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_agents_are_refused(count):
    post = holding(np.zeros((count, 1)))
    with pytest.raises(ValueError, match=f"masked sums need at least 3 agents, found {count}"):
        post.totals(accord.Network.complete(count), masks=True)
    with pytest.raises(ValueError, match="at least 3 agents"):
        Masks(0, count)


def test_masks_of_some_agents_are_refused():
    with pytest.raises(ValueError, match=r"the sum over all 6 agents, and this posterior holds .* \[0, 2\] only"):
        holding(np.zeros((AGENTS, 1))).alone(0, 2).totals(NETWORKS["ring"], masks=True)


def test_without_cryptography_the_extra_is_named(monkeypatch):
    post = holding(np.zeros((3, 1)))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(ImportError, match=r'pip install "accord\[masks\]"'):
        post.totals(accord.Network.ring(3), masks=True)
    assert post.totals(accord.Network.ring(3))(own_row) == 0.0


def test_a_mask_is_used_once():
    one, words = agreed(3)[0], np.zeros((2, 5), np.uint64)
    one.masked(3, words)
    for count in (3, 2, 0, -1, 2**64):
        with pytest.raises(ValueError, match=f"the masks of sum {count} may have been used: agent 0 has masked sum 3"):
            one.masked(count, words)
    one.masked(4, words)


def test_masks_stay_in_their_process(monkeypatch):
    one = agreed(3)[0]
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="they stay in the process that made them"):
            leave(one)
    pid = os.getpid()
    monkeypatch.setattr(masks_module.os, "getpid", lambda: pid + 1)
    with pytest.raises(RuntimeError, match="this process is a fork of it"):
        one.masked(1, np.zeros((2, 5), np.uint64))


def test_public_keys_are_checked():
    masks = [Masks(agent, 3) for agent in range(3)]
    publics = [one.public for one in masks]
    with pytest.raises(RuntimeError, match="agent 0 has not agreed on keys"):
        masks[0].masked(1, np.zeros((2, 5), np.uint64))
    with pytest.raises(ValueError, match="at index 0 is not the key of agent 0"):
        masks[0].agree([publics[1], publics[0], publics[2]])
    with pytest.raises(ValueError, match="need 3 different public keys, found 2"):
        masks[0].agree([publics[0], publics[1], publics[1]])
    with pytest.raises(ValueError, match="the public key of agent 2 is invalid"):
        masks[0].agree([publics[0], publics[1], bytes(32)])
    masks[0].agree(publics)
    with pytest.raises(RuntimeError, match="agent 0 has agreed on keys already"):
        masks[0].agree(publics)


def test_the_fingerprint_detects_replaced_keys():
    masks = [Masks(agent, 3) for agent in range(3)]
    publics = [one.public for one in masks]
    assert fingerprint(publics) == fingerprint(list(publics)) and len(fingerprint(publics).split()) == 8
    changed = [*publics[:2], Masks(2, 3).public]
    assert len({fingerprint(given) for given in (publics, changed, publics[::-1])}) == 3


def test_each_pair_has_its_own_key():
    masks = agreed()
    keys = {(i, j): masks[i]._keys[j] for i in range(AGENTS) for j in range(AGENTS) if i != j}
    assert all(keys[i, j] == keys[j, i] for i, j in keys)
    assert len(set(keys.values())) == AGENTS * (AGENTS - 1) // 2
    # other runs have other keys, even with the same key pairs
    assert not set(keys.values()) & {key for one in agreed() for key in one._keys.values()}
    pair = [Masks(agent, 3) for agent in range(3)]
    pair[0].agree([one.public for one in pair], b"one run")
    pair[1].agree([one.public for one in pair], b"another")
    assert pair[0]._keys[1] != pair[1]._keys[0]


@pytest.fixture
def streams(monkeypatch):
    """The number of times that each keystream is made, by key and sequence number."""
    made, make = Counter(), masks_module._keystream

    def counted(key, count, length):
        made[key, count] += 1
        return make(key, count, length)

    monkeypatch.setattr(masks_module, "_keystream", counted)
    return made


def test_no_two_sums_share_a_keystream(streams, sites):
    post = holding(np.ones((AGENTS, 2)))
    pool = sites(np.ones((AGENTS, 2)))
    with jax.enable_x64(True):
        totals = [post.totals(NETWORKS["ring"], masks=True) for _ in range(2)]
        # two totals that share workers agree on new keys at every switch
        totals += [post.with_data_at(pool).totals(NETWORKS[name], masks=True) for name in ("ring", "star")]
        for _ in range(2):
            for total in totals:
                np.testing.assert_array_equal(total(own_row), AGENTS)
    pairs = AGENTS * (AGENTS - 1) // 2
    # both agents of a pair make each keystream, for one sum
    assert set(streams.values()) == {2} and len(streams) == 8 * pairs


@pytest.mark.parametrize("lost", [(), (3,)], ids=["no restart", "one restart"])
def test_a_repeated_sum_uses_other_masks(lost, streams, sites):
    pool = sites(np.full((AGENTS, 4000), 3.0))
    total = pool.totals(NETWORKS["ring"], masks=True)
    np.testing.assert_array_equal(total(own_row), 3.0 * AGENTS)
    keys = total.keys
    assert keys == fingerprint([worker.totals.masks[0].public for worker in pool.workers])
    pool.sent.clear()
    # the sum is lost after all masked words were sent, and repeated
    pool.crashes.append(lost)
    np.testing.assert_array_equal(total(own_row), 3.0 * AGENTS)
    assert (total.keys == keys) == (not lost)
    assert set(streams.values()) == {2} and len(streams) == 3 * AGENTS * (AGENTS - 1) // 2
    for agent in range(AGENTS):
        words = [np.frombuffer(content, np.uint64).reshape(2, -1) for sender, content in pool.sent if sender == agent]
        assert len(words) in (0, 2)
        if words:
            assert chance(added(words[0], negated(words[1]))) > CHANCE


def test_sums_of_several_threads_are_right():
    total = holding(np.ones((3, 50))).totals(accord.Network.ring(3), masks=True)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: total(own_row), range(40)):
            np.testing.assert_array_equal(found, 3.0)


# --- several processes ---


def test_one_process_of_a_mesh_masks_for_all_its_agents():
    numbers = wide()
    post = holding(numbers)
    net = NETWORKS["ring"]
    with jax.enable_x64(True):
        found = post.with_data_at(Shares(post)).totals(net, masks=True)(own_row)
        np.testing.assert_array_equal(found, post.totals(net, masks=True)(own_row))


@pytest.mark.parametrize("masks", [False, True])
def test_numbers_alone_are_summed_over_processes_too(masks):
    post, net = holding(wide()), NETWORKS["ring"]
    found = post.with_data_at(Shares(post)).totals(net, masks=masks)(row_and_size)
    assert found["size"].shape == () and found["size"] == AGENTS


@pytest.mark.slow
@pytest.mark.skipif(alone() is None, reason="needs a network namespace of its own")
def test_processes_of_a_mesh_send_masked_words_only(tmp_path):
    one = f'"{sys.executable}" "{HERE / "masks_worker.py"}" "{tmp_path}" 127.0.0.1:29531'
    subprocess.run([*alone(), "sh", "-c", f"{one} 1 & {one} 0; wait"], env=environment(2), check=True, timeout=600)
    for process in range(2):
        found = np.load(tmp_path / f"{process}.npz")
        assert_precise(found["sums"], wide())
        np.testing.assert_array_equal(found["equal"], 3.0 * AGENTS)
        # words from the other process
        assert chance(found["equal/received"]) > CHANCE
        assert str(found["error"]).startswith("1 of 6 agents have numbers that a masked sum cannot carry")
