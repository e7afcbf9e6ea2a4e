"""The mode of a posterior in any units, and the errors of posteriors without a mode."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.posterior.coordinates import Coordinates
from accord.posterior.newton import Expansion, newton, spectrum
from accord.tuning.warmup import warm_up

RING = accord.Network.ring(4)
# an intercept, an income in dollars and a height in inches: curvatures up to 1e11 apart
UNITS = np.array([1.0, 2e4, 4.0])


def likelihood(x, rows):
    X, y = rows
    return y * (X @ x) - jax.nn.softplus(X @ x)


def flat(x):
    return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(x))


def labels(units, agents=4, count=240):
    """A logistic regression under a flat prior whose columns are in some units."""
    rng = np.random.default_rng(0)
    X = np.c_[np.ones(count), rng.normal([3.0, 17.0], 1.0, (count, 2))]
    y = (rng.random(count) < 1.0 / (1.0 + np.exp(-(X - [0.0, 3.0, 17.0]) @ [0.3, 0.8, -0.4]))).astype(float)
    shards = [(X[i::agents] * units, y[i::agents]) for i in range(agents)]
    return accord.Posterior(likelihood, flat, shards, np.zeros(3), names=("base", "income", "height"))


def salaries(agents=4, count=200):
    """A regression in dollars and inches whose standard deviation is unknown, with its rows."""
    rng = np.random.default_rng(1)
    X = np.c_[np.ones(count), rng.normal(67.0, 4.0, count)]
    y = X @ [-3600.0, 800.0] + 12_000.0 * rng.standard_normal(count)

    def log_likelihood(p, rows):
        X, y = rows
        return -0.5 * ((y - X @ p["beta"]) * jnp.exp(-p["log_sd"])) ** 2 - p["log_sd"]

    shards = [(X[i::agents], y[i::agents]) for i in range(agents)]
    return accord.Posterior(log_likelihood, flat, shards, {"beta": np.zeros(2), "log_sd": np.zeros(())}), X, y


@pytest.mark.long
def test_the_mode_does_not_depend_on_units():
    plain, scaled = labels(np.ones(3)), labels(UNITS)
    np.testing.assert_allclose(scaled.mode() * UNITS, plain.mode(), rtol=1e-7)
    with jax.enable_x64(True):
        expected, found = warm_up(plain, RING), warm_up(scaled, RING)
    np.testing.assert_allclose(found.mode * UNITS, expected.mode, rtol=1e-6)
    np.testing.assert_allclose(found.coordinates.origin * UNITS, expected.coordinates.origin, rtol=1e-5)
    np.testing.assert_allclose(found.coordinates.factor * UNITS[:, None], expected.coordinates.factor, atol=1e-5)
    np.testing.assert_allclose(found.stiffness, expected.stiffness, rtol=1e-4)
    np.testing.assert_array_equal(found.spent.exchanges, expected.spent.exchanges)


@pytest.mark.long
def test_a_diagonal_warm_up_does_not_depend_on_units():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4, 30, 3)), rng.standard_normal((4, 30))

    def post(units):
        rows = [(x * units, t) for x, t in zip(X, y, strict=True)]
        return accord.Posterior(lambda p, rows: -((rows[1] - rows[0] @ p) ** 2) / 2.0, flat, rows, np.zeros(3))

    with jax.enable_x64(True):
        expected, found = (warm_up(post(units), RING, dense=0) for units in (np.ones(3), UNITS))
    np.testing.assert_allclose(found.mode * UNITS, expected.mode, atol=1e-6)
    np.testing.assert_allclose(found.coordinates.factor * UNITS, expected.coordinates.factor, rtol=1e-6)


def test_a_regression_in_dollars_and_inches_is_drawn():
    post, X, y = salaries()
    beta, (rest,) = np.linalg.lstsq(X, y)[:2]
    np.testing.assert_allclose(post.mode(), [*beta, 0.5 * np.log(rest / len(y))], rtol=1e-6)
    run = accord.sample(post, RING, draws=2000, chains=8, seed=0)
    # the coefficients are Student t with N - 2 degrees of freedom about the least squares
    sd = np.sqrt(np.diag(np.linalg.inv(X.T @ X)) * rest / (len(y) - 4))
    draws = run.draws[..., :2].reshape(-1, 2).astype(float)
    np.testing.assert_allclose((draws.mean(axis=0) - beta) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1.0, atol=0.05)


def wells(x):
    """Two wells, at -1 and 1 along the first axis, and a saddle between them."""
    value = (x[0] ** 2 - 1.0) ** 2 + 1e6 * x[1] ** 2
    hessian = np.diag([12.0 * x[0] ** 2 - 4.0, 2e6])
    return Expansion(value, np.array([4.0 * x[0] * (x[0] ** 2 - 1.0), 2e6 * x[1]]), hessian)


def test_newton_leaves_a_saddle():
    mode, hessian = newton(wells, np.zeros(2), ("x", "y"), last_step=1e-6)
    np.testing.assert_allclose(np.abs(mode), [1.0, 0.0], atol=1e-8)
    assert (np.linalg.eigvalsh(hessian) > 0).all()


def test_a_spectrum_does_not_depend_on_units():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 5))
    hessian, units = A @ A.T, 10.0 ** np.array([-9.0, -4.0, 0.0, 5.0, 8.0])
    plain, scaled = spectrum(hessian), spectrum(hessian * np.outer(units, units))
    np.testing.assert_allclose(scaled.values, plain.values, rtol=1e-9)
    np.testing.assert_allclose(scaled.hessian(scaled.values), hessian * np.outer(units, units), rtol=1e-9)
    place = Coordinates.whitening(np.zeros(5), hessian * np.outer(units, units))
    np.testing.assert_allclose(place.factor.T @ (hessian * np.outer(units, units)) @ place.factor, np.eye(5), atol=1e-9)


# --- posteriors without a mode ---


def test_a_density_without_bound_is_not_called_separated():
    # a centred hierarchy: its density grows for ever as the scale goes to 0 and the effects to their mean
    def log_likelihood(p, shard):
        within = jnp.sum((shard["y"] - p["effect"]) ** 2)
        between = jnp.sum((p["effect"] * jnp.exp(-p["log_tau"])) ** 2) + 16.0 * p["log_tau"]
        return -(within + between) / 8.0

    shards = [{"y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]) / 10.0}] * 4
    post = accord.Posterior(log_likelihood, flat, shards, {"effect": np.zeros(8), "log_tau": np.zeros(())})
    for find in (post.mode, lambda: warm_up(post, RING)):
        with pytest.raises(ArithmeticError, match=r"no mode found.*still falls.* no lower bound") as error:
            find()
        assert "separated" not in str(error.value)


@pytest.mark.parametrize("offset", [1e5, 1e6])
def test_data_too_far_from_zero_for_single_precision_raise(offset):
    rows = [(np.ones((50, 1)), offset + np.random.default_rng(agent).normal(size=50)) for agent in range(4)]
    post = accord.models.linear_regression(rows, noise_scale=1.0, prior_variance=1e14)
    with pytest.raises(
        ArithmeticError,
        match=rf"float32 numbers near x\[0\] = {re.escape(f'{offset:.6g}')} are 0\.\d+ posterior standard deviations",
    ):
        warm_up(post, RING)
    with jax.enable_x64(True):
        np.testing.assert_allclose(warm_up(post, RING).mode, np.mean([y for _, y in rows]), atol=1e-3)


@pytest.mark.filterwarnings("ignore:column 0 of the rows")
def test_a_mode_at_coarse_float_spacing_raises():
    # single precision rounds all rows to init, where the gradient is zero
    rows = [1e8 + np.random.default_rng(agent).normal(size=50) for agent in range(4)]
    post = accord.Posterior(lambda x, y: -0.5 * (y - x) ** 2, lambda x: -0.5e-4 * (x - 1e8) ** 2, rows, 1e8)
    with pytest.raises(ArithmeticError, match=r"no mode found: float32 numbers near x = 1e\+08 are 1\S+ posterior"):
        warm_up(post, RING)
    np.testing.assert_allclose(post.mode(), np.mean(rows), atol=1e-3)


def test_a_piecewise_linear_potential_has_no_curvature():
    rows = [np.array([-1.0]), np.array([0.4]), np.array([0.5]), np.array([2.0])]
    post = accord.Posterior(lambda x, y: -3.0 * jnp.abs(y - x), lambda x: -jnp.abs(x), rows, 0.1)
    with pytest.raises(ArithmeticError, match="no curvature in any direction, like a piecewise linear"):
        warm_up(post, RING)


def test_a_flat_direction_is_named():
    X = np.random.default_rng(0).standard_normal((4, 10, 3))
    X[..., 2] = 1e5 * X[..., 1]
    shards = [(x, (x[:, 0] > 0.3 * np.arange(-5, 5)).astype(float)) for x in X]
    post = accord.Posterior(likelihood, flat, shards, np.zeros(3))
    with pytest.raises(
        ArithmeticError, match=r"no mode found: the potential is flat along a direction dominated by x\[[12]\]"
    ):
        post.mode()


def test_an_agent_with_nan_is_named():
    shards = [np.ones(5), np.ones(5), np.array([1.0, 1.0, 1.0, -1.0, 1.0]), np.ones(5)]
    post = accord.Posterior(lambda x, rows: -((jnp.sqrt(rows) - x[0]) ** 2), flat, shards, np.zeros(1))
    with pytest.raises(ArithmeticError, match="the potential of agent 2 is NaN: check its log likelihood, or give an"):
        accord.sample(post, RING, accord.samplers.Importance(), draws=10, seed=0)
    # NaN at all agents names none of them
    outside = accord.Posterior(lambda x, rows: rows * jnp.sqrt(x[0]), flat, [np.ones(5)] * 4, np.full(1, -1.0))
    for find in (outside.mode, lambda: warm_up(outside, RING)):
        with pytest.raises(ArithmeticError, match="init is nan.* not finite there; give another init"):
            find()


def test_an_init_without_density_raises():
    def log_likelihood(x, rows):
        return jnp.log(x[0]) - rows * x[0]

    post = accord.Posterior(log_likelihood, flat, [np.ones(5)] * 4, np.zeros(1))
    for find in (post.mode, lambda: warm_up(post, RING)):
        with pytest.raises(ArithmeticError, match=r"the potential at init is inf.*give another init"):
            find()
