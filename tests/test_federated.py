"""Federated methods at a hub: targets, biases of their laws, limits, errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, Z_BOUND, start, unequal_curvature, unequal_shards, walk

import accord
from accord.samplers import ELF, FALD, FSGLD, QLSD, HubSGLD, StaleSGLD
from accord.samplers.agent import Noise
from accord.tuning.impulse_response import respond

STAR = NETWORKS["star"]
WEIGHTS = (1, 2, 1, 3, 2, 1)


def logistic():
    rng = np.random.default_rng(1)
    shards = []
    for agent in range(AGENTS):
        X = rng.standard_normal((5 + 2 * agent, 2))
        shards.append((X, (X[:, 0] + rng.standard_normal(len(X)) > 0).astype(float)))
    return accord.models.logistic_regression(shards)


def stationary(post, method):
    """The stationary law of a draw, the same at every agent."""
    return accord.law(post, STAR, method).stationary().agent(2)


def plain_langevin(post, step):
    """The stationary law of Langevin steps on F, in closed form."""
    precision = post.hessians().sum(axis=0)
    cov = np.linalg.inv(precision - step / 2.0 * precision @ precision)
    return accord.Gaussian(post.exact().mean, (cov + cov.T) / 2.0)


def assert_same(found, expected):
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.cov, expected.cov, rtol=1e-8, atol=1e-10)


# --- local steps ---


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_one_local_step_is_langevin_on_the_sum(correlation):
    post = unequal_curvature(3)
    for weights in (None, WEIGHTS):
        assert_same(stationary(post, FALD(0.01, 1, correlation, weights)), plain_langevin(post, 0.01))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_drift_of_local_steps_matches_the_docstring(weights):
    post = unequal_curvature(2)
    H, exact = post.hessians(), post.exact()
    share = np.ones(AGENTS) / AGENTS if weights is None else np.array(weights) / np.sum(weights)
    pull = np.einsum("nij,nj,n->i", H, post.gradients(exact.mean), 1.0 / share)
    expected = 4 / 2.0 * np.linalg.solve(H.sum(axis=0), pull)
    found = []
    for step in (4e-4, 2e-4):
        means = [stationary(post, FALD(step, 5, rho, weights)).mean - exact.mean for rho in (0.0, 1.0)]
        np.testing.assert_allclose(means[0], means[1], rtol=1e-7)
        found.append(means[0] / step)
    # two steps extrapolate the second-order remainder away
    np.testing.assert_allclose(2.0 * found[1] - found[0], expected, rtol=1e-3)


def test_local_steps_save_messages_on_like_shards_only():
    # the paper's trade-off: eight local steps take an eighth of the rounds
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    alike = accord.models.quadratic(np.stack([H] * AGENTS), np.ones((AGENTS, 2)))
    eight = stationary(alike, FALD(0.002, 8, 1.0))
    assert_same(eight, plain_langevin(alike, 0.002))
    post = unequal_curvature(2)
    errors = [
        accord.metrics.wasserstein2(stationary(post, FALD(0.005, steps, rho)), post.exact())
        for steps, rho in ((1, 0.0), (8, 1.0), (8, 0.5), (8, 0.0))
    ]
    # shared noise keeps agents closer together, so that drift remains
    assert errors == sorted(errors)
    assert errors[0] < 0.004 and errors[1] > 0.1


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_the_stability_bound_of_local_steps_is_where_the_radius_crosses_one(steps):
    post = unequal_curvature(2)
    bound = FALD(0.1, steps, weights=WEIGHTS).max_step(STAR, post.hessians())
    for factor, stable in ((0.999, True), (1.001, False)):
        law = accord.law(post, STAR, FALD(factor * bound, steps, weights=WEIGHTS))
        assert (law.spectral_radius < 1.0) is stable
    assert FALD(0.1, steps).max_step(STAR, np.zeros((AGENTS, 2, 2))) == np.inf


def test_without_noise_local_steps_are_federated_averaging():
    post, method = unequal_shards(2), FALD(0.01, 3, temperature=0.0)
    with jax.enable_x64(True):
        run = accord.sample(post, STAR, accord.Rounds(method, burn_in=4000), draws=1, chains=1)
    fixed = accord.law(post, STAR, method).stationary()
    np.testing.assert_allclose(run.draws[0, 0].ravel(), fixed.joint.mean, atol=1e-8)
    np.testing.assert_allclose(fixed.joint.cov, 0.0, atol=1e-20)
    assert np.abs(fixed.agent(0).mean - post.mode()).max() > 1e-3
    # with one step it is gradient descent, which converges to the mode
    only = accord.law(post, STAR, FALD(0.01, temperature=0.0)).stationary()
    np.testing.assert_allclose(only.agent(0).mean, post.mode(), atol=1e-9)


def test_one_client_alone_makes_plain_langevin_steps():
    post = accord.models.gaussian(np.array([[1.0, -1.0]]), np.array([[[2.0, 0.3], [0.3, 0.5]]]))
    law = accord.law(post, accord.Network.empty(1), FALD(0.1, 4, 0.3)).stationary().agent(0)
    assert_same(law, plain_langevin(post, 0.1))


# --- conducive gradients ---


def visitor(post, method):
    """The stationary moments of a chain that visits agents at random, from their recursion."""
    n, dim, h = AGENTS, post.dim, method.step_size
    steps = np.broadcast_to(method.local_steps, n)
    share = steps / steps.sum()
    H, b = post.hessians(), -post.gradients(np.zeros(dim))
    P, a = np.zeros_like(H), np.zeros_like(b)
    if isinstance(method, FSGLD):
        P, a = (H, b) if method.surrogates is None else method.surrogates[::-1]
        a = a if method.surrogates is None else np.einsum("nij,nj->ni", P, a)
    A = np.eye(dim) - h * ((H - P) / share[:, None, None] + P.sum(axis=0))
    c = h * ((b - a) / share[:, None] + a.sum(axis=0))
    mean, second = np.zeros(dim), np.zeros((dim, dim))
    for _ in range(2000):
        means, seconds = [], []
        for i in range(n):
            m, S = mean, second
            for _ in range(steps[i]):
                drift = A[i] @ m
                S = A[i] @ S @ A[i].T + np.outer(drift, c[i]) + np.outer(c[i], drift) + np.outer(c[i], c[i])
                S, m = S + 2.0 * h * np.eye(dim), drift + c[i]
            means.append(m)
            seconds.append(S)
        mean, second = np.mean(means, axis=0), np.mean(seconds, axis=0)
    return accord.Gaussian(mean, second - np.outer(mean, mean))


def test_exact_surrogates_make_every_visit_a_langevin_step_on_the_sum():
    post = unequal_curvature(2)
    for steps in (1, (1, 3, 2, 4, 1, 2)):
        assert_same(visitor(post, FSGLD(0.01, steps)), plain_langevin(post, 0.01))


def test_conducive_gradients_remove_most_of_the_bias():
    # the paper's claim with inaccurate surrogates: too flat, and shifted by half of their widths
    post, steps = unequal_curvature(2), (1, 3, 2, 4, 1, 2)
    H = post.hessians()
    means = np.linalg.solve(H, -post.gradients(np.zeros(2))[..., None])[..., 0]
    wrong = [
        accord.Gaussian(m + 0.5 * np.sqrt(np.diag(C)), C / 0.8) for m, C in zip(means, np.linalg.inv(H), strict=True)
    ]
    plain, corrected = (
        accord.metrics.wasserstein2(visitor(post, method), post.exact())
        for method in (HubSGLD(0.01, steps), FSGLD(0.01, steps, surrogates=wrong))
    )
    assert corrected < 0.3 * plain


@pytest.mark.long
def test_without_noise_conducive_gradients_reach_the_mode():
    start = np.linspace(-1.0, 1.0, AGENTS)[:, None] * np.ones(2)
    for post in (unequal_shards(2), logistic()):
        method = FSGLD(0.02, (1, 3, 2, 4, 1, 2), temperature=0.0)
        with jax.enable_x64(True):
            run = accord.sample(post, STAR, accord.Rounds(method, burn_in=1500, init=start), draws=1, chains=2)
        np.testing.assert_allclose(run.draws[:, 0], np.broadcast_to(post.mode(), (2, AGENTS, 2)), atol=1e-6)
    # plain visits end in a cycle
    run = accord.sample(post, STAR, accord.Rounds(HubSGLD(0.02, 3, temperature=0.0), burn_in=1500), draws=1, chains=1)
    assert np.abs(run.draws - post.mode()).max() > 0.01


def test_finding_the_surrogates_is_counted():
    post, method = logistic(), FSGLD(0.01)
    run, plain = (
        accord.sample(post, STAR, accord.Rounds(m, burn_in=0), draws=3, chains=1) for m in (method, HubSGLD(0.01))
    )
    assert run.traffic.sums >= 3
    more = run.traffic.bytes_sent - plain.traffic.bytes_sent
    # value, gradient and Hessian of two parameters, six numbers of four bytes; the hub answers five agents
    np.testing.assert_array_equal(more, run.traffic.sums * 6 * 4 * np.array([5, 1, 1, 1, 1, 1]))


def test_the_stability_bound_of_conducive_gradients():
    post = unequal_curvature(2)
    whole = np.linalg.eigvalsh(post.hessians().sum(axis=0))[-1]
    assert FSGLD(0.01, 4).max_step(STAR, post.hessians()) == pytest.approx(2.0 / whole)
    # surrogates without curvature correct nothing
    flat = [accord.Gaussian(np.zeros(2), np.eye(2) * 1e9)] * AGENTS
    bounds = [m.max_step(STAR, post.hessians()) for m in (FSGLD(0.01, surrogates=flat), HubSGLD(0.01))]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


# --- stale gradients ---


def test_fresh_gradients_are_langevin_and_older_ones_an_autoregression():
    post = unequal_curvature(3)
    assert_same(stationary(post, StaleSGLD(0.01, 0)), plain_langevin(post, 0.01))
    # x+ = x - a x_before + e has the variance (1 + a) / ((1 - a) a (2 + a)) times that of e
    step, precision = 0.05, unequal_curvature(1).hessians().sum()
    a = step * precision
    found = stationary(unequal_curvature(1), StaleSGLD(step, 1))
    assert found.cov[0, 0] == pytest.approx(2.0 * step * (1.0 + a) / ((1.0 - a) * a * (2.0 + a)), rel=1e-9)


@pytest.mark.long
def test_the_bias_grows_with_staleness_times_step_and_the_monte_carlo_error_does_not():
    # the paper's two claims, by law
    post = unequal_curvature(2)
    exact, values = post.exact(), np.linalg.eigvalsh(post.hessians().sum(axis=0))
    errors = []
    for age in (0, 1, 4, 8):
        excess = []
        for step in (2e-4, 1e-4):
            found = stationary(post, StaleSGLD(step, age))
            np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-6, atol=1e-8)
            ratios = np.linalg.eigvals(found.cov @ np.linalg.inv(exact.cov)).real
            excess.append((np.sort(ratios) - 1.0) / step)
        # first order, extrapolated from two steps
        np.testing.assert_allclose(2.0 * excess[1] - excess[0], (age + 0.5) * values, rtol=1e-2)
        response = respond(post, STAR, StaleSGLD(0.02, age))
        errors.append(response.sd[0] ** 2 * response.memory[0])
    np.testing.assert_allclose(errors, np.broadcast_to(errors[0], (4, 2)), rtol=1e-5)


@pytest.mark.parametrize("age", [0, 1, 3, 7])
def test_the_stability_bound_of_stale_gradients_is_where_the_radius_crosses_one(age):
    post = unequal_curvature(2)
    bound = StaleSGLD(0.1, age).max_step(STAR, post.hessians())
    for factor, stable in ((0.99, True), (1.01, False)):
        assert (accord.law(post, STAR, StaleSGLD(factor * bound, age)).spectral_radius < 1.0) is stable
    # no smaller delays are unstable below it
    mixed = StaleSGLD(0.99 * bound, tuple(min(age, i) for i in range(AGENTS)))
    assert accord.law(post, STAR, mixed).spectral_radius < 1.0
    assert mixed.max_step(STAR, post.hessians()) is None or age == 0


def test_without_noise_stale_gradients_reach_the_mode():
    for post in (unequal_shards(2), logistic()):
        method = StaleSGLD(0.02, (0, 5, 1, 2, 3, 1), temperature=0.0)
        with jax.enable_x64(True):
            run = accord.sample(post, STAR, accord.Rounds(method, burn_in=2500), draws=1, chains=1)
        np.testing.assert_allclose(run.draws[0, 0], np.tile(post.mode(), (AGENTS, 1)), atol=1e-6)


# --- compressed gradients ---


def rounding_variance(v, levels):
    """The variance of rounding each entry of vectors (..., dim) to multiples of |v| / levels."""
    unit = np.linalg.norm(v, axis=-1, keepdims=True) / levels
    part = np.abs(v) / unit % 1.0
    return unit**2 * part * (1.0 - part)


@pytest.mark.parametrize("levels", [1, 3])
def test_rounding_is_unbiased_with_the_variance_of_its_levels(levels):
    method, count = QLSD(0.1, levels), 40_000
    v = np.array([0.3, -2.0, 0.0, 1.0, 5.0])
    keys = np.random.default_rng(0).integers(0, 2**32, (count, 2), dtype=np.uint32)
    found = jax.vmap(lambda key: method.compressed(jnp.asarray(v), Noise(None, None, None, key)))(keys)
    found, variance = np.asarray(found, np.float64), rounding_variance(v, levels)
    assert (np.abs(found.mean(axis=0) - v) <= Z_BOUND * np.sqrt(variance / count) + 1e-5).all()
    squares = (found - v) ** 2
    assert (np.abs(squares.mean(axis=0) - variance) <= Z_BOUND * squares.std(axis=0) / np.sqrt(count) + 1e-5).all()
    assert variance.sum() <= method.omega(5) * (v**2).sum()
    multiples = found * levels / np.linalg.norm(v)
    np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-5)
    # zero is rounded to zero
    nothing = method.compressed(jnp.zeros(3), Noise(None, None, None, keys[0]))
    np.testing.assert_array_equal(nothing, np.zeros(3))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.long_from(1)
def test_a_step_has_the_noise_of_the_rounding_and_of_the_temperature(temperature):
    post, step, levels = unequal_curvature(3), 0.05, 2
    method = QLSD(step, levels, memory=0.0, temperature=temperature)
    run = accord.sample(post, STAR, accord.Rounds(method, burn_in=0, init=start(3)), draws=4, chains=10_000, seed=1)
    H, b = post.hessians(), -post.gradients(np.zeros(3))
    # round 0 averages the starts, and gradients of round 1 are uncompressed
    before, after = run.draws[:, 2, 0].astype(np.float64), run.draws[:, 3, 0].astype(np.float64)
    slopes = np.einsum("nij,cj->cni", H, before) - b
    variance = step**2 * rounding_variance(slopes, levels).sum(axis=1) + 2.0 * step * temperature
    z = (after - before + step * slopes.sum(axis=1)) / np.sqrt(variance)
    assert (np.abs(z.mean(axis=0)) < Z_BOUND / np.sqrt(len(z))).all()
    assert (np.abs((z**2).mean(axis=0) - 1.0) < Z_BOUND * (z**2).std(axis=0) / np.sqrt(len(z))).all()


COMPRESSED = {
    "QLSD": QLSD(0.02, 1),
    "ELF up": ELF(0.02, 1),
    "ELF down": ELF(0.02, 4, 1),
    "ELF both": ELF(0.01, 2, 2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMPRESSED)
def test_differences_between_shards_do_not_matter_with_memory(name):
    # the same sum of potentials from agents with distant modes gives the same draws
    H, b = unequal_curvature(4).hessians(), -unequal_curvature(4).gradients(np.zeros(4))
    tilt = 30.0 * np.random.default_rng(0).standard_normal(b.shape)
    posts = [accord.models.quadratic(H, b), accord.models.quadratic(H, b + tilt - tilt.mean(axis=0))]
    options = dict(draws=100, burn_in=0, chains=2, seed=0)

    def apart(method):
        with jax.enable_x64(True):
            alike, tilted = (walk(post, STAR, method, **options).draws for post in posts)
        return np.abs(alike - tilted).max()

    assert apart(COMPRESSED[name]) < 1e-8
    assert name != "QLSD" or apart(QLSD(0.02, 1, memory=0.0)) > 1.0


@pytest.mark.parametrize("name", COMPRESSED)
def test_without_noise_compression_with_memory_reaches_the_mode(name):
    post = unequal_curvature(4)
    method = dataclasses.replace(COMPRESSED[name], temperature=0.0)
    with jax.enable_x64(True):
        run = accord.sample(post, STAR, accord.Rounds(method, burn_in=6000), draws=1, chains=1)
    np.testing.assert_allclose(run.draws[0, 0], np.tile(post.mode(), (AGENTS, 1)), atol=1e-6)


def test_without_memory_compression_does_not_reach_the_mode():
    post = unequal_curvature(4)
    restless = QLSD(0.02, 1, memory=0.0, temperature=0.0)
    run = accord.sample(post, STAR, accord.Rounds(restless, burn_in=2000), draws=200, chains=1)
    assert np.abs(run.draws[0, :, 0] - post.mode()).max() > 0.05
    x = np.zeros(4)
    for _ in range(6000):
        x = x - 0.02 * sum(largest(slope, 1) for slope in post.gradients(x))
    assert np.abs(x - post.mode()).max() > 0.1


def largest(v, count):
    return np.where(np.abs(v) >= np.sort(np.abs(v))[-count], v, 0.0)


def test_error_feedback_is_its_recursion():
    post, step = unequal_curvature(4), 0.03
    H, b = post.hessians(), -post.gradients(np.zeros(4))
    starts = np.random.default_rng(0).standard_normal((AGENTS, 4))
    with jax.enable_x64(True):
        method = ELF(step, 1, 2, temperature=0.0)
        run = accord.sample(post, STAR, accord.Rounds(method, burn_in=0, init=starts), draws=30, chains=1)
    x = known = starts.mean(axis=0)
    g = np.einsum("nij,j->ni", H, x) - b
    for found in run.draws[0, :, 3]:
        np.testing.assert_allclose(found, x, atol=1e-10)
        x = x - step * g.sum(axis=0)
        known = known + largest(x - known, 2)
        g = g + np.stack([largest(v, 1) for v in np.einsum("nij,j->ni", H, known) - b - g])


@pytest.mark.slow
@pytest.mark.busy
def test_memory_removes_the_excess_variance_of_rounding():
    post, step = unequal_curvature(4), 0.04
    exact = post.exact()
    whiten = np.linalg.inv(np.linalg.cholesky(exact.cov))

    def width(method):
        run = accord.sample(post, STAR, accord.Rounds(method, burn_in=150, init=exact), draws=1, chains=5000, seed=0)
        return (((run.draws[:, 0, 0] - exact.mean) @ whiten.T) ** 2).sum(axis=1).mean() / 4.0

    whole, rounded, remembered, largest_one = map(
        width, (ELF(step, 4), QLSD(step, 1, memory=0.0), QLSD(step, 1), ELF(step, 1))
    )
    # with the same noise, so that most of the error is common
    assert rounded - whole > 0.08
    assert abs(remembered - whole) < 0.02
    assert 0.03 < largest_one - whole < 0.15


def test_bits_of_a_message():
    # the norm, signs and one of five levels, and entries with their indices
    assert QLSD(0.1, 4).message_bits(100) == 32 + 100 * (1 + 3)
    assert ELF(0.1, 5).message_bits(100) == 5 * (32 + 7)
    assert ELF(0.1).message_bits(100) == 25 * (32 + 7)


# --- errors ---


ROUND = accord.Gaussian(np.zeros(2), np.eye(2))


def bound(method):
    return method.bind(unequal_curvature(2), STAR)


def sampled(method):
    return accord.sample(unequal_curvature(2), STAR, accord.Rounds(method, burn_in=1), draws=1, chains=1)


def whitened(method):
    return accord.sample(unequal_curvature(2), STAR, accord.Rounds(method, burn_in=1, whiten=True), draws=1, chains=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FALD(0.0), "step_size must be a finite number > 0, found 0.0"),
        (lambda: FALD(0.1, 0), "local_steps must be a whole number >= 1, found 0"),
        (lambda: FALD(0.1, correlation=1.2), "correlation must be a number from 0 to 1, found 1.2"),
        (lambda: FALD(0.1, weights=(1.0, -1.0)), "weights must be a finite number > 0, found -1.0"),
        (
            lambda: bound(FALD(0.1, weights=(1.0, 2.0))),
            r"weights must be one number, or one per agent \(6\), found shape",
        ),
        (lambda: StaleSGLD(0.1, -1), "staleness must be a whole number >= 0, found -1"),
        (lambda: bound(StaleSGLD(0.1, (1, 2))), r"staleness must be one number, or one per agent \(6\)"),
        (lambda: sampled(StaleSGLD(0.6, 9)), r"step_size 0.6 is not below 0\.\d+, the stability bound of StaleSGLD"),
        (lambda: QLSD(0.1, 0), "levels must be a whole number >= 1, found 0"),
        (lambda: QLSD(0.1, 2, 1.5), "memory must be a number from 0 to 1, found 1.5"),
        (lambda: QLSD(-0.1), "step_size must be a finite number > 0, found -0.1"),
        (lambda: ELF(0.1, 0), "kept must be a whole number >= 1, found 0"),
        (lambda: bound(ELF(0.1, 3)), r"kept must be a whole number in 1\.\.2, found 3"),
        (lambda: bound(ELF(0.1, kept_down=9)), r"kept_down must be a whole number in 1\.\.2, found 9"),
        (lambda: sampled(ELF(9.0)), r"step_size 9 is not below \d\.\d+, the stability bound of ELF"),
        (lambda: FSGLD(0.0), "step_size must be a finite number > 0, found 0.0"),
        (lambda: FSGLD(0.1, surrogates=[1.0, 2.0]), "surrogates must be one accord.Gaussian per agent"),
        (lambda: FSGLD(0.1, surrogates=(accord.Gaussian([0.0], [0.0]),)), "surrogate of agent 0 must have a positive"),
        (lambda: bound(FSGLD(0.1, surrogates=(ROUND,) * 5)), "one Gaussian per agent, 6 of 2 parameters, found 5 of 2"),
        (lambda: whitened(FSGLD(0.1, surrogates=(ROUND,) * 6)), "surrogates are in the user's parameters"),
        (lambda: whitened(FSGLD(9.0)), r"step_size 9 is not below 2, the stability bound of FSGLD"),
        (lambda: FALD(0.1, noise="common"), 'noise must be "independent" in FALD'),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
