"""Totals: sums over all agents of functions of their data, and the warm-up that uses them."""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature, unequal_shards

import accord
from accord.base.compiler import as_here
from accord.posterior.coordinates import Coordinates
from accord.samplers.by_sums.evaluations import expand, value_of
from accord.samplers.session import Job, Session
from accord.tuning.warmup import warm_up


class Adding:
    """Data owners with one shard each, which count sums."""

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
def test_a_total_is_the_sum_over_agents(make, place):
    post, x = make(), np.array([0.3, -0.2])
    moved = post if place is None else post.transformed(place)
    with jax.enable_x64(True):
        each = moved.each(value_and_rows, x)
        here = post.totals(NETWORKS["ring"])(value_and_rows, x, coordinates=place)
        there = Adding(post).totals(NETWORKS["ring"])(value_and_rows, x, coordinates=place)
    for name in ("value", "rows"):
        np.testing.assert_allclose(here[name], each[name].sum(), rtol=1e-12)
        np.testing.assert_allclose(there[name], each[name].sum(), rtol=1e-12)


def test_threads_use_the_jax_settings_of_the_caller():
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


def test_an_interrupt_stops_all_programs(monkeypatch):
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


def test_an_expansion_matches_the_sum_of_potentials():
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
def test_warm_up_needs_only_totals_and_counts_them():
    post, net = logistic(), NETWORKS["irregular"]
    owners = Adding(post)
    with jax.enable_x64(True):
        here, there = warm_up(post, net), warm_up(post.with_data_at(owners), net)
    np.testing.assert_allclose(there.mode, here.mode, rtol=1e-9)
    np.testing.assert_allclose(there.coordinates.factor, here.coordinates.factor, rtol=1e-7)
    np.testing.assert_allclose(there.stiffness, here.stiffness, rtol=1e-7)
    assert there.spent.exchanges == 2 * net.aggregation.height * owners.sums
    np.testing.assert_array_equal(there.spent.bytes_sent, here.spent.bytes_sent)


def test_totals_of_a_transformed_posterior_are_refused():
    post = unequal_curvature(2).transformed(Coordinates(np.zeros(2), np.ones(2)))
    with pytest.raises(ValueError, match="call in_parameters"):
        post.totals(NETWORKS["ring"])
    with pytest.raises(ValueError, match="the network has 5 agents but the posterior has 6 shards"):
        unequal_curvature(2).totals(accord.Network.ring(5))
