"""Differential privacy: sensitivity, noise, accounting, coverage and refusals of `Private`."""

import json

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import accord
from accord.models import families
from accord.posterior.coarse import CoarseTotals, Noise
from accord.posterior.coordinates import Coordinates
from accord.posterior.masks import integers_under_masks
from accord.posterior.totals import TotalsHere
from accord.samplers import Importance, Private
from accord.samplers.by_sums import private, private_families, private_linear, private_logistic, private_model
from accord.samplers.by_sums.evaluations import unpacked
from accord.samplers.by_sums.private_families import OTHERS, FamilyScores
from accord.samplers.by_sums.private_linear import Linear
from accord.samplers.by_sums.private_logistic import Logistic, clipped_newton, step_of
from accord.samplers.by_sums.private_model import Budget, Release, strength

NAMES = ("intercept", "age", "dose", "x")
RANGES = {"intercept": (1, 1), "age": (20, 80), "dose": (0, 4), "x": (-1, 1)}
MASKED = accord.engines.Local(masks=True)


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(count), *(rng.uniform(*RANGES[name], count) for name in NAMES[1:])])
    y = rng.random(count) < expit(X @ [-1.0, 0.02, 0.3, -0.5])
    return X, y.astype(float)


def logistic(count=3000, agents=3, seed=0):
    X, y = rows(count, seed)
    shards = [(X[k::agents], y[k::agents]) for k in range(agents)]
    return accord.models.logistic_regression(shards, prior_variance=6.25, names=NAMES)


RESPONSE, COUNTS = {"y": (0, 10)}, {"y": (0, 20)}


def linear(count=3000, agents=3, seed=0, prior_variance=100.0):
    X, _ = rows(count, seed)
    y = X @ [2.0, 0.04, 0.3, -0.5] + 0.7 * np.random.default_rng(seed + 1).standard_normal(count)
    shards = [(X[k::agents], y[k::agents]) for k in range(agents)]
    return accord.models.linear_regression(shards, prior_variance=prior_variance, names=NAMES)


def poisson(count=3000, agents=3, seed=0):
    X, _ = rows(count, seed)
    y = np.random.default_rng(seed + 1).poisson(np.exp(X @ [-0.4, 0.015, 0.2, -0.3])).astype(float)
    return accord.models.poisson_regression([(X[k::agents], y[k::agents]) for k in range(agents)], names=NAMES)


def numbers_of(X, y, position, step, place=None):
    """The clipped sums of one agent, without noise: gradient and Hessian."""
    post = accord.models.logistic_regression([(X, y)])
    with jax.enable_x64(True):
        here = TotalsHere(post.potential, post.stacked())
        (found,) = here(clipped_newton, step.radius, step.weight, points=position[None], coordinates=place)
    return np.asarray(found[: len(position)]), unpacked(np.asarray(found[len(position) :]), len(position))


# --- accounting ---


def delta_of(parts, epsilon):
    """Delta of two Gaussian mechanisms, by convolving their privacy losses, whose laws are N(mu^2 / 2, mu^2)."""
    nodes = np.linspace(-9.0, 9.0, 4001)
    mass = stats.norm.pdf(nodes) * (nodes[1] - nodes[0])
    first, second = (mu**2 / 2.0 + mu * nodes for mu in parts)
    return sum(
        weight * np.sum(mass * -np.expm1(np.minimum(0.0, epsilon - loss - second)))
        for loss, weight in zip(first, mass, strict=True)
    )


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
@pytest.mark.parametrize(
    "model",
    [Logistic(), Linear(), *(FamilyScores(one, (0.1, 9.0)) for one in (families.Poisson(), families.Gamma()))],
)
def test_all_steps_have_the_loss_of_epsilon_and_delta(epsilon, delta, model):
    assert sum(model.shares) == pytest.approx(1.0)
    # two steps, or the last one and all others
    parts = strength(epsilon, delta) * np.sqrt([sum(model.shares[:-1]), model.shares[-1]])
    assert delta_of(parts, epsilon) == pytest.approx(delta, rel=2e-3)
    # 5% less noise
    assert delta_of(1.05 * parts, epsilon) > 1.2 * delta


# --- sensitivity ---


def distance(one, other, step):
    """Difference of two agents' numbers in sds of the noise."""
    gradient, hessian = one[0] - other[0], one[1] - other[1]
    return np.sqrt(np.sum(gradient**2) / step.of_gradient**2 + np.sum(hessian**2) / step.of_hessian**2)


@pytest.mark.parametrize("dim", [2, 5, 15])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
def test_a_replaced_row_changes_sums_by_at_most_mu_sds(dim, scale, mu=0.3):
    rng = np.random.default_rng(dim)
    position = scale * rng.standard_normal(dim)
    corners = np.sign(rng.standard_normal((60, dim)))
    corners[:, 0] = 1.0
    # most likely and least likely responses of rows along the position
    along = np.where(position == 0.0, 1.0, np.sign(position))
    X = np.vstack([corners, along * along[0], -along * along[0], 50.0 * corners[:5], 1e-3 * corners[:5]])
    X = np.vstack([X, rng.uniform(-1.0, 1.0, (20, dim))])
    labels = np.repeat([0.0, 1.0], len(X))
    post = accord.models.logistic_regression(
        [(x[None], y[None]) for x, y in zip(np.vstack([X, X]), labels, strict=True)]
    )
    largest = []
    with jax.enable_x64(True):
        here = post.totals_here()
        for growth in private_logistic._GROWTH:
            step = step_of(position, mu, growth)
            each = here.each(clipped_newton, step.radius, step.weight, points=position[None])[:, 0]
            hessians = unpacked(np.asarray(each[:, dim:]), dim).reshape(len(each), -1)
            both = np.hstack([each[:, :dim] / step.of_gradient, hessians / step.of_hessian])
            apart = np.sqrt(np.maximum(0.0, np.sum((both[:, None] - both) ** 2, axis=2)))
            largest.append(apart.max() / mu)
    assert max(largest) <= 1.0 + 1e-9
    # the bound is nearly attained
    assert max(largest) > 0.6


def test_rows_that_are_not_finite_count_as_zero_and_far_rows_are_clipped():
    X, y = rows(50)
    place = Coordinates(np.zeros(4), np.eye(4))
    step = step_of(np.zeros(4), 0.5, 1.6)
    expected = numbers_of(X[:40], y[:40], np.zeros(4), step, place)
    bad = np.array([[1.0, np.finfo(float).max, 1.0, 1.0]])
    found = numbers_of(np.vstack([X[:40], bad]), np.append(y[:40], 1.0), np.zeros(4), step, place)
    assert np.isfinite(found[0]).all() and distance(found, expected, step) <= 0.5


def test_rows_within_their_ranges_are_not_clipped():
    X, y = rows(200)
    place = Private(epsilon=1.0, ranges=RANGES)._place(logistic(30))
    position = np.array([0.3, -0.4, 0.2, 0.5])
    found = numbers_of(X, y, position, step_of(position, 0.4, 1.03), place)
    x = np.linalg.solve(place.factor.T, np.eye(4))
    columns = X @ place.factor
    assert x.shape == (4, 4) and np.abs(columns).max() <= 1.0 + 1e-12 and (columns[:, 0] == 1.0).all()
    mean = expit(columns @ position)
    np.testing.assert_allclose(found[0], columns.T @ (y - mean), rtol=1e-9)
    np.testing.assert_allclose(found[1], (columns * (mean * (1 - mean))[:, None]).T @ columns, rtol=1e-9)


# --- sensitivity of linear regressions ---


def moments_of_rows(x, y, position, step):
    """The numbers of each row, in units of half a range, (row, number)."""
    dim = x.shape[1]
    post = accord.models.linear_regression([(a[None], b[None]) for a, b in zip(x, y, strict=True)])
    place = Coordinates(np.zeros(dim + 1), np.eye(dim + 1))
    function, arguments, _ = Linear().message(place, step)
    with jax.enable_x64(True):
        return np.asarray(post.totals_here().each(function, *arguments, points=position[None]))[:, 0]


@pytest.mark.parametrize("dim", [2, 5, 15])
@pytest.mark.parametrize("log_sd", [None, -3.0])
def test_a_replaced_row_of_a_linear_regression_changes_sums_by_at_most_mu_sds(dim, log_sd, mu=0.3):
    rng, model = np.random.default_rng(dim), Linear()
    position = model.start(dim + 1) if log_sd is None else np.append(0.2 * rng.standard_normal(dim), log_sd)
    # rows that differ most: opposite residuals, and columns that differ in a fifth of their signs
    corners = np.ones((dim + 1, dim))
    for row in range(dim):
        corners[row, dim - row :] = -1.0
    x = np.vstack([corners, rng.uniform(-1.0, 1.0, (20, dim)), 50.0 * corners[:5], 1e-3 * corners[:5]])
    x = np.vstack([x, np.sign(rng.standard_normal((20, dim)))])
    x[:, 0] = 1.0
    step = model.step(position, mu, ())
    # far responses, and residuals in the middle and near the shoulders of the kernels
    y = np.concatenate([np.tile([-1.0, 1.0, 30.0, -30.0], (len(x), 1)), np.zeros((len(x), 5))], axis=1)
    y[:, 4:] = (x @ position[:-1])[:, None] + step.radius * np.array([0.0, -0.43, 0.2, 0.43, 0.6])
    x, y = np.repeat(x, 9, axis=0), y.ravel()
    each = moments_of_rows(x, y, position, step) / step.noise(dim + 1)
    apart = np.sqrt(np.maximum(0.0, np.sum((each[:, None] - each) ** 2, axis=2)))
    assert apart.max() <= mu * (1.0 + 1e-9)
    # the bound is nearly attained
    assert apart.max() > 0.9 * mu


def test_kernels_of_residuals_fit_into_the_norm_of_a_row():
    square, largest = np.linspace(0.0, 1.5, 100_001), private_linear._GROWTH * (1.0 + private_linear._RESIDUAL)
    sds = private_linear._CUT * square[:, None] ** 0.5
    kernels = np.exp(-(((sds - private_linear._MIDDLES) / private_linear._KERNEL_SD) ** 2)).sum(axis=1)
    moments = (1.0 + private_linear._RESIDUAL * np.minimum(square, 1.0)) ** 2
    norm = np.sqrt(moments + private_linear._kernel_weight(largest) ** 2 * kernels)
    assert 0.998 * largest < norm.max() <= largest


def test_a_row_that_overflows_counts_as_zero():
    x, y, step = np.full((2, 3), np.finfo(float).max), np.ones(2), Linear().step(Linear().start(4), 0.3, ())
    x[0] = 0.5
    # the product of a row and its scales overflows
    post = accord.models.linear_regression([(x, y)])
    place = Coordinates(np.zeros(4), np.diag([10.0, 10.0, 10.0, 1.0]))
    function, arguments, _ = Linear().message(place, step)
    with jax.enable_x64(True):
        found = np.asarray(post.totals_here()(function, *arguments, points=Linear().start(4)[None]))
    assert np.isfinite(found).all() and found.max() <= 1.0


def test_numbers_of_a_linear_regression_are_moments_in_units_of_half_a_range():
    post = linear(200, 1)
    place = Private(epsilon=1.0, ranges=RANGES | RESPONSE)._place(post)
    position = np.array([0.1, -0.2, 0.1, 0.3, -1.0])
    step = Linear().step(position, 0.4, ())
    function, arguments, _ = Linear().message(place, step)
    with jax.enable_x64(True):
        found = np.asarray(post.totals_here()(function, *arguments, points=position[None]))[0]
        X, y = (np.asarray(part)[0] for part in post.stacked().rows)
    low, high = np.array([RANGES[name] for name in NAMES], float).T
    x = np.where(high > low, (X - (low + high) / 2.0) / np.where(high > low, (high - low) / 2.0, 1.0), 1.0)
    quiet = step._replace(of_gradient=0.0, of_hessian=0.0, of_square=0.0, of_fit=(0.0,) * 3)
    exact = private_linear.answers(x, (y - 5.0) / 5.0, np.random.default_rng(0))(position, quiet)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9)
    # a position in these coordinates predicts the response
    here = place.origin + place.factor @ position
    np.testing.assert_allclose(X @ here[:-1], 5.0 + 5.0 * x @ position[:-1], rtol=1e-9)
    assert here[-1] == pytest.approx(np.log(5.0) - 1.0)


# --- scores of Poisson regressions ---


def poisson_numbers(post, place, model, position, step):
    """The numbers of each agent, (agent, number)."""
    function, arguments, _ = model.message(place, step)
    with jax.enable_x64(True):
        return np.asarray(post.totals_here().each(function, *arguments, points=position[None]))[:, 0]


@pytest.mark.parametrize("dim", [2, 5, 15])
@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0])
def test_a_replaced_row_of_a_poisson_regression_changes_sums_by_at_most_mu_sds(dim, scale, mu=0.3):
    rng, model = np.random.default_rng(dim), FamilyScores(families.Poisson(), (0.0, 20.0))
    position = scale * rng.standard_normal(dim)
    corners = np.ones((dim + 1, dim))
    for row in range(dim):
        corners[row, dim - row :] = -1.0
    # rows with the largest and the smallest means
    along = np.where(position == 0.0, 1.0, np.sign(position))
    x = np.vstack([corners, along, -along, 50.0 * corners[:5], 1e-3 * corners[:5], rng.uniform(-1.0, 1.0, (20, dim))])
    x[:, 0] = 1.0
    y = np.tile([0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0, 1e6], len(x))
    x = np.repeat(x, 8, axis=0)
    post = accord.models.poisson_regression([(a[None], b[None]) for a, b in zip(x, y, strict=True)])
    place = Coordinates(np.zeros(dim), np.eye(dim))
    last, release = step_after(model, position, mu)
    largest = []
    for step in (release.step, last):
        each = poisson_numbers(post, place, model, position, step) / step.noise(dim)
        largest.append(np.sqrt(np.maximum(0.0, np.sum((each[:, None] - each) ** 2, axis=2))).max() / mu)
    assert max(largest) <= 1.0 + 1e-9
    # the bound is nearly attained
    assert max(largest) > 0.6


@pytest.mark.parametrize("log_mean", [-2.0, 0.0, 2.0])
def test_the_dispersion_fits_into_the_norm_of_a_row(log_mean):
    model = FamilyScores(families.Poisson(), (0.0, 50.0))
    step, _ = step_after(model, np.array([log_mean - model.origin[0], 0.5, -0.5]))
    predictor, law = step.law.low + step.law.gap * np.arange(private_families._PREDICTORS), step.law
    residuals = np.arange(51.0)[:, None] - np.exp(model.origin[0] + predictor)
    weight, centre, slope, dispersion = law.at(np, predictor)
    off = np.minimum(np.abs(residuals / law.unit - centre[:, 0]), 1.0)
    squares = off**2 + private_families._HESSIAN * (slope[:, 0, 0] / law.level) ** 2
    squares = squares + (law.dispersion_of(np, residuals, dispersion) / law.dispersed(np)) ** 2
    largest = (1.0 + private_families._HESSIAN) ** 0.5
    assert 0.98 * largest < (weight * np.sqrt(squares)).max() <= largest * (1.0 + 1e-9)


def test_numbers_of_a_poisson_regression_are_scores_in_units_of_half_a_range():
    post, method = poisson(200, 1), Private(epsilon=1.0, ranges=RANGES | COUNTS)
    place, model = method._place(post), method._model(post)
    position = np.array([0.1, -0.2, 0.1, 0.3])
    step, _ = step_after(model, position)
    (found,) = poisson_numbers(post, place, model, position, step)
    X, y = (np.asarray(part)[0] for part in post.stacked().rows)
    x = X @ place.factor
    quiet = step._replace(of_gradient=0.0, of_hessian=0.0, of_fit=(0.0,))
    exact = model.answers(x, y, np.random.default_rng(0))(position, quiet)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    # a position in these coordinates predicts the response
    here = place.origin + place.factor @ position
    np.testing.assert_allclose(X @ here, model.origin[0] + x @ position, rtol=1e-9)


def test_a_row_of_a_poisson_regression_that_overflows_counts_as_zero():
    x, y, model = np.full((2, 3), np.finfo(float).max), np.ones(2), FamilyScores(families.Poisson(), (0.0, 20.0))
    x[0] = 0.5
    post = accord.models.poisson_regression([(x, y)])
    place = Coordinates(np.zeros(3), 10.0 * np.eye(3))
    (found,) = poisson_numbers(post, place, model, np.array([900.0, 0.0, 0.0]), model.step(np.zeros(3), 0.3, ()))
    assert np.isfinite(found).all()


# --- scores of other families ---

# family, declared range, and other parameter
OTHER_FAMILIES = {
    "gamma": (families.Gamma(), (0.01, 200.0), 2.0),
    "negative_binomial": (families.NegativeBinomial(), (0, 40), 2.0),
    "beta": (families.Beta(), (0.001, 0.999), 5.0),
    "student": (families.Student(nu=4.0), (-10.0, 10.0), 1.5),
}


def of_family(name, count, agents=1):
    """The posterior of a formula with one column."""
    family, ends, other = OTHER_FAMILIES[name]
    x, params = np.random.default_rng(0).uniform(0.0, 10.0, (agents, count // agents)), {OTHERS[name][0]: other}
    with jax.enable_x64(True):
        params = jax.tree.map(jax.numpy.asarray, params)
        y = np.asarray(family.replicated(params, jax.numpy.asarray(0.3 + 0.1 * x), {}, jax.random.key(0)))
    tables = [{"x": own, "y": response} for own, response in zip(x, y, strict=True)]
    return accord.models.glm(tables, "y ~ x", family, ranges={"x": (0.0, 10.0), "y": ends})


def step_after(model, position, mu=0.3, rows=5000.0):
    """The last step at a position, and the release of the first one."""
    dim, count = len(position), model.columns(len(position))
    first, start = model.step(np.zeros(dim), mu, ()), np.zeros(dim + dim * (dim + 1) // 2)
    weight = model._weight(np.zeros(1), Release.of(np.zeros(dim), first, start))[0]
    moments = np.diag([weight] + [weight / 3.0] * (count - 1) + [1.0] * (dim - count))[np.triu_indices(dim)]
    release = Release.of(np.zeros(dim), first, np.append(np.zeros(dim), rows * moments))
    return model.step(position, mu, [release]), release


@pytest.mark.parametrize("name", OTHER_FAMILIES)
@pytest.mark.parametrize(("dim", "scale"), [(2, 2.0), (5, 0.3), (15, 1.0)])
def test_a_replaced_row_of_another_family_changes_sums_by_at_most_mu_sds(name, dim, scale, mu=0.3):
    family, ends, _ = OTHER_FAMILIES[name]
    rng, model = np.random.default_rng(dim), FamilyScores(family, ends)
    position = scale * rng.standard_normal(dim + 1)
    corners = np.ones((dim + 1, dim))
    for row in range(dim):
        corners[row, dim - row :] = -1.0
    # rows with the largest and the smallest means
    along = np.where(position[:-1] == 0.0, 1.0, np.sign(position[:-1]))
    x = np.vstack([corners, along, -along, rng.uniform(-1.0, 1.0, (10, dim)), 1e-3 * corners[:5]])
    x[:, 0] = 1.0
    y = np.tile([ends[0], ends[1], *np.quantile(ends, [0.02, 0.1, 0.5])], len(x))
    y, x = np.round(y) if family.is_whole else y, np.repeat(x, 5, axis=0)
    for step in (model.step(np.zeros(dim + 1), mu, ()), step_after(model, position)[0]):
        at = position if step.law.gap > 1e-4 else np.zeros(dim + 1)
        exact = step._replace(of_gradient=0.0, of_hessian=0.0)
        each = [model.answers(a[None], b[None], rng)(at, exact) for a, b in zip(x, y, strict=True)]
        each = np.array(each) / step.noise(dim + 1)
        apart = np.sqrt(np.maximum(0.0, np.sum((each[:, None] - each) ** 2, axis=2))).max() / mu
        # the bound is nearly attained
        assert 0.6 < apart <= 1.0 + 1e-9


@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_numbers_of_another_family_are_clipped_scores_in_units_of_half_a_range(name):
    post, method = of_family(name, 300), Private(epsilon=1.0)
    place, model = method._place(post), method._model(post)
    position = np.array([0.1, -0.2, 0.3])
    step, _ = step_after(model, position)
    function, arguments, _ = model.message(place, step)
    with jax.enable_x64(True):
        (found,) = np.asarray(post.totals_here().each(function, *arguments, points=position[None]))[:, 0]
        rows = {key: np.asarray(leaf)[0] for key, leaf in post.stacked().rows.items()}
    x, quiet = rows["design"] @ place.factor[:-1, :-1] / model.origin[1], {"of_gradient": 0.0, "of_hessian": 0.0}
    assert np.abs(x).max() <= 1.0 + 1e-9
    exact = model.answers(x, rows["y"], np.random.default_rng(0))(position, step._replace(**quiet))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    # a position in these coordinates predicts the response
    here = place.origin + place.factor @ position
    predictor = model.origin[0] + model.origin[1] * (x @ position[:-1])
    np.testing.assert_allclose(rows["design"] @ here[:-1], predictor, rtol=1e-9)


@pytest.mark.parametrize("name", [*OTHER_FAMILIES, "poisson"])
def test_clipped_scores_have_no_bias_and_their_hessian_is_the_derivative(name, count=40_000):
    family, ends, other = OTHER_FAMILIES.get(name, (families.Poisson(), (0, 20), None))
    model, random = FamilyScores(family, ends), np.random.default_rng(1)
    at = np.array([{"beta": -0.5, "student": 0.0}.get(name, 0.5 - model.origin[0]), 0.3])
    at = np.append(at, [np.log(other) - model.origin[2]] if other else [])
    step, release = step_after(model, at)
    dim, units = len(at), model.units(release._replace(step=step))
    quiet = step._replace(of_gradient=0.0, of_hessian=0.0, of_fit=tuple(0.0 for _ in step.of_fit))
    x = np.column_stack([np.ones(count), random.uniform(-1.0, 1.0, count)])
    for change in 0.03 * np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])[:, :dim]:
        numbers = model.simulated(x, at + change / units, random)(at, quiet)
        hessian = unpacked(numbers[dim : dim + dim * (dim + 1) // 2], dim)
        off = numbers[:dim] - hessian @ change
        # sds, and the curvature beyond the Hessian
        assert (np.abs(off) < 3.5 * np.sqrt(np.diagonal(hessian)) + count * np.square(change).sum() / 2.0).all()
    # without their centres, scores would be far from mean zero
    plain = quiet._replace(law=step.law._replace(centre=0.0 * step.law.centre))
    bias = np.abs(model.simulated(x, at, random)(at, plain)[:dim]) / np.sqrt(np.diagonal(hessian))
    assert bias.max() > (15.0 if other else 5.0)


# --- noise ---


@pytest.mark.parametrize(("agents", "masks"), [(1, False), (2, False), (5, True)])
def test_noise_has_the_law_of_its_plan(agents, masks):
    post = logistic(60, agents)
    method = Private(epsilon=1.0, ranges=RANGES)
    budget = method._budget(agents, masks=masks)
    step, place = budget.step(Logistic(), np.zeros(4), ()), method._place(post)
    with jax.enable_x64(True):
        here = post.totals_here()
        exact = np.asarray(here(clipped_newton, step.radius, step.weight, points=np.zeros((1, 4)), coordinates=place))
        totals = CoarseTotals(here, Noise(agents, 4, 60), [np.random.default_rng(k) for k in range(agents)])
        coder = private._coder(agents, step.noise(4))
        options = {"points": np.zeros((1, 4)), "coordinates": place, "coder": coder}
        found = np.concatenate(
            [totals(clipped_newton, step.radius, step.weight, **options) - exact for _ in range(400)]
        )
    sds = coder.noise * agents**0.5
    assert stats.kstest((found / sds).ravel(), "norm").pvalue > 1e-3
    assert stats.kstest((0.9 * found / sds).ravel(), "norm").pvalue < 1e-3
    # all agents but one reveal their noise
    needed = step_of(
        np.zeros(4), budget.mu * private_logistic.SHARES[0] ** 0.5, private_logistic._GROWTH[0]
    ).of_gradient
    hidden = coder.noise[0] * (agents - min(method.colluding, agents - 1)) ** 0.5
    assert hidden == pytest.approx(needed) if agents > 1 else hidden >= needed


def test_colluding_agents_leave_the_noise_that_epsilon_needs():
    for agents in (1, 2, 3, 5, 10):
        for colluding in (0, 1, 3):
            if colluding >= agents:
                continue
            method = Private(epsilon=1.0, ranges=RANGES, colluding=colluding)
            excess = method._budget(agents, masks=True).excess
            # variance of the honest agents' noise
            assert excess**2 * (agents - colluding) / agents >= 1.0 - 1e-12


@pytest.mark.parametrize("agents", [1, 3])
def test_no_more_agents_than_all_others_can_collude(agents):
    most = max(1, agents - 1)
    Private(epsilon=1.0, ranges=RANGES, colluding=most).require(logistic(60, agents))
    with pytest.raises(ValueError, match=f"colluding must be at most {most}, .* found {most + 1}"):
        Private(epsilon=1.0, ranges=RANGES, colluding=most + 1).require(logistic(60, agents))


def test_agents_without_masks_add_all_of_the_noise_each():
    method = Private(epsilon=1.0, ranges=RANGES, colluding=0)
    # the other agent receives one message in the clear
    assert method._budget(2, masks=False).excess ** 2 / 2 >= 1.0 - 1e-12


def test_masks_hide_all_bits_of_wide_numbers():
    coder = private._coder(3, step_of(np.zeros(40), 0.3, 1.02).noise(40))
    masked = integers_under_masks(np.zeros_like(coder.mask), coder.mask, 0, {1: b"a" * 32, 2: b"b" * 32}, 1)
    bits = (masked[:, None] >> np.arange(8 * private._WIDTH)) & 1
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5.0 * 0.5 / len(masked) ** 0.5


# --- draws ---


@pytest.fixture
def briefly(monkeypatch):
    """Simulations of few studies."""
    monkeypatch.setattr(private_model, "_REPLICATES", 40)


@pytest.mark.parametrize("agents", [3, 1])
@pytest.mark.long_from(1)
def test_draws_are_near_the_posterior_and_wider(agents, briefly):
    post, network = logistic(8000, agents), accord.Network.complete(agents)
    engine = MASKED if agents > 2 else "local"
    run = accord.sample(post, network, Private(epsilon=2.0, ranges=RANGES), draws=500, engine=engine)
    exact = accord.sample(post, network, Importance(), draws=500)
    mean, sd = (getattr(exact.average, name)(axis=(0, 1)) for name in ("mean", "std"))
    wider = np.array([run.private["wider"][name] for name in NAMES])
    np.testing.assert_allclose(run.average.std(axis=(0, 1)) / sd, wider, rtol=0.25)
    assert ((wider > 1.02) & (wider < 2.0)).all()
    off = np.abs(run.average.mean(axis=(0, 1)) - mean) / sd
    # the noise of this run
    assert (off < 4.5 * np.sqrt(wider**2 - 1.0) + 0.15).all()
    assert run.certificate.holds and run.traffic.sums == 2
    assert run.private["epsilon"] == 2.0 and 0.85 <= run.private["coverage"] <= 0.97
    with pytest.raises(AttributeError, match="Private"):
        exact.private  # noqa: B018
    with pytest.raises(AttributeError, match="needs the weights"):
        run.log_evidence  # noqa: B018


def test_settings_of_the_guarantee_are_in_the_file(tmp_path, briefly):
    run = accord.sample(logistic(2000, 1), accord.Network.complete(1), Private(epsilon=3.0, ranges=RANGES), draws=100)
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").private == run.private


def test_noise_is_new_in_every_run(briefly):
    post, network = logistic(2000, 1), accord.Network.complete(1)
    one, other = (accord.sample(post, network, Private(epsilon=3.0, ranges=RANGES), draws=50, seed=1) for _ in range(2))
    assert np.abs(one.average.mean(axis=(0, 1)) - other.average.mean(axis=(0, 1))).max() > 1e-4


def intervals(studies, count, dim, epsilon, louder=1.0):
    """Whether intervals of 90% cover, (study, parameter), for columns between -1 and 1."""
    model, budget, inside = Logistic(), Budget(strength(epsilon, 1e-6), 1.0), []
    prior = np.zeros(dim), np.eye(dim) / 6.25
    for seed in range(studies):
        random = np.random.default_rng(seed)
        x, truth = random.uniform(-1.0, 1.0, (count, dim)), 0.5 * random.standard_normal(dim)
        x[:, 0] = 1.0
        answer = model.simulated(x, truth, random)

        def loud(at, step, answer=answer):
            return answer(at, step._replace(of_gradient=louder * step.of_gradient))

        _, found = budget.released(model, dim, count, loud, lambda at: prior, seed)
        low, high = np.quantile(found.draws(1000, random), [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
    return np.array(inside)


def test_a_large_correction_for_curvature_fails_the_certificate():
    random = np.random.default_rng(0)
    x = np.column_stack([np.ones(20_000), random.uniform(-1.0, 1.0, 20_000)])
    prior, step = (np.zeros(2), np.eye(2) / 6.25), step_of(np.zeros(2), 0.3, 1.8)
    for truth, holds in ([-0.5, 0.5], True), ([-5.0, 0.5], False):
        numbers = Logistic().simulated(x, np.array(truth), random)(np.zeros(2), step)
        releases = [Release.of(np.zeros(2), step, numbers)]
        check, _ = Logistic().checks(Logistic().given(releases, prior, 20_000, random), releases, 20_000)
        assert check.holds is holds and "correction for curvature" in check.text


@pytest.mark.parametrize(("count", "dim", "epsilon"), [(5000, 5, 1.0), (2000, 3, 0.8), (5000, 15, 3.0)])
@pytest.mark.long
def test_intervals_cover(count, dim, epsilon):
    inside = intervals(100, count, dim, epsilon).mean(axis=1)
    assert abs(inside.mean() - 0.9) < 0.01 + 3.0 * inside.std() / 10.0


@pytest.mark.long
def test_intervals_do_not_cover_if_the_noise_is_larger_than_planned():
    assert intervals(60, 5000, 5, 1.0, louder=2.0).mean() < 0.85


# --- draws of linear regressions ---


@pytest.mark.long_from(1)
@pytest.mark.parametrize("agents", [3, 1])
def test_draws_of_a_linear_regression_are_near_the_posterior_and_wider(agents, briefly):
    post, network = linear(8000, agents), accord.Network.complete(agents)
    engine = MASKED if agents > 2 else "local"
    run = accord.sample(post, network, Private(epsilon=2.0, ranges=RANGES | RESPONSE), draws=500, engine=engine)
    exact = accord.sample(post, network, Importance(), draws=500)
    mean, sd = (getattr(exact.average, name)(axis=(0, 1)) for name in ("mean", "std"))
    wider = np.array([run.private["wider"][name] for name in (*NAMES, "sigma")])
    np.testing.assert_allclose(run.average.std(axis=(0, 1)) / sd, wider, rtol=0.25)
    assert ((wider > 1.02) & (wider < 2.5)).all()
    off = np.abs(run.average.mean(axis=(0, 1)) - mean) / sd
    # the noise of this run
    assert (off < 4.5 * np.sqrt(wider**2 - 1.0) + 0.15).all()
    assert run.certificate.holds and run.traffic.sums == 2
    assert set(run.private["noise"][1]) == {"gradient", "hessian", "square", "fit"}


@pytest.mark.parametrize("prior_variance", [0.1, 100.0])
@pytest.mark.filterwarnings("ignore:the draws of Private are not certified")
def test_without_noise_the_posterior_of_a_linear_regression_is_exact(prior_variance, briefly):
    post, network = linear(300, 1, prior_variance=prior_variance), accord.Network.complete(1)
    method = Private(epsilon=1e7, ranges=RANGES | {"y": (-20, 30)})
    # not certified with the narrow prior: it contradicts the rows, and so the simulated studies
    run = accord.sample(post, network, method, draws=2000, progress=False)
    exact = accord.sample(post, network, Importance(), draws=2000)
    mean, sd = (getattr(exact.average, name)(axis=(0, 1)) for name in ("mean", "std"))
    np.testing.assert_allclose((run.average.mean(axis=(0, 1)) - mean) / sd, 0.0, atol=0.12)
    np.testing.assert_allclose(run.average.std(axis=(0, 1)) / sd, 1.0, atol=0.08)


def linear_intervals(studies, count, dim, epsilon, louder=1.0, residuals=None):
    """Whether intervals of 90% cover, (study, parameter), for columns between -1 and 1."""
    model, budget, inside = Linear(), Budget(strength(epsilon, 1e-6), 1.0), []
    prior = np.zeros(dim + 1), np.eye(dim + 1) / 6.25
    for seed in range(studies):
        random = np.random.default_rng(seed)
        x, truth = random.uniform(-1.0, 1.0, (count, dim)), 0.1 * random.standard_normal(dim + 1)
        x[:, 0], truth[-1] = 1.0, np.log(0.15)
        answer = model.simulated(x, truth, random)
        if residuals is not None:
            answer = private_linear.answers(x, x @ truth[:-1] + 0.15 * residuals(random, count), random)

        def loud(at, step, answer=answer):
            return answer(at, step._replace(of_gradient=louder * step.of_gradient))

        _, found = budget.released(model, dim + 1, count, loud, lambda at: prior, seed)
        low, high = np.quantile(found.draws(1000, random), [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
    return np.array(inside)


@pytest.mark.parametrize(
    ("count", "dim", "epsilon", "studies"), [(5000, 5, 1.0, 300), (2000, 3, 3.0, 300), (5000, 15, 3.0, 60)]
)
@pytest.mark.long
def test_intervals_of_linear_regressions_cover(count, dim, epsilon, studies):
    inside = linear_intervals(studies, count, dim, epsilon)
    for each in (inside[:, :-1].mean(axis=1), inside[:, -1]):
        assert abs(each.mean() - 0.9) < 0.01 + 3.0 * each.std() / studies**0.5


@pytest.mark.long
def test_intervals_of_linear_regressions_do_not_cover_if_the_noise_is_larger_than_planned():
    assert linear_intervals(60, 5000, 5, 1.0, louder=2.0)[:, :-1].mean() < 0.8


@pytest.mark.long
def test_heavy_tails_leave_intervals_of_coefficients_right():
    inside = linear_intervals(100, 5000, 5, 1.0, residuals=lambda random, n: random.standard_t(4, n) / 2.0**0.5)
    assert inside[:, :-1].mean() > 0.86


def normality(residuals, seeds, count=5000, dim=3, epsilon=1.0, model=None):
    """Checks of normality, one for each seed. One column in ten of a model that does not count all rows is zero."""
    model, budget = model or Linear(), Budget(strength(epsilon, 1e-6), 1.0)
    prior, checks = (np.zeros(dim + 1), np.eye(dim + 1) / 6.25), []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        x = random.uniform(-1.0, 1.0, (count, dim))
        x[:, 0] = 1.0
        y = np.clip(x @ np.full(dim, 0.1) + 0.12 * residuals(random, count), -1.0, 1.0)
        if not model.all_count:
            x[::10], y[::10] = 0.0, 0.0
        releases, found = budget.released(
            model, dim + 1, count, private_linear.answers(x, y, random), lambda at: prior, seed
        )
        checks += model.checks(found, releases, count)
    return checks


@pytest.mark.parametrize("model", [Linear(), Linear(all_count=False)])
def test_the_distance_from_normal_residuals_has_its_law(model):
    checks = normality(lambda random, count: random.standard_normal(count), 60, model=model)
    # as runs are saved
    json.dumps(checks)
    # a square is chi-squared with 3 degrees of freedom
    squares = np.square([check.found for check in checks])
    assert squares.mean() == pytest.approx(3.0, abs=4.0 * (6.0 / 60.0) ** 0.5)
    assert sum(not check.holds for check in checks) <= 2


@pytest.mark.parametrize(
    "residuals",
    [
        lambda random, count: random.standard_t(4, count) / 2.0**0.5,
        lambda random, count: random.laplace(size=count) / 2.0**0.5,
        lambda random, count: random.exponential(size=count) - 1.0,
        lambda random, count: np.where(random.random(count) < 0.02, 30.0, random.standard_normal(count)),
    ],
    ids=["student", "laplace", "exponential", "outside the range"],
)
def test_residuals_that_are_not_normal_fail_the_certificate(residuals):
    checks = normality(residuals, 5)
    assert not any(check.holds for check in checks) and "from a normal one" in checks[0].text


@pytest.mark.parametrize("cut", [0.5, 2.0, 3.0])
def test_a_clipped_normal_number_has_this_mean_square(cut):
    numbers = np.clip(np.random.default_rng(0).standard_normal(400_000), -cut, cut)
    assert private_linear._kept(np.array(cut)) == pytest.approx((numbers**2).mean(), abs=0.01)


def test_the_residual_sd_alone_can_fail_the_simulated_coverage(briefly):
    # covered: all coefficients, and not the residual sd
    class Short(Linear):
        def given(self, releases, prior, rows, random):
            found = super().given(releases, prior, rows, random)
            return found._replace(mean=found.mean + np.array([0.0, 0.0, 0.5]))

    budget, precision = Budget(strength(3.0, 1e-6), 1.0), ((0.16, 0.0, 0.0), (0.0, 0.16, 0.0), (0.0, 0.0, 0.16))
    assert private_model.likely(Linear(), budget, 5000, precision).is_enough
    assert private_model.likely(Short(), budget, 5000, precision).share < 0.2


# --- draws of Poisson regressions ---


@pytest.mark.long_from(1)
@pytest.mark.parametrize("agents", [3, 1])
def test_draws_of_a_poisson_regression_are_near_the_posterior_and_wider(agents, briefly):
    post, network = poisson(8000, agents), accord.Network.complete(agents)
    engine = MASKED if agents > 2 else "local"
    run = accord.sample(post, network, Private(epsilon=2.0, ranges=RANGES | COUNTS), draws=500, engine=engine)
    exact = accord.sample(post, network, Importance(), draws=500)
    mean, sd = (getattr(exact.average, name)(axis=(0, 1)) for name in ("mean", "std"))
    wider = np.array([run.private["wider"][name] for name in NAMES])
    np.testing.assert_allclose(run.average.std(axis=(0, 1)) / sd, wider, rtol=0.25)
    assert ((wider > 1.02) & (wider < 2.5)).all()
    off = np.abs(run.average.mean(axis=(0, 1)) - mean) / sd
    # the noise of this run
    assert (off < 4.5 * np.sqrt(wider**2 - 1.0) + 0.15).all()
    assert run.certificate.holds and run.traffic.sums == 3


def test_without_noise_a_poisson_regression_only_loses_by_clipped_residuals(briefly):
    post, network = poisson(3000, 1), accord.Network.complete(1)
    run = accord.sample(post, network, Private(epsilon=1e7, ranges=RANGES | COUNTS), draws=1000, progress=False)
    exact = accord.sample(post, network, Importance(), draws=1000)
    sd = exact.average.std(axis=(0, 1))
    ratio = run.average.std(axis=(0, 1)) / sd
    assert ((ratio > 0.97) & (ratio < 1.15)).all()
    # two estimates from the same rows, of which one has 10% less information
    assert (np.abs(run.average.mean(axis=(0, 1)) - exact.average.mean(axis=(0, 1))) < sd).all()


def test_the_noise_of_a_gradient_has_the_covariance_of_clipped_scores():
    model, random = FamilyScores(families.Poisson(), (0.0, 20.0)), np.random.default_rng(0)
    x, position = random.uniform(-1.0, 1.0, (300, 3)), np.array([-0.5, 1.0, -0.7])
    x[:, 0] = 1.0
    step = model.step(position, 1.0, [])._replace(of_gradient=0.0, of_hessian=0.0)
    mean = np.exp(model.origin[0] + x @ position)
    release = Release.of(position, step, model.answers(x, np.rint(mean), random)(position, step))
    units = model.units(release)
    covariance = model._bend(x, release._replace(position=position * units))(position * units)[2]
    root = np.linalg.cholesky(release.hessian)
    weight, centre, _, _ = step.law.at(np, x @ position)
    counts = np.arange(60.0)[:, None]
    mass = stats.poisson.pmf(counts, mean)
    clipped = np.clip((np.minimum(counts, 20.0) - mean) / step.law.unit - centre.T, -1.0, 1.0)
    variance = np.sum(mass * clipped**2, axis=0) - np.sum(mass * clipped, axis=0) ** 2
    exact = (x * (weight**2 * variance)[:, None]).T @ x
    np.testing.assert_allclose(root @ covariance @ root.T, exact, rtol=1e-3, atol=1e-4 * np.trace(exact))


def poisson_intervals(studies, count, dim, epsilon, mean, ends, louder=1.0):
    """Whether intervals of 90% cover, (study, parameter), for columns between -1 and 1."""
    model, budget, inside = FamilyScores(families.Poisson(), ends), Budget(strength(epsilon, 1e-6), 1.0), []
    prior = np.zeros(dim), np.eye(dim) / 6.25
    for seed in range(studies):
        random = np.random.default_rng(seed)
        x, truth = random.uniform(-1.0, 1.0, (count, dim)), random.standard_normal(dim) * 0.5 * (3.0 / dim) ** 0.5
        x[:, 0], truth[0] = 1.0, np.log(mean) - model.origin[0]
        answer = model.simulated(x, truth, random)

        def loud(at, step, answer=answer):
            return answer(at, step._replace(of_gradient=louder * step.of_gradient))

        _, found = budget.released(model, dim, count, loud, lambda at: prior, seed)
        low, high = np.quantile(found.draws(1000, random), [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
    return np.array(inside)


@pytest.mark.parametrize(
    ("count", "dim", "epsilon", "mean", "ends"),
    [(5000, 5, 1.0, 2.0, (0.0, 20.0)), (5000, 3, 1.0, 0.3, (0.0, 5.0)), (20_000, 5, 1.0, 1.0, (0.0, 100.0))],
)
@pytest.mark.long
def test_intervals_of_poisson_regressions_cover(count, dim, epsilon, mean, ends):
    inside = poisson_intervals(100, count, dim, epsilon, mean, ends).mean(axis=1)
    assert abs(inside.mean() - 0.9) < 0.01 + 3.0 * inside.std() / 10.0


@pytest.mark.long
def test_intervals_of_poisson_regressions_do_not_cover_if_the_noise_is_larger_than_planned():
    assert poisson_intervals(60, 5000, 5, 1.0, 2.0, (0.0, 20.0), louder=2.0).mean() < 0.85


def dispersions(counts, seeds, mean, ends, count=5000, dim=3, epsilon=1.0):
    """Checks of dispersion, one for each seed."""
    model, budget = FamilyScores(families.Poisson(), ends), Budget(strength(epsilon, 1e-6), 1.0)
    prior, checks = (np.zeros(dim), np.eye(dim) / 6.25), []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        x = random.uniform(-1.0, 1.0, (count, dim))
        x[:, 0] = 1.0
        answer = model.answers(x, counts(random, mean * np.exp(x[:, 1:] @ np.full(dim - 1, 0.4))), random)
        releases, found = budget.released(model, dim, count, answer, lambda at: prior, seed)
        checks += [check for check in model.checks(found, releases, count) if check.name == "dispersion"]
    # as runs are saved
    json.dumps(checks)
    return checks


RARE, USUAL = (0.3, (0.0, 5.0)), (2.0, (0.0, 20.0))


@pytest.mark.parametrize("counts", [RARE, USUAL])
def test_the_distance_from_the_dispersion_of_poisson_counts_has_its_law(counts):
    checks = dispersions(lambda random, mean: random.poisson(mean), 25, *counts)
    assert 0.4 < np.square([check.found for check in checks]).mean() < 1.9
    assert sum(not check.holds for check in checks) <= 1


@pytest.mark.parametrize(
    ("counts", "where", "dispersion"),
    [
        (lambda random, mean: random.poisson(random.gamma(mean)), USUAL, (1.5, 2.0)),
        (lambda random, mean: random.poisson(random.gamma(mean)), RARE, (1.3, 2.0)),
        (lambda random, mean: random.poisson(mean) * (random.random(mean.size) > 0.2), USUAL, (1.2, 1.6)),
        (lambda random, mean: random.binomial(5, np.minimum(mean / 5.0, 1.0)), USUAL, (0.3, 0.8)),
    ],
    ids=["negative binomial", "rare", "zeros", "binomial"],
)
def test_counts_that_are_not_poisson_fail_the_certificate(counts, where, dispersion):
    checks = dispersions(counts, 3, *where)
    assert not any(check.holds for check in checks)
    found = np.mean([float(check.text.split("about ")[1].split()[0]) for check in checks])
    assert dispersion[0] < found < dispersion[1], checks[0].text


def test_a_poisson_formula_with_rows_that_do_not_fit(briefly):
    rng, tables = np.random.default_rng(4), []
    for _ in range(3):
        x = rng.uniform(0.0, 10.0, 3000)
        falls = rng.poisson(np.exp(-0.3 + 0.1 * x))
        # fewer than the tenth of rows that the certificate allows, as the noise of their share is about .002
        tables.append({"x": np.where(rng.random(3000) < 0.08, np.nan, x), "falls": falls})
    post = accord.models.glm(tables, "falls ~ x", "poisson", ranges={"x": (0.0, 10.0), "falls": (0, 20)})
    run = accord.sample(post, accord.Network.complete(3), Private(epsilon=3.0), engine=MASKED)
    assert run.certificate.holds, run.certificate
    off = run.draws.mean(axis=(0, 1, 2)) - [-0.3, 0.1]
    assert (np.abs(off) < 3.5 * run.draws.std(axis=(0, 1, 2))).all()


# --- draws of other families ---


@pytest.mark.long_from(1)
@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_draws_of_another_family_are_near_the_posterior_and_wider(name, briefly):
    post, network = of_family(name, 9000, 3), accord.Network.complete(3)
    run = accord.sample(post, network, Private(epsilon=2.0), draws=500, engine=MASKED)
    exact = accord.sample(post, network, Importance(), draws=500)
    mean, sd = (getattr(exact.average, kind)(axis=(0, 1)) for kind in ("mean", "std"))
    wider = np.array(list(run.private["wider"].values()))
    np.testing.assert_allclose(run.average.std(axis=(0, 1)) / sd, wider, rtol=0.25)
    assert ((wider > 1.02) & (wider < 2.5)).all()
    off = np.abs(run.average.mean(axis=(0, 1)) - mean) / sd
    # the noise of this run
    assert (off < 4.5 * np.sqrt(wider**2 - 1.0) + 0.15).all()
    assert run.certificate.holds and run.traffic.sums == 3, run.certificate


def family_intervals(studies, name, count, dim, epsilon, louder=1.0, other=None, ends=None):
    """Whether intervals of 90% cover, (study, parameter), and the names of failed checks of each study."""
    family, usual_ends, usual = OTHER_FAMILIES[name]
    model, budget, inside, failed = (
        FamilyScores(family, ends or usual_ends),
        Budget(strength(epsilon, 1e-6), 1.0),
        [],
        [],
    )
    prior = np.zeros(dim + 1), np.eye(dim + 1) / 6.25
    for seed in range(studies):
        random = np.random.default_rng(seed)
        signal = 0.15 if name == "student" else 0.5
        x, truth = (
            random.uniform(-1.0, 1.0, (count, dim)),
            random.standard_normal(dim + 1) * signal * (3.0 / dim) ** 0.5,
        )
        x[:, 0], truth[0], truth[-1] = 1.0, 0.0, np.log(other or usual) - model.origin[2]
        if family.is_log_linear:
            truth[0] = np.log(2.0) - model.origin[0]
        answer = model.simulated(x, truth, random)

        def loud(at, step, answer=answer):
            return answer(at, step._replace(of_gradient=louder * step.of_gradient))

        releases, found = budget.released(model, dim + 1, count, loud, lambda at: prior, seed)
        low, high = np.quantile(found.draws(1000, random), [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
        checks = model.checks(found, releases, count)
        failed.append([check.name for check in checks if not check.holds])
        # as runs are saved
        json.dumps(checks)
    return np.array(inside), failed


@pytest.mark.parametrize("name", OTHER_FAMILIES)
@pytest.mark.long
def test_intervals_of_other_families_cover(name):
    inside = family_intervals(100, name, 5000, 5, 1.0)[0].mean(axis=1)
    assert abs(inside.mean() - 0.9) < 0.01 + 3.0 * inside.std() / 10.0


@pytest.mark.long
def test_intervals_of_other_families_do_not_cover_if_the_noise_is_larger_than_planned():
    assert family_intervals(60, "gamma", 5000, 5, 1.0, louder=2.0)[0].mean() < 0.85


def test_responses_beyond_their_range_fail_the_certificate():
    _, failed = family_intervals(3, "gamma", 20_000, 2, 3.0, ends=(1.0, 200.0))
    assert all("response" in names for names in failed)
    _, failed = family_intervals(3, "gamma", 20_000, 2, 3.0)
    assert not any(failed)


def test_counts_that_are_nearly_poisson_fail_the_certificate_of_a_negative_binomial():
    _, failed = family_intervals(3, "negative_binomial", 20_000, 2, 3.0, other=1000.0)
    assert all("concentration" in names for names in failed)


# --- refusals ---


def test_narrow_priors_are_not_refused():
    budget = Budget(strength(1.0, 1e-6), 1.0)
    assert (
        private_model.likely(Logistic(), budget, 5000, ((100.0, 0.0, 0.0), (0.0, 100.0, 0.0), (0.0, 0.0, 100.0))).share
        > 0.85
    )


def test_queries_of_rows_are_refused_after_a_private_run(briefly):
    post, network = logistic(2000, 1), accord.Network.complete(1)
    run = accord.sample(post, network, Private(epsilon=3.0, ranges=RANGES), draws=50)
    for query in (accord.loo, accord.predictive_check, accord.log_likelihood):
        with pytest.raises(ValueError, match=r"the guarantee of Private\(\) would not hold"):
            query(run, post, network)


def test_studies_whose_intervals_do_not_cover_are_refused_before_a_sum(monkeypatch):
    monkeypatch.setattr(private, "likely", lambda *arguments: private.Covered(0.8, 0.01))
    asked = []
    monkeypatch.setattr(CoarseTotals, "_summed", lambda *arguments: asked.append(1))
    with pytest.raises(ValueError, match="cover the parameters 80% of the time only.*Nothing was released"):
        accord.sample(logistic(100, 1), accord.Network.complete(1), Private(epsilon=0.1, ranges=RANGES))
    assert not asked


@pytest.mark.parametrize(
    ("model", "rows", "epsilon", "fine"),
    [(Logistic(), 1000, 1.0, True), (Logistic(), 200, 1.0, False), (Linear(), 200, 1.0, False)],
)
def test_simulated_intervals_have_a_width(model, rows, epsilon, fine, briefly):
    precision = np.eye(6 if isinstance(model, Linear) else 5) / 6.25
    found = private_model.likely(
        model, Budget(strength(epsilon, 1e-6), 1.0), rows, tuple(map(tuple, precision.tolist()))
    )
    assert found.is_enough and found.is_narrow is fine
    # the table of docs/privacy.md
    assert found.wider == pytest.approx(5.2, rel=0.2) if fine else "wide as without any rows" in found.width


def test_the_width_to_expect_follows_the_terms_of_a_formula(briefly):
    tables = [{"age": np.arange(20.0, 80.0), "died": np.arange(60) % 2}] * 300
    found = {}
    for formula in ("died ~ age", "died ~ age + I(age**2)", "died ~ scale(age) + I(scale(age)**2)"):
        post = accord.models.glm(tables, formula, "bernoulli", ranges={"age": (18, 90), "died": (0, 1)})
        found[formula] = Private(epsilon=1.0).likely(post, masks=True).wider
    plain, square, centred = found.values()
    assert plain < 1.2 and centred < 1.3 and square > 3.0


def test_studies_of_noise_are_refused_before_a_sum(briefly):
    with pytest.raises(ValueError, match="about as wide as without any rows.* larger epsilon.*Nothing was released"):
        accord.sample(logistic(200, 1), accord.Network.complete(1), Private(epsilon=1.0, ranges=RANGES))
    with pytest.raises(ValueError, match=r"are typically \d+ times as wide as without noise .at most 20 times"):
        accord.sample(logistic(20_000, 1), accord.Network.complete(1), Private(epsilon=0.04, ranges=RANGES))


@pytest.mark.parametrize(
    "model",
    [Logistic(), Linear(), FamilyScores(families.Poisson(), (0.0, 20.0)), FamilyScores(families.Gamma(), (0.1, 9.0))],
)
def test_noise_makes_no_matrix_singular(model):
    budget, dim = Budget(strength(0.01, 1e-6), 1.0), 5
    dim += isinstance(model, Linear) or model == FamilyScores(families.Gamma(), (0.1, 9.0))
    for seed in range(12):
        random = np.random.default_rng(seed)
        x = np.column_stack([np.ones(200), random.uniform(-1.0, 1.0, (200, 4))])
        prior = np.zeros(dim), np.eye(dim) / (6.25 if seed % 2 else 1e4)
        answer = model.simulated(x, model.usual(prior[1])(random), random)
        releases, found = budget.released(model, dim, 200, answer, lambda position, prior=prior: prior, seed)
        assert np.isfinite(found.draws(50, random)).all()
        for check in model.checks(found, releases, 200):
            assert check.name != "skewness" or not check.holds or "not checked" in check.text
        assert np.isfinite(model.without_noise(releases, found, prior[1], 200)).all()


def test_a_narrow_column_does_not_pass_by_the_luck_of_noise():
    random, model, rows = np.random.default_rng(0), Logistic(), 20_000
    step = Budget(strength(1.0, 1e-6), 1.5**0.5).step(model, np.zeros(3), ())
    for mean, sd, least, most in ((-0.9, 0.05, 0.0, 0.03), (0.0, 0.2, 0.97, 1.0)):
        moments = np.array([[1.0, mean, 0.0], [mean, mean**2 + sd**2, 0.0], [0.0, 0.0, 1.0 / 3.0]])
        passed = []
        for noise in private_model.symmetric_noise(random, 3, 300):
            hessian = rows * moments / 4.0 + step.of_hessian * noise
            release = Release(np.zeros(3), np.zeros(3), hessian, step)
            passed.append(private._columns_as_declared(model, release, rows, ["lab", "x"])[1].holds)
        assert least <= np.mean(passed) <= most


def test_a_column_at_both_ends_of_its_range_fails_the_certificate():
    random, model, rows = np.random.default_rng(0), Logistic(), 20_000
    step = Budget(strength(1.0, 1e-6), 1.5**0.5).step(model, np.zeros(2), ())
    even = np.column_stack([np.ones(1000), np.linspace(-1.0, 1.0, 1000)])
    normal, uniform = random.standard_normal(rows), random.uniform(-1.0, 1.0, rows)
    columns = {
        # ages of mean 66 and sd 14 in a range of 60 to 70
        "too narrow": (np.clip((14.0 * normal + 1.0) / 5.0, -1.0, 1.0), False),
        "normal": (np.clip(normal / 2.0, -1.0, 1.0), True),
        "a third beyond": (np.clip(normal, -1.0, 1.0), True),
        "skewed": (np.clip(np.exp(normal) / 5.0 - 1.0, -1.0, 1.0), True),
        "uniform": (uniform, True),
        "two humps": (np.clip(0.6 * np.sign(normal) + 0.1 * random.standard_normal(rows), -1.0, 1.0), True),
        "many zeros": (np.where(random.random(rows) < 0.7, -1.0, uniform), True),
        "a sine": (np.sin(np.pi * uniform), True),
    }
    for name, (column, holds) in columns.items():
        x = np.column_stack([np.ones(rows), column])
        for noise in private_model.symmetric_noise(random, 2, 50):
            release = Release(np.zeros(2), np.zeros(2), x.T @ x / 4.0 + step.of_hessian * noise, step)
            assert private._columns_as_declared(model, release, rows, ["x"], even)[2].holds is holds, name
    # a factor
    x[:, 1] = np.sign(normal)
    release = release._replace(hessian=x.T @ x / 4.0)
    assert private._columns_as_declared(model, release, rows, ["x"], np.sign(even))[2].holds


def test_a_run_whose_simulated_intervals_do_not_cover_is_not_certified(monkeypatch, briefly):
    monkeypatch.setattr(private, "coverage", lambda *arguments: private.Covered(0.5, 0.01))
    with pytest.warns(UserWarning, match=r"cover 50.0% \+- 1.0% of the time"):
        run = accord.sample(
            logistic(2000, 1), accord.Network.complete(1), Private(epsilon=2.0, ranges=RANGES), draws=50
        )
    assert not run.certificate.holds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must be between"),
        ({"epsilon": 1.0, "colluding": -1}, "colluding must be"),
        ({"epsilon": 1.0, "ranges": {"x": (2, 1)}}, "ranges: x needs a lowest and a highest value"),
        ({"epsilon": 1.0, "ranges": {"x": (0, float("inf"))}}, "ranges: x needs"),
        ({"epsilon": 1.0, "ranges": {"x": (-1e308, 1e308)}}, "ranges: x needs"),
        ({"epsilon": 1.0, "ranges": {"x": "01"}}, "ranges: x needs"),
        ({"epsilon": 1.0, "ranges": {"x": 1}}, "ranges: x needs"),
        ({"epsilon": 1.0, "ranges": {"x": (0, 1, 2)}}, "ranges: x needs"),
        ({"epsilon": 1.0, "ranges": [(0, 1)]}, "ranges must be a dict of pairs by name, found list"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Private(**options)


def test_impossible_runs_raise_before_a_sum():
    post, network = logistic(60, 3), accord.Network.complete(3)

    def refused(message, method, given=post, engine=MASKED):
        with pytest.raises(ValueError, match=message):
            accord.sample(given, network, method, engine=engine)

    method = Private(epsilon=1.0, ranges=RANGES)
    refused("needs masks", method, engine="local")
    refused('needs engine="local"', method, engine="mesh")
    elsewhere = accord.engines.Local(masks=True)
    object.__setattr__(elsewhere, "whole", True)
    refused('needs engine="local"', method, engine=elsewhere)
    refused("ranges has no entry for x", Private(epsilon=1.0, ranges={k: v for k, v in RANGES.items() if k != "x"}))
    refused("ag", Private(epsilon=1.0, ranges={**RANGES, "agee": (0, 1)}))
    refused(
        "needs an intercept: remove 0 . from the formula", Private(epsilon=1.0, ranges={**RANGES, "intercept": (0, 1)})
    )
    X, y = rows(60)
    counts = accord.models.poisson_regression([(X[k::3], y[k::3]) for k in range(3)], names=NAMES)
    refused("ranges has no entry for y", method, counts)
    refused("needs a lowest and a higher count", Private(epsilon=1.0, ranges={**RANGES, "y": (-1, 3)}), counts)
    other = accord.models.power([np.zeros(4)] * 3, 3.0)
    refused("needs a regression that depends on no row.*have an unknown bias", method, other)
    tables = [{"x": X[k::3, 1], "y": X[k::3, 2]} for k in range(3)]
    unknown = accord.models.glm(tables, "y ~ x", "student", ranges={"x": (20.0, 80.0), "y": (0.0, 4.0)})
    refused("needs known degrees of freedom", Private(epsilon=1.0), unknown)
    known = accord.models.linear_regression([(X[k::3], y[k::3]) for k in range(3)], 1.0, names=NAMES)
    refused("needs a linear regression with an unknown residual sd", method, known)
    refused("ranges has no entry for y", method, linear(60))
    refused("y, the response, needs a lowest", Private(epsilon=1.0, ranges={**RANGES, "y": (1, 1)}), linear(60))
    refused("unknown coefficient", Private(epsilon=1.0, ranges={**RANGES, **RESPONSE}))
    own = accord.models.linear_regression(
        [(X[k::3], y[k::3]) for k in range(3)], names=("intercept", "age", "dose", "y")
    )
    refused("needs another name for the coefficient y", method, own)
    tables = {f"s{k}": {"age": X[k::3, 1], "y": y[k::3]} for k in range(3)}
    refused("that depends on no row", method, accord.models.glm(tables, "y ~ age", "bernoulli"))


def test_a_linear_formula_with_rows_that_do_not_fit():
    rng, tables = np.random.default_rng(3), []
    for _ in range(3):
        x = rng.uniform(0.0, 10.0, 3000)
        y = 5.0 + 2.0 * x + 3.0 * rng.standard_normal(3000)
        # one row in twenty does not fit
        tables.append({"x": np.where(rng.random(3000) < 0.05, np.nan, x), "y": y})
    post = accord.models.glm(tables, "y ~ x", "normal", ranges={"x": (0.0, 10.0), "y": (-10.0, 40.0)})
    run = accord.sample(post, accord.Network.complete(3), Private(epsilon=3.0), engine=MASKED)
    assert run.certificate.holds, run.certificate
    off = run.draws.mean(axis=(0, 1, 2)) - [5.0, 2.0, 3.0]
    assert (np.abs(off) < 3.5 * run.draws.std(axis=(0, 1, 2))).all()
    # a sd that took the other rows for residuals of 0 would be 2.5% too small
    assert run.draws[..., 2].std() < 0.06


@pytest.mark.filterwarnings("ignore:the draws of Private are not certified")
def test_a_column_that_does_not_fill_its_range_fails_the_certificate():
    rng, tables = np.random.default_rng(0), []
    for _ in range(3):
        x, lab = rng.uniform(0.0, 1.0, 3000), rng.lognormal(4.4, 0.4, 3000)
        y = rng.random(3000) < 1.0 / (1.0 + np.exp(-x - np.log(lab / 80.0)))
        tables.append({"x": x, "lab": lab, "y": y.astype(int)})
    ranges = {"x": (0.0, 1.0), "lab": (10.0, 1500.0), "y": (0, 1)}
    for term, holds in (("lab", False), ("log(lab)", True)):
        post = accord.models.glm(tables, f"y ~ x + {term}", "bernoulli", ranges=ranges)
        run = accord.sample(post, accord.Network.complete(3), Private(epsilon=3.0), engine=MASKED)
        (check,) = (check for check in run.certificate.checks if check.name == "columns")
        assert check.holds is holds and term in check.text, check.text


def test_intervals_of_a_rare_level_cover_if_it_is_declared():
    """2% of the rows have an effect of 2.5. With Gaussian artificial columns, intervals covered 48% in 250 studies."""
    post = accord.models.glm(
        [{"x": np.linspace(0.0, 1.0, 50), "g": np.resize(["a", "b"], 50), "y": np.arange(50) % 2}] * 3,
        "y ~ x + g",
        "bernoulli",
        ranges={"x": (0.0, 1.0), "g": ("a", "b"), "y": (0, 1)},
    )
    method = Private(epsilon=1.0)
    model = method._with_levels(post, method._made_up(post))
    assert model == Logistic(levels=((2, -1.0, 1.0),))
    budget, prior, truth = (
        Budget(strength(1.0, 1e-6), 1.0),
        (np.zeros(3), np.eye(3) / 6.25),
        np.array([-0.75, 0.5, 1.25]),
    )
    inside, held = [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        level = np.where(random.random(18_000) < 0.02, 1.0, -1.0)
        x = np.column_stack([np.ones(18_000), random.uniform(-1.0, 1.0, 18_000), level])
        answer = model.simulated(x, truth, random)
        releases, found = budget.released(model, 3, 18_000, answer, lambda position: prior, seed)
        low, high = np.quantile(found.draws(1000, random), [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
        held.append(all(check.holds for check in model.checks(found, releases, 18_000)))
    # 40 studies with a coverage of 90% have at least 31 with a probability of 99.5%
    assert np.mean(held) > 0.9 and (np.sum(inside, axis=0) >= 31).all(), np.mean(inside, axis=0)


@pytest.mark.parametrize(("effect", "holds"), [(0.5, True), (4.0, False)])
def test_a_rare_level_with_a_strong_effect_fails_the_certificate(effect, holds):
    """Artificial columns have no rare level. Without this check, intervals of the effect covered 0 of 30 times."""
    random = np.random.default_rng(0)
    x = np.column_stack([np.ones(20_000), np.where(random.random(20_000) < 0.04, 1.0, -1.0)])
    truth = np.array([-1.0 - effect * x[:, 1].mean(), effect])
    answer = Logistic().simulated(x, truth, random)
    prior = np.zeros(2), np.eye(2) / 25.0
    budget = private_model.Budget(strength(3.0, 1e-6), 1.0)
    releases, found = budget.released(Logistic(), 2, 20_000, answer, lambda position: prior, 0)
    (check,) = (check for check in Logistic().checks(found, releases, 20_000) if check.name == "skewness")
    assert check.holds is holds, check.text
