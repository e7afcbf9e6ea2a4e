"""Every sampler against its exact law, and the law against matrices written by hand."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import scipy.linalg
from propagation import assert_exact
from tables import (
    AGENTS,
    COMMON_NOISE_METHODS,
    METHODS,
    MIXING_METHODS,
    NETWORKS,
    POSTERIORS,
    POTENTIALS,
    Z_BOUND,
    pairs,
    start,
    unequal_curvature,
    unequal_shards,
    worst_z,
)

import accord
from accord.engines import operators
from accord.samplers import (
    DADMMS,
    DASG,
    DESGHMC,
    DESGLD,
    DGLMC,
    DULA,
    ELF,
    EXTRASGLD,
    FALD,
    FSGLD,
    GCMC,
    GTBAOAB,
    GTDULA,
    DIGingSGLD,
    Gibbs,
    HubSGLD,
    SplitGTBAOAB,
    StaleSGLD,
)
from accord.samplers.expansions import Expansions
from accord.samplers.schedules import Polynomial, diminishing


@pytest.fixture(autouse=True)
def one_form(monkeypatch):
    """All networks here exchange by one form of operator and so share programs; `test_exchange` compares the forms."""
    monkeypatch.setattr(operators, "FEW", 0)


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("dim", [1, 3, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (2, 4))])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long_from(20)
def test_rounds_and_law_are_the_recursion(method, dim, network, kind):
    assert_exact(quadratic(kind, dim), NETWORKS[network], METHODS[method](), POTENTIALS[kind](dim))


@functools.cache
def quadratic(kind, dim):
    """A posterior by its Hessians and linear terms, so that all kinds share their programs."""
    return accord.models.quadratic(*POTENTIALS[kind](dim)[:2])


MATRIX = 0.3 * np.eye(AGENTS) + 0.7 * NETWORKS["irregular"].mixing("metropolis")
# local models that differ from the potentials
WRONG = Expansions(
    np.array([1.0, -1.0, 0.5]),
    np.random.default_rng(3).standard_normal((AGENTS, 3)),
    np.linspace(0.1, 0.6, AGENTS)[:, None, None] * np.eye(3),
)
# every option that a method has, all at once
OPTIONS = {
    "DESGLD": DESGLD(Polynomial(0.1, 3.0, 0.7), "lazy", noise="common", temperature=0.4, mix_rounds=3),
    "DESGHMC": DESGHMC(Polynomial(0.3, 3.0, 0.6), 1.5, "laplacian", temperature=2.0, mix_rounds=2),
    "DULA": DULA(Polynomial(0.02, 4.0, 0.8), Polynomial(0.3, 2.0, 0.3), noise="common", temperature=2.0, mix_rounds=2),
    "GTDULA": GTDULA(
        Polynomial(0.01, 4.0, 0.6), Polynomial(0.3, 2.0, 0.3), Polynomial(0.2, 2.0, 0.1), temperature=0.4, mix_rounds=3
    ),
    "GTBAOAB": GTBAOAB(Polynomial(0.5, 3.0, 0.4), 1.5, "max-degree", noise="common", temperature=0.4, mix_rounds=4),
    "SplitGTBAOAB": SplitGTBAOAB(
        Polynomial(0.4, 3.0, 0.4), 1.5, "lazy", noise="common", temperature=0.4, mix_rounds=3, expansions=WRONG
    ),
    "SplitGTBAOAB batch": SplitGTBAOAB(0.1, 1.5, mix_rounds=3, batch_size=2, expansions=WRONG),
    "EXTRASGLD": EXTRASGLD(Polynomial(0.1, 3.0, 0.7), 0.3, "lazy", noise="common", temperature=0.4, mix_rounds=3),
    "DIGingSGLD": DIGingSGLD(Polynomial(0.1, 3.0, 0.7), "max-degree", temperature=2.0, mix_rounds=2),
    "DADMMS": DADMMS(lambda k: 0.5 + 0.05 * k, noise="common", temperature=0.4),
    "DADMMS published": DADMMS(0.7, "published", noise="common", temperature=2.0),
    "Gibbs": Gibbs(Polynomial(1.0, 2.0, 0.5), mixing="max-degree", temperature=0.4),
    "DGLMC": DGLMC(np.linspace(0.3, 0.6, 6), np.linspace(0.02, 0.06, 6), (1, 3, 2, 4, 1, 2), temperature=0.4),
    "GCMC": GCMC(0.3, "exact", temperature=0.4),
    "DASG": DASG(Polynomial(0.15, 2.0, 0.5), 0.4, MATRIX, mix_rounds=2, batch_size=2),
    "HubSGLD": HubSGLD(0.01, (1, 3, 2, 4, 1, 2), temperature=0.4),
    "HubSGLD batch": HubSGLD(0.01, (1, 3, 2, 4, 1, 2), batch_size=2),
    "FALD": FALD(Polynomial(0.03, 3.0, 0.7), 3, 0.6, weights=(1, 2, 1, 3, 2, 1), temperature=0.4),
    "FALD batch": FALD(0.01, 2, 0.0, batch_size=2),
    "FALD shared": FALD(0.01, 2, 1.0, temperature=2.0),
    "StaleSGLD": StaleSGLD(Polynomial(0.05, 3.0, 0.7), 2, batch_size=2, temperature=0.4),
    "ELF whole": ELF(0.01, 3, temperature=0.4, batch_size=2),
    "FSGLD": FSGLD(0.01, (1, 3, 2, 4, 1, 2), temperature=0.4),
    "FSGLD batch": FSGLD(
        0.01, 2, 2, [accord.Gaussian(np.ones(3) * i, np.diag([1.0, 2.0, 3.0])) for i in range(AGENTS)]
    ),
    "GTDULA batch": GTDULA(0.02, 0.15, 0.1, batch_size=1),
    "EXTRASGLD batch": EXTRASGLD(0.1, batch_size=2),
    "DIGingSGLD batch": DIGingSGLD(0.08, batch_size=1),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIONS)
def test_options_together_are_the_recursion(name):
    for network in ["irregular"] if name == "DASG" else ["star", "irregular"]:
        assert_exact(unequal_shards(3), NETWORKS[network], OPTIONS[name], POTENTIALS["shards"](3))


def one_by_one():
    for method, make in METHODS.items():
        yield f"{method} cold", lambda make=make: make(temperature=0.4)
        if method in COMMON_NOISE_METHODS:
            yield f"{method} common", lambda make=make: make(noise="common")
            yield f"{method} common hot", lambda make=make: make(noise="common", temperature=2.0)
        if method in MIXING_METHODS:
            # a polynomial that mixes faster swings to negative eigenvalues and so allows smaller steps
            yield (
                f"{method} mixed",
                lambda make=make: dataclasses.replace(make(mix_rounds=3), step_size=make().step_size / 6),
            )
    for mixing in ("lazy", "max-degree", "laplacian", MATRIX):
        name = mixing if isinstance(mixing, str) else "matrix"
        yield f"DESGLD {name}", lambda mixing=mixing: DESGLD(0.1, mixing=mixing)
        yield f"DESGHMC {name}", lambda mixing=mixing: DESGHMC(0.2, 1.0, mixing=mixing)
    yield "DESGLD falling", lambda: DESGLD(Polynomial(0.5, 3.0, 0.7))
    yield "DESGHMC falling", lambda: DESGHMC(Polynomial(0.5, 3.0, 0.6), friction=1.5)
    yield "DULA falling", lambda: DULA(Polynomial(0.1, 4.0, 0.8), Polynomial(0.3, 2.0, 0.3))
    yield "DULA falling, mixed", lambda: DULA(Polynomial(0.1, 4.0, 0.8), Polynomial(0.3, 2.0, 0.3), mix_rounds=2)
    yield "DULA diminishing", lambda: DULA(diminishing(0.02), diminishing(0.2, chi=0.05))
    yield "GTDULA falling", lambda: GTDULA(Polynomial(0.05, 4.0, 0.6), Polynomial(0.3, 2.0, 0.3), 0.1)
    yield "GTBAOAB falling", lambda: GTBAOAB(Polynomial(0.5, 3.0, 0.4), friction=1.5, mix_rounds=1)
    yield "EXTRASGLD falling", lambda: EXTRASGLD(Polynomial(0.5, 3.0, 0.7))
    yield "DIGingSGLD falling", lambda: DIGingSGLD(Polynomial(0.2, 3.0, 0.7), "lazy")
    yield "DADMMS rising", lambda: DADMMS(lambda k: 0.5 + 0.05 * k)
    yield "DADMMS published", lambda: DADMMS(0.7, calibration="published")
    yield "DADMMS published, common", lambda: DADMMS(0.7, calibration="published", noise="common")
    yield "Gibbs falling", lambda: Gibbs(Polynomial(1.0, 2.0, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in one_by_one()])
def test_each_option_is_the_recursion(make):
    for kind in POSTERIORS:
        # 0.5 / 3^0.7 is still a step of the first round that is stable
        assert_exact(POSTERIORS[kind](2), NETWORKS["irregular"], make(), POTENTIALS[kind](2), (1, 2, 5, 20, 40))


def test_starts_are_the_recursion():
    post, net, potentials = unequal_curvature(2), NETWORKS["path"], POTENTIALS["curvature"](2)
    each = [accord.Gaussian([float(i), 0.0], np.diag([0.1 + i, 1.0])) for i in range(AGENTS)]
    assert_exact(post, net, DESGLD(0.1), potentials, (1, 5), init=each)
    points = np.arange(2.0 * AGENTS).reshape(AGENTS, 2)
    assert_exact(post, net, GTDULA(0.02, 0.15, 0.1), potentials, (2, 5), init=points)


# two methods for each kind of noise that has a law; minibatches and random keys: test_dasg, test_hub, test_gibbs
DRAWN = {
    "normal": DESGLD(0.15),
    "normal, common": GTBAOAB(0.2, 1.5, mix_rounds=3),
    "local": DGLMC(0.4, 0.045, (1, 3, 2, 4, 1, 2)),
    "local, one": GCMC(0.4, "exact"),
    "normal of many steps, and local": FALD(0.01, 3, 0.6),
}


@pytest.mark.parametrize("noise", DRAWN)
@pytest.mark.long_from(1)
def test_draws_follow_law(noise):
    """Noise at the start and in each round is standard normal and independent: 10,000 chains follow the law."""
    post, net, init = unequal_shards(3), NETWORKS["irregular"], start(3)
    law = accord.law(post, net, DRAWN[noise], init=init)
    run = accord.sample(post, net, accord.Rounds(DRAWN[noise], burn_in=0, init=init), draws=20, chains=10_000, seed=1)
    for k in (1, 2, 5, 20):
        z = worst_z(run.draws[:, k - 1], law.at(k).joint)
        assert z < Z_BOUND, f"|z| = {z:.1f} at round {k}"


def full_matrix(blocks):
    return scipy.linalg.block_diag(*blocks)


def hand_written(post):
    """Block-diagonal Hessian and stacked linear terms of a linear regression, from its formula."""
    hessians, linear = [], []
    for X, y in post.shards:
        hessians.append(X.T @ X / 2.0**2 + np.eye(post.dim) / (10.0 * post.num_agents))
        linear.append(X.T @ y / 2.0**2)
    return full_matrix(hessians), np.concatenate(linear)


@pytest.mark.parametrize("network", NETWORKS)
def test_law_of_desgld_is_the_hand_written_recursion(network):
    net, dim, step = NETWORKS[network], 2, 0.1
    post = unequal_shards(dim)
    H, b = hand_written(post)
    degree = np.array([len(net.neighbors(i)) for i in range(AGENTS)])
    W = np.zeros((AGENTS, AGENTS))
    for i in range(AGENTS):
        for j in net.neighbors(i):
            W[i, j] = 1.0 / (1.0 + max(degree[i], degree[j]))
        W[i, i] = 1.0 - W[i].sum()
    A = np.kron(W, np.eye(dim)) - step * H
    mean, cov = np.tile(start(dim).mean, AGENTS), full_matrix([start(dim).cov] * AGENTS)
    law = accord.law(post, net, DESGLD(step), init=start(dim))
    for k in range(1, 21):
        mean, cov = A @ mean + step * b, A @ cov @ A.T + 2.0 * step * np.eye(len(A))
        np.testing.assert_allclose(law.at(k).joint.mean, mean, rtol=1e-10)
        np.testing.assert_allclose(law.at(k).joint.cov, cov, rtol=1e-10, atol=1e-12)
    stationary = law.stationary().joint
    np.testing.assert_allclose(stationary.mean, np.linalg.solve(np.eye(len(A)) - A, step * b), rtol=1e-9)
    expected = scipy.linalg.solve_discrete_lyapunov(A, 2.0 * step * np.eye(len(A)))
    np.testing.assert_allclose(stationary.cov, expected, rtol=1e-8, atol=1e-10)
    assert law.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(A)).max(), rel=1e-9)


@pytest.mark.parametrize("calibration", ["calibrated", "published"])
@pytest.mark.parametrize("network", NETWORKS)
def test_law_of_dadmms_is_the_hand_written_recursion(network, calibration):
    # eqs. 4 and 5 with the noise of eq. 40 (published) or of calibrated variance, in the paper's order
    net, dim, rho = NETWORKS[network], 2, 0.7
    post = unequal_shards(dim)
    H, b = hand_written(post)
    adjacency = np.zeros((AGENTS, AGENTS))
    for i in range(AGENTS):
        adjacency[i, net.neighbors(i)] = 1.0
    D, Adj = (np.kron(m, np.eye(dim)) for m in (np.diag(adjacency.sum(axis=1)), adjacency))
    noise = np.sqrt(2.0) * D if calibration == "published" else 2.0 * np.sqrt(rho * D)
    solve = np.linalg.inv(H + 2.0 * rho * D)
    n = AGENTS * dim
    # z = (x, p): x+ = solve (b - p + rho (D + Adj) x + noise w), p+ = p + rho (D - Adj) x+
    to_x = np.hstack([rho * solve @ (D + Adj), -solve])
    L = rho * (D - Adj)
    A = np.vstack([to_x, np.hstack([np.zeros((n, n)), np.eye(n)]) + L @ to_x])
    B = np.vstack([solve @ noise, L @ solve @ noise])
    c = np.concatenate([solve @ b, L @ solve @ b])
    mean = np.concatenate([np.tile(start(dim).mean, AGENTS), np.zeros(n)])
    cov = full_matrix([*[start(dim).cov] * AGENTS, np.zeros((n, n))])
    law = accord.law(post, net, DADMMS(rho, calibration=calibration), init=start(dim))
    for k in range(1, 2001):
        mean, cov = A @ mean + c, A @ cov @ A.T + B @ B.T
        if k in (1, 2, 5, 20, 2000):
            np.testing.assert_allclose(law.at(k).joint.mean, mean[:n], rtol=1e-8)
            np.testing.assert_allclose(law.at(k).joint.cov, cov[:n, :n], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(law.stationary().joint.mean, mean[:n], rtol=1e-7)
    np.testing.assert_allclose(law.stationary().joint.cov, cov[:n, :n], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long_from(5)
def test_at_converges_to_stationary(method):
    law = accord.law(unequal_curvature(2), NETWORKS["irregular"], METHODS[method](), init=start(2))
    late, limit = law.at(3000).joint, law.stationary().joint
    np.testing.assert_allclose(late.mean, limit.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(late.cov, limit.cov, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sampler", [DADMMS(2.0, temperature=0.0), GTDULA(0.02, 0.2, 0.2, temperature=0.0)])
def test_rounding_of_conserved_sums_does_not_keep_the_covariance_of_an_optimiser(sampler):
    # without projection, rounding errors of conserved sums never decay
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    law = accord.law(post, net, sampler, init=accord.Gaussian(np.zeros(2), np.eye(2)))
    cov = law.at(4000).joint.cov
    assert 0.0 < np.trace(cov) < 1e-20
    assert np.linalg.eigvalsh(cov)[0] >= -1e-6 * np.trace(cov)


@pytest.mark.parametrize(
    ("method", "network"),
    pairs(
        COMMON_NOISE_METHODS,
        ["star", "irregular"],
        quick=zip(COMMON_NOISE_METHODS, itertools.cycle(["star", "irregular"])),
    ),
)
@pytest.mark.long_from(5)
def test_common_noise_keeps_the_law_of_the_average(method, network):
    # With one potential for all agents the average is the same recursion under both noises; that of D-ADMMS is the
    # degree-weighted one, and only to first order in its step.
    post = accord.models.gaussian(np.zeros((AGENTS, 2)), np.stack([np.diag([1.0, 4.0])] * AGENTS))
    net = NETWORKS[network]
    proximal = method == "DADMMS"
    weights = net.degrees / net.degrees.sum() if proximal else np.full(AGENTS, 1.0 / AGENTS)
    reduce = np.kron(weights, np.eye(2))
    covs = []
    for noise in ("independent", "common"):
        sampler = DADMMS(20.0, noise=noise) if proximal else METHODS[method](noise=noise)
        covs.append(reduce @ accord.law(post, net, sampler).stationary().joint.cov @ reduce.T)
    np.testing.assert_allclose(covs[1], covs[0], rtol=0.01 if proximal else 1e-9, atol=1e-12)


def regression(agents, seed=0):
    """The linear regression of the D-ADMMS paper, section 6.2: 50 rows an agent, xi = 4, lambda = 10."""
    rng = np.random.default_rng(seed)
    shards = []
    for _ in range(agents):
        Z = rng.standard_normal((50, 2))
        shards.append((Z, Z @ np.array([1.0, -1.0]) + 4.0 * rng.standard_normal(50)))
    return accord.models.linear_regression(shards, noise_scale=4.0, prior_variance=10.0)


def variance_ratio(post, net, sampler):
    return np.diag(accord.law(post, net, sampler).stationary().average.cov) / np.diag(post.exact().cov)


def test_published_dadmms_has_the_wrong_temperature_and_calibrated_the_right_one():
    post, net = regression(5), accord.Network.ring(5)
    np.testing.assert_allclose(variance_ratio(post, net, DADMMS(5.0, calibration="published")), 0.19, atol=0.01)
    np.testing.assert_allclose(variance_ratio(post, net, DADMMS(5.0)), 0.93, atol=0.01)
    # at rho = deg / 2 the two noises are one
    same = [accord.law(post, net, DADMMS(1.0, calibration=c)).stationary().joint for c in ("published", "calibrated")]
    np.testing.assert_allclose(same[0].cov, same[1].cov, rtol=1e-10)


@pytest.mark.parametrize(
    "net",
    [
        accord.Network.star(8),
        accord.Network.path(8),
        accord.Network.erdos_renyi(8, 0.5, seed=3),
        accord.Network.regular(8, 3, seed=0),
    ],
    ids=["star", "path", "random", "regular"],
)
def test_calibrated_dadmms_keeps_its_temperature_on_every_graph(net):
    post, sampler = regression(8), DADMMS(20.0)
    joint = accord.law(post, net, sampler).stationary().joint
    reduce = np.kron(net.degrees / net.degrees.sum(), np.eye(2))
    ratio = np.diag(reduce @ joint.cov @ reduce.T) / np.diag(post.exact().cov)
    # implicit Euler of step h on a mode of precision lambda has variance 1 / (1 + h lambda / 2) of the mode's
    step = sampler.langevin_step(net)
    expected = 1.0 / (1.0 + step / np.diag(post.exact().cov) / 2.0)
    np.testing.assert_allclose(ratio, expected, rtol=0.02)


def test_common_noise_gives_every_agent_the_posterior():
    post, net = regression(20), accord.Network.ring(20)
    exact = post.exact()

    def agent_distance(sampler):
        stationary = accord.law(post, net, sampler).stationary()
        return [accord.metrics.wasserstein2(stationary.agent(i), exact) for i in range(20)]

    for make in (
        lambda noise: DADMMS(20.0, noise=noise),
        lambda noise: GTDULA(0.0005, 0.3, 0.3, noise=noise),
    ):
        assert max(agent_distance(make("common"))) < 0.01
        assert min(agent_distance(make("independent"))) > 0.15


def bounded():
    quick = {("DESGLD", 3, "irregular"), ("DESGHMC", 1, "irregular"), ("DULA", 3, "ring"), ("GTDULA", 1, "ring")}
    quick |= {("EXTRASGLD", 3, "irregular"), ("DIGingSGLD", 1, "irregular")}
    for method in ("DESGLD", "DESGHMC", "DULA", "GTDULA", "EXTRASGLD", "DIGingSGLD"):
        for rounds in (1, 3):
            for network in ("ring", "irregular"):
                case = (method, rounds, network)
                yield pytest.param(*case, marks=() if case in quick else pytest.mark.slow)


@pytest.mark.parametrize(("method", "rounds", "network"), list(bounded()))
def test_stability_bound_is_where_the_spectral_radius_crosses_one(method, rounds, network):
    post, net = unequal_curvature(2), NETWORKS[network]
    make = {
        "DESGLD": lambda step: DESGLD(step, mix_rounds=rounds),
        "DESGHMC": lambda step: DESGHMC(step, friction=0.7, mix_rounds=rounds),
        "DULA": lambda step: DULA(step, 0.2, mix_rounds=rounds),
        "GTDULA": lambda step: GTDULA(step, 0.2, 0.15, mix_rounds=rounds),
        "EXTRASGLD": lambda step: EXTRASGLD(step, 0.3, mix_rounds=rounds),
        "DIGingSGLD": lambda step: DIGingSGLD(step, mix_rounds=rounds),
    }[method]
    bound = make(1e-3).max_step(net, post.hessians())
    assert accord.law(post, net, make(bound * 0.999)).spectral_radius < 1.0
    beyond = accord.law(post, net, make(bound * 1.001))
    assert beyond.spectral_radius > 1.0
    with pytest.raises(ValueError, match="spectral radius is 1.0"):
        beyond.stationary()


def test_stability_bound_of_gt_baoab_is_that_of_the_average():
    # where one exchange averages exactly, nothing else bounds the step
    post, net = unequal_curvature(2), NETWORKS["complete"]
    bound = GTBAOAB(0.1, mix_rounds=1).max_step(net, post.hessians())
    assert accord.law(post, net, GTBAOAB(0.999 * bound, mix_rounds=1)).spectral_radius < 1.0
    assert accord.law(post, net, GTBAOAB(1.001 * bound, mix_rounds=1)).spectral_radius > 1.0
    slow = accord.law(post, NETWORKS["path"], GTBAOAB(0.999 * bound, mix_rounds=1))
    assert slow.spectral_radius > 1.0


def test_law_of_minibatches_is_that_of_the_full_gradient():
    post, net = unequal_shards(2), NETWORKS["ring"]
    laws = [accord.law(post, net, DESGLD(0.05, batch_size=b)).stationary().joint for b in (None, 2)]
    np.testing.assert_array_equal(laws[0].cov, laws[1].cov)


def test_methods_without_a_law_are_refused():
    net = accord.Network.ring(3)
    logistic = accord.models.logistic_regression([(np.eye(2), np.array([0, 1]))] * 3)
    with pytest.raises(TypeError, match="laplace"):
        accord.law(logistic, net, DESGLD(0.1))
    law = accord.law(logistic.laplace(), net, DESGLD(Polynomial(0.1, 1.0, 0.5)))
    with pytest.raises(ValueError, match="schedule has no stationary law"):
        law.stationary()
    with pytest.raises(ValueError, match="k must be a whole number >= 0, found -1"):
        law.at(-1)
    with pytest.raises(ValueError, match=r"agent must be a whole number in 0\.\.2, found 3"):
        law.at(1).agent(3)
    with pytest.raises(ValueError, match="network has 4 agents"):
        accord.law(logistic.laplace(), accord.Network.ring(4), DESGLD(0.1))


def test_law_leaves_float_width_alone():
    accord.law(unequal_curvature(1), NETWORKS["ring"], DESGLD(0.1)).stationary()
    assert not jax.config.jax_enable_x64
