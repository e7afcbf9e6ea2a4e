"""`Importance`, `ChEES` and `Auto`: draws match exact laws, and every failure shows in the certificate."""

import pickle
import re
import signal
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import killed
import numpy as np
import pytest
from posteriors import (
    LONG,
    NO_MODE,
    REGRESSIONS,
    TOO_HARD,
    by_quadrature,
    far_hill,
    far_hills,
    four_rows,
    heavy_axis,
    light_cluster,
    many_parameters,
    narrow_core,
    ring_and_two,
    separable,
    skewed_rate,
    slab,
    three_labels,
    toy,
    two_clusters,
    two_hills,
    unbounded,
    uneven_noise,
    wide_slab,
)

import accord
from accord.engines import recorded_totals
from accord.network.averaging import Averaging
from accord.posterior.coordinates import Coordinates
from accord.posterior.reference import nuts
from accord.posterior.totals import TotalsHere
from accord.results.certificate import Certificate
from accord.results.diagnostics import diagnostics
from accord.samplers import ChEES, Importance
from accord.samplers.by_sums import certificate
from accord.samplers.by_sums.centring import Centring
from accord.samplers.by_sums.chees import Chains, _freedom, _moves_in_tails, _support, _unvisited
from accord.samplers.by_sums.proposal import Drawn, student
from accord.samplers.by_sums.start import Start, start_without_points
from accord.samplers.session import Job, Session

RING = accord.Network.ring(4)


def weighted(run):
    return run.points.mean, run.points.sd


def gaussian(dim=3, shift=0.0):
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((4, dim, dim))
    return accord.models.gaussian(
        shift + rng.standard_normal((4, dim)), factors @ np.swapaxes(factors, 1, 2) + np.eye(dim)
    )


def assert_like(run, mean, sd, loose=1.0):
    """Assert that means and sds are within four Monte Carlo errors for the number of effective draws."""
    error = loose * 4.0 / np.sqrt(run.points.effective)
    found = weighted(run)
    np.testing.assert_array_less(np.abs(found[0] - mean) / sd, error)
    np.testing.assert_array_less(np.abs(found[1] / sd - 1.0), error)
    # the resampled chains follow the same law, with autocorrelation
    drawn, usual = run.draws[:, :, 0].astype(float), 4.0 * np.sqrt(3.0 / run.draws[:, :, 0, 0].size)
    np.testing.assert_array_less(np.abs(drawn.mean((0, 1)) - mean) / sd, loose * usual)
    np.testing.assert_array_less(np.abs(drawn.std((0, 1)) / sd - 1.0), loose * usual)


@pytest.mark.parametrize(
    "network", [RING, accord.Network.star(4), accord.Network.path(4)], ids=["ring", "star", "path"]
)
def test_draws_of_a_gaussian_follow_its_exact_law_on_every_network(network):
    post = gaussian()
    run = accord.sample(post, network, Importance(), draws=500, seed=1)
    law = post.exact()
    assert run.certificate.holds, run.certificate
    assert_like(run, law.mean, law.sd)
    assert run.draws.shape == (4, 500, 4, 3)
    # every agent has the same draws
    assert np.ptp(run.draws, axis=2).max() == 0 and run.statistics["consensus_error"].max() == 0
    # a sum takes twice the height of the tree
    assert run.traffic.exchanges == 2 * network.aggregation.height * run.traffic.sums > 0
    # modes, derivatives up to the third, tails and first points, all other points
    assert run.traffic.sums == 4 and (run.traffic.bytes_sent > 0).all() and (run.traffic.value_rows > 0).all()


QUICK, SLOW = [heavy_axis, two_hills, slab, far_hills, light_cluster], [two_clusters, four_rows, skewed_rate, far_hill]


@pytest.mark.filterwarnings("ignore:the standard deviation of .* rests on few")
@pytest.mark.parametrize("make", [*QUICK, *(pytest.param(make, marks=pytest.mark.slow) for make in SLOW)])
@pytest.mark.long_from(1)
def test_tails_and_modes_that_an_elliptical_proposal_misses_are_drawn(make):
    post = make()
    run = accord.sample(post, RING, Importance(), draws=1000, seed=0)
    mean, sd = by_quadrature(make)
    assert run.certificate.holds, run.certificate
    assert run.traffic.sums <= 60
    assert_like(run, mean, sd, loose=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("make", REGRESSIONS)
def test_regressions_are_certified_and_match_pooled_nuts(make):
    post = make()
    run = accord.sample(post, RING, Importance(), draws=2000, seed=1)
    assert run.certificate.holds, run.certificate
    with jax.enable_x64(True):
        draws = nuts(post, draws=5000, chains=4)
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    ess = diagnostics(draws)[0].min()
    # four standard errors of the difference
    error = 4.0 * np.sqrt(1.0 / run.points.effective + 1.0 / ess)
    np.testing.assert_array_less(np.abs(run.average.mean(axis=(0, 1)) - mean) / sd, error)
    np.testing.assert_array_less(np.abs(run.average.std(axis=(0, 1)) / sd - 1.0), 1.5 * error)


def test_test_moves_with_a_low_acceptance_rate_are_repeated_with_shorter_steps():
    # far_hills is forty times as wide as either hill, so the first step length has an acceptance rate of 0.1%
    run = accord.sample(far_hills(), RING, Importance(), draws=1000, seed=0)
    moved = [check.text for check in run.certificate.checks if check.name.endswith("after moves")]
    shares = [int(re.search(r"(\d+)% accepted", text).group(1)) for text in moved]
    assert len(shares) == 3 and min(shares) >= 20


def test_without_accepted_test_moves_draws_are_not_certified(monkeypatch):
    monkeypatch.setattr(certificate, "_ACCEPTED", 1.1)
    with pytest.warns(UserWarning, match="not certified"):
        checks = accord.sample(heavy_axis(), RING, Importance(), draws=500, seed=0).certificate.checks
    failed = [check for check in checks if not check.holds]
    assert {check.name for check in failed} == {f"{what} after moves" for what in ("means", "sds", "tails")}
    assert all("no test, as fewer than" in check.text for check in failed)


def test_a_tail_of_the_weights_is_mended():
    # with this seed the weights of the first batches have a Pareto k of 0.59, none above 8 times their mean
    run = accord.sample(uneven_noise(), RING, Importance(), draws=1000, seed=1)
    assert run.certificate.holds, run.certificate


@pytest.mark.long
def test_all_label_orders_are_found_or_more_modes_are_reported():
    for components in (3, 4):
        run = accord.sample(three_labels(components), RING, Importance(), draws=500)
        assert run.certificate.holds, run.certificate
        # by symmetry all means are equal, and far from the means of a single order
        assert np.ptp(run.points.mean) < 0.3 * run.points.sd.min() and run.points.sd.min() > 3.0
    with pytest.warns(UserWarning, match="more modes remain"):
        run = accord.sample(three_labels(5), RING, Importance(), draws=500)
    assert not run.certificate.holds


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2))])
def test_certified_draws_include_the_mass_around_a_narrow_core(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = accord.sample(narrow_core(), RING, Importance(), draws=500, seed=seed)
    if run.certificate.holds:
        np.testing.assert_allclose(run.points.sd, np.sqrt(0.5 * (1.0 + 1.0 / 400.0)), rtol=0.1)


@pytest.mark.filterwarnings("ignore:the standard deviation of .* rests on few")
def test_a_slab_a_hundred_times_as_wide_is_drawn():
    run = accord.sample(wide_slab(), RING, Importance(), draws=1000)
    assert run.certificate.holds, run.certificate
    # only 5% of the draws are in the slab
    np.testing.assert_allclose(run.points.sd, np.sqrt(0.95 + 0.05 * 1e4), rtol=0.2)


def test_draws_without_a_density_are_not_certified():
    box = accord.Posterior(
        lambda x, rows: rows * jnp.where(jnp.all((x > 0.0) & (x < 1.0)), 0.0, -jnp.inf),
        lambda x: 0.0 * jnp.sum(x),
        [np.full(1, 0.25)] * 4,
        np.full(12, 0.5),
    )
    with pytest.warns(UserWarning, match="its density is truncated at a bound that is not declared as a constraint"):
        run = accord.sample(box, RING, ChEES(warmup=20, max_transitions=20), draws=100)
    # all starts are moved into the box
    assert ((run.draws > 0.0) & (run.draws < 1.0)).all()
    refused = [check.name for check in run.certificate.checks if not check.holds]
    assert refused[0] == "Stein's identity"


def chains_of(draws, values=None, gradients=None, place=None):
    """Chains with these draws, (chain, draw, dim)."""
    dim = draws.shape[2]
    if place is None:
        place = Coordinates(np.zeros(dim), np.eye(dim))
    values = np.zeros(draws.shape[:2]) if values is None else values
    gradients = np.zeros(draws.shape) if gradients is None else gradients
    coordinates = Centring.none(toy(lambda x: -jnp.sum(x**2), np.zeros(dim)), place)
    return Chains(draws, values, gradients, np.ones(draws.shape[1]), coordinates, Certificate(()))


def test_a_draw_without_density_is_reported_with_its_position_and_a_remedy():
    positions = np.array([[[0.0, 0.0], [3.0, -1.0]]])
    place = Coordinates(np.array([1.0, 0.0]), np.diag([2.0, 1.0]))
    drawn = chains_of(positions, np.array([[1.0, 1e12]]), place=place)
    check = _support(drawn, ("a", "b"))
    assert not check.holds and "50.0% of the draws" in check.text
    assert "for example at a = 7, b = -1 (unconstrained): declare bounds of parameters as constraints" in check.text
    assert "give an init" not in check.text and "log_ndtr" in check.text


def collinear(spread, prior=None, rows=120):
    """A linear regression whose last column is the sum of two others and noise, and its design and response."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(rows), rng.standard_normal((rows, 3))])
    X[:, 3] = X[:, 1] + X[:, 2] + spread * X[:, 3]
    y = X[:, :3] @ [0.3, 0.5, -0.5] + rng.standard_normal(rows)

    def log_likelihood(x, own):
        return -0.5 * (own[1] - own[0] @ x) ** 2

    def log_prior(x):
        return 0.0 * jnp.sum(x) if prior is None else -0.5 * jnp.sum(x**2) / prior

    shards = [(X[k::4], y[k::4]) for k in range(4)]
    return accord.Posterior(log_likelihood, log_prior, shards, np.zeros(4)), X


# condition numbers of the Hessian: about 1e8, 1e12 and 1e16
@pytest.mark.parametrize("spread", [1e-4, 1e-6, 1e-8])
def test_nearly_collinear_columns_are_drawn_under_flat_priors(spread):
    post, X = collinear(spread)
    run = accord.sample(post, RING, draws=500, seed=0)
    assert run.settings["method"].startswith("Importance") and run.certificate.holds
    # by QR, as normal equations lose all digits in double precision
    triangle = np.linalg.qr(X)[1]
    np.testing.assert_allclose(run.points.sd, np.linalg.norm(np.linalg.inv(triangle), axis=1), rtol=0.08)


def test_collinear_columns_are_named_under_flat_priors_and_drawn_under_proper_ones():
    with (
        warnings.catch_warnings(),
        pytest.raises(
            ArithmeticError, match=r"not identified.*dominated by x\[1\], x\[2\], x\[3\].*proper prior, or leave"
        ),
    ):
        warnings.simplefilter("error")
        accord.sample(collinear(0.0)[0], RING, draws=500, seed=0)
    post, X = collinear(0.0, prior=100.0)
    run = accord.sample(post, RING, draws=500, seed=0)
    assert run.certificate.holds
    sd = np.sqrt(np.diagonal(np.linalg.inv(X.T @ X + np.eye(4) / 100.0)))
    np.testing.assert_allclose(run.points.sd, sd, rtol=0.08)


@pytest.mark.parametrize("quadratic", [False, True])
def test_copies_of_columns_in_other_units_are_named(quadratic):
    a = np.random.default_rng(1).standard_normal((4, 60, 3))
    X = np.concatenate([a, 1e-8 * a[..., :1], 1e8 * a[..., 1:2]], axis=2)
    post = accord.Posterior(
        lambda x, own: -0.5 * (own[1] - own[0] @ x) ** 2,
        lambda x: 0.0 * jnp.sum(x),
        list(zip(X, a.sum(axis=2), strict=True)),
        np.zeros(5),
        quadratic=quadratic,
    )
    # rounding errors determine which null directions are reported
    pairs = r"(x\[0\], x\[3\]|x\[1\], x\[4\]|x\[0\], x\[1\], x\[3\], x\[4\])"
    with pytest.raises(ArithmeticError, match=rf"not identified.*dominated by {pairs} "):
        accord.sample(post, RING, draws=100, seed=0)


@pytest.mark.parametrize("init", [-1.0, 0.0, 800.0])
def test_an_init_without_density_is_replaced_by_one_nearby(init):
    y = np.random.default_rng(0).exponential(2.0, 60)
    shards = [y[k::4] for k in range(4)]
    post = accord.Posterior(
        lambda x, rows: jnp.where(x < 700.0, jnp.log(x) - x * rows, -jnp.inf), lambda x: 0.0 * x, shards, init
    )
    run = accord.sample(post, RING, draws=500, seed=0)
    assert run.certificate.holds
    np.testing.assert_allclose(run.points.mean, 61.0 / y.sum(), rtol=0.02)
    np.testing.assert_allclose(run.points.sd, 61.0**0.5 / y.sum(), rtol=0.08)


def test_a_far_region_with_most_of_the_variance_is_found_and_chains_that_miss_it_are_not_certified():
    # Cauchy rows: the region around 60 has 0.08% of the mass and two thirds of the variance
    rows = (0.0, 1.0, 60.0)
    post = accord.Posterior(
        lambda x, y: -jnp.log1p((y - x) ** 2), lambda x: 0.0 * x, [np.array([y]) for y in rows], 0.0
    )
    x = np.linspace(-3000.0, 3000.0, 6_000_001)
    density = np.exp(-sum(np.log1p((y - x) ** 2) for y in rows))
    sd = np.sqrt(np.average(np.square(x - np.average(x, weights=density)), weights=density))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = accord.sample(post, accord.Network.ring(3), draws=1000, seed=0)
    assert run.certificate.holds
    np.testing.assert_allclose(run.points.sd, sd, rtol=0.1)
    # chains in the near region only
    draws = run.points.positions[np.abs(run.points.positions[:, 0]) < 30.0][:1600].reshape(16, 100, 1)
    chains = chains_of(draws)
    start = Start(chains.coordinates, draws[0], run.points.positions, run.points.weight)
    check = _unvisited(chains, start)
    assert not check.holds and re.search(r"[67].% of their variance \(at most", check.text)


@pytest.mark.long
def test_a_density_may_use_numpy_constants():
    center = np.array([1.0, -2.0])
    post = toy(lambda x: -0.5 * jnp.sum((x - center) ** 2), np.zeros(2))
    run = accord.sample(post, RING, Importance(), draws=500)
    np.testing.assert_allclose(run.points.mean, center, atol=0.1)


@pytest.mark.parametrize(
    "density",
    [
        pytest.param(lambda x, scale: -0.5 * jnp.sum((x * scale) ** 2), id="product"),
        pytest.param(lambda x, scale: -0.5 * jnp.sum((x / (1.0 / scale)) ** 2), id="quotient"),
        pytest.param(lambda x, scale: -0.5 * jnp.sum((np.diag(scale) @ x - scale) ** 2), id="matrix"),
    ],
)
@pytest.mark.long
def test_numpy_arrays_in_a_density_follow_the_dtype_of_the_run(density):
    scale = np.array([1.0, -2.0])
    post = toy(lambda x: density(x, scale), np.zeros(2))
    # single precision for rounds, double for sums, alternating: caches must not mix
    for method, width in ((accord.samplers.DESGLD(0.01), np.float32), (Importance(), np.float64)) * 2:
        run = accord.sample(post, RING, method, draws=500, seed=0)
        assert run.draws.dtype == width
    np.testing.assert_allclose(run.points.sd, 1.0 / np.abs(scale), rtol=0.1)


def test_the_evidence_equals_the_closed_form():
    rng = np.random.default_rng(0)
    X, sigma, tau = rng.standard_normal((40, 3)), 0.7, 1.5
    y = X @ [1.0, -1.0, 0.5] + sigma * rng.standard_normal(40)
    post = accord.models.linear_regression([(X[i::4], y[i::4]) for i in range(4)], sigma, tau**2)
    run = accord.sample(post, RING, Importance(), draws=500)
    cov = sigma**2 * np.eye(40) + tau**2 * X @ X.T
    _, log_det = np.linalg.slogdet(2.0 * np.pi * cov)
    exact = -0.5 * (y @ np.linalg.solve(cov, y) + log_det)
    value, error = run.log_evidence
    assert error < 0.02 and abs(value - exact) < 4.0 * error


@pytest.mark.parametrize("make", [pytest.param(m, marks=pytest.mark.slow) if m in LONG else m for m in TOO_HARD])
@pytest.mark.long_from(2)
def test_posteriors_that_do_not_fit_are_not_certified(make):
    """The certificate fails with a number, or there is no mode to start from."""
    if make in NO_MODE:
        with pytest.raises(ArithmeticError, match="no mode found"):
            accord.sample(make(), RING, Importance(), draws=500)
        return
    with pytest.warns(UserWarning, match="are not certified: "):
        run = accord.sample(make(), RING, Importance(), draws=500)
    assert not run.certificate.holds and any(digit in run.certificate.why for digit in "0123456789")
    with pytest.raises(ArithmeticError, match="not certified"):
        run.log_evidence  # noqa: B018


def test_chains_start_at_the_nearest_gaussian_without_a_mode():
    post = unbounded()
    with jax.enable_x64(True):
        place = start_without_points(Session(Job(post, RING))).coordinates.place
    start = dict(
        zip(post.names, zip(place.origin, np.sqrt(np.diag(place.factor @ place.factor.T)), strict=True), strict=True)
    )
    # init has log tau = 0, so effects have sd 1; the law of the mean is N(4.4, 3.3)
    mean, sd = start["mean"]
    assert abs(mean - 4.4) < 0.5 and 2.5 < sd < 3.5 and start["effect[0]"][1] > 2.0


def funnel_or_not(dim, centred):
    """Effects with a population sd of unknown size, on the log scale as x[0]."""

    def log_density(x):
        width = jnp.where(centred, jnp.exp(x[0]), 1.0)
        return -0.5 * x[0] ** 2 - 0.5 * jnp.sum((x[1:] / width) ** 2 + 2.0 * jnp.log(width))

    return accord.Posterior(
        lambda x, rows: jnp.zeros(rows.shape[0]), lambda x: log_density(x), [np.zeros((1, 1))] * 4, np.zeros(dim)
    )


@pytest.mark.parametrize("centred", [True, False])
def test_chains_that_do_not_enter_the_neck_of_a_funnel_are_not_certified(centred):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = accord.sample(funnel_or_not(20, centred), RING, ChEES(lockstep=256), draws=250)
    failed = {check.name for check in run.certificate.checks if not check.holds}
    # the sd is 1
    off = abs(run.average[..., 0].std() - 1.0)
    if centred:
        assert off > 0.1 and "moves in tails" in failed, (off, failed)
        assert any("not certified" in str(warning.message) for warning in caught)
    else:
        assert off < 0.1 and not failed


def draws_of_t(random, freedom, together):
    """Draws of a multivariate t (or of independent ones), and the gradients of F there, (chain, draw, 3)."""
    shape = (512, 48)
    chi = random.chisquare(freedom, (*shape, 1 if together else 3)) / freedom
    z = random.standard_normal((*shape, 3)) / np.sqrt(chi)
    squares = np.square(z).sum(axis=2, keepdims=True) if together else np.square(z)
    return z, (freedom + (3.0 if together else 1.0)) * z / (freedom + squares)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("freedom, holds", [(2.2, False), (2.5, False), (3.0, False), (5.0, True), (30.0, True)])
def test_draws_whose_variance_has_no_error_bar_are_not_certified(freedom, holds, together):
    draws, gradients = draws_of_t(np.random.default_rng(0), freedom, together)
    check = _freedom(chains_of(draws, gradients=gradients), 64, ("a", "b", "c"))
    assert check.holds == holds and ("report quantiles" in check.text) != holds
    # two Monte Carlo errors below the truth, for the heaviest of six tails
    assert freedom * 0.8 < check.found and (holds or check.found < freedom * 1.2 + 0.2)


@pytest.mark.parametrize("tail", ["normal", "exponential"])
def test_light_tails_have_many_degrees_of_freedom(tail):
    random = np.random.default_rng(0)
    z = random.standard_normal((512, 48, 1)) if tail == "normal" else random.laplace(size=(512, 48, 1))
    gradients = z if tail == "normal" else np.sign(z)
    assert _freedom(chains_of(z, gradients=gradients), 64, ("a",)).found > 6.0


def test_one_transition_is_refused_and_no_error():
    with pytest.warns(UserWarning, match="one draw of each chain shows no moves"):
        accord.sample(toy(lambda x: -jnp.sum(x**2), np.zeros(2)), RING, ChEES(max_transitions=1))


def test_chains_move_on_a_ring():
    """Curvature along the ring is zero, so no Newton step leads to a mode."""
    post = toy(lambda x: -0.5 * ((jnp.sqrt(jnp.sum(x**2)) - 5.0) / 0.1) ** 2, np.array([5.0, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = accord.sample(post, RING, ChEES(max_transitions=50))
    assert abs(np.linalg.norm(run.average, axis=2).mean() - 5.0) < 0.05


def test_a_narrower_mode_that_the_search_found_is_not_lost_without_a_word():
    def log_density(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 5.0) ** 2), -2.0 * jnp.sum((x + 5.0) ** 2) - 5.0 * jnp.log(0.5))

    two = accord.Posterior(lambda x, rows: jnp.zeros(rows.shape[0]), log_density, [np.zeros((1, 1))], np.zeros(5))
    with pytest.warns(UserWarning, match="draws of ChEES are not certified: .*nested R-hat"):
        accord.sample(two, accord.Network.empty(1), ChEES(max_transitions=60))


def test_chains_that_stay_in_a_tail_are_noticed():
    draws = np.random.default_rng(0).standard_normal((64, 200, 2))
    assert _moves_in_tails(chains_of(draws), ("a", "b")).holds
    # a chain repeats its place where b is low
    stuck = draws.copy()
    for number in range(1, 200):
        held = (stuck[:, number - 1, 1] < -2.3) & (np.arange(64) % 4 > 0)
        stuck[held, number] = stuck[held, number - 1]
    check = _moves_in_tails(chains_of(stuck), ("a", "b"))
    assert not check.holds and "(b)" in check.text and "non-centred" in check.text


@pytest.mark.slow
def test_the_fallback_starts_at_modes_that_importance_sampling_found():
    # Importance is refused for the ring, and chains from one hill would never reach the other
    with pytest.warns(UserWarning, match="draws of ChEES are not certified: .*nested R-hat"):
        run = accord.sample(ring_and_two(), RING, draws=250)
    assert not run.certificate.holds


@pytest.mark.long
def test_chains_that_miss_a_mode_are_not_certified():
    two = accord.Posterior(
        lambda x, rows: rows * jnp.logaddexp(-2.0 * (x[0] + 3.0) ** 2, -2.0 * (x[0] - 3.0) ** 2),
        lambda x: 0.0 * x[0],
        [np.full(1, 0.25)] * 4,
        np.array([0.3]),
    )
    with pytest.warns(UserWarning, match="nested R-hat"):
        accord.sample(two, RING, ChEES(), draws=250)


def test_same_draws_on_every_engine_and_with_masks():
    local = accord.sample(separable(), RING, Importance(), draws=200)
    for engine in ("mesh", accord.engines.Local(masks=True), accord.engines.Mesh(masks=True)):
        other = accord.sample(separable(), RING, Importance(), draws=200, engine=engine)
        np.testing.assert_allclose(other.draws, local.draws, rtol=1e-6, atol=1e-9)
        assert other.traffic.sums == local.traffic.sums
    masked = accord.sample(separable(), RING, Importance(), draws=200, engine=accord.engines.Local(masks=True))
    assert (masked.traffic.bytes_sent > 1.9 * local.traffic.bytes_sent).all()


@pytest.mark.parametrize("network", [RING, accord.Network.star(4)], ids=["ring", "star"])
def test_sums_by_gossip_equal_sums_over_a_tree_to_the_stated_precision(network):
    averaging = Averaging(network, 1e-8)
    own = np.random.default_rng(0).standard_normal((4, 50)) * 10.0 ** np.arange(50)
    exact = own.sum(axis=0)
    off = np.abs(averaging.sums(own) - exact).max(axis=0)
    np.testing.assert_array_less(off, 1e-8 * 4 * np.abs(own).max(axis=0))
    # not much more precise than requested, which would waste exchanges
    assert off[0] > 1e-13 and averaging.exchanges < 60
    tree = accord.sample(separable(), network, Importance(), draws=100)
    run = accord.sample(separable(), network, Importance(), draws=100, engine=accord.engines.Local(consensus=1e-10))
    np.testing.assert_allclose(run.draws, tree.draws, atol=1e-6)
    assert run.traffic.exchanges == run.traffic.sums * Averaging(network, 1e-10).exchanges > tree.traffic.exchanges


def test_gossip_with_too_low_a_precision_is_not_certified(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 400, 2))
    y = X @ [1.0, -1.0] + 3.0 * np.arange(4)[:, None] + rng.standard_normal((4, 400))
    post = accord.models.linear_regression(list(zip(X, y, strict=True)), 1.0, 10.0)
    # the second run reads its sums from the checkpoint
    for _ in range(2):
        with pytest.warns(UserWarning, match="log densities of agents differ by at most"):
            rough = accord.sample(
                post, RING, Importance(), draws=100, engine=accord.engines.Local(consensus=1e-4), checkpoint=tmp_path
            )
        assert not rough.certificate.holds
    fine = accord.sample(post, RING, Importance(), draws=100, engine=accord.engines.Local(consensus=1e-10))
    assert fine.certificate.holds and fine.certificate.checks[-1].name == "consensus"


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        (Importance(), {"consensus": 0.0}, "above 0 and at most 0.001, found 0.0"),
        (Importance(), {"consensus": 0.1}, "above 0 and at most 0.001, found 0.1"),
        (Importance(), {"consensus": 1e-9, "masks": True}, "masks and consensus exclude each other"),
        (accord.samplers.DULA(0.1), {"consensus": 1e-9}, "consensus needs a method that uses sums"),
    ],
)
def test_wrong_options_of_gossip_are_refused(method, options, named):
    with pytest.raises(ValueError, match=named):
        accord.sample(gaussian(), RING, method, engine=accord.engines.Local(**options))


class LostError(Exception):
    """A simulated crash."""


@pytest.mark.parametrize(
    ("method", "crashes"),
    [(Importance(), (2, 4)), (ChEES(lockstep=32, warmup=20), (3, 5))],
    ids=["Importance", "ChEES"],
)
def test_a_run_resumes_after_crashes(method, crashes, tmp_path, monkeypatch):
    """A resumed run computes only the missing sums and has the same draws."""
    monkeypatch.setattr(recorded_totals, "_SECONDS", 0.0)
    expected = accord.sample(gaussian(), RING, method, draws=100)
    computed, call, limit = [], TotalsHere.__call__, 0

    def counted(self, *arguments, **options):
        computed.append(1)
        if len(computed) == limit:
            raise LostError
        return call(self, *arguments, **options)

    monkeypatch.setattr(TotalsHere, "__call__", counted)
    for crash in crashes:
        limit = crash
        computed.clear()
        with pytest.raises(LostError):
            accord.sample(gaussian(), RING, method, draws=100, checkpoint=tmp_path)
    computed.clear()
    limit = 0
    run = accord.sample(gaussian(), RING, method, draws=100, checkpoint=tmp_path)
    # of the sums on disk, the first and the last are recomputed to detect changed data
    stored = crashes[-1] - 1
    assert len(computed) == run.traffic.sums - stored + 2
    np.testing.assert_array_equal(run.draws, expected.draws)
    computed.clear()
    np.testing.assert_array_equal(
        accord.sample(gaussian(), RING, method, draws=100, checkpoint=tmp_path).draws, run.draws
    )
    assert len(computed) == 2
    with pytest.raises(ValueError, match="the data or the model changed, as sum 1, recomputed, differs by"):
        accord.sample(gaussian(shift=1.0), RING, method, draws=100, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"seed changed \(0 then, 1 now\)"):
        accord.sample(gaussian(), RING, method, draws=100, checkpoint=tmp_path, seed=1)


def test_changed_rows_that_do_not_affect_the_first_sum_are_detected_at_the_last(tmp_path):
    def run(size):
        shards = [np.full(8, size)] * 4
        post = accord.Posterior(lambda x, rows: -rows * x**4, lambda x: -0.5 * x**2, shards, 0.0)
        return accord.sample(post, RING, Importance(), draws=100, seed=0, checkpoint=tmp_path)

    before = run(0.01)
    with pytest.raises(ValueError, match=r"changed, as sum \d+, recomputed, differs by"):
        run(1.0)
    np.testing.assert_array_equal(run(0.01).draws, before.draws)


@pytest.mark.slow
def test_a_run_resumes_after_its_process_is_killed_in_a_batch_and_in_the_fallback(tmp_path):
    expected = killed.draw()
    assert expected.settings["method"].startswith("ChEES")
    # killed in the second block of a batch's points, in a sum of the chains, and not at all
    for limit, block in ((10, 2), (150, 1), (0, 0)):
        command = [sys.executable, killed.__file__, tmp_path / "kept", str(limit), str(block), tmp_path / "out.npz"]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == (-signal.SIGKILL if limit else 0), done.stderr.decode()[-2000:]
    with np.load(tmp_path / "out.npz") as found:
        assert found["sums"] == expected.traffic.sums
        # 9 sums are on disk after the first process, 149 more after the second; each process recomputes two
        assert found["requests"] == found["sums"] - 9 - 147 + 2
        np.testing.assert_allclose(found["draws"], expected.draws, rtol=1e-9, atol=1e-12)


def test_a_saved_run_loads_with_certificate_and_points(tmp_path):
    run = accord.sample(gaussian(), RING, Importance(), draws=100)
    run.save(tmp_path / "run.nc")
    read = accord.Run.load(tmp_path / "run.nc")
    assert read.certificate == run.certificate and read.log_evidence == run.log_evidence
    np.testing.assert_array_equal(read.points.positions, run.points.positions)
    assert read.traffic.sums == run.traffic.sums
    np.testing.assert_array_equal(read.traffic.value_rows, run.traffic.value_rows)
    np.testing.assert_array_equal(read.draws, run.draws)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"draws": 0}, "draws must be a whole number >= 1"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_wrong_arguments_are_refused_before_the_run(options, named):
    with pytest.raises(ValueError, match=named):
        accord.sample(gaussian(), RING, Importance(), **options)
    with pytest.raises(ValueError, match="Rounds is for round-based methods, and Importance has no rounds"):
        accord.Rounds(Importance(), burn_in=10)


def test_masks_need_a_sum_based_method():
    with pytest.raises(ValueError, match="masks=True needs a method that uses sums"):
        accord.sample(gaussian(), RING, accord.samplers.DULA(0.1), engine=accord.engines.Local(masks=True))
    with pytest.raises(ValueError, match="3 agents"):
        accord.sample(
            accord.models.gaussian([0.0, 1.0], [1.0, 1.0]),
            accord.Network.path(2),
            Importance(),
            engine=accord.engines.Local(masks=True),
        )


def test_equal_seeds_repeat_draws_and_others_differ():
    first, again, other = (accord.sample(gaussian(), RING, Importance(), draws=100, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.draws, again.draws)
    assert np.abs(first.draws - other.draws).min() > 0


def test_the_default_is_importance_with_chees_as_fallback():
    run = accord.sample(gaussian(), RING, draws=100)
    assert run.settings["method"].startswith("Importance") and "Importance is certified" in run.settings["chosen"]
    run = accord.sample(many_parameters(40, 25), RING, draws=100)
    assert run.settings["method"].startswith("ChEES")
    assert "Importance is not certified: " in run.settings["chosen"] and "ChEES is certified" in run.settings["chosen"]


def test_pickled_points_are_small_and_redrawn_by_the_receiver():
    drawn = Drawn(student(np.zeros(3), np.eye(3), 5.0), 5000, 7, 2)
    sent = pickle.dumps(drawn)
    assert len(sent) < 1500 < drawn.points.nbytes / 50
    np.testing.assert_array_equal(np.asarray(pickle.loads(sent)), drawn.points)
    assert len(pickle.dumps(drawn)) == len(sent)
