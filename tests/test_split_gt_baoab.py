"""GT-BAOAB split: savings and errors of a quadratic model of F, and when a plan rejects it."""

import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, unequal_curvature

import accord
from accord.engines.consensus_mode import bind
from accord.results.findings import TOLERANCE
from accord.samplers import GTBAOAB, SplitGTBAOAB
from accord.samplers.expansions import Expansions
from accord.tuning.forecast import Model, gaussian_model
from accord.tuning.search import choose, try_out
from accord.tuning.warmup import warm_up


def logistic(rows, dim=3, agents=AGENTS):
    """Logistic regression whose agents see different parts of the first column."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(rows), rng.standard_normal((rows, dim - 1))])
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ np.linspace(1.5, -1.0, dim)))).astype(float)
    parts = np.array_split(np.argsort(X[:, 1]), agents)
    return accord.models.logistic_regression([(X[part], y[part]) for part in parts], prior_variance=10.0)


@pytest.mark.parametrize("network", ["ring", "star", "path"])
def test_one_exchange_is_exact_on_gaussian_posteriors(network):
    post, net = unequal_curvature(2), NETWORKS[network]
    law = accord.law(post, net, SplitGTBAOAB(0.6, 1.0, mix_rounds=1)).stationary()
    whole = accord.law(post, net, GTBAOAB(0.6, 1.0, mix_rounds=1))
    exact = post.exact()
    for agent in range(AGENTS):
        np.testing.assert_allclose(law.agent(agent).mean, exact.mean, atol=1e-9)
        np.testing.assert_allclose(law.agent(agent).cov, exact.cov, atol=1e-9)
    # GT-BAOAB loses stability or accuracy if the agents' curvatures differ
    if whole.spectral_radius < 1.0:
        spread = [np.diag(whole.stationary().agent(i).cov) / np.diag(exact.cov) for i in range(AGENTS)]
        assert np.abs(np.array(spread) - 1.0).max() > 0.1


@pytest.mark.slow
def test_a_plan_takes_few_exchanges_with_much_data_and_the_draws_are_correct():
    post, net = logistic(6000), NETWORKS["ring"]
    run = accord.sample(post, net, accord.Rounds(SplitGTBAOAB(), burn_in=50, thin=1), draws=1000, chains=8, seed=0)
    assert "mix_rounds=1" in run.settings["method"] or "mix_rounds=2" in run.settings["method"]
    exact = accord.sample(post, net, draws=2000, chains=8, seed=1)
    for agent in range(AGENTS):
        for feature in (lambda x: x, lambda x: (x - exact.draws.mean(axis=(0, 1, 2))) ** 2):
            ours, theirs = feature(run.draws[:, :, agent]).mean(axis=1), feature(exact.draws[:, :, 0]).mean(axis=1)
            error = np.hypot(ours.std(axis=0, ddof=1) / 8.0**0.5, theirs.std(axis=0, ddof=1) / 8.0**0.5)
            scale = feature(exact.draws[:, :, 0]).std(axis=(0, 1))
            assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 5.0 * error + TOLERANCE * scale).all()


@pytest.mark.long
def test_a_plan_rejects_it_if_the_curvature_varies_by_its_own_size():
    # on the Gaussian any number of exchanges is exact, and few are unstable at a stiff draw
    post, net = logistic(40, dim=6), NETWORKS["path"]
    found = warm_up(post, net)
    moved = post.transformed(found.coordinates)
    model = gaussian_model(moved, found)
    first = next(try_out(SplitGTBAOAB(), model, post.sizes, net, found.stiffness, TOLERANCE))
    assert found.stiffness > 2.0 and first.sampler.mix_rounds == 1 and not first.forecast.meets(TOLERANCE)
    assert accord.tuning.forecast.forecast(model.whitened, post.sizes, net, first.sampler).meets(TOLERANCE)
    best, _ = choose([SplitGTBAOAB(), GTBAOAB()], moved, net, found)
    assert best.sampler.mix_rounds > 2


@pytest.mark.long
def test_a_plan_rejects_it_if_stiff_draws_lie_in_a_saddle():
    # as in the neck of a funnel, the curvatures there belong to no Gaussian posterior
    post, net = logistic(40), NETWORKS["ring"]
    found = warm_up(post, net)
    model = gaussian_model(post.transformed(found.coordinates), found)
    bent = model.stiff.whitened.hessians().copy()
    bent[:, 0, 0] -= 2.0 * bent[:, 0, 0].sum() / AGENTS
    saddle = accord.models.quadratic(bent, np.zeros((AGENTS, 3)))
    with pytest.raises(ValueError, match="improper"):
        saddle.exact()
    model = model._replace(stiff=Model(saddle, saddle, None))
    for trial in try_out(SplitGTBAOAB(), model, post.sizes, net, found.stiffness, TOLERANCE):
        assert np.isinf(trial.forecast.bias) and not trial.forecast.meets(TOLERANCE)


@pytest.mark.long
def test_a_setting_that_is_unstable_at_stiff_draws_is_not_run():
    # a Gaussian posterior of agents with large positive and negative curvatures that cancel
    def log_likelihood(x, rows):
        return -0.05 * x[0] ** 2 - rows[:, 0] * jnp.cos(x[0])

    shards = [np.array([[(-1.0) ** agent * 3.0]]) for agent in range(AGENTS)]
    post = accord.Posterior(log_likelihood, lambda x: 0.0 * x[0], shards, np.zeros(1))
    with pytest.raises(ArithmeticError, match="unstable at the posterior's stiffest draws.*GTBAOAB"):
        accord.sample(post, NETWORKS["path"], SplitGTBAOAB(mix_rounds=1), draws=5)


@pytest.mark.long
def test_without_noise_it_reaches_the_mode():
    post, net = logistic(200), NETWORKS["irregular"]
    method = SplitGTBAOAB(0.3, 1.0, mix_rounds=2, temperature=0.0)
    run = accord.sample(post, net, accord.Rounds(method, burn_in=400, whiten=True), draws=1, chains=1, seed=0)
    np.testing.assert_allclose(run.draws[0, -1], np.tile(post.mode(), (AGENTS, 1)), atol=1e-5)


def test_expansions_of_a_wrong_shape_are_named():
    method = SplitGTBAOAB(0.1, mix_rounds=1, expansions=Expansions(np.zeros(2), np.zeros((3, 2)), np.zeros((3, 2, 2))))
    with pytest.raises(ValueError, match=r"expansions must be .* of shapes .*\(6, 2, 2\)\), found .*\(3, 2, 2\)\)"):
        bind(unequal_curvature(2), NETWORKS["ring"], method, accord.engines.local.LocalEngine)
