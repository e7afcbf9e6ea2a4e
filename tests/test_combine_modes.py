"""One-shot methods that send modes, curvatures or slopes: against closed forms, and how far they are off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import POSTERIORS, Z_BOUND, unequal_shards, worst_z

import accord
from accord.combine.bfi import added, local_fits


def logistic(rows, seed, agents=3, shift=0.0):
    """Logistic regression; with a shift the columns of each agent lie elsewhere."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((agents, rows, 2)) + shift * np.arange(agents)[:, None, None]
    y = (rng.random((agents, rows)) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5])))).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), prior_variance=1.0)


def in_sds(post, mean):
    """How far a point is from the pooled mode, in standard deviations of the Laplace approximation there."""
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


def test_bfi_takes_away_a_prior_with_a_mean_and_helps_shards_that_do_not_identify_all():
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
    # a factor 4; twelve data sets tell a root mean square to about a fifth
    assert 2.0 < errors[0] / errors[1] < 8.0


def test_a_run_of_bfi():
    post = unequal_shards(2)
    run = accord.combine.bfi(post, draws=2000, chains=3, seed=1)
    assert run.draws.shape == (3, 2000, 6, 2)
    assert worst_z(run.average.reshape(-1, 1, 2), post.exact()) < Z_BOUND
    assert (run.traffic.bytes_sent == np.ceil(5 * 8 / 3)).all() and run.traffic.rounds == 1
    assert run.settings["method"] == "bfi(local_prior=1)" and run.settings["gradients_largest"] > 0
    again = accord.combine.bfi(post, draws=2000, chains=3, seed=1)
    np.testing.assert_array_equal(run.average, again.average)


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
        accord.combine.bfi(unequal_shards(2), **options)


def test_too_much_taken_away_is_named():
    # curvatures at modes are no bound on those elsewhere: a prior whose curvature falls away from 0
    def likelihood(x, rows):
        return -((rows - x[0]) ** 2) / 200.0

    def prior(x):
        return -jnp.sqrt(1.0 + jnp.sum(jnp.square(x)) * 100.0)

    post = accord.Posterior(likelihood, prior, [np.array([900.0]), np.array([-2.0]), np.array([-3.0])], np.zeros(1))
    with jax.enable_x64(True), pytest.raises(ArithmeticError, match="not positive definite: its smallest eigenvalue"):
        added(post, local_fits(post, 1.0)._replace(curvatures=np.full((3, 1, 1), 1e-3)), 1.0)
