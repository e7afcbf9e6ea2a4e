"""Totals: the sum over all agents of functions of their data, and all that stands on it."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature, unequal_shards, walk

import accord
from accord.base.compiler import as_here
from accord.base.errors import DataError
from accord.engines.totals import TotalsEngine
from accord.posterior.coordinates import Coordinates
from accord.samplers import DESGLD, HubSGLD, Replicated
from accord.samplers.by_sums.evaluations import expand, value_of
from accord.samplers.protocol import pytree
from accord.samplers.session import Job, Session
from accord.tuning.warmup import warm_up


class Adding:
    """Agents that hold their own shard only, and count what they are asked for."""

    def __init__(self, post):
        self.agents = [pickle.loads(pickle.dumps(post.alone(i))) for i in range(post.num_agents)]
        self.sums = 0

    def each(self, function, arguments, own):
        answers = [
            agent.each(function, *arguments, own=jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], own))
            for i, agent in enumerate(self.agents)
        ]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *answers)

    def totals(self, network, masks=False):
        parts = [agent.totals(network) for agent in self.agents]

        def total(function, *arguments, **options):
            self.sums += 1
            answers = [part(function, *arguments, **options) for part in parts]
            return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *answers)

        return total


def logistic():
    rng = np.random.default_rng(3)
    shards = []
    for agent in range(AGENTS):
        X = rng.standard_normal((5 + 3 * (agent % 2), 2))
        shards.append((X, (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0]))).astype(float)))
    return accord.models.logistic_regression(shards, prior_variance=4.0)


PLACE = Coordinates(np.array([0.5, -1.0]), np.array([[2.0, 0.0], [0.3, 0.5]]))


def value_and_rows(potential, shard, x):
    return {"value": potential.value(shard, x), "rows": shard.size}


@pytest.mark.parametrize("make", [logistic, lambda: unequal_shards(2)], ids=["logistic", "gaussian"])
@pytest.mark.parametrize("place", [None, PLACE])
@pytest.mark.long_from(1)
def test_a_total_is_the_sum_of_what_each_agent_says(make, place):
    post, x = make(), np.array([0.3, -0.2])
    moved = post if place is None else post.transformed(place)
    with jax.enable_x64(True):
        each = moved.each(value_and_rows, x)
        here = post.totals(NETWORKS["ring"])(value_and_rows, x, coordinates=place)
        there = Adding(post).totals(NETWORKS["ring"])(value_and_rows, x, coordinates=place)
    for name in ("value", "rows"):
        np.testing.assert_allclose(here[name], each[name].sum(), rtol=1e-12)
        np.testing.assert_allclose(there[name], each[name].sum(), rtol=1e-12)


def test_many_points_are_evaluated_under_the_settings_of_the_caller():
    here, points = logistic().totals_here(), np.random.default_rng(0).standard_normal((40, 2))
    with jax.enable_x64(True):
        sums = here(value_of, points=points, at_once=8)
        assert sums.dtype == np.float64
        np.testing.assert_array_equal(sums, [here(value_of, points=x[None], at_once=8)[0] for x in points])
    assert here(value_of, points=points, at_once=8).dtype == np.float32
    with jax.default_matmul_precision("highest"), jax.default_device(jax.devices()[0]):
        names = "jax_enable_x64", "jax_default_matmul_precision", "jax_default_device"
        here = as_here(lambda: [getattr(jax.config, name) for name in names])
    with ThreadPoolExecutor(1) as worker:
        assert worker.submit(here).result() == [False, "highest", jax.devices()[0]]


def test_after_an_interrupt_no_sum_runs_on(monkeypatch):
    begun, done = [], []

    def slow(x):
        begun.append(1)
        time.sleep(0.1)
        done.append(1)
        return np.float32(x.sum())

    def waits(potential, shard, x):
        return jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

    def pressed():
        raise KeyboardInterrupt

    here = accord.models.gaussian(np.zeros((1, 2)), np.eye(2)[None]).totals_here()
    monkeypatch.setattr("accord.posterior.totals.let_through", pressed)
    with pytest.raises(KeyboardInterrupt):
        here(waits, points=np.zeros((20, 2)), at_once=1)
    assert len(begun) == len(done) < 10
    time.sleep(0.3)
    assert len(begun) == len(done) < 10


def test_an_expansion_is_that_of_the_sum():
    post, x = logistic(), np.array([0.3, -0.2])
    with jax.enable_x64(True):
        found = expand(Session(Job(post, NETWORKS["star"]), most_exchanges=1000), x, x + 1.0)
        gradients = [post.gradients(y).sum(axis=0) for y in (x, x + 1.0)]
        hessians = [post.hessians(y).sum(axis=0) for y in (x, x + 1.0)]
        values = [-float(post.logdensity(jnp.asarray(y))) for y in (x, x + 1.0)]
    np.testing.assert_allclose(found.value, np.mean(values), rtol=1e-12)
    np.testing.assert_allclose(found.gradient, np.mean(gradients, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.hessian, np.mean(hessians, axis=0), rtol=1e-12)


@pytest.mark.long
def test_warm_up_takes_nothing_but_totals_and_counts_them():
    post, net = logistic(), NETWORKS["irregular"]
    owners = Adding(post)
    with jax.enable_x64(True):
        here, there = warm_up(post, net), warm_up(post.with_data_at(owners), net)
    np.testing.assert_allclose(there.mode, here.mode, rtol=1e-9)
    np.testing.assert_allclose(there.coordinates.factor, here.coordinates.factor, rtol=1e-7)
    np.testing.assert_allclose(there.stiffness, here.stiffness, rtol=1e-7)
    assert there.spent.exchanges == 2 * net.aggregation.height * owners.sums
    np.testing.assert_array_equal(there.spent.bytes_sent, here.spent.bytes_sent)


def test_a_user_is_told_to_give_coordinates_with_each_total():
    post = unequal_curvature(2).transformed(Coordinates(np.zeros(2), np.ones(2)))
    with pytest.raises(ValueError, match="give coordinates with each of them"):
        post.totals(NETWORKS["ring"])
    with pytest.raises(ValueError, match="the network has 5 agents but the posterior has 6 shards"):
        unequal_curvature(2).totals(accord.Network.ring(5))


# --- the totals engine ---

STAR = accord.Network.star(3)
SHORT = {"draws": 8, "burn_in": 4, "chains": 2, "seed": 5, "progress": False}
ROUNDS = SHORT["burn_in"] + SHORT["draws"]
MALA = Replicated("mala", warmup=4)


def few(seed=3):
    """Three agents whose shards have one shape, so that their answers are compiled once."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((3, 4, 2)), rng.integers(0, 2, (3, 4)).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), prior_variance=4.0)


class Watched(Adding):
    """Agents whose totals pass through a function of them and their number."""

    def __init__(self, post, watch):
        super().__init__(post)
        self.watch = watch

    def totals(self, network, masks=False):
        add = super().totals(network)
        return lambda *arguments, **options: self.watch(add(*arguments, **options), self.sums)


class Untouched:
    """Agents that are not to be asked for anything."""

    def each(self, function, arguments, own):
        raise AssertionError("asked")

    totals = each


def by_totals(post, owners, method=MALA, **options):
    """A run in double precision that knows of the data what its owners add up."""
    with jax.enable_x64(True):
        return walk(post.with_data_at(owners), STAR, method, engine=TotalsEngine, **{**SHORT, **options})


def check_same(found, expected):
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-9, atol=1e-9)
    assert found.traffic.exchanges == expected.traffic.exchanges
    np.testing.assert_array_equal(found.traffic.bytes_sent, expected.traffic.bytes_sent)
    np.testing.assert_array_equal(found.traffic.gradient_rows, expected.traffic.gradient_rows)


@pytest.mark.long
@pytest.mark.parametrize(
    "make", [few, lambda: unequal_curvature(2, agents=3).transformed(PLACE)], ids=["plain", "coordinates"]
)
def test_a_hub_of_totals_draws_what_a_hub_with_the_data_draws(make):
    post = make()
    owners = Adding(post.in_parameters())
    with jax.enable_x64(True):
        expected = walk(post, STAR, MALA, **SHORT)
    check_same(by_totals(post, owners), expected)
    # all chains ask in one total: one a round, and one of the start
    assert owners.sums == ROUNDS + 1 == expected.traffic.exchanges / 2


@pytest.mark.slow
def test_nuts_by_totals_is_nuts():
    post = few()
    owners = Adding(post)
    one = {"chains": 1, "draws": 5}
    with jax.enable_x64(True):
        expected = walk(post, STAR, Replicated(warmup=4), **{**SHORT, **one})
    check_same(by_totals(post, owners, Replicated(warmup=4), **one), expected)
    assert owners.sums == expected.traffic.exchanges / 2


@pytest.mark.long
def test_totals_of_this_process_are_made_in_the_thread_and_the_width_of_the_caller():
    post, seen = few(), set()

    def watch(total, count):
        seen.add((threading.current_thread(), total.gradient.dtype.name, jnp.zeros(()).dtype.name))
        return total

    owners = Watched(post, watch)
    run = walk(post.with_data_at(owners), STAR, MALA, engine=TotalsEngine, **SHORT)
    assert seen == {(threading.current_thread(), "float32", "float32")}
    assert run.draws.dtype == np.float32
    here = walk(post, STAR, MALA, engine=TotalsEngine, **SHORT)
    np.testing.assert_allclose(run.draws, here.draws, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("error", [ConnectionError("agent 3 is gone"), KeyboardInterrupt()], ids=type)
def test_what_an_owner_raises_is_heard_as_it_is(error):
    post = few()

    def watch(total, count):
        if count == 3:
            raise error
        return total

    owners = Watched(post, watch)
    with pytest.raises(type(error)) as caught:
        by_totals(post, owners)
    assert caught.value is error and owners.sums == 3


@pytest.mark.parametrize("method", [MALA, Replicated("hmc", warmup=4)], ids=["mala", "hmc"])
@pytest.mark.long_from(1)
def test_totals_that_are_no_numbers_any_more_are_told(method):
    post = few()

    def watch(total, count):
        return total if count <= 8 else jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), total)

    with pytest.warns(UserWarning, match=r"\d+ transitions of Replicated diverged after warm-up"):
        run = by_totals(post, Watched(post, watch), method)
    assert np.isfinite(run.draws).all() and (run.statistics["divergences"][:, -1] >= 4).all()


def test_a_total_of_another_shape_is_refused():
    post = few()
    owners = Watched(post, lambda total, count: total._replace(gradient=total.gradient[:, :1]))
    due = r"Evaluation\(value=\(2,\), gradient=\(2, 2\)\) were due"
    with pytest.raises(ValueError, match=r"gradient=\(2, 1\)\) came where " + due):
        by_totals(post, owners)


@pytest.mark.parametrize("method", [DESGLD(0.1), DESGLD(), HubSGLD(0.01)], ids=["gossip", "left out", "travels"])
def test_a_method_that_needs_more_than_totals_is_refused_before_anything_is_asked(method):
    inbox = {"DESGLD": "mix", "HubSGLD": "permuted"}[type(method).__name__]
    with pytest.raises(TypeError, match=rf"needs inbox.{inbox}\(\), and the totals engine has inbox.query\(\) alone"):
        by_totals(few(), Untouched(), method)


class Peeping(Replicated):
    """Reads data at the hub without asking."""

    def transition(self, agent, state, inbox, noise):
        return super().transition(agent, state._replace(gradient=agent.gradient(state.position)), inbox, noise)


class Numbered(Replicated):
    """Answers by the agent's number."""

    def message(self, agent, state):
        return super().message(agent, state)._replace(value=agent.index * 1.0)


class Personal(Replicated):
    """Gives each agent a number."""

    def bind(self, post, network):
        return super().bind(post, network)._replace(own=np.arange(3))


@pytest.mark.parametrize(
    "method, error, said",
    [
        (Peeping, DataError, "the hub of the totals engine holds no data"),
        (Numbered, AttributeError, "no attribute 'index'"),
        (Personal, TypeError, "gives each agent numbers of its own"),
    ],
)
def test_what_a_total_cannot_tell_is_not_made_up(method, error, said):
    post = few()
    owners = Adding(post)
    with pytest.raises(error, match=said):
        by_totals(post, owners, pytree(method)("mala", warmup=4))
    assert owners.sums == 0


def test_a_run_of_totals_is_taken_up_from_its_checkpoint(tmp_path):
    post = few()
    owners = Adding(post)
    whole = by_totals(post, Adding(post))
    by_totals(post, owners, draws=3, checkpoint=tmp_path)
    resumed = by_totals(post, owners, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.draws, whole.draws)
    # rounds that were drawn are not asked for again, but for the first three, by which the method is compared
    assert owners.sums == ROUNDS + 1 + 2 * (3 + 1)


def test_runs_in_several_threads_ask_their_own_owners():
    posts = [few(), few(seed=4)]
    alone = [by_totals(post, Adding(post)).draws for post in posts]
    with ThreadPoolExecutor(2) as pool:
        together = [run.draws for run in pool.map(lambda post: by_totals(post, Adding(post)), posts)]
    np.testing.assert_array_equal(together, alone)
