"""Posteriors: potentials against formulas, padding, modes, and every bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.tree_util import Partial

import accord
from accord import models
from accord.posterior.quadratic import flat_prior


def rows(counts=(3, 7, 1), dim=2, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, dim)), rng.standard_normal(n)) for n in counts]


def potentials(post, x):
    shards = post.stacked()._replace(quadratic=None)
    return np.asarray(jax.vmap(post.potential.value, in_axes=(0, None))(shards, jnp.asarray(x)))


X_AT = np.array([0.3, -0.8])


def test_linear_regression_is_its_formula():
    shards = rows()
    post = models.linear_regression(shards, noise_scale=1.5, prior_variance=4.0)
    normal, share = scipy.stats.norm, -scipy.stats.norm(0.0, 2.0).logpdf(X_AT).sum() / 3
    expected = [-normal(X @ X_AT, 1.5).logpdf(y).sum() + share for X, y in shards]
    np.testing.assert_allclose(potentials(post, X_AT), expected, rtol=1e-5)
    precision = sum(X.T @ X for X, _ in shards) / 1.5**2 + np.eye(2) / 4.0
    np.testing.assert_allclose(post.exact().cov, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(
        post.exact().mean, np.linalg.solve(precision, sum(X.T @ y for X, y in shards) / 1.5**2), rtol=1e-9
    )


def test_logistic_and_poisson_regressions_are_their_formulas():
    shards = [(X, (y > 0).astype(int)) for X, y in rows()]
    post = models.logistic_regression(shards, prior_variance=2.0)
    share = -scipy.stats.norm(0.0, 2.0**0.5).logpdf(X_AT).sum() / 3
    expected = [-np.sum(scipy.stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-X @ X_AT)))) + share for X, y in shards]
    np.testing.assert_allclose(potentials(post, X_AT), expected, rtol=1e-5)
    counts = [(X, np.round(3 * np.abs(y))) for X, y in rows()]
    post = models.poisson_regression(counts, prior_variance=2.0)
    expected = [-scipy.stats.poisson(np.exp(X @ X_AT)).logpmf(y).sum() + share for X, y in counts]
    np.testing.assert_allclose(potentials(post, X_AT), expected, rtol=1e-5)


def test_gaussian_is_the_precision_weighted_product():
    means, covs = (
        np.array([[0.0, 1.0], [2.0, -1.0]]),
        np.stack([np.diag([1.0, 4.0]), np.array([[2.0, 0.5], [0.5, 1.0]])]),
    )
    exact = models.gaussian(means, covs).exact()
    precision = sum(np.linalg.inv(c) for c in covs)
    np.testing.assert_allclose(exact.cov, np.linalg.inv(precision), rtol=1e-10)
    np.testing.assert_allclose(
        precision @ exact.mean, sum(np.linalg.inv(c) @ m for c, m in zip(covs, means, strict=True))
    )
    scalar = models.gaussian([0.0, 3.0], [1.0, 2.0]).exact()
    np.testing.assert_allclose((scalar.mean[0], scalar.cov[0, 0]), (1.0, 2.0 / 3.0))


def test_power_potential_and_its_gradient_at_the_centre():
    post = models.power(np.array([[0.0, 1.0], [2.0, 2.0]]), 1.5)
    np.testing.assert_allclose(potentials(post, [1.0, 1.0]), [1.0, 2.0])
    np.testing.assert_allclose(post.gradients(np.array([0.0, 1.0])), [[0.0, 0.0], [-1.5 * 2**0.5, -1.5]])


def test_padding_never_reaches_a_gradient():
    # a likelihood that is only defined on real rows: log of a positive column
    def likelihood(x, data):
        return x[0] * jnp.log(data) - data * jnp.exp(x[0])

    shards = [np.array([1.0, 2.0, 3.0]), np.array([0.5])]
    post = accord.Posterior(likelihood, lambda x: -jnp.sum(x**2) / 2, shards, np.zeros(1))
    expected = [-(np.log(s).sum()) + s.sum() for s in shards]
    np.testing.assert_allclose(post.gradients(np.zeros(1))[:, 0], expected, rtol=1e-9)


def test_minibatch_potential_is_scaled_by_rows_over_batch():
    post = models.linear_regression(rows(counts=(3, 7)), noise_scale=1.0)
    shard = jax.tree.map(lambda leaf: leaf[1], post.stacked())
    x = jnp.asarray(X_AT, jnp.float32)
    # a batch with every row once gives the full gradient
    whole = post.potential.gradient(shard, x, jnp.arange(7, dtype=jnp.uint32))
    np.testing.assert_allclose(whole, post.potential.gradient(shard, x), rtol=1e-4)
    one = post.potential.value(shard, x, jnp.array([9], jnp.uint32))
    X, y = post.shards[1]
    normal = scipy.stats.norm
    np.testing.assert_allclose(one, -7 * normal(X[2] @ X_AT).logpdf(y[2]) - normal.logpdf(X_AT).sum() / 2, rtol=1e-5)


def test_mode_and_laplace():
    post = models.logistic_regression([(X, (y > 0).astype(int)) for X, y in rows((9, 4, 6))])
    mode = post.mode()
    np.testing.assert_allclose(post.gradients(mode).sum(axis=0), 0.0, atol=1e-7)
    laplace = post.laplace()
    np.testing.assert_allclose(laplace.exact().mean, mode, atol=1e-7)
    np.testing.assert_allclose(np.linalg.inv(laplace.exact().cov), post.hessians(mode).sum(axis=0), rtol=1e-7)
    # each agent's expansion has its own slope at the mode
    np.testing.assert_allclose(laplace.gradients(mode), post.gradients(mode), atol=1e-7)
    assert laplace.names == post.names


def test_a_posterior_without_a_mode_raises():
    separated = [(np.array([[1.0], [2.0]]), np.array([1, 1])), (np.array([[-1.0]]), np.array([0]))]
    post = accord.Posterior(
        models.logistic_regression(separated).potential.log_likelihood, Partial(flat_prior), separated, np.zeros(1)
    )
    with pytest.raises(ArithmeticError, match="no mode found"):
        post.mode()


def test_scalar_likelihoods_and_repr():
    post = accord.Posterior(
        lambda x, shard: -jnp.sum((x - shard["c"]) ** 2), lambda x: 0.0 * x.sum(), [{"c": np.ones(2)}] * 3, np.zeros(2)
    )
    assert (post.splits, post.num_agents, post.dim) == (False, 3, 2)
    assert repr(post) == "<Posterior: 2 parameters, 3 agents>"
    assert (
        repr(models.linear_regression(rows(), noise_scale=1.0))
        == "<Gaussian posterior: 2 parameters, 3 agents, 11 rows>"
    )
    np.testing.assert_allclose(post.logdensity(jnp.zeros(2)), -6.0)


def flat(x):
    return 0.0 * jnp.sum(x)


def line(x, data):
    return data[:, 0] * x[0]


BAD = {
    "no shard": (lambda: accord.Posterior(line, flat, [], np.zeros(1)), "at least one shard"),
    "no parameter": (lambda: accord.Posterior(line, flat, [np.ones((2, 1))], {}), "init holds no parameter"),
    "init": (lambda: accord.Posterior(line, flat, [np.ones((2, 1))], np.array([np.inf])), "init must be finite"),
    "empty": (
        lambda: accord.Posterior(line, flat, [np.ones((2, 1)), np.ones((0, 1))], np.zeros(1)),
        "shard of agent 1 is empty",
    ),
    "nan": (
        lambda: accord.Posterior(line, flat, [np.ones((2, 1)), np.array([[1.0], [np.nan]])], np.zeros(1)),
        r"shard of agent 1 holds NaN or infinity, first at index \[1, 0\]",
    ),
    "columns": (
        lambda: accord.Posterior(line, flat, [np.ones((2, 1)), np.ones((2, 3))], np.zeros(1)),
        r"different columns: agent 1 has rows of shape \(3,\), agent 0 \(1,\)",
    ),
    "text": (lambda: accord.Posterior(line, flat, [np.array([["a"]])], np.zeros(1)), "must hold numbers"),
    "structure": (
        lambda: accord.Posterior(line, flat, [np.ones((2, 1)), (np.ones((2, 1)),)], np.zeros(1)),
        "shards must have one structure: agent 1",
    ),
    "likelihood": (
        lambda: accord.Posterior(lambda x, d: d * x[0], flat, [np.ones((2, 1))], np.zeros(1)),
        r"one number per row, shape \(2,\), or a scalar; found shape \(2, 1\)",
    ),
    "scalar": (
        lambda: accord.Posterior(lambda x, d: d.sum() * x[0], flat, [np.ones((2, 1)), np.ones((3, 1))], np.zeros(1)),
        "a scalar log_likelihood needs shards of one shape",
    ),
    "rows": (
        lambda: accord.Posterior(lambda x, d: d[0] * x[0], flat, [(np.ones(2), np.ones(3))], np.zeros(1)),
        "arrays in the shard of agent 0 differ in rows",
    ),
    "names": (
        lambda: accord.Posterior(line, flat, [np.ones((2, 1))], np.zeros(1), names=["a", "b"]),
        "names must be 1 different strings",
    ),
    "quadratic": (
        lambda: accord.Posterior(
            lambda x, d: jnp.exp(x[0]) * d[:, 0], flat, [np.ones((2, 1))], np.zeros(1), quadratic=True
        ),
        "potential of agent 0 is not quadratic",
    ),
    "labels": (
        lambda: models.logistic_regression([(np.ones((2, 1)), np.array([0, 1])), (np.ones((2, 1)), np.array([1, 2]))]),
        "labels of a logistic regression must be 0 or 1, agent 1 has others",
    ),
    "counts": (
        lambda: models.poisson_regression([(np.ones((1, 1)), np.array([-1]))]),
        "agent 0 has others in 1 of 1 rows",
    ),
    "fractions": (
        lambda: models.poisson_regression([(np.ones((1, 1)), np.array([0.5]))]),
        "agent 0 has others in 1 of 1 rows",
    ),
    "regression columns": (
        lambda: models.linear_regression([(np.ones((2, 1)), np.ones(2)), (np.ones((2, 2)), np.ones(2))], 1.0),
        r"different columns: agent 1 has rows of shape \(2,\), agent 0 \(1,\)",
    ),
    "regression shape": (lambda: models.linear_regression([(np.ones(2), np.ones(2))]), r"X of shape \(rows, dim\)"),
    "regression empty": (lambda: models.linear_regression([(np.ones((0, 2)), np.ones(0))]), "agent 0 is empty"),
    "regression nan": (
        lambda: models.linear_regression([(np.ones((1, 1)), np.array([np.nan]))]),
        "agent 0 holds NaN",
    ),
    "noise scale": (
        lambda: models.linear_regression(rows(), noise_scale=0.0),
        "noise_scale must be a finite number > 0",
    ),
    "prior": (
        lambda: models.logistic_regression(rows(), prior_variance=-1.0),
        "prior_variance must be a finite number > 0",
    ),
    "covariance": (
        lambda: models.gaussian([0.0, 1.0], [1.0, -2.0]),
        "covariance of agent 1 must be finite, symmetric and positive definite, found the smallest eigenvalue -2",
    ),
    "gaussian shape": (
        lambda: models.gaussian(np.zeros((2, 2)), np.zeros((2, 3, 3))),
        r"found \(2, 2\) and \(2, 3, 3\)",
    ),
    "hessian": (
        lambda: models.quadratic(np.array([[[1.0, 1.0], [0.0, 1.0]]]), np.zeros((1, 2))),
        "hessian of agent 0 must be symmetric",
    ),
    "whole numbers": (
        lambda: accord.Posterior(line, flat, [np.array([[5_000_000_000]])], np.zeros(1)),
        "agent 0 holds whole numbers beyond 32 bits",
    ),
    "single number": (
        lambda: accord.Posterior(lambda x, d: d["a"] * x[0], flat, [{"a": np.ones(2), "b": 1.0}], np.zeros(1)),
        "agent 0 holds a single number",
    ),
    "reserved": (lambda: accord.Posterior(line, flat, [np.ones((2, 1))], {"agent": 0.0}), "the name 'agent' in init"),
    "path": (lambda: accord.Posterior(line, flat, [np.ones((2, 1))], {"a/b": 0.0}), "the name 'a/b' in init"),
    "exponent": (lambda: models.power([0.0], 1.0), "exponent - 1 must be a finite number > 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_clear_error(name):
    make, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_exact_needs_a_proper_gaussian():
    with pytest.raises(TypeError, match="laplace"):
        models.power([0.0], 1.5).exact()
    with pytest.raises(ValueError, match="improper"):
        models.quadratic(np.zeros((2, 1, 1)), np.zeros((2, 1))).exact()


def test_bad_gaussians():
    for mean, cov, message in (
        (np.zeros((2, 2)), 1.0, "must have shape"),
        (np.zeros(2), np.eye(3), "to fit mean"),
        (np.array([np.nan]), 1.0, "finite"),
        (np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (np.zeros(2), np.diag([1.0, -1.0]), "positive semi-definite, found the eigenvalue -1"),
    ):
        with pytest.raises(ValueError, match=message):
            accord.Gaussian(mean, cov)


def test_logdensity_can_be_traced_and_called_in_any_order_and_width():
    post = models.logistic_regression([(X, (y > 0).astype(int)) for X, y in rows((9, 4))])
    traced = jax.jit(post.logdensity)(jnp.asarray(X_AT))
    single = post.logdensity(jnp.asarray(X_AT))
    with jax.enable_x64(True):
        double = post.logdensity(jnp.asarray(X_AT))
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    expected = -sum(potentials(post, X_AT))
    np.testing.assert_allclose([traced, single, double], expected, rtol=1e-5)


def test_rows_that_depend_on_other_rows_are_refused():
    """Padding would silently change the number of a row that depends on others."""

    def centred(x, rows):
        return -0.5 * (rows - rows.mean() - x[0]) ** 2

    rows = [np.arange(3.0), np.arange(4.0)]
    with pytest.raises(ValueError, match="does not depend on other rows: at agent 0 numbers change by up to 0.375"):
        accord.Posterior(centred, lambda x: -0.5 * x[0] ** 2, rows, np.zeros(1)).potential  # noqa: B018
    # the mean does not show at zero, and the largest row may be in the first half
    for slope in (lambda r: r - r.mean(), lambda r: r - r.max()):
        hidden = lambda x, r, slope=slope: -0.5 * (x[0] * slope(r)) ** 2  # noqa: E731
        with pytest.raises(ValueError, match="does not depend on other rows: at agent 0"):
            accord.Posterior(hidden, lambda x: -0.5 * x[0] ** 2, rows, np.zeros(1)).potential  # noqa: B018
    # a scalar likelihood may depend on all rows
    shards = [np.arange(3.0), np.arange(3.0)]
    whole = accord.Posterior(lambda x, r: centred(x, r).sum(), lambda x: -0.5 * x[0] ** 2, shards, np.zeros(1))
    assert not whole.splits


def test_a_prior_that_is_not_a_scalar_is_refused():
    with pytest.raises(ValueError, match=r"log_prior must return one number, a scalar; found shape \(2,\)"):
        accord.Posterior(lambda x, r: -0.5 * (r - x[0]) ** 2, lambda x: -0.5 * x**2, [np.ones(3)], np.zeros(2)).splits  # noqa: B018


@pytest.mark.long
def test_functions_that_jax_cannot_trace_raise_with_a_remedy():
    def log_likelihood(x, rows):
        return -((rows - x) ** 2)

    def branching(x, *rows):
        return -(x**2) if x > 0 else -x

    message = r"log_prior must be written in jax\.numpy.*\((Tracer|Concretization)\w*Error, see above"
    # the prior is checked before data is read
    for shards in ([np.ones(3)], [lambda: np.ones(3)]):
        for prior in (branching, np.exp, lambda x: scipy.stats.norm.logpdf(x), lambda x: -float(x)):
            with pytest.raises(TypeError, match=message):
                accord.Posterior(log_likelihood, prior, shards, 0.0)
    with pytest.raises(TypeError, match=r"log_likelihood must be written in jax\.numpy.*\(TracerBoolConversionError"):
        accord.Posterior(branching, jnp.negative, [np.ones(3)], 0.0)
    local = accord.Local(lambda x, latent, row: np.exp(latent), init=0.0)
    with pytest.raises(TypeError, match=r"log_prior of local must be written in jax\.numpy"):
        accord.Posterior(lambda x, latents, rows: rows + latents, jnp.negative, [np.ones(3)], 0.0, local=local)
    # other errors pass through
    with pytest.raises(ZeroDivisionError):
        accord.Posterior(log_likelihood, lambda x: 1 / 0, [np.ones(3)], 0.0)


def test_nothing_depends_on_rows_far_from_the_prior():
    shards = [(X[:5], (y[:5] > 0).astype(float)) for X, y in rows((9, 9))]
    post = models.logistic_regression(shards, prior_variance=4.0)
    near = post.near_prior(10.0)
    inside, outside = np.zeros(post.dim), np.zeros(post.dim)
    # the prior's standard deviation is 2
    inside[0], outside[0] = 19.9, 20.1
    np.testing.assert_array_equal(potentials(near, inside), potentials(post, inside))
    assert np.isfinite(potentials(post, outside)).all() and np.isposinf(potentials(near, outside)).all()
    np.testing.assert_allclose(post.prior_distance(np.stack([inside, outside])), [9.95, 10.05])
