"""Closed-form values of quadratic potentials against values from rows in extended precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accord import Network, Rounds, models, sample, samplers
from accord.engines.build import build_problem
from accord.posterior.coordinates import Coordinates, place_shard
from accord.posterior.quadratic import Quadratic, with_eigenvectors

PRIOR = 1e16


def regression(kind):
    """Rows (agent, row, dim), answers (agent, row), and points within a few deviations of the posterior mode."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3, 2, 5) if kind == "fewer rows than columns" else (3, 400, 3))
    y = X.sum(axis=2) + 20.0 * rng.standard_normal(X.shape[:2])
    if kind != "plain" and kind != "units":
        X[..., 0] = 1.0
        y += 1e6
    if kind == "nearly collinear":
        X[..., 1] += 1e3
    if "units" in kind:
        X = X * [1.0, 1e4, 1e-4]
    flat = X.reshape(-1, X.shape[2])
    mode = np.linalg.lstsq(flat, y.reshape(-1), rcond=None)[0]
    # QR, because normal equations lose precision for nearly collinear columns
    factor = np.linalg.inv(np.linalg.qr(flat)[1])
    return X, y, Coordinates(mode, factor)


def value_of_rows(X, y, x):
    """f_i at points (point, dim), (agent, point), in extended precision."""
    X, y, x = (np.asarray(leaf, np.longdouble) for leaf in (X, y, x))
    residual = y[:, None] - np.einsum("ard,pd->apr", X, x)
    constant = X.shape[1] * np.log(2 * np.pi) / 2 + X.shape[2] * np.log(2 * np.pi * PRIOR) / 6
    return (residual**2).sum(axis=2) / 2 + (x**2).sum(axis=1) / (6 * PRIOR) + constant


def worst(found, right):
    """The largest error of differences between points."""
    error = np.asarray(found, np.longdouble) - right
    return float(np.abs(error - error[:, :1]).max())


KINDS = ["plain", "units", "offset", "units and offset", "nearly collinear", "fewer rows than columns"]


@pytest.mark.parametrize("wide", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("moved", [False, True], ids=["parameters", "coordinates"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_from(9)
def test_closed_form_values_are_more_accurate_than_values_from_rows(kind, moved, wide):
    X, y, place = regression(kind)
    post = models.linear_regression(list(zip(X, y, strict=True)), noise_scale=1.0, prior_variance=PRIOR)
    z = np.random.default_rng(1).standard_normal((20, post.dim))
    with jax.enable_x64(wide):
        points = jnp.asarray(z if moved else place.origin + z @ place.factor.T)
        exact = np.asarray(points).astype(np.longdouble)
        right = value_of_rows(X, y, place.origin + exact @ place.factor.T.astype(np.longdouble) if moved else exact)
        potential = post.potential.within(place) if moved else post.potential

        def values(shard):
            own = place_shard(shard, place) if moved else shard
            return jax.vmap(lambda x: potential.value(own, x))(points)

        shards = post.stacked()
        own, rows = (jax.jit(jax.vmap(values))(form) for form in (shards, shards._replace(quadratic=None)))
    if wide:
        np.testing.assert_allclose(own, np.asarray(right, float), rtol=1e-12, atol=1e-8)
        # values are about 1e5, with terms of 1e12 if answers are far from 0
        assert worst(own, right) < (1e-9 if kind != "nearly collinear" else 1e-8)
    assert worst(own, right) <= 1.1 * worst(rows, right)


def test_nearly_flat_forms_use_values_from_rows():
    # an agent with fewer rows than columns under a nearly flat prior: its minimum may be far away
    X, y, place = regression("fewer rows than columns")
    post = models.linear_regression(list(zip(X, y, strict=True)), noise_scale=1.0, prior_variance=PRIOR).alone(1)
    z = np.random.default_rng(1).standard_normal((20, post.dim))
    with jax.enable_x64(True):
        points = jnp.asarray(place.origin + z @ place.factor.T)
        shards = post.stacked(agents=[1])
        found = jax.vmap(lambda x: jax.vmap(post.potential.value, (0, None))(shards, x))(points)[:, 0]
        rows = jax.vmap(lambda x: jax.vmap(post.potential.value, (0, None))(shards._replace(quadratic=None), x))(points)
        placed = jax.vmap(place_shard, (0, None))(shards, place)
    assert shards.quadratic.center is None and placed.quadratic.center is None
    np.testing.assert_array_equal(found, rows[:, 0])


def test_values_and_gradients_read_no_row():
    X, y, _ = regression("plain")
    post = models.linear_regression(list(zip(X, y, strict=True)), noise_scale=1.0)
    shards = post.stacked()
    unread = shards._replace(rows=jax.tree.map(lambda leaf: leaf * jnp.nan, shards.rows))
    for of in (post.potential.value, post.potential.slope):
        found, right = (jax.tree.leaves(jax.vmap(of, (0, None))(own, jnp.ones(3))) for own in (unread, shards))
        for own, other in zip(found, right, strict=True):
            np.testing.assert_array_equal(own, other)


def test_an_agent_alone_gives_the_same_values_as_in_a_stack():
    X, y, place = regression("units and offset")
    post = models.linear_regression(list(zip(X, y, strict=True)), noise_scale=1.0)
    with jax.enable_x64(True):
        x = jnp.asarray(place.origin + place.factor[:, 0])
        together = jax.vmap(post.potential.slope, (0, None))(post.stacked(), x)
        alone = post.alone(1)
        value, slope = jax.vmap(alone.potential.slope, (0, None))(alone.stacked(agents=[1]), x)
    np.testing.assert_allclose(value, together[0][1:2], rtol=1e-12)
    np.testing.assert_allclose(slope, together[1][1:2], rtol=1e-12)


def test_forms_without_a_minimum_have_values():
    # the first is flat and slopes along the second axis, the second bends down: their sum has a minimum
    hessians = np.array([[[2.0, 0.0], [0.0, 0.0]], [[-1.0, 0.0], [0.0, 3.0]]])
    linear = np.array([[1.0, -2.0], [0.5, 0.0]])
    post = models.quadratic(hessians, linear)
    x = np.array([0.7, -1.3])
    right = np.einsum("i,nij,j->n", x, hessians, x) / 2 - linear @ x
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.vmap(post.potential.value, (0, None))(post.stacked(), x), right, rtol=1e-14)
        for agent in (0, 1):
            own = post.alone(agent)
            found = jax.vmap(own.potential.value, (0, None))(own.stacked(agents=[agent]), x)
            np.testing.assert_allclose(found, right[agent : agent + 1], rtol=1e-14)


@pytest.mark.parametrize("dim", [1, 2, 6, 7, 20])
def test_proximal_steps_and_their_noise_match_the_hessian(dim):
    rng = np.random.default_rng(dim)
    factor, center, linear = rng.standard_normal((dim, dim)), rng.standard_normal(dim), rng.standard_normal(dim)
    strength = 0.7
    hessian = factor @ factor.T
    precision = hessian + strength * np.eye(dim)
    with jax.enable_x64(True):
        form = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[0]), with_eigenvectors(Quadratic(hessian[None], linear[None]))
        )
        point = form.proximal_point(jnp.asarray(strength), jnp.asarray(center))
        root = np.asarray(jax.vmap(lambda normal: form.spread(jnp.asarray(strength), normal))(jnp.eye(dim))).T
    np.testing.assert_allclose(point, np.linalg.solve(precision, strength * center + linear), rtol=1e-10)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 20])
def test_proximal_steps_far_from_zero_do_not_accumulate_rounding(dim):
    # the step at the minimum is zero, and rounding errors would add up over rounds
    rng = np.random.default_rng(dim)
    factor = rng.standard_normal((50, dim, dim))
    hessians, center = factor @ factor.swapaxes(1, 2), np.float32(1e5 * (1.0 + rng.random((50, dim))))
    forms = with_eigenvectors(Quadratic(hessians, np.einsum("nij,nj->ni", hessians, center)))
    forms = jax.tree.map(jnp.float32, forms)
    strength = 1000.0 * np.linalg.eigvalsh(hessians)[:, -1]
    points = jax.vmap(Quadratic.proximal_point)(forms, jnp.float32(strength), center)
    # within the last digit of the center; (H + s I)^-1 (s center + b) is off by several
    assert (np.abs(points - center) <= np.spacing(center)).all()


# the gap of the small eigenvalues is far below, and above, the rounding of the large one
@pytest.mark.parametrize("large", [1e8, 1e2])
def test_eigenvectors_are_accurate_in_any_units(large):
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    hessian = np.diag([large, 0.0, 0.0])
    hessian[1:, 1:] = rotation * [4e-3, 5e-3] @ rotation.T
    form = with_eigenvectors(Quadratic(hessian[None], np.zeros((1, 3))))
    V, values = form.eigenvectors[0], form.eigenvalues[0]
    root = np.sqrt(np.diagonal(hessian))
    np.testing.assert_allclose((V * values @ V.T) / np.outer(root, root), hessian / np.outer(root, root), atol=1e-6)


def test_extreme_units_are_refused():
    hessians = np.array([np.eye(3), np.diag([1e8, 1e-8, 3e-8])])
    with pytest.raises(ValueError, match=r"differ too much: .* from 1e-08 to 1e\+08, .* Use whiten=True"):
        with_eigenvectors(Quadratic(hessians, np.zeros((2, 3))))


def test_a_regression_with_columns_in_different_units_reaches_its_mean():
    rng = np.random.default_rng(0)
    shards = []
    for _ in range(4):
        X = np.stack([rng.normal(3e4, 1e4, 60), rng.normal(0.02, 0.01, 60), rng.normal(0.1, 0.05, 60)], axis=1)
        shards.append((X, X @ [1e-3, 3.0, -2.0] + 1.0 + 0.1 * rng.standard_normal(60)))
    post = models.linear_regression(shards, noise_scale=1.0, prior_variance=100.0)
    exact, method = post.exact(), samplers.DADMMS(rho=0.1, temperature=0.0)
    with jax.enable_x64(True):
        run = sample(
            post, Network.complete(4), Rounds(method, burn_in=20_000), draws=1, chains=1, seed=1, progress=False
        )
    off = (run.draws[0, -1] - exact.mean) / np.sqrt(np.diagonal(exact.cov))
    # rounding in the large column leaves single agents off by some tenths of a standard deviation
    assert np.abs(off.mean(axis=0)).max() < 0.05 and np.abs(off).max() < 2.0


def test_values_in_rounds_resolve_positions_far_from_zero():
    # without the constant m^2, values of (x - m)^2 are about 1e10 in size
    post, net = models.gaussian(1e5 + np.array([-1.0, 0.0, 1.0, 2.0]), np.ones(4)), Network.ring(4)

    def differences():
        problem = build_problem(post, net, samplers.DMAHMC(0.3).bind(post, net), 0)
        own = jax.tree.map(lambda leaf: leaf[1], problem.shards)
        at = [problem.potential.value(own, jnp.asarray([1e5 + away])) for away in (0.0, 0.5, -1.25)]
        return [float(value - at[0]) for value in at[1:]], float(at[0])

    found, level = differences()
    np.testing.assert_allclose(found, [0.125, 0.78125], atol=1e-4)
    assert abs(level) < 1.0
    # double precision keeps the level, which a hub reports
    with jax.enable_x64(True):
        found, level = differences()
        np.testing.assert_allclose(found, [0.125, 0.78125], atol=1e-4)
        np.testing.assert_allclose(level, -0.5e10, rtol=1e-9)
