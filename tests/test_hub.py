"""Methods with a hub: targets, operators, travelling chains, exact kernels, traffic, errors."""

import jax
import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from propagation import assert_exact
from recursions import regression
from tables import AGENTS, NETWORKS, Z_BOUND, start, unequal_curvature, unequal_shards, walk, worst_z

import accord
from accord.engines.local import LocalEngine
from accord.samplers import DGLMC, FALD, GCMC, HubSGLD, Replicated, StaleSGLD, conditional
from accord.samplers.balance import balanced_steps, gradient_seconds
from accord.samplers.conditional import MALA
from accord.samplers.replicated import HMC, NUTS

STAR, PATH = NETWORKS["star"], NETWORKS["path"]


def augmented(post, rho, operators=None):
    """The theta-marginal of exp(-sum U_i(z_i) - |z_i - A_i theta|^2 / (2 rho_i)), z_i integrated out in closed form."""
    precision, linear = np.zeros((post.dim, post.dim)), np.zeros(post.dim)
    terms = zip(post.hessians(), -post.gradients(np.zeros(post.dim)), np.broadcast_to(rho, AGENTS), strict=True)
    for i, (H, b, r) in enumerate(terms):
        A = np.eye(post.dim) if operators is None else operators[i]
        inverse = np.linalg.pinv(A)
        H, b = inverse.T @ H @ inverse, inverse.T @ b
        # z given theta has the precision H + 1/r and the mean M (b + A theta / r)
        M = np.linalg.inv(H + np.eye(len(A)) / r)
        precision += A.T @ (np.eye(len(A)) / r - M / r**2) @ A
        linear += A.T @ M @ b / r
    cov = np.linalg.inv(precision)
    return accord.Gaussian(cov @ linear, (cov + cov.T) / 2.0)


RHO = np.array([0.4, 0.2, 0.6, 0.3, 0.5, 0.25])


def test_gcmc_targets_the_augmented_marginal():
    post = unequal_curvature(3)
    for rho in (0.05, 1.0):
        law = accord.law(post, PATH, GCMC(rho, conditional="exact")).stationary()
        expected = augmented(post, rho)
        for agent in (0, 3):
            np.testing.assert_allclose(law.agent(agent).mean, expected.mean, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(law.agent(agent).cov, expected.cov, rtol=1e-8, atol=1e-10)


def test_dg_lmc_tends_to_the_augmented_marginal_at_first_order_in_its_step():
    post = unequal_curvature(2)
    expected = augmented(post, RHO)
    steps = [1e-3, 5e-4]
    # one local step for all, the case in which the paper has a bias from the step alone (Proposition 2)
    found = [accord.law(post, STAR, DGLMC(RHO, step, 1)).stationary().average for step in steps]
    errors = [np.abs(law.cov - expected.cov).max() for law in found]
    assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.02)
    np.testing.assert_allclose(2.0 * found[1].cov - found[0].cov, expected.cov, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1].mean, expected.mean, rtol=1e-8, atol=1e-10)


def with_prior_agent(dim=3, seed=0):
    """Linear regression with the prior as a separate shard, so that others have their rows only, and operators."""
    rng = np.random.default_rng(seed)
    shards, operators = [], []
    for rows in (2, 4, 1, 5, 2):
        X = rng.standard_normal((rows, dim))
        shards.append((X, rng.standard_normal(rows)))
        # rows of the data, more or fewer than parameters
        operators.append(X)
    shards.append((np.eye(dim) / 2.0, np.zeros(dim)))
    operators.append(rng.standard_normal((dim, dim)))

    def likelihood(x, rows):
        X, y = rows
        return -((y - X @ x) ** 2) / 2.0

    return accord.Posterior(likelihood, lambda x: 0.0 * x[0], shards, np.zeros(dim), quadratic=True), operators


def test_operators_of_any_shape():
    post, operators = with_prior_agent()
    method = DGLMC(0.3 + RHO, 1e-3, 1, operators)
    halved = DGLMC(0.3 + RHO, 5e-4, 1, operators)
    found = [accord.law(post, STAR, m).stationary().average for m in (method, halved)]
    expected = augmented(post, 0.3 + RHO, operators)
    np.testing.assert_allclose(2.0 * found[1].cov - found[0].cov, expected.cov, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[1].mean, expected.mean, rtol=1e-7, atol=1e-9)
    # only the last shard has a prior
    potentials = regression(post.shards, 1.0, np.inf)
    assert_exact(post, PATH, DGLMC(0.5, 0.02, (1, 2, 3, 1, 2, 1), operators), potentials)


@pytest.mark.long
def test_identity_operators_change_nothing():
    post = unequal_curvature(2)
    plain = accord.sample(post, PATH, accord.Rounds(DGLMC(0.3, 0.05, 2), burn_in=0), draws=20, chains=3)
    spelt = accord.sample(
        post, PATH, accord.Rounds(DGLMC(0.3, 0.05, 2, [np.eye(2)] * AGENTS), burn_in=0), draws=20, chains=3
    )
    np.testing.assert_allclose(plain.draws, spelt.draws, rtol=1e-4, atol=1e-5)


def test_curvatures_of_many_parameters_come_without_hessians(monkeypatch):
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((30, 8)) * np.linspace(0.5, 2, 8), np.ones(30)) for _ in range(3)]
    post = accord.models.logistic_regression(shards)
    exact = conditional.curvatures(post)
    np.testing.assert_allclose(exact, np.linalg.eigvalsh(post.hessians())[:, -1])
    monkeypatch.setattr(conditional, "HESSIAN_DIM", 4)
    found = conditional.curvatures(post)
    # a Rayleigh quotient never exceeds the eigenvalue
    assert (found <= exact * (1 + 1e-5)).all() and (found >= 0.98 * exact).all()


def test_guidelines_choose_omitted_fields():
    post = unequal_curvature(3)
    chosen = DGLMC().bind(post, STAR).sampler
    M = np.linalg.eigvalsh(post.hessians())[:, -1]
    np.testing.assert_allclose(chosen.rho, 1.0 / M)
    np.testing.assert_allclose(chosen.step_size, 0.25 * chosen.rho / (1.0 + chosen.rho * M))
    assert chosen.local_steps == (4,) * AGENTS
    # 3.2.2 with steps of 0.1 and 0.5 of the bound
    for fraction, steps in ((0.1, 10), (0.5, 2)):
        given = DGLMC(rho=1.0 / M, step_size=fraction * chosen.rho / 2.0).bind(post, STAR).sampler
        assert given.local_steps == (steps,) * AGENTS
    run = accord.sample(post, STAR, accord.Rounds(DGLMC(), burn_in=0, whiten=False), draws=3, chains=1)
    assert "local_steps=(4, 4, 4, 4, 4, 4)" in run.settings["method"]


@pytest.mark.long
def test_local_steps_follow_measured_speeds():
    assert balanced_steps(4, [1.0, 1.0, 2.0]) == (5, 5, 2)
    assert balanced_steps(1, [1.0, 100.0]) == (2, 1)
    seconds = gradient_seconds(unequal_shards(2), repeats=3)
    assert seconds.shape == (AGENTS,) and (seconds > 0).all()
    DGLMC(local_steps=balanced_steps(4, seconds)).bind(unequal_shards(2), STAR)


STEPPERS = [
    DGLMC(0.3, 0.02, 3),
    DGLMC(RHO, 0.1 * RHO, (1, 2, 3, 4, 5, 6)),
    GCMC(0.4, "exact"),
    FALD(0.03, 4),
    StaleSGLD(0.1, 2),
]


@pytest.mark.parametrize("method", STEPPERS)
def test_the_hub_makes_the_stated_langevin_steps(method):
    eps = 1e-6
    post = accord.models.gaussian(np.zeros(AGENTS), np.full(AGENTS, 1.0 / eps))
    radius = accord.law(post, STAR, method).spectral_radius
    assert 1.0 - radius == pytest.approx(method.langevin_step(STAR) * AGENTS * eps, rel=1e-3)


@pytest.mark.long
@pytest.mark.busy
def test_gcmc_rejection_draws_the_conditional_itself():
    # then every round has the law of exact draws
    post = unequal_shards(2)
    law = accord.law(post, STAR, GCMC(0.5, "exact"), init=start(2))
    run = accord.sample(
        post, STAR, accord.Rounds(GCMC(0.5, "rejection"), burn_in=0, init=start(2)), draws=5, chains=10_000, seed=2
    )
    for k in (1, 2, 5):
        # all agents' draws are the hub's
        assert worst_z(run.draws[:, k - 1, :1], law.at(k).agent(0)) < Z_BOUND
        assert (run.draws[:, k - 1] == run.draws[:, k - 1, :1]).all()


@pytest.mark.slow
def test_gcmc_metropolis_steps_keep_the_stationary_law():
    post = unequal_shards(2)
    run = accord.sample(
        post, STAR, accord.Rounds(GCMC(0.5, MALA(steps=4)), burn_in=0, thin=60), draws=1, chains=5000, seed=2
    )
    assert accord.law(post, STAR, GCMC(0.5, "exact")).spectral_radius ** 59 < 2e-6
    assert worst_z(run.draws[:, 0, :1], augmented(post, 0.5)) < Z_BOUND


@pytest.mark.long
@pytest.mark.busy
def test_tolerances_reweight_the_particles():
    # one change from a wide to a narrow tolerance, with exact draws in between. Directly after it the particles
    # have the narrow law, which they can only have by resampling
    post, rho, wide = unequal_curvature(1), 0.5, 1.5
    method = GCMC(rho, "exact", tolerances=(wide,), rounds_per_tolerance=60)
    means = []
    for seed in range(24):
        run = accord.sample(post, STAR, accord.Rounds(method, burn_in=60), draws=1, chains=2000, seed=seed)
        # the next draw uses the resampled z: compare the mean of its law given them
        means.append([run.draws[..., 0, 0].mean(), run.draws[..., 0, 0].var()])
    found = np.array(means)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    right, before = augmented(post, rho), augmented(post, wide)
    expected = np.array([right.mean[0], right.cov[0, 0]])
    assert (np.abs(found.mean(axis=0) - expected) < Z_BOUND * error).all()
    assert abs(before.cov[0, 0] - expected[1]) > 20 * error[1]


@pytest.mark.long
def test_tolerances_are_passed_in_the_burn_in():
    method = GCMC(0.1, "exact", tolerances=(2.0, 0.5), rounds_per_tolerance=5)
    with pytest.raises(ValueError, match="burn_in must be at least 10, .* found 9"):
        accord.sample(unequal_curvature(2), STAR, accord.Rounds(method, burn_in=9), draws=1)
    run = accord.sample(unequal_curvature(2), STAR, accord.Rounds(method, burn_in=10), draws=2, chains=50)
    assert np.isfinite(run.draws).all()


def travelling_moments(post, method, rounds, init):
    """Mean and covariance of a chain that visits agents at random, from its recursion on first and second moments."""
    method = method.bind(post, STAR).sampler
    H, b = post.hessians(), -post.gradients(np.zeros(post.dim))
    steps = np.array(method.local_steps)
    share = steps / steps.sum()
    mean, second = init.mean, init.cov + np.outer(init.mean, init.mean)
    for _ in range(rounds):
        means, seconds = [], []
        for i in range(AGENTS):
            m, S = mean, second
            A, c = np.eye(post.dim) - method.step_size / share[i] * H[i], method.step_size / share[i] * b[i]
            for _ in range(steps[i]):
                drift = A @ m
                S = A @ S @ A.T + np.outer(drift, c) + np.outer(c, drift) + np.outer(c, c)
                S = S + 2.0 * method.step_size * np.eye(post.dim)
                m = drift + c
            means.append(m)
            seconds.append(S)
        mean, second = np.mean(means, axis=0), np.mean(seconds, axis=0)
    return accord.Gaussian(mean, second - np.outer(mean, mean))


@pytest.mark.long
@pytest.mark.parametrize("local_steps", [1, (1, 3, 2, 4, 1, 2)])
def test_travelling_chains_have_the_moments_of_a_random_visitor(local_steps):
    post, chains = unequal_curvature(2), 10_000
    method = HubSGLD(0.01, local_steps)
    run = accord.sample(post, STAR, accord.Rounds(method, burn_in=0, init=start(2)), draws=40, chains=chains, seed=1)
    for k in (1, 2, 5, 40):
        # a chain that arrives in round k has made k - 1 visits
        expected = travelling_moments(post, method, k - 1, start(2))
        for agent in (0, 4):
            x = run.draws[:, k - 1, agent].astype(np.float64)
            centred = x - expected.mean
            # a mixture has heavier tails than a Gaussian: errors are estimated from the draws
            z_mean = centred.mean(axis=0) / (x.std(axis=0) / np.sqrt(chains))
            products = np.einsum("ci,cj->cij", centred, centred)
            z_cov = (products.mean(axis=0) - expected.cov) / (products.std(axis=0) / np.sqrt(chains))
            assert max(np.abs(z_mean).max(), np.abs(z_cov).max()) < Z_BOUND, (k, agent)


def test_chains_travel_and_none_is_lost():
    # without noise and gradients a round only permutes the positions
    post = accord.models.quadratic(np.full((AGENTS, 1, 1), 1e-12), np.zeros((AGENTS, 1)))
    points = np.arange(1.0, AGENTS + 1.0)[:, None]
    run = accord.sample(
        post, STAR, accord.Rounds(HubSGLD(1e-3, temperature=0.0), burn_in=0, init=points), draws=400, chains=2, seed=0
    )
    np.testing.assert_allclose(np.sort(run.draws[..., 0], axis=2), np.broadcast_to(points.T, (2, 400, AGENTS)))
    counts = np.stack([(np.abs(run.draws[..., 0] - v) < 0.5).sum(axis=(0, 1)) for v in points[:, 0]])
    # each chain meets each agent in one round of six
    assert (np.abs(counts - 800 / 6) < Z_BOUND * np.sqrt(800 * 5 / 36)).all()
    assert not np.array_equal(run.draws[0], run.draws[1])


def test_minibatches_of_travelling_chains_are_unbiased():
    post, chains = unequal_shards(1), 40_000
    point = np.array([0.7])
    method = HubSGLD(0.01, (1, 2, 1, 3, 1, 2), batch_size=1, temperature=0.0)
    run = accord.sample(post, STAR, accord.Rounds(method, burn_in=0, init=point), draws=2, chains=chains, seed=0)
    expected = travelling_moments(post, method, 1, accord.Gaussian(point, np.zeros((1, 1)))).mean
    x = run.draws[:, 1].astype(np.float64)
    assert (np.abs(x.mean(axis=0) - expected) < Z_BOUND * x.std(axis=0) / np.sqrt(chains)).all()


KERNELS = {"nuts": (NUTS(max_doublings=4), 0.9), "hmc": (HMC(steps=3), 0.7), "mala": ("mala", 0.4)}


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_the_posterior(kernel):
    # started from the posterior itself, chains are independent draws of it after any number of rounds
    post, (kernel, step) = unequal_curvature(2), KERNELS[kernel]
    exact, chains = post.exact(), 10_000
    method = Replicated(kernel, step_size=step * exact.sd.min(), warmup=0)
    run = accord.sample(post, PATH, accord.Rounds(method, burn_in=0, init=exact), draws=3, chains=chains, seed=5)
    for k in (0, 2):
        assert worst_z(run.draws[:, k, :1], exact) < Z_BOUND
    assert (run.draws == run.draws[:, :, :1]).all()
    # and the chains move
    assert np.mean(run.draws[:, 2, 0, 0] != run.draws[:, 0, 0, 0]) > 0.5


@pytest.mark.long
def test_the_hub_keeps_density_and_gradient_of_its_position():
    # Metropolis steps keep the posterior with any gradient, but a wrong one lowers acceptance
    post, method = unequal_curvature(2), Replicated("mala", step_size=0.1, warmup=5, temperature=2.0)
    with jax.enable_x64(True):
        engine = LocalEngine.preliminary(post, PATH, method.bind(post, PATH), chains=3)
        state = engine.states(engine.advance(engine.start(np.ones((AGENTS, 2)), None), 8))
        for x, value, gradient in zip(state.position[0].T, state.logdensity[0], state.gradient[0].T, strict=True):
            np.testing.assert_allclose(value, post.logdensity(x) / 2.0, rtol=1e-10)
            np.testing.assert_allclose(gradient, -post.gradients(x).sum(axis=0) / 2.0, rtol=1e-10)


def kernels_and_metrics():
    for kernel in KERNELS:
        for dense in (True, False):
            quick = (kernel, dense) == ("nuts", True)
            yield pytest.param(kernel, dense, marks=() if quick else pytest.mark.slow, id=f"{kernel}-{dense}")


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "dense"), list(kernels_and_metrics()))
def test_warm_up_finds_step_and_metric(kernel, dense):
    post = accord.models.gaussian(np.ones((3, 2)), np.stack([np.diag([1e-2, 25.0])] * 3))
    method = Replicated(kernel, warmup=400, dense=dense)
    run = accord.sample(post, accord.Network.star(3), accord.Rounds(method, burn_in=400), draws=200, chains=40, seed=0)
    x, exact = run.draws[:, :, 1].astype(np.float64), post.exact()
    ess = array_stats.ess(x, chain_axis=0, draw_axis=1)
    assert (np.abs(x.mean(axis=(0, 1)) - exact.mean) < Z_BOUND * exact.sd / np.sqrt(ess)).all()
    squares = (x - exact.mean) ** 2
    ess = array_stats.ess(squares, chain_axis=0, draw_axis=1)
    wrong = squares.mean(axis=(0, 1)) / exact.sd**2 - 1.0
    assert (np.abs(wrong) < Z_BOUND * np.sqrt(2.0 / ess)).all()
    # scales a factor fifty apart cost the adapted kernels no more than equal ones
    assert array_stats.ess(x, chain_axis=0, draw_axis=1).min() > (0.1 if kernel == "mala" else 0.3) * 8000


@pytest.mark.slow
def test_exact_kernels_on_a_logistic_posterior():
    rng = np.random.default_rng(1)
    shards = [(X, (X[:, 0] + rng.standard_normal(20) > 0).astype(float)) for X in rng.standard_normal((4, 20, 2))]
    post = accord.models.logistic_regression(shards)
    run = accord.sample(
        post, accord.Network.ring(4), accord.Rounds(Replicated(), burn_in=500), draws=300, chains=20, seed=0
    )
    grid = np.stack(np.meshgrid(np.linspace(-1, 4.5, 201), np.linspace(-2.5, 2.5, 201), indexing="ij"), -1)
    weight = np.exp(np.array(jax.vmap(post.logdensity)(grid.reshape(-1, 2)), np.float64))
    weight /= weight.sum()
    mean = weight @ grid.reshape(-1, 2)
    sd = np.sqrt(weight @ (grid.reshape(-1, 2) - mean) ** 2)
    x = run.draws[:, :, 0].astype(np.float64)
    ess = array_stats.ess(x, chain_axis=0, draw_axis=1)
    assert (np.abs(x.mean(axis=(0, 1)) - mean) < Z_BOUND * sd / np.sqrt(ess)).all()
    np.testing.assert_allclose(x.std(axis=(0, 1)) / sd, 1.0, atol=Z_BOUND / np.sqrt(2 * ess.min()) + 1e-3)


@pytest.mark.long
def test_traffic_of_totals():
    post, dim = unequal_shards(2), 2
    rounds = 7
    options = dict(draws=rounds, burn_in=0, chains=2)
    word = 4
    # star: each leaf sends once and the hub answers five; one total at the start gives Q
    run = walk(post, STAR, DGLMC(0.5, 0.05, (1, 2, 3, 1, 2, 3)), **options)
    assert run.traffic.exchanges == 2 * (rounds + 1)
    np.testing.assert_array_equal(run.traffic.bytes_sent, np.array([5, 1, 1, 1, 1, 1]) * word * (rounds * dim + 1))
    np.testing.assert_array_equal(run.traffic.gradient_rows, rounds * np.array([1, 2, 3, 1, 2, 3]) * post.sizes)
    # path of six: the root is in the middle, three exchanges from the far end
    run = walk(post, PATH, GCMC(0.5), **options)
    assert run.traffic.exchanges == 6 * rounds
    np.testing.assert_array_equal(np.sort(run.traffic.bytes_sent), np.array([1, 1, 2, 2, 2, 2]) * word * rounds * dim)
    # unsummed messages: each agent forwards all messages of its subtree, both ways
    run = walk(post, PATH, HubSGLD(0.001), **options)
    assert run.traffic.exchanges == 6 * rounds
    assert run.traffic.bytes_sent.sum() == 2 * (1 + 2 + 3 + 2 + 1) * word * rounds * dim
    # one total per evaluation, and one at the start
    run = walk(post, STAR, Replicated("mala", warmup=0, step_size=0.01), **options)
    assert run.traffic.exchanges == 2 * (rounds + 1)
    np.testing.assert_array_equal(
        run.traffic.bytes_sent, np.array([5, 1, 1, 1, 1, 1]) * word * (rounds + 1) * (dim + 1)
    )
    np.testing.assert_array_equal(run.traffic.gradient_rows, (rounds + 1) * post.sizes)


def test_runs_with_their_counts_are_saved(tmp_path):
    run = accord.sample(unequal_shards(2), STAR, accord.Rounds(GCMC(0.5), burn_in=0), draws=4, chains=2)
    run.save(tmp_path / "run.nc")
    again = accord.Run.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(again.traffic.gradient_rows, run.traffic.gradient_rows)
    np.testing.assert_array_equal(again.statistics["acceptance_rate"], run.statistics["acceptance_rate"])


def resolve(method, post=None):
    post = unequal_curvature(2) if post is None else post
    return accord.sample(post, STAR, accord.Rounds(method, burn_in=0), draws=1, chains=1)


SINGULAR = [np.array([[1.0, 0.0]])] * AGENTS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DGLMC(rho=0.0), "rho must be a finite number > 0, found 0.0"),
        (lambda: DGLMC(rho=[0.1, -0.1]), "rho must be a finite number > 0, found -0.1"),
        (lambda: DGLMC(step_size=-1.0), "step_size must be a finite number > 0"),
        (lambda: DGLMC(local_steps=0), "local_steps must be a whole number >= 1, found 0"),
        (lambda: DGLMC(local_steps=[1, 2.5]), "local_steps must be a whole number >= 1, found 2.5"),
        (lambda: DGLMC(noise="common"), 'noise must be "independent" in DGLMC'),
        (lambda: resolve(DGLMC(rho=[0.1, 0.2])), r"rho must be one number, or one per agent \(6\), found shape \(2,\)"),
        (lambda: resolve(DGLMC(local_steps=(1, 2))), "local_steps must be one number, or one per agent"),
        (lambda: resolve(DGLMC(rho=1.0, step_size=0.5)), r"step_size 0.5 of agent 0 is above 0\.\d+, its stability"),
        (lambda: resolve(DGLMC(operators=[np.eye(2)] * 5)), "operators must be one matrix per agent, 6, found 5"),
        (
            lambda: resolve(DGLMC(operators=[np.eye(3)] * 6)),
            r"operator of agent 0 must .* \(d_i, 2\), found \(3, 3\)",
        ),
        (lambda: resolve(DGLMC(operators=SINGULAR)), r"sum_i A_i' A_i must be invertible \(H1"),
        (
            lambda: resolve(DGLMC(operators=[*SINGULAR[:5], np.eye(2)])),
            "potential of agent 0 depends on more than A_i x",
        ),
        (lambda: GCMC(0.0), "rho must be a finite number > 0, found 0.0"),
        (lambda: GCMC(0.5, tolerances=(0.3,)), "tolerances must be finite, decrease, and end above rho = 0.5"),
        (lambda: GCMC(0.5, tolerances=(1.0, 2.0)), "tolerances must be finite, decrease"),
        (lambda: GCMC(0.5, rounds_per_tolerance=0), "rounds_per_tolerance must be a whole number >= 1"),
        (lambda: GCMC(0.5, temperature=0.0), 'temperature 0 needs conditional="exact"'),
        (lambda: HubSGLD(0.0), "step_size must be a finite number > 0"),
        (lambda: HubSGLD(0.1, batch_size=0), "batch_size must be a whole number >= 1"),
        (lambda: resolve(HubSGLD(5.0)), r"step_size 5 is not below 0\.\d+, the stability bound of HubSGLD"),
        (lambda: resolve(HubSGLD(0.01, (1, 2))), "local_steps must be one number, or one per agent"),
        (lambda: Replicated("nut"), "unknown kernel 'nut', did you mean 'nuts'"),
        (lambda: Replicated(temperature=0.0), "temperature must be a finite number > 0"),
        (lambda: Replicated(warmup=-1), "warmup must be a whole number >= 0"),
        (lambda: resolve(Replicated()), "burn_in must be at least 500, the rounds in which Replicated adapts"),
        (lambda: balanced_steps(0, [1.0]), "average must be a finite number > 0"),
        (lambda: balanced_steps(1, [1.0, 0.0]), "seconds must be one number > 0 for each agent"),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("method", [DGLMC(), GCMC(0.1), HubSGLD(0.01), Replicated(warmup=0)])
def test_a_hub_needs_a_connected_network(method):
    for net in (accord.Network.empty(AGENTS), accord.Network.from_edges(AGENTS, [(0, 1), (2, 3), (3, 4), (4, 5)])):
        with pytest.raises(ValueError, match="not connected"):
            accord.sample(unequal_curvature(1), net, accord.Rounds(method, burn_in=0), draws=1)


@pytest.mark.parametrize("method", [GCMC(0.1), HubSGLD(0.01), Replicated()])
def test_posteriors_that_are_not_gaussian_have_no_law(method):
    with pytest.raises(TypeError, match="uses randomness beyond normal noise"):
        accord.law(unequal_curvature(1), STAR, method)


def test_flat_potentials_need_a_tolerance():
    flat = accord.models.quadratic(np.array([[[1.0]], [[0.0]]]), np.zeros((2, 1)))
    with pytest.raises(ValueError, match="rho must be given: the Hessian of agent 1 at init has no positive"):
        accord.sample(flat, accord.Network.path(2), accord.Rounds(DGLMC(), whiten=False), draws=1)
