"""The stationary law and the autocorrelation of draws from the impulse response."""

import itertools

import numpy as np
import pytest
from tables import METHODS, NETWORKS, among, pairs, unequal_curvature, unequal_shards

import accord
from accord.samplers import DESGLD, GTBAOAB, GTDULA
from accord.samplers.schedules import Polynomial
from accord.tuning.impulse_response import respond


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "network"),
    pairs(METHODS, ["star", "irregular"], quick=zip(METHODS, itertools.cycle(["irregular", "star"]))),
)
def test_impulse_responses_sum_to_the_law(method, network):
    post, net, sampler = unequal_shards(2), NETWORKS[network], METHODS[method]()
    found, law = respond(post, net, sampler), accord.law(post, net, sampler).stationary()
    for i in range(net.num_agents):
        np.testing.assert_allclose(found.mean[i], law.agent(i).mean, atol=1e-5)
        np.testing.assert_allclose(found.sd[i], law.agent(i).sd, rtol=1e-6)
    np.testing.assert_allclose(found.average_mean, law.average.mean, atol=1e-5)
    np.testing.assert_allclose(found.average_sd, law.average.sd, rtol=1e-6)


@pytest.mark.parametrize(
    ("noise", "rounds"), pairs(["independent", "common"], [2, 5], quick=[("independent", 5), ("common", 2)])
)
def test_several_exchanges_are_one_matrix(noise, rounds):
    post, net = unequal_curvature(2), NETWORKS["path"]
    sampler = GTBAOAB(0.05, 1.5, noise=noise, mix_rounds=rounds)
    found, law = respond(post, net, sampler), accord.law(post, net, sampler).stationary()
    np.testing.assert_allclose(found.sd[0], law.agent(0).sd, rtol=1e-6)


def test_memory_of_one_agent_is_that_of_an_autoregression():
    # x+ = (1 - h) x + ...: a long mean's variance is (1 + rho) / (1 - rho) that of as many independent draws
    post, h = accord.models.gaussian([0.0], [1.0]), 0.1
    found = respond(post, accord.Network.ring(1), DESGLD(h))
    np.testing.assert_allclose(found.memory, (2.0 - h) / h, rtol=1e-6)
    np.testing.assert_allclose(found.sd, (1.0 - h / 2.0) ** -0.5, rtol=1e-6)
    # a hundredth is reached after log(100) / -log(0.9) = 43.7 rounds
    assert 42 <= found.decay <= 45


@pytest.mark.long
def test_memory_agrees_with_runs():
    post, net, method = unequal_curvature(1), NETWORKS["ring"], GTBAOAB(0.2, 1.5, mix_rounds=2)
    found = respond(post, net, method)
    draws, chains = 1000, 2000
    run = accord.sample(post, net, accord.Rounds(method, burn_in=200), draws=draws, chains=chains, seed=3)
    for i in (0, 4):
        means = run.draws[:, :, i, 0].mean(axis=1, dtype=np.float64)
        expected = found.sd[i, 0] ** 2 * found.memory[i, 0] / draws
        # the variance of the sample variance of normal numbers
        assert abs(means.var() / expected - 1.0) < 4.5 * np.sqrt(2.0 / chains)


def test_unstable_and_slow_methods_raise_errors():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    bound = GTDULA(0.01, 0.2, 0.2).max_step(net, post.hessians())
    with pytest.raises(ArithmeticError, match="GTDULA is unstable"):
        respond(post, net, GTDULA(1.5 * bound, 0.2, 0.2))
    with pytest.raises(ArithmeticError, match="mixes too slowly for a forecast: after 100 rounds"):
        respond(post, net, DESGLD(1e-4), most_rounds=100)
    with pytest.raises(ValueError, match="schedule"):
        respond(post, net, DESGLD(Polynomial(0.1, 1.0, 0.5)))
    with pytest.raises(TypeError, match="needs a Gaussian posterior"):
        respond(accord.models.logistic_regression([(np.eye(2), np.array([0, 1]))] * 6), net, DESGLD(0.1))


@pytest.mark.parametrize("name", among(METHODS, "DESGHMC", "GTDULA", "DADMMS", "DGLMC"))
@pytest.mark.long_from(2)
def test_repeated_squaring_agrees_with_simulation(name, monkeypatch):
    post, net, method = unequal_shards(2), NETWORKS["irregular"], METHODS[name]()
    monkeypatch.setattr("accord.tuning.impulse_response._FEW_ROUNDS", 10**6)
    followed = respond(post, net, method)
    monkeypatch.setattr("accord.tuning.impulse_response._FEW_ROUNDS", 1)
    squared = respond(post, net, method)
    for a, b in zip(followed[:5], squared[:5], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert abs(followed.decay - squared.decay) <= 0.15 * followed.decay + 2
