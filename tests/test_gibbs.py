"""Coloured Gibbs: its stationary law in closed form, its contraction, its conditionals, recentring and errors."""

import itertools

import networkx as nx
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from tables import AGENTS, NETWORKS, POSTERIORS, Z_BOUND, pairs, unequal_curvature, unequal_shards, worst_z

import accord
from accord.engines.consensus_mode import bind
from accord.samplers import Gibbs
from accord.samplers.conditional import MALA, Rejection


def augmented(post, net, eta, mixing="metropolis"):
    """The closed form of exp(-sum f_i(x_i) - sum_edges sigma / (2 eta) |x_i - x_j|^2): mean and covariance."""
    ties = np.zeros((net.num_agents, net.num_agents))
    W = net.mixing(mixing)
    for i, j in net.edges:
        ties[i, i] += W[i, j] / eta
        ties[j, j] += W[i, j] / eta
        ties[i, j] = ties[j, i] = -W[i, j] / eta
    precision = np.kron(ties, np.eye(post.dim)) + scipy.linalg.block_diag(*post.hessians())
    linear = -post.gradients(np.zeros(post.dim)).ravel()
    cov = np.linalg.inv(precision)
    return accord.Gaussian(cov @ linear, cov)


@pytest.mark.parametrize(
    ("network", "posterior"), pairs(NETWORKS, POSTERIORS, quick=zip(NETWORKS, itertools.cycle(POSTERIORS)))
)
@pytest.mark.long_from(3)
def test_stationary_law_is_the_augmented_gaussian(network, posterior):
    post, net = POSTERIORS[posterior](2), NETWORKS[network]
    for temperature in (1.0, 0.3):
        found = accord.law(post, net, Gibbs(0.3, temperature=temperature)).stationary().joint
        expected = augmented(post, net, 0.3)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.cov, temperature * expected.cov, rtol=1e-8, atol=1e-10)


def test_ties_are_the_mixing_weights():
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    for mixing in ("laplacian", "max-degree", "lazy"):
        found = accord.law(post, net, Gibbs(0.5, mixing=mixing)).stationary().joint
        np.testing.assert_allclose(found.cov, augmented(post, net, 0.5, mixing).cov, rtol=1e-8, atol=1e-10)


COLORED = {
    **{f"circle-{n}": accord.Network.ring(n) for n in (7, 15, 31, 63)},
    **{f"random-{seed}": accord.Network.erdos_renyi(12, 0.4, seed=seed) for seed in (1, 2)},
    "regular": accord.Network.regular(12, 5, seed=0),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "circle-7" else pytest.mark.slow) for n in COLORED],
)
def test_every_proper_colouring_has_the_same_stationary_law(name, monkeypatch):
    net = COLORED[name]
    n = net.num_agents
    rng = np.random.default_rng(0)
    post = accord.models.gaussian(rng.standard_normal(n), rng.uniform(0.3, 3.0, n))
    own = net.coloring()
    assert own.max() >= 2  # none of these is bipartite
    graph = net.to_networkx()
    colorings = [own, own.max() - own, np.arange(n), rng.permutation(n)]
    for strategy in ("largest_first", "smallest_last"):
        named = nx.greedy_color(graph, strategy)
        colorings.append(np.array([named[i] for i in range(n)]))
    expected = augmented(post, net, 0.2)
    contractions = []
    for colors in colorings:
        assert all(colors[i] != colors[j] for i, j in net.edges)
        monkeypatch.setattr(accord.Network, "coloring", lambda self, colors=colors: colors)
        law = accord.law(post, net, Gibbs(0.2))
        found = law.stationary().joint
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(found.cov, expected.cov, rtol=1e-8, atol=1e-10)
        contractions.append(law.spectral_radius)
    # the samplers differ nevertheless
    assert np.ptp(contractions) > 1e-6


def joint_kl(p, q, span):
    return accord.metrics.kl(
        accord.Gaussian(p.mean[span], p.cov[np.ix_(span, span)]),
        accord.Gaussian(q.mean[span], q.cov[np.ix_(span, span)]),
    )


@pytest.mark.parametrize("eta", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_agents_contract_as_in_theorem_4_2(eta, seed):
    # f with curvature 0.5 to 3, g with 0.2 to 2, one minimiser
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((2, 3, 3)))[0]
    precisions = Q @ np.stack([np.diag([0.5, 1.0, 3.0]), np.diag([0.2, 0.7, 2.0])]) @ np.swapaxes(Q, 1, 2)
    mean = rng.standard_normal(3)
    post = accord.models.gaussian(np.stack([mean, mean]), np.linalg.inv(precisions))
    # Algorithm 1 has sigma = 1, the Metropolis weight of two agents is 1/2
    net = accord.Network.path(2)
    method = Gibbs(eta * net.mixing()[0, 1])
    law = accord.law(post, net, method, init=accord.Gaussian(mean + 2.0, 3.0 * np.eye(3)))
    stationary = law.stationary().joint
    # agent 0 is drawn first in a sweep, then agent 1, the x of the theorem
    distance = [joint_kl(law.at(k).joint, stationary, np.arange(3, 6)) for k in range(8)]
    rate = 1.0 / ((1.0 + eta * 0.5) ** 2 * (1.0 + eta * 0.2) ** 2)
    for before, after in zip(distance[:-1], distance[1:], strict=True):
        assert after <= rate * before + 1e-12
    assert law.spectral_radius <= np.sqrt(rate) * (1 + 1e-9)


def theorem_5_3(net, eta, alpha):
    """The constant C of eq. 18, for the colouring into B (drawn first) and A."""
    W, colors = net.mixing(), net.coloring()
    tie = W.sum(axis=1) - np.diag(W)
    B, A = (np.flatnonzero(colors == c) for c in (0, 1))

    def part(t, size, least):
        return 1.0 / (eta * t * (1 - t) / least + (1 - t) ** 2 * size / alpha + t**2 / alpha)

    integrand = lambda t: part(t, len(B), tie[B].min()) + part(t, len(A), tie[A].min())  # noqa: E731
    return eta * scipy.integrate.quad(integrand, 0.0, 1.0)[0], A


@pytest.mark.parametrize(
    "net",
    [accord.Network.tree(3), accord.Network.ring(6), accord.Network.star(5), accord.Network.path(4)],
    ids=["tree", "circle", "star", "path"],
)
@pytest.mark.parametrize("eta", [0.05, 0.5])
def test_bipartite_graphs_contract_as_in_theorem_5_3(net, eta):
    n = net.num_agents
    rng = np.random.default_rng(n)
    variances = rng.uniform(0.5, 2.0, (n, 2))
    post = accord.models.gaussian(np.zeros((n, 2)), np.stack([np.diag(v) for v in variances]))
    law = accord.law(post, net, Gibbs(eta), init=accord.Gaussian([1.0, -1.0], 2.0 * np.eye(2)))
    C, A = theorem_5_3(net, eta, 1.0 / variances.max())
    span = (2 * A[:, None] + np.arange(2)).ravel()
    stationary = law.stationary().joint
    start = joint_kl(law.at(0).joint, stationary, span)
    for k in (1, 2, 5, 20):
        # the theorem's pair (x_a^k, x_b^k), x_b drawn given x_a, is as far from its law as x_a^k alone
        assert joint_kl(law.at(k).joint, stationary, span) <= np.exp(-k * C) * start
    assert C > 0


def test_the_average_makes_the_stated_langevin_steps():
    # with hardly any curvature the slowest mode is the average's, which contracts by 1 - step N eps
    eps = 1e-5
    for name in ("irregular", "star", "complete"):
        post = accord.models.gaussian(np.zeros(AGENTS), np.full(AGENTS, 1.0 / eps))
        method = Gibbs(0.3)
        step = method.langevin_step(NETWORKS[name])
        radius = accord.law(post, NETWORKS[name], method).spectral_radius
        assert 1.0 - radius == pytest.approx(step * AGENTS * eps, rel=1e-3)


@pytest.mark.long
@pytest.mark.busy
def test_metropolis_steps_keep_the_stationary_law():
    post, net = unequal_shards(2), NETWORKS["irregular"]
    # forty sweeps suffice for exact draws, Metropolis steps need more
    assert accord.law(post, net, Gibbs(0.5)).spectral_radius ** 40 < 1e-6
    method = Gibbs(0.5, conditional=MALA(steps=4, scale=0.8))
    run = accord.sample(post, net, accord.Rounds(method, burn_in=0, thin=60), draws=1, chains=5000, seed=3)
    assert worst_z(run.draws[:, 0], augmented(post, net, 0.5)) < Z_BOUND


@pytest.mark.long
@pytest.mark.busy
def test_rejection_draws_the_conditional_itself():
    # every round then has the law of exact draws
    post, net = unequal_shards(2), NETWORKS["irregular"]
    start = accord.Gaussian([1.0, -1.0], np.eye(2))
    law = accord.law(post, net, Gibbs(0.5), init=start)
    run = accord.sample(
        post, net, accord.Rounds(Gibbs(0.5, "rejection"), burn_in=0, init=start), draws=5, chains=10_000, seed=4
    )
    for k in (1, 2, 5):
        assert worst_z(run.draws[:, k - 1], law.at(k).joint) < Z_BOUND


@pytest.mark.slow
def test_conditionals_at_another_temperature():
    post, net = unequal_curvature(2), NETWORKS["star"]
    expected = augmented(post, net, 0.3)
    expected = accord.Gaussian(expected.mean, 0.4 * expected.cov)
    for conditional in ("rejection", "mala"):
        method = Gibbs(0.3, conditional, temperature=0.4)
        run = accord.sample(post, net, accord.Rounds(method, burn_in=60), draws=1, chains=5000, seed=5)
        assert worst_z(run.draws[:, 0], expected) < Z_BOUND


@pytest.mark.long
@pytest.mark.busy
@pytest.mark.parametrize("conditional", ["rejection", pytest.param("mala", marks=pytest.mark.slow)])
def test_power_potentials_against_quadrature(conditional):
    # |x - c|^1.5 has no bounded curvature; two agents' joint law on a grid
    centers, eta = np.array([0.0, 1.0]), 0.4
    post = accord.models.power(centers, 1.5)
    grid = np.linspace(-7.0, 8.0, 1501)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    sigma = accord.Network.path(2).mixing()[0, 1]
    density = np.exp(-(np.abs(x) ** 1.5) - np.abs(y - 1.0) ** 1.5 - sigma / (2 * eta) * (x - y) ** 2)
    density /= density.sum()
    moment = lambda f: float((f * density).sum())  # noqa: E731
    mean = np.array([moment(x), moment(y)])
    chains = 6000
    method = Gibbs(eta, conditional=conditional)
    run = accord.sample(
        post, accord.Network.path(2), accord.Rounds(method, burn_in=0, thin=41), draws=1, chains=chains, seed=1
    )
    draws = run.draws[:, 0, :, 0].astype(np.float64)
    for powers in [(1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (4, 0), (0, 4), (2, 2)]:
        central = (x - mean[0]) ** powers[0] * (y - mean[1]) ** powers[1]
        expected, spread = moment(central), np.sqrt(moment(central**2) - moment(central) ** 2)
        found = ((draws[:, 0] - mean[0]) ** powers[0] * (draws[:, 1] - mean[1]) ** powers[1]).mean()
        assert abs(found - expected) < Z_BOUND * spread / np.sqrt(chains), powers


@pytest.mark.long
def test_the_acceptance_rate_is_reported_correctly():
    # with curvature h and ties of strength c a proposal from the mode is accepted at the rate (1 + h / c)^(-1/2)
    h, eta = 3.0, 0.5
    post = accord.models.gaussian(np.zeros(2), np.full(2, 1.0 / h))
    method = Gibbs(eta, "rejection")
    rounds, chains = 200, 300
    run = accord.sample(
        post, accord.Network.path(2), accord.Rounds(method, burn_in=0, thin=rounds), draws=1, chains=chains
    )
    c = 0.5 / eta
    rate = (1.0 + h / c) ** -0.5
    # the worse of two agents: the mean over chains of the smaller of two rates, each sd rate sqrt(1 - rate) / sqrt(n)
    sd = rate * np.sqrt((1.0 - rate) / rounds)
    expected = rate - sd / np.sqrt(np.pi)
    found = run.statistics["acceptance_rate"][:, -1]
    assert abs(found.mean() - expected) < Z_BOUND * sd / np.sqrt(chains)
    # per draw: one gradient for the closed-form mode, the gradient and value there, and the proposals
    tries = rounds / run.statistics["acceptance_rate"][:, -1]
    np.testing.assert_allclose(run.statistics["gradients"][:, -1], 3 * rounds + tries, rtol=1e-5)
    mala = accord.sample(post, accord.Network.path(2), accord.Rounds(Gibbs(eta, "mala"), burn_in=9), draws=3, chains=2)
    assert ((mala.statistics["acceptance_rate"] > 0.3) & (mala.statistics["acceptance_rate"] <= 1.0)).all()


def test_recentring_removes_the_bias_of_distant_minimisers():
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    exact = post.exact()
    plain, recentred = (accord.law(post, net, Gibbs(0.3, recentre=r)).stationary().joint for r in (False, True))
    everywhere = np.tile(exact.mean, AGENTS)
    scale = np.tile(exact.sd, AGENTS)
    assert np.abs((plain.mean - everywhere) / scale).max() > 0.2
    # agents reach the minimiser to 0.01 sd
    assert np.abs((recentred.mean - everywhere) / scale).max() < 0.02
    np.testing.assert_allclose(recentred.cov, plain.cov, rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_recentring_keeps_the_posterior_and_counts_its_cost():
    logistic = accord.models.logistic_regression(
        [
            (X, (X[:, 0] + 0.5 * k > 0).astype(float))
            for k, X in enumerate(np.random.default_rng(0).standard_normal((AGENTS, 8, 2)))
        ]
    )
    net = NETWORKS["irregular"]
    bound = bind(logistic, net, Gibbs(0.1, "mala", recentre=True))
    # shifts are the gradients at the mode, and sum to zero, so that sum f_i is unchanged
    np.testing.assert_allclose(bound.own.shift.sum(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(bound.own.shift, logistic.gradients(logistic.mode()), atol=0.05)
    assert bound.spent.exchanges > 0 and (bound.spent.bytes_sent > 0).all()
    costs = [
        accord.sample(
            logistic, net, accord.Rounds(Gibbs(0.1, "mala", recentre=r), burn_in=0), draws=5, chains=1
        ).traffic
        for r in (False, True)
    ]
    assert costs[1].exchanges - costs[0].exchanges == bound.spent.exchanges
    np.testing.assert_array_equal(costs[1].bytes_sent - costs[0].bytes_sent, bound.spent.bytes_sent)


def test_zero_temperature_descends_to_the_mode_of_the_augmented_potential():
    post, net = unequal_curvature(2), NETWORKS["path"]
    run = accord.sample(post, net, accord.Rounds(Gibbs(0.3, temperature=0.0), burn_in=600), draws=1, chains=1)
    np.testing.assert_allclose(run.draws[0, 0].ravel(), augmented(post, net, 0.3).mean, atol=1e-4)


@pytest.mark.long
def test_a_conditional_that_cannot_be_drawn_is_an_error_with_agent_and_bound():
    post, net = unequal_curvature(3), NETWORKS["path"]
    method = Gibbs(500.0, Rejection(max_tries=2))
    with pytest.raises(accord.DivergenceError, match=r"agent \d .*max_tries=2.*eta below \d") as error:
        accord.sample(post, net, accord.Rounds(method, burn_in=0), draws=5, chains=20)
    agent = error.value.agent
    tie = 1.0 - np.diag(net.mixing())[agent]
    bound = tie / (np.linalg.eigvalsh(post.hessians()[agent])[-1] * 3)
    assert f"{bound:.6g}" in str(error.value)


@pytest.mark.long
def test_a_potential_that_is_not_convex_is_an_error():
    def double_well(x, rows):
        return -((x[0] ** 2 - 4.0) ** 2) * rows

    shards = [np.ones(1), np.ones(1)]
    post = accord.Posterior(double_well, lambda x: 0.0 * x[0], shards, np.zeros(1))
    with pytest.raises(accord.DivergenceError, match="not convex"):
        accord.sample(
            post, accord.Network.path(2), accord.Rounds(Gibbs(1.0, "rejection"), burn_in=0), draws=200, chains=4
        )
    # Metropolis steps need no convexity
    run = accord.sample(post, accord.Network.path(2), accord.Rounds(Gibbs(1.0, "mala"), burn_in=0), draws=200, chains=4)
    assert np.isfinite(run.draws).all()


NEGATIVE = np.array([[0.6, 0.6, -0.2], [0.6, 0.0, 0.4], [-0.2, 0.4, 0.8]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gibbs(0.0), "eta must be a finite number > 0, found 0.0"),
        (lambda: Gibbs(-1.0), "eta must be a finite number > 0, found -1.0"),
        (lambda: Gibbs(0.1, "exakt"), "unknown conditional 'exakt', did you mean 'exact'"),
        (lambda: Gibbs(0.1, noise="common"), 'noise must be "independent" in Gibbs'),
        (lambda: Rejection(max_tries=0), "max_tries must be a whole number >= 1, found 0"),
        (lambda: MALA(steps=0), "steps must be a whole number >= 1, found 0"),
        (lambda: MALA(scale=0.0), "scale must be a finite number > 0"),
        (lambda: sample_one(Gibbs(0.1), accord.Network.ring(1), 1), "needs a neighbour"),
        (lambda: sample_one(Gibbs(0.1), accord.Network.empty(3), 3), "needs a neighbour"),
        (lambda: sample_one(Gibbs(0.1, mixing=NEGATIVE), accord.Network.ring(3), 3), "must not be negative, .* -0.2"),
        (lambda: sample_one(Gibbs(0.1), accord.Network.path(2), 0), 'conditional="exact" needs quadratic potentials'),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def sample_one(method, net, agents):
    post = accord.models.gaussian(np.zeros(agents), np.ones(agents)) if agents else accord.models.power([0.0, 1.0], 1.5)
    return accord.sample(post, net, accord.Rounds(method, burn_in=0), draws=1, chains=1)
