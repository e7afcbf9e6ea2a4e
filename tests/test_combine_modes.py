"""One-shot methods that combine modes or gradients: comparison with closed forms, and their errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from tables import POSTERIORS, Z_BOUND, unequal_shards, worst_z

import accord
from accord.samplers.combine.bfi import added, local_fits
from accord.samplers.combine.surrogate import tilted

pytestmark = pytest.mark.long


def logistic(rows, seed, agents=3, shift=0.0):
    """Logistic regression. A shift moves the columns of each agent."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((agents, rows, 2)) + shift * np.arange(agents)[:, None, None]
    y = (rng.random((agents, rows)) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5])))).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), prior_variance=1.0)


def in_sds(post, mean):
    """Distance of a point from the pooled mode, in standard deviations of the Laplace approximation there."""
    laplace = post.laplace().exact()
    return np.linalg.norm((mean - laplace.mean) / laplace.sd)


# --- BFI ---


@pytest.mark.parametrize("local_prior", [1.0, 0.2, 3.0])
@pytest.mark.parametrize("name", POSTERIORS)
def test_bfi_is_exact_for_gaussian_shards(name, local_prior):
    post = POSTERIORS[name](3)
    found, truth = added(post, local_fits(post, local_prior), local_prior), post.exact()
    np.testing.assert_allclose(found.mean, truth.mean, rtol=1e-9)
    np.testing.assert_allclose(found.cov, truth.cov, rtol=1e-9, atol=1e-12)


def test_bfi_subtracts_a_prior_with_a_mean_and_needs_no_identifying_shards():
    # one row an agent, two parameters: alone, only the prior identifies them
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4, 1, 2)), rng.standard_normal((4, 1))

    def likelihood(x, rows):
        return -((rows[1] - rows[0] @ x) ** 2) / 2.0

    def prior(x):
        return -jnp.sum((x - jnp.array([3.0, -2.0])) ** 2) / 0.5

    post = accord.Posterior(likelihood, prior, list(zip(X, y, strict=True)), np.zeros(2), quadratic=True)
    found, truth = added(post, local_fits(post, 1.0), 1.0), post.exact()
    np.testing.assert_allclose(found.mean, truth.mean, rtol=1e-9)
    np.testing.assert_allclose(found.cov, truth.cov, rtol=1e-9)
    with pytest.raises(ValueError, match=r"agent 0 \(1 rows, 2 parameters\) is improper"):
        local_fits(post, 0.0)


def test_bfi_by_its_definition():
    post = logistic(30, 0)
    fits = local_fits(post, 1.0)
    for agent, shard in enumerate(post.shards):
        alone = accord.models.logistic_regression([shard], prior_variance=1.0)
        np.testing.assert_allclose(fits.modes[agent], alone.mode(), rtol=1e-6)
        np.testing.assert_allclose(fits.curvatures[agent], alone.hessians(fits.modes[agent])[0], rtol=1e-9)
    precision = fits.curvatures.sum(axis=0) - 2.0 * np.eye(2)
    found = added(post, fits, 1.0)
    np.testing.assert_allclose(found.cov, np.linalg.inv(precision))
    weighted = np.einsum("nij,nj->i", fits.curvatures, fits.modes)
    np.testing.assert_allclose(found.mean, np.linalg.solve(precision, weighted))


@pytest.mark.slow
def test_bfi_errs_by_less_of_a_standard_deviation_as_shards_grow():
    # expanded at their own modes, shards are off by one over the square root of their rows
    errors = []
    for rows in (40, 640):
        found = [
            in_sds(post, added(post, local_fits(post, 1.0), 1.0).mean)
            for post in (logistic(rows, seed) for seed in range(12))
        ]
        errors.append(np.sqrt(np.mean(np.square(found))))
    # a factor 4; the root mean square of twelve data sets has an error of about a fifth
    assert 2.0 < errors[0] / errors[1] < 8.0


def test_a_run_of_bfi():
    post = unequal_shards(2)
    run = accord.samplers.combine.bfi(post, draws=2000, chains=3, seed=1)
    assert run.draws.shape == (3, 2000, 6, 2)
    assert worst_z(run.average.reshape(-1, 1, 2), post.exact()) < Z_BOUND
    assert (run.traffic.bytes_sent == np.ceil(5 * 8 / 3)).all() and run.traffic.rounds == 1
    assert run.settings["method"] == "bfi(local_prior=1)" and run.settings["gradients_largest"] > 0
    again = accord.samplers.combine.bfi(post, draws=2000, chains=3, seed=1)
    np.testing.assert_array_equal(run.average, again.average)


def test_combined_shards_of_few_rows_warn_with_the_bias_and_gaussian_shards_do_not(tmp_path):
    assert accord.samplers.combine.bfi(unequal_shards(2), draws=1000).warnings() == []
    post = logistic(15, 3)
    run = accord.samplers.combine.bfi(post, draws=1000)
    (text,) = run.warnings()
    assert "the combined draws do not fit the slope of the posterior" in text and "Importance()" in text
    exact = accord.sample(post, accord.Network.ring(3), seed=1).average
    off = (run.average.mean(axis=(0, 1)) - exact.mean(axis=(0, 1))) / exact.std(axis=(0, 1))
    np.testing.assert_allclose(run.findings.expected.average_mean, off, atol=0.12)
    assert off[0] < -0.5 and "the mean of x[0] is off by about -0." in text
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").warnings() == [text]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be a whole number >= 1, found 0"),
        ({"chains": True}, "chains must be a whole number >= 1, found True"),
        ({"seed": -1}, "seed must be a whole number >= 0, found -1"),
        ({"local_prior": -0.5}, "local_prior must be a finite number >= 0, found -0.5"),
    ],
)
def test_wrong_numbers_of_bfi_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        accord.samplers.combine.bfi(unequal_shards(2), **options)


def test_a_combined_curvature_that_is_not_positive_definite_raises_an_error():
    # curvatures at modes are no bound on those elsewhere: a prior whose curvature falls away from 0
    def likelihood(x, rows):
        return -((rows - x[0]) ** 2) / 200.0

    def prior(x):
        return -jnp.sqrt(1.0 + jnp.sum(jnp.square(x)) * 100.0)

    post = accord.Posterior(likelihood, prior, [np.array([900.0]), np.array([-2.0]), np.array([-3.0])], np.zeros(1))
    with jax.enable_x64(True), pytest.raises(ArithmeticError, match="not positive definite: its smallest eigenvalue"):
        added(post, local_fits(post, 1.0)._replace(curvatures=np.full((3, 1, 1), 1e-3)), 1.0)


# --- surrogate likelihood ---


def of_rows(post):
    """Hessians (agent, dim, dim) and linear terms (agent, dim) of minus log likelihoods; the prior's precision."""
    prior = np.eye(post.dim) / 10.0
    share = prior / post.num_agents
    return post.hessians() - share, -post.gradients(np.zeros(post.dim)), prior


@pytest.mark.long
def test_rounds_that_do_not_converge_warn():
    with pytest.warns(UserWarning, match="the surrogate of agent 2 does not converge to the mode: its last two"):
        tilted(unequal_shards(2), 2, 8)
    with pytest.warns(UserWarning, match="the surrogate of agent 1 does not converge"):
        tilted(unequal_shards(2), 1, 3)
    # warnings are errors: these are none
    tilted(unequal_shards(2), 1, 1)
    tilted(unequal_shards(2), 3, 8)


@pytest.mark.parametrize("agent", [3, 4, 5])
def test_the_surrogate_of_gaussian_shards_is_its_closed_form(agent):
    post = unequal_shards(2)
    H, b, prior = of_rows(post)
    weight = post.sizes.sum() / post.sizes[agent]
    own = weight * H[agent] + prior
    point = np.linalg.solve(own, weight * b[agent])
    for rounds in (1, 2, 3):
        slope = (H.sum(axis=0) @ point - b.sum(axis=0)) - weight * (H[agent] @ point - b[agent])
        point = np.linalg.solve(own, weight * b[agent] - slope)
        found = tilted(post, agent, rounds)
        np.testing.assert_allclose(found.mode, point, rtol=1e-6)
        # the standard deviations of one agent in every round
        np.testing.assert_allclose(found.curvature, own, rtol=1e-9)


def test_identical_shards_need_one_round_and_have_the_posteriors_standard_deviations():
    X, y = np.random.default_rng(0).standard_normal((2, 8, 1))
    post = accord.models.linear_regression([(X, y[:, 0])] * 4, noise_scale=1.0, prior_variance=10.0)
    found = tilted(post, 2, 1)
    np.testing.assert_allclose(found.mode, post.exact().mean, rtol=1e-8)
    assert found.weight == 4.0 and np.abs(found.tilt).max() < 1e-8


@pytest.mark.long
def test_the_convergence_rate_depends_on_the_similarity_of_shards():
    # errors in standard deviations after 1, 2 and 3 rounds; a round gains a factor of about sqrt(rows)
    post = logistic(200, 0)
    errors = np.array([[in_sds(post, tilted(post, agent, rounds).mode) for rounds in (1, 2, 3)] for agent in range(3)])
    assert (errors[:, 0] < 0.15).all()
    assert (errors[:, 1:] < errors[:, :-1] / 5.0).all()
    # the second round is better than BFI, which has one round
    assert errors[:, 1].max() < in_sds(post, added(post, local_fits(post, 1.0), 1.0).mean) / 5.0


def test_standard_deviations_come_from_the_agent_that_samples():
    # one agent's rows have a wider range and more information per row
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], (3, 100, 1)) * np.array([1.0, 1.0, 2.0])[:, None, None]
    shards = [(x, rng.standard_normal(100)) for x in X]
    post = accord.models.linear_regression(shards, noise_scale=1.0, prior_variance=10.0)
    truth = post.exact()
    ratios = []
    for agent in range(3):
        curvature = 3.0 * np.sum(X[agent] ** 2) + 0.1
        ratios.append(tilted(post, agent, 6).curvature[0, 0] ** -0.5 / truth.sd[0])
        np.testing.assert_allclose(ratios[-1], curvature**-0.5 / truth.sd[0], rtol=1e-8)
    np.testing.assert_allclose(ratios, np.sqrt([2.0, 2.0, 0.5]), rtol=1e-3)


@pytest.mark.long
def test_a_run_of_the_surrogate():
    post = unequal_shards(2)
    run = accord.samplers.combine.surrogate(post, draws=200, chains=10, warmup=300, rounds=2)
    H, _, prior = of_rows(post)
    weight = post.sizes.sum() / post.sizes[5]
    law = accord.Gaussian(tilted(post, 5, 2).mode, np.linalg.inv(weight * H[5] + prior))
    x = run.average.astype(np.float64)
    ess = np.array([array_stats.ess(x[..., k], chain_axis=0, draw_axis=1) for k in range(2)])
    assert (np.abs(x.mean(axis=(0, 1)) - law.mean) < Z_BOUND * law.sd / np.sqrt(ess)).all()
    square = (x - law.mean) ** 2
    ess = np.array([array_stats.ess(square[..., k], chain_axis=0, draw_axis=1) for k in range(2)])
    assert (np.abs(square.mean(axis=(0, 1)) - law.sd**2) < Z_BOUND * np.sqrt(2.0 / ess) * law.sd**2).all()
    # a slope of two numbers in each of two rounds, for all chains
    assert (run.traffic.bytes_sent == np.ceil(2 * 2 * 8 / 10)).all()
    assert (run.traffic.rounds, run.traffic.exchanges) == (2, 4)
    assert run.settings["method"] == "surrogate(rounds=2, agent=5)"
    assert run.traffic.gradient_rows[5] > 500 * 12 and (run.traffic.gradient_rows[:5] <= 10).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1, found 0"),
        ({"agent": 6}, "agent must be one of 0 to 5, found 6"),
        ({"warmup": 0}, "warmup must be a whole number >= 1, found 0"),
        ({"draws": 0}, "draws must be a whole number >= 1, found 0"),
    ],
)
def test_wrong_numbers_of_the_surrogate_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        accord.samplers.combine.surrogate(unequal_shards(2), **options)
