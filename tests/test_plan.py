"""Numbers that are left out are chosen, and what is chosen serves every agent."""

import dataclasses

import jax
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature

import accord
from accord.plan import fewest_exchanges, gaussian_model, worst_bias
from accord.response import respond
from accord.samplers import GTBAOAB
from accord.warmup import warm_up


def skewed(agents=AGENTS):
    """A logistic posterior whose labels are nearly separated, each agent's rows from another part of the line."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.standard_normal(12 * agents))
    y = (x + 0.3 * rng.standard_normal(x.size) > 0).astype(float)
    X = np.c_[np.ones(x.size), 30.0 * x, rng.standard_normal(x.size)]
    return accord.models.logistic_regression([(X[rows], y[rows]) for rows in np.split(np.arange(x.size), agents)])


@pytest.mark.parametrize("network", ["ring", "star", "path", "irregular"])
def test_the_fewest_exchanges_that_serve_are_found(network):
    post, net = unequal_curvature(3), NETWORKS[network]
    with jax.enable_x64(True):
        found = warm_up(post, net)
    model = gaussian_model(post.transformed(found.coordinates), found)

    def bias(count):
        try:
            return worst_bias(respond(model, net, GTBAOAB(0.8, mix_rounds=count)), model)
        except ArithmeticError:
            return np.inf

    count = fewest_exchanges(lambda count: GTBAOAB(0.8, mix_rounds=count), model, net)
    assert count > 1
    assert bias(count) <= 0.01 < bias(count - 1)


def test_a_gaussian_model_is_the_posterior_where_that_is_gaussian():
    post, net = unequal_curvature(3), NETWORKS["ring"]
    with jax.enable_x64(True):
        found = warm_up(post, net)
    moved = post.transformed(found.coordinates)
    model = gaussian_model(moved, found)
    np.testing.assert_allclose(model.hessians(), moved.hessians(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.gradients(np.ones(3)), moved.gradients(np.ones(3)), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.exact().mean, np.zeros(3), atol=1e-9)


def test_numbers_left_out_are_chosen():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found = warm_up(post, net)
    moved = post.transformed(found.coordinates)
    chosen = GTBAOAB().tuned(moved, net, found)
    # a Gaussian posterior has no draws stiffer than others
    assert chosen.step_size == 1.0 and chosen.is_complete()
    given = GTBAOAB(0.5).tuned(moved, net, found)
    assert given.step_size == 0.5 and given.mix_rounds <= chosen.mix_rounds
    assert GTBAOAB(mix_rounds=7).tuned(moved, net, found).mix_rounds == 7
    with pytest.raises(ValueError, match="chosen in whitened coordinates"):
        accord.law(post, net, GTBAOAB())
    with pytest.raises(ValueError, match="chosen in whitened coordinates"):
        accord.sample(post, net, GTBAOAB(), draws=1, whiten=False)


@pytest.mark.parametrize("network", ["ring", "path"])
def test_without_numbers_every_agent_draws_a_gaussian_posterior(network):
    post, net = unequal_curvature(3), NETWORKS[network]
    run = accord.sample(post, net, draws=2000, burn_in=50, chains=16, seed=1)
    assert "GTBAOAB" in run.settings["method"]
    exact, size = post.exact(), 16 * 2000
    mean, sd = run.draws.mean(axis=(0, 1), dtype=np.float64), run.draws.std(axis=(0, 1), dtype=np.float64)
    # a bias of a hundredth is allowed, and what so many draws may be off, whose squares remember for some six rounds
    noise = 4.5 * np.sqrt(6.0 / size)
    assert (np.abs(mean - exact.mean) / exact.sd).max() < 0.01 + noise
    assert np.abs(sd / exact.sd - 1.0).max() < 0.01 + noise


def test_without_numbers_every_agent_draws_a_skewed_posterior():
    post, net = skewed(), NETWORKS["ring"]
    run = accord.sample(post, net, draws=4000, burn_in=100, chains=8, thin=2, seed=1)
    reference = accord.reference.nuts(post, draws=10_000, warmup=1000, chains=4, seed=0).reshape(-1, 3)
    sd = reference.std(axis=0)
    mean_error = np.abs(run.draws.mean(axis=(0, 1)) - reference.mean(axis=0)) / sd
    assert mean_error.max() < 0.05 + 0.05
    assert np.abs(run.draws.std(axis=(0, 1)) / sd - 1.0).max() < 0.03 + 0.05


def test_many_parameters_are_modelled_by_the_largest_curvatures(monkeypatch):
    monkeypatch.setattr("accord.plan._DENSE", 2)
    post, net = unequal_curvature(3), NETWORKS["ring"]
    with jax.enable_x64(True):
        found = warm_up(post, net, dense=2)
    model = gaussian_model(post.transformed(found.coordinates), found)
    assert model.dim == 1
    np.testing.assert_allclose(model.hessians()[:, 0, 0], found.curvature[:, 1])
    chosen = GTBAOAB().tuned(post.transformed(found.coordinates), net, found)
    run = accord.sample(post.transformed(found.coordinates), net, chosen, draws=500, burn_in=50, chains=4, seed=0)
    assert np.isfinite(run.draws).all()


def test_a_network_that_mixes_too_slowly_is_named():
    post, net = unequal_curvature(1, agents=60), accord.Network.path(60)
    found = warm_up(post, net)
    model = gaussian_model(post.transformed(found.coordinates), found)
    with pytest.raises(ArithmeticError, match="mixes too slowly: 16 exchanges a step"):
        fewest_exchanges(lambda count: GTBAOAB(1.0, mix_rounds=count), model, net, most=16)


def test_a_complete_method_is_left_as_it_is():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found = warm_up(post, net)
    method = GTBAOAB(0.3, mix_rounds=2, batch_size=2)
    assert method.tuned(post.transformed(found.coordinates), net, found) == dataclasses.replace(method)
