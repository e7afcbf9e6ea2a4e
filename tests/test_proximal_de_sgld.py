"""Proximal DE-SGLD: projections, one parameter against its kernel on a grid, two against quadrature, and errors."""

import warnings

import jax
import numpy as np
import pytest
from tables import AGENTS, NETWORKS, Z_BOUND, unequal_curvature, unequal_shards, walk

import accord
from accord.samplers import DESGLD, ProximalDESGLD
from accord.samplers.convex_sets import Box, L1Ball, Simplex
from accord.samplers.protocol import pytree
from accord.samplers.schedules import Polynomial

NET = NETWORKS["irregular"]

SETS = {
    "box": (Box(-0.5, np.array([0.3, 1.0, np.inf])), lambda rng: rng.uniform(-0.5, [0.3, 1.0, 4.0], (500, 3))),
    "half space": (Box(0.0), lambda rng: rng.exponential(1.0, (500, 3))),
    "simplex": (Simplex(2.0), lambda rng: 2.0 * rng.dirichlet([0.5, 0.5, 0.5], 500)),
    "l1": (
        L1Ball(1.5),
        lambda rng: 1.5 * rng.dirichlet([0.5, 0.5, 0.5, 0.5], 500)[:, :3] * rng.choice([-1.0, 1.0], (500, 3)),
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_projections_are_the_nearest_points(name):
    # p is the nearest point of a convex set to x if (x - p)'(y - p) <= 0 for all its members y
    rng = np.random.default_rng(0)
    region, draw = SETS[name]
    members, x = draw(rng), 2.0 * rng.standard_normal((50, 3))
    with jax.enable_x64(True):
        p = np.asarray(region.project(x))
        np.testing.assert_allclose(region.project(p), p, atol=1e-12)
        np.testing.assert_allclose(region.project(members), members, atol=1e-12)
        # single points and batches agree
        np.testing.assert_allclose(region.project(x[7]), p[7], atol=1e-15)
    assert np.einsum("pi,pmi->pm", x - p, members[None] - p[:, None]).max() < 1e-12
    assert np.abs(x - p).max() > 0.5


@pytest.mark.long
def test_with_an_unbounded_set_it_is_de_sgld():
    step = Polynomial(0.1, 3.0, 0.7)
    options = dict(mixing="lazy", noise="common", batch_size=2, temperature=0.5)
    lengths = dict(draws=30, burn_in=0, chains=2, seed=4)
    plain = walk(unequal_shards(2), NET, DESGLD(step, **options), **lengths)
    run = walk(unequal_shards(2), NET, ProximalDESGLD(step, Box(), **options), **lengths)
    np.testing.assert_array_equal(run.draws, plain.draws)
    assert (run.statistics["outside"] == 0.0).all()


MEAN, VARIANCE = -0.3, 1.0


def one_potential():
    """Agents with equal parts of one Gaussian, which stay together under common noise like one chain."""
    return accord.models.gaussian(np.full((AGENTS, 1), MEAN), np.full((AGENTS, 1, 1), AGENTS * VARIANCE))


def kernel_law(h, smoothing, size=1201):
    """Points and masses of the stationary law of x+ = x - h (F'(x) + min(x, 0) / smoothing) + sqrt(2 h) w."""
    x = np.linspace(-2.0, 5.0, size)
    target = x - h * ((x - MEAN) / VARIANCE + np.minimum(x, 0.0) / smoothing)
    kernel = np.exp(-((x[None] - target[:, None]) ** 2) / (4.0 * h))
    kernel /= kernel.sum(axis=1, keepdims=True)
    masses = np.linalg.solve((kernel.T - np.eye(size))[:-1, :-1], -(kernel[-1, :-1]))
    masses = np.append(masses, 1.0)
    return x, masses / masses.sum()


@pytest.mark.long
@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_one_parameter_has_the_law_of_its_kernel(smoothing):
    h = 0.02
    method = ProximalDESGLD(h * AGENTS, "positive", smoothing, noise="common")
    start = np.array([0.5])
    run = accord.sample(
        one_potential(), NET, accord.Rounds(method, burn_in=400, init=start), draws=1, chains=10_000, seed=0
    )
    x, masses = kernel_law(h, 2.0 * h if smoothing is None else smoothing)
    draws = run.draws[:, 0, 3, 0].astype(float)
    for power in (lambda t: t, lambda t: t**2, lambda t: t < 0, lambda t: t * (t < 0)):
        expected, found = masses @ power(x), power(draws)
        assert abs(found.mean() - expected) / (found.std() / np.sqrt(len(found))) < Z_BOUND
    assert run.statistics["outside"][:, -1].max() >= -draws.min()


@pytest.mark.long
def test_independent_noise_biases_the_average_inwards():
    method = ProximalDESGLD(0.02 * AGENTS, "positive", 0.1)
    run = accord.sample(
        one_potential(), NET, accord.Rounds(method, burn_in=200, init=np.array([0.5])), draws=1, chains=4000, seed=0
    )
    x, masses = kernel_law(0.02, 0.1)
    average, own = run.average[:, 0, 0].astype(float), run.draws[:, 0, :, 0].astype(float)
    assert average.mean() - masses @ x > 10.0 * average.std() / np.sqrt(len(average))
    assert -own[own < 0].mean() > 1.2 * -(masses @ np.minimum(x, 0.0)) / masses[x < 0].sum()


def truncated(smoothing=None):
    """A grid and masses of the Gaussian restricted to x >= 0, or of its smoothed form."""
    x = np.linspace(-3.0, 6.0, 200_001)
    penalty = np.where(x < 0, np.inf, 0.0) if smoothing is None else np.minimum(x, 0.0) ** 2 / (2.0 * smoothing)
    masses = np.exp(-((x - MEAN) ** 2) / (2.0 * VARIANCE) - penalty)
    return x, masses / masses.sum()


def test_the_bias_of_step_and_smoothing_matches_the_docstring():
    # small steps have the smoothed law, to first order in the step ...
    x, masses = truncated(0.1)
    errors = []
    for h in (0.01, 0.005):
        grid, found = kernel_law(h, 0.1)
        errors.append(found @ grid - masses @ x)
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1) and abs(errors[1]) < 0.01
    # ... whose mass outside of the set follows from the density at the face
    exact_x, exact = truncated()
    edge = exact[exact_x >= 0][0] / (exact_x[1] - exact_x[0])
    for smoothing in (1e-3, 1e-4):
        x, masses = truncated(smoothing)
        outside = masses[x < 0].sum()
        assert outside == pytest.approx(np.sqrt(np.pi * smoothing / 2.0) * edge, rel=2.0 * smoothing**0.5)
        assert -(masses @ np.minimum(x, 0.0)) / outside == pytest.approx(
            np.sqrt(2.0 * smoothing / np.pi), rel=2.0 * smoothing**0.5
        )
    # with default smoothing the law converges to the restricted one as the square root of the step
    errors = [abs(found @ grid - exact @ exact_x) for grid, found in (kernel_law(h, 2.0 * h) for h in (0.01, 0.0025))]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.05)


@pytest.mark.slow
def test_two_parameters_of_unequal_agents_have_the_smoothed_law():
    post, region, smoothing = unequal_curvature(2), Box([-0.2, -np.inf], [np.inf, 0.6]), 0.05
    mode, cov = post.mode(), post.exact().cov
    axes = np.meshgrid(*[np.linspace(-7.0, 7.0, 801)] * 2)
    grid = mode + np.stack(axes, axis=-1).reshape(-1, 2) @ np.linalg.cholesky(cov).T
    with jax.enable_x64(True):
        away = np.square(grid - np.asarray(region.project(grid))).sum(axis=1)
    logs = -0.5 * np.einsum("gi,ij,gj->g", grid - mode, np.linalg.inv(cov), grid - mode) - away / (2.0 * smoothing)
    masses = np.exp(logs - logs.max())
    masses /= masses.sum()
    mean = masses @ grid
    sd = np.sqrt(masses @ (grid - mean) ** 2)
    # the set has an effect
    assert np.abs(mean - mode).max() > 0.2 * np.sqrt(np.diag(cov)).min()
    method = ProximalDESGLD(0.004, region, smoothing, noise="common")
    run = accord.sample(
        post, NETWORKS["complete"], accord.Rounds(method, burn_in=4000, init=mode), draws=1, chains=4000, seed=5
    )
    x = run.average[:, 0].astype(float)
    assert (np.abs(x.mean(axis=0) - mean) / (sd / np.sqrt(len(x)))).max() < Z_BOUND
    squares = (x - mean) ** 2
    assert (np.abs(squares.mean(axis=0) - sd**2) / (squares.std(axis=0) / np.sqrt(len(x)))).max() < Z_BOUND


def test_its_optimiser_converges_to_the_balance_of_slope_and_pull():
    with jax.enable_x64(True):
        method = ProximalDESGLD(0.1, "positive", 0.2, temperature=0.0)
        run = accord.sample(one_potential(), NET, accord.Rounds(method, burn_in=2000), draws=1, chains=1)
    # (x - MEAN) / VARIANCE + x / 0.2 = 0
    np.testing.assert_allclose(run.draws[0, 0, :, 0], MEAN / (1.0 + VARIANCE / 0.2), atol=1e-10)


def test_draws_are_not_tested_against_a_posterior_without_the_set():
    post, lengths = one_potential(), dict(draws=2000, thin=5, chains=4, seed=0)
    restricted = ProximalDESGLD(0.05, "positive", noise="common")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        walk(post, NET, restricted, **lengths).summary()
    # the same draws of a method that targets the posterior
    with pytest.warns(UserWarning, match="too narrow"):
        walk(post, NET, Promising(0.05, "positive", noise="common"), **lengths).summary()


@pytree
class Promising(ProximalDESGLD):
    samples_posterior = True


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProximalDESGLD(0.1, "positiv"), "did you mean 'positive'"),
        (lambda: ProximalDESGLD(0.1, "positive", 0.0), "smoothing must be a finite number > 0, found 0.0"),
        (lambda: Box(1.0, 0.0), "lower must be below upper, found 1.0 and 0.0"),
        (lambda: Box([0.0, 1.0], [1.0, 2.0, 3.0]), "lower must be below upper"),
        (lambda: Box(np.nan), "lower must be a number, or one per parameter, found nan"),
        (lambda: Simplex(0.0), "total must be a finite number > 0"),
        (lambda: L1Ball(-1.0), "radius must be a finite number > 0"),
        (
            lambda: sample(ProximalDESGLD(0.1, Box([0.0, 1.0, 2.0]))),
            r"lower must be .* one per parameter \(2\), found 3",
        ),
        (lambda: sample(ProximalDESGLD(9.0, "positive")), "the stability bound of ProximalDESGLD"),
        (lambda: sample(ProximalDESGLD(0.1, "positive", 1e-3)), "the stability bound of ProximalDESGLD"),
        (lambda: sample(ProximalDESGLD(0.1, "positive"), whiten=True), "does not work with whiten=True"),
        (lambda: sample(ProximalDESGLD(0.1, "positive", mixing=NEARLY_SWAPPED)), "eigenvalues above -0.5, found -0.9"),
    ],
)
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# on the path of six agents some pairs nearly swap their values
NEARLY_SWAPPED = np.eye(AGENTS)
for _pair in (slice(0, 2), slice(2, 4), slice(4, 6)):
    NEARLY_SWAPPED[_pair, _pair] = [[0.05, 0.95], [0.95, 0.05]]


def sample(method, **options):
    return walk(unequal_shards(2), NETWORKS["path"], method, draws=1, **options)
