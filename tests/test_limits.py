"""Limits that every method must have: its optimiser, pure averaging, one agent, user-defined methods."""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from tables import AGENTS, METHODS, MIXING_METHODS, NETWORKS, among, pairs, unequal_curvature, unequal_shards

import accord
from accord.base.pytree import pytree
from accord.network.averaging import chebyshev
from accord.samplers import (
    DADMMS,
    DESGHMC,
    DESGLD,
    DULA,
    EXTRASGLD,
    GTBAOAB,
    GTDULA,
    DIGingSGLD,
    SplitGTBAOAB,
)
from accord.samplers.protocol import HasLaw, Needs

FREE = {
    "GTDULA": lambda: GTDULA(0.01, 0.15, 0.15, temperature=0.0),
    "GTBAOAB": lambda: GTBAOAB(0.1, 1.5, temperature=0.0, mix_rounds=1),
    "EXTRASGLD": lambda: EXTRASGLD(0.1, temperature=0.0),
    "DIGingSGLD": lambda: DIGingSGLD(0.06, temperature=0.0),
    "DADMMS": lambda: DADMMS(0.7, temperature=0.0),
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "network"), pairs(FREE, NETWORKS, quick=zip(itertools.cycle(FREE), NETWORKS)))
def test_gradient_tracking_and_c_admm_reach_the_mode(name, network):
    for post in (unequal_shards(2), logistic()):
        sampler = FREE[name]()
        with jax.enable_x64(True):
            run = accord.sample(post, NETWORKS[network], accord.Rounds(sampler, burn_in=4000), draws=1, chains=1)
        np.testing.assert_allclose(run.draws[0, 0], np.tile(post.mode(), (AGENTS, 1)), atol=1e-6)


@pytest.mark.long
def test_c_admm_reaches_the_mode_without_hessians_too(monkeypatch):
    monkeypatch.setattr("accord.posterior.posterior.HESSIAN_DIM", 0)
    post = logistic()
    assert post.stacked(spectral=True).curvature is None
    with jax.enable_x64(True):
        run = accord.sample(
            post, NETWORKS["star"], accord.Rounds(DADMMS(0.7, temperature=0.0), burn_in=2000), draws=1, chains=2
        )
    for chain in run.draws[:, 0]:
        np.testing.assert_allclose(chain, np.tile(post.mode(), (AGENTS, 1)), atol=1e-6)


@pytest.mark.parametrize("method", ["DESGLD", "DESGHMC", "DULA"])
@pytest.mark.parametrize("network", ["star", "irregular"])
@pytest.mark.long_from(3)
def test_other_optimisers_reach_the_fixed_point_of_their_law(method, network):
    post, net = unequal_curvature(2), NETWORKS[network]
    sampler = METHODS[method](temperature=0.0)
    fixed = accord.law(post, net, sampler).stationary().joint
    with jax.enable_x64(True):
        run = accord.sample(post, net, accord.Rounds(sampler, burn_in=3000), draws=1, chains=1)
    np.testing.assert_allclose(run.draws[0, 0].ravel(), fixed.mean, atol=1e-8)
    np.testing.assert_allclose(fixed.cov, 0.0, atol=1e-20)
    # and that is not the mode: the agents' gradients pull them apart
    assert np.abs(fixed.mean - np.tile(post.mode(), AGENTS)).max() > 1e-3


def logistic():
    rng = np.random.default_rng(1)
    shards = []
    for agent in range(AGENTS):
        X = rng.standard_normal((5 + 2 * agent, 2))
        shards.append((X, (X[:, 0] + rng.standard_normal(len(X)) > 0).astype(float)))
    return accord.models.logistic_regression(shards)


# EXTRA learns from disagreement what gradients it came from, and so does more than average
@pytest.mark.parametrize("method", [name for name in MIXING_METHODS if name != "EXTRASGLD"])
@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.long_from(6)
def test_zero_gradient_is_pure_averaging_at_the_spectral_rate(method, rounds):
    # flat potentials: what is left of a noiseless round is the mixing matrix, K exchanges its Chebyshev polynomial
    post = accord.models.quadratic(np.zeros((AGENTS, 1, 1)), np.zeros((AGENTS, 1)))
    net = NETWORKS["path"]
    sampler = {
        "DESGLD": DESGLD(0.1, temperature=0.0, mix_rounds=rounds),
        "DESGHMC": DESGHMC(0.1, 1.0, temperature=0.0, mix_rounds=rounds),
        "DULA": DULA(0.1, 0.2, temperature=0.0, mix_rounds=rounds),
        "GTDULA": GTDULA(0.1, 0.2, 0.2, temperature=0.0, mix_rounds=rounds),
        "GTBAOAB": GTBAOAB(0.1, temperature=0.0, mix_rounds=rounds),
        "DIGingSGLD": DIGingSGLD(0.1, temperature=0.0, mix_rounds=rounds),
    }[method]
    W = net.mixing("laplacian", delta=0.2) if method in ("DULA", "GTDULA") else net.mixing("metropolis")
    values = np.linalg.eigvalsh(W)
    s = max(abs(values[0]), abs(values[-2]))
    # T_K(1/s) by its closed form: the rate that K exchanges can reach
    rate = 1.0 / np.cosh(rounds * np.arccosh(1.0 / s))
    start = np.random.default_rng(0).standard_normal((AGENTS, 1))
    with jax.enable_x64(True):
        engine_run = _advance(post, net, sampler, start, 12)
    matrix = np.linalg.matrix_power(_polynomial(W, rounds, s), 12)
    np.testing.assert_allclose(engine_run, matrix @ start[:, 0], atol=1e-10)
    np.testing.assert_allclose(engine_run.mean(), start.mean(), atol=1e-12)
    distance = np.linalg.norm(engine_run - engine_run.mean())
    assert distance <= 1.0001 * rate**12 * np.linalg.norm(start - start.mean())
    found = chebyshev(sampler.weights(net), rounds).toarray()
    assert max(abs(np.linalg.eigvalsh(found - 1.0 / AGENTS))) == pytest.approx(rate, rel=1e-9)


def _advance(post, net, sampler, start, rounds):
    # flat potentials make an improper posterior without a step bound, so the engine is called without sample()
    from accord.engines.local import LocalEngine
    from accord.engines.round import positions

    engine = LocalEngine(post, net, sampler.bind(post, net), chains=1, seed=0, keep=np.arange(AGENTS))
    carry = engine.advance(engine.start(start, None), rounds)
    return np.asarray(positions(engine.problem, carry.state))[:, 0, 0]


def _polynomial(W, rounds, s):
    values, vectors = np.linalg.eigh(W)
    T = np.polynomial.chebyshev.Chebyshev.basis(rounds)
    return vectors @ np.diag(T(values / s) / T(1.0 / s)) @ vectors.T


@pytest.mark.parametrize("method", [*MIXING_METHODS, "SplitGTBAOAB"])
def test_one_agent_is_the_plain_sampler(method):
    # unadjusted (kinetic) Langevin on f alone, from its own recursion in numpy with the same noise
    post = accord.models.gaussian(np.array([[1.0, -1.0]]), np.array([[[2.0, 0.3], [0.3, 0.5]]]))
    H, b = post.hessians()[0], post.hessians()[0] @ np.array([1.0, -1.0])
    sampler = {
        "DESGLD": DESGLD(0.1),
        "DESGHMC": DESGHMC(0.3, 1.0),
        "DULA": DULA(0.1, 0.3),
        "GTDULA": GTDULA(0.1, 0.3, 0.3),
        "GTBAOAB": GTBAOAB(0.3, 1.0, mix_rounds=1),
        "SplitGTBAOAB": SplitGTBAOAB(0.3, 1.0, mix_rounds=1),
        "EXTRASGLD": EXTRASGLD(0.1),
        "DIGingSGLD": DIGingSGLD(0.1),
    }[method]
    net = accord.Network.ring(1)
    law = accord.law(post, net, sampler)
    n = 2
    if method == "DESGHMC":
        one, eta = np.eye(n), 0.3
        to_v = np.hstack([-eta * H, (1.0 - eta) * one])
        A = np.vstack([np.hstack([one, np.zeros((n, n))]) + eta * to_v, to_v])
        B = np.sqrt(2.0 * eta) * np.vstack([eta * one, one])
        mean, cov, c = np.zeros(2 * n), np.zeros((2 * n, 2 * n)), np.concatenate([eta**2 * b, eta * b])
    elif method.endswith("GTBAOAB"):
        one, none, h = np.eye(n), np.zeros((n, n)), 0.3
        kept = np.exp(-h)
        kick, drift = np.block([[one, none], [-h * H, one]]), np.block([[one, h / 2.0 * one], [none, one]])
        refresh = np.block([[one, none], [none, kept * one]])
        A = drift @ refresh @ drift @ kick
        B = np.sqrt(1.0 - kept**2) * drift @ np.vstack([none, one])
        mean, cov, c = np.zeros(2 * n), np.zeros((2 * n, 2 * n)), drift @ refresh @ drift @ np.r_[np.zeros(n), h * b]
    else:
        A, B, c = np.eye(n) - 0.1 * H, np.sqrt(0.2) * np.eye(n), 0.1 * b
        mean, cov = np.zeros(n), np.zeros((n, n))
    for k in range(1, 30):
        mean, cov = A @ mean + c, A @ cov @ A.T + B @ B.T
        np.testing.assert_allclose(law.at(k).agent(0).mean, mean[:n], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(law.at(k).agent(0).cov, cov[:n, :n], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("step", among([0.1, 1.0, 1.9], 1.9))
def test_splitting_leaves_gaussian_positions_exact_at_any_stable_step(step):
    # equal potentials whose sum has curvature one: stable below a step of two
    post = accord.models.gaussian(np.zeros((AGENTS, 1)), AGENTS * np.ones((AGENTS, 1, 1)))
    stationary = accord.law(post, NETWORKS["ring"], GTBAOAB(step, 0.7, mix_rounds=8)).stationary()
    for found in (stationary.average, stationary.agent(2)):
        np.testing.assert_allclose(found.cov, post.exact().cov, rtol=1e-10)


@pytest.mark.parametrize("method", [name for name in MIXING_METHODS if name != "GTBAOAB"])
def test_bias_of_the_average_is_of_first_order_in_the_step(method):
    # equal potentials, so that the network has no part in it
    post = accord.models.gaussian(np.zeros((AGENTS, 1)), np.ones((AGENTS, 1, 1)))
    net, exact = NETWORKS["ring"], post.exact().cov[0, 0]
    make = {
        "DESGLD": lambda h: DESGLD(h * AGENTS),
        "DESGHMC": lambda h: DESGHMC(np.sqrt(h), 1.0),
        "DULA": lambda h: DULA(h, 0.2),
        "GTDULA": lambda h: GTDULA(h, 0.2, 0.2),
        "EXTRASGLD": lambda h: EXTRASGLD(h * AGENTS),
        "DIGingSGLD": lambda h: DIGingSGLD(h * AGENTS),
    }[method]
    error = [
        abs(accord.law(post, net, make(h)).stationary().average.cov[0, 0] / exact - 1.0) for h in (2e-3, 1e-3, 5e-4)
    ]
    order = np.diff(np.log(error)) / np.log(0.5)
    # For DE-SGHMC h is the square of its own step: symplectic Euler keeps the positions' marginal to second order.
    np.testing.assert_allclose(order, 1.0, atol=0.1)


class HubState(NamedTuple):
    position: jax.Array


@pytest.mark.parametrize("noise", ["independent", "common"])
def test_a_users_method_can_use_the_total_of_a_hub(noise):
    @pytree
    class HubLangevin(HasLaw):
        """Langevin on F whose gradient is summed by a hub."""

        step_size: float

        def needs(self, dim):
            return Needs("total", common=self.noise == "common")

        def init(self, agent, position, noise):
            return HubState(position)

        def message(self, agent, state):
            return agent.gradient(state.position)

        def update(self, agent, state, inbox, noise):
            move = self.step_size * inbox.total()
            return HubState(
                state.position - move + (2.0 * self.step_size) ** 0.5 * noise.normal * agent.num_agents**0.5
            )

    post = unequal_curvature(2)
    stationary = accord.law(post, NETWORKS["star"], HubLangevin(0.01, noise=noise), init=np.zeros(2))
    if noise == "independent":
        # nothing pulls the agents together: their differences walk away
        with pytest.raises(ValueError, match="unstable"):
            stationary.stationary()
    else:
        law = stationary.at(2000)
        exact = post.exact()
        for i in range(AGENTS):
            np.testing.assert_allclose(law.agent(i).mean, exact.mean, rtol=1e-6)
            np.testing.assert_allclose(np.diag(law.agent(i).cov), np.diag(exact.cov), rtol=0.05)


def test_an_undeclared_inbox_is_named():
    @pytree
    class Forgetful(DESGLD):
        def needs(self, dim):
            return super().needs(dim)._replace(inbox="neighbour_sum")

    with pytest.raises(TypeError, match=r"reads inbox.mix\(\) but does not declare it"):
        accord.sample(unequal_shards(1), NETWORKS["ring"], accord.Rounds(Forgetful(0.01), burn_in=0), draws=1)
