"""Totals over parts of rows, in memory or read in chunks, equal totals over all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.base import memory
from accord.examine import agents
from accord.posterior import shards as shards_module
from accord.posterior import streamed, totals
from accord.posterior.coordinates import Coordinates
from accord.samplers.by_sums.evaluations import expansion_of, mean_expansion, slope_of, value_of
from accord.tuning.pilot_run import _gradients, _products

RING = accord.Network.ring(3)
PLACE = Coordinates(np.array([0.5, -1.0, 0.2]), np.array([[2.0, 0.0, 0.0], [0.3, 0.5, 0.0], [0.1, 0.2, 1.5]]))
PLACES = [None, PLACE]
RNG = np.random.default_rng(5)
POINTS, OFFSETS, CHAINS = RNG.standard_normal((7, 3)), RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4))


def shards(lengths=(230, 61, 407)):
    rng = np.random.default_rng(3)
    for rows in lengths:
        X = rng.standard_normal((rows, 3))
        yield X, (rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.3]))).astype(float)


def logistic():
    return accord.models.logistic_regression(list(shards()), prior_variance=4.0)


def all_sums(made, place):
    """Totals of all functions that are marked with `of_rows`."""
    options = {"coordinates": place}
    return [
        made(value_of, points=POINTS, **options),
        made(slope_of, points=POINTS, **options),
        made(expansion_of, 1e12, points=POINTS, at_once=1, **options),
        made(mean_expansion, POINTS[0], OFFSETS, **options),
        made(_gradients, CHAINS, **options),
        made(_products, CHAINS, 1.0 - CHAINS, **options),
    ]


@pytest.fixture
def whole():
    """The sums of all rows at once, in each of `PLACES`."""
    post = logistic()
    with jax.enable_x64(True):
        here = totals.TotalsHere(post.potential, post.stacked())
        return [all_sums(here, place) for place in PLACES]


def in_parts(post, monkeypatch):
    monkeypatch.setattr(totals, "_IN_CACHE", 32 * totals.AT_ONCE)
    made = post.totals_here()
    assert made.parts == 13
    return made


def in_chunks(post, monkeypatch):
    monkeypatch.setattr(totals, "_IN_CACHE", 32 * totals.AT_ONCE)
    # two parts per chunk
    monkeypatch.setattr(streamed, "_CHUNK", 2 * 32 * 3 * 4 * 8 + 1)
    monkeypatch.setattr(streamed, "memory_bytes", lambda: 1000.0)
    made = post.totals_here()
    assert isinstance(made, streamed.TotalsInChunks) and (made.parts, made.chunks) == (2, 7)
    return made


@pytest.mark.parametrize("place", [0, 1], ids=["parameters", "coordinates"])
@pytest.mark.parametrize("way", [in_parts, in_chunks])
@pytest.mark.long
def test_sums_over_parts_of_rows_equal_sums_over_all_rows(way, place, whole, monkeypatch):
    with jax.enable_x64(True):
        made = way(logistic(), monkeypatch)
        for found, expected in zip(all_sums(made, PLACES[place]), whole[place], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("together", [1, 3, 4, 7])
@pytest.mark.long_from(1)
def test_batches_of_agents_count_each_agent_once(together, monkeypatch):
    def terms(potential, shard, x):
        return {"slope": slope_of(potential, shard, x), "rows": shard.size, "large": shard.size > 20}

    lengths = np.array([30, 7, 19, 24, 3, 30, 11])
    with jax.enable_x64(True):
        post = accord.models.logistic_regression(list(shards(lengths)), prior_variance=4.0)
        made = totals.TotalsHere(post.potential, post.stacked())
        own = [post.alone(agent).totals_here()(terms, points=POINTS) for agent in range(7)]
        # a cache for the rows of `together` agents of 30 rows
        monkeypatch.setattr(totals, "_IN_CACHE", 30 * totals.AT_ONCE * together)
        assert totals._at_once(made.shards, 1, points=POINTS) == (totals.AT_ONCE, together)
        total, each = made(terms, points=POINTS), made.each(terms, points=POINTS)
    for name, sums in total.items():
        expected = np.stack([alone[name] for alone in own])
        np.testing.assert_allclose(each[name], expected, rtol=1e-12)
        np.testing.assert_allclose(sums, expected.sum(axis=0), rtol=1e-12)
    assert (total["rows"] == lengths.sum()).all() and (total["large"] == 3).all()


@pytest.mark.parametrize("options", [{"masks": True}, {"consensus": 1e-12}], ids=["masks", "consensus"])
@pytest.mark.long
def test_masked_and_gossiped_sums_read_chunks(options, whole, monkeypatch):
    with jax.enable_x64(True):
        in_chunks(logistic(), monkeypatch)
        found = logistic().totals(RING, **options)(slope_of, points=POINTS)
        np.testing.assert_allclose(found, whole[0][1], rtol=1e-9)


@pytest.mark.long
def test_arrays_on_disk_are_read_once_per_total_and_give_the_same_draws(tmp_path, monkeypatch):
    for agent, (X, y) in enumerate(shards()):
        np.save(tmp_path / f"X{agent}.npy", X)
        np.save(tmp_path / f"y{agent}.npy", y)
    whole = accord.sample(logistic(), RING, draws=50, chains=2, seed=1, progress=False)
    on_disk = [tuple(np.load(tmp_path / f"{name}{agent}.npy", mmap_mode="r") for name in "Xy") for agent in range(3)]
    post = accord.models.logistic_regression(on_disk, prior_variance=4.0)
    held = logistic()
    in_chunks(held, monkeypatch)
    expected = accord.sample(held, RING, draws=50, chains=2, seed=1, progress=False)
    in_chunks(post, monkeypatch)
    read = []
    chunk = streamed.TotalsInChunks._chunk
    monkeypatch.setattr(
        streamed.TotalsInChunks, "_chunk", lambda own, number: read.append(number) or chunk(own, number)
    )
    run = accord.sample(post, RING, draws=50, chains=2, seed=1, progress=False)
    assert len(read) == 7 * run.traffic.sums
    np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9)
    # local modes are modes of chunks: another proposal, the same law
    apart = np.abs(np.median(run.draws - whole.draws, axis=(0, 1, 2)))
    assert (apart < 1e-2 * run.draws.std(axis=(0, 1, 2))).all()
    assert run.certificate.holds


@totals.of_rows
def by_name(potential, shard, x):
    value, slope = jax.value_and_grad(lambda z: potential.value(shard, z))(x)
    return {"value": (value, slope), "rows": shard.size, "any": shard.size > 0}


@pytest.mark.parametrize("way", [in_parts, in_chunks])
def test_sums_over_parts_of_rows_may_be_pytrees(way, whole, monkeypatch):
    with jax.enable_x64(True):
        found = way(logistic(), monkeypatch)(by_name, points=POINTS)
        np.testing.assert_allclose(found["value"][0], whole[0][0], rtol=1e-11)
        np.testing.assert_allclose(found["value"][1], whole[0][1][:, 1:], rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(found["rows"], np.full(7, 698))
        # parts of 32 rows of each agent: 8 + 2 + 13
        np.testing.assert_array_equal(found["any"], np.full(7, 23))


@pytest.mark.long
def test_rows_and_agents_are_left_out_in_chunks(monkeypatch):
    post = logistic()
    run = accord.sample(post, RING, accord.samplers.Importance(), draws=500, chains=2, seed=0, progress=False)
    new = {1: tuple(leaf[:5] for leaf in next(shards()))}
    given = run, post, RING
    loo, left, each = accord.loo(*given), accord.leave_out(*given, 1), accord.leave_each_out(*given)
    updated = accord.update(*given, new)
    in_chunks(post, monkeypatch)
    np.testing.assert_allclose(accord.loo(*given), loo, rtol=1e-10)
    np.testing.assert_allclose(accord.leave_each_out(*given)[1].weights, each[1].weights, rtol=1e-10)
    np.testing.assert_allclose(accord.update(*given, new).points.weight, updated.points.weight, rtol=1e-10)
    # skip the check of the run, which reads all rows
    monkeypatch.setattr(agents, "_require_density", lambda *_: None)
    read, chunk = set(), streamed.TotalsInChunks._chunk
    monkeypatch.setattr(
        streamed.TotalsInChunks, "_chunk", lambda own, number: read.update(own.source) or chunk(own, number)
    )
    np.testing.assert_allclose(accord.leave_out(*given, 1).weights, left.weights, rtol=1e-10)
    assert read == {1}
    with pytest.raises(ValueError, match="check: it needs all rows in memory at once, and they do not fit"):
        accord.predictive_check(*given)


def rows_of(potential, shard):
    return jnp.sum(shard.size)


def test_functions_of_all_rows_are_refused_if_memory_is_short(monkeypatch):
    made = in_chunks(logistic(), monkeypatch)
    with pytest.raises(ValueError, match="rows_of is not marked as a sum over rows, and all 698 rows at once do"):
        made(rows_of)
    with pytest.raises(ValueError, match=r"the rows of 3 agents, 407 each, take 39.1 kB, .* 1 kB of memory"):
        accord.sample(logistic(), RING, accord.samplers.DESGLD(0.001), draws=5, seed=0, progress=False)


def test_nan_is_found_beyond_the_first_chunk(monkeypatch):
    monkeypatch.setattr(shards_module, "_LOOKED_AT", 10)
    X, y = next(shards())
    X[25, 1] = np.nan
    with pytest.raises(ValueError, match=r"first at index \[25, 1\]"):
        accord.models.logistic_regression([(X, y)], prior_variance=1.0)
    with pytest.raises(ValueError, match="whole numbers beyond 32 bits"):
        accord.Posterior(lambda p, r: r * p, lambda p: -(p**2), [np.array([1, -(2**40)])], np.float64(0.0))


def test_memory_bytes_are_plausible():
    assert 1e8 < memory.memory_bytes() < 1e15


@pytest.mark.parametrize("wide", [False, True])
def test_a_function_is_traced_once_per_total(wide):
    traced = []

    @totals.of_rows
    def value(potential, shard, x):
        traced.append(x)
        return potential.value(shard, x)

    with jax.enable_x64(wide):
        logistic().totals_here()(value, points=POINTS)
    assert len(traced) == 1
