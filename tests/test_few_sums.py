"""The beginning in two sums, and messages of several functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.engines import Local
from accord.posterior.coordinates import Coordinates
from accord.samplers import Importance
from accord.samplers.by_sums import cubic
from accord.samplers.by_sums.adaptation import Main, _towards
from accord.samplers.by_sums.certificate import _error, _stein
from accord.samplers.by_sums.cubic import Closure, beginning
from accord.samplers.by_sums.evaluations import Jet, UndeterminedError, ask, combined, jet, slopes, values
from accord.samplers.by_sums.proposal import student
from accord.samplers.by_sums.weighing import Batch, Weighing
from accord.samplers.session import Job, Session

RING = accord.Network.ring(4)


def poisson(rows=60, scale=1.0):
    rng = np.random.default_rng(0)
    X = np.concatenate([np.ones((4, rows, 1)), rng.standard_normal((4, rows, 2)) + np.arange(4)[:, None, None]], axis=2)
    y = rng.poisson(np.exp(X @ [0.5, 0.3, -0.4]))
    return accord.models.poisson_regression(list(zip(X * scale, y.astype(float), strict=True)), 10.0)


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


def gaussian():
    rng = np.random.default_rng(5)
    factors = rng.standard_normal((4, 3, 3))
    return accord.models.gaussian(rng.standard_normal((4, 3)), factors @ np.swapaxes(factors, 1, 2) + np.eye(3))


def session(post, network=RING, coarse=False):
    return Session(Job(post, network, coarse=coarse))


def test_a_jet_has_the_derivatives_up_to_the_third():
    post = poisson()
    place = Coordinates(np.array([0.4, 0.2, -0.3]), np.array([[0.1, 0.0, 0.0], [0.02, 0.1, 0.0], [0.0, -0.03, 0.2]]))
    found = jet(session(post), place)

    def whole(z):
        return -post.logdensity(jnp.asarray(place.origin) + jnp.asarray(place.factor) @ z)

    z = jnp.zeros(3)
    derivatives = whole, jax.grad(whole), jax.hessian(whole), jax.jacfwd(jax.hessian(whole))
    for part, function in zip(found, derivatives, strict=True):
        np.testing.assert_allclose(part, function(z), rtol=1e-9, atol=1e-9)


def test_agents_modes_are_combined_by_their_curvatures():
    # with quadratic potentials the combined position is the mode
    post = gaussian()
    at_init, position, hessian = combined(session(post))
    law = post.exact()
    np.testing.assert_allclose(position, law.mean, atol=1e-9)
    np.testing.assert_allclose(np.linalg.inv(hessian), law.cov, rtol=1e-9, atol=1e-12)
    assert at_init == pytest.approx(-float(post.logdensity(jnp.asarray(post.init))))


def test_agents_that_do_not_determine_a_position_are_an_error():
    rows = [np.zeros((5, 2))] * 4
    post = accord.Posterior(lambda x, r: -jnp.square(r[:, 0] - x[0]), lambda x: 0.0 * x[0], rows, np.zeros(2))
    with pytest.raises(UndeterminedError, match="do not determine a position"):
        combined(session(post))


def test_a_closure_of_one_poisson_rate_is_exact():
    y = np.random.default_rng(1).poisson(2.0, (4, 30)).astype(float)
    post = accord.Posterior(
        lambda x, y: y * x[0] - jnp.exp(x[0]), lambda x: -0.5 * jnp.square(x[0] / 3.0), list(y), np.zeros(1)
    )
    place = Coordinates(np.array([0.3]), np.array([[0.1]]))
    closure = Closure(post.potential, place, jet(session(post), place))
    z = np.linspace(-8.0, 8.0, 33)[:, None]
    value, gradient = closure.slopes(z)
    exact, slope = slopes(session(post), place, z)
    np.testing.assert_allclose(value, exact, rtol=1e-9)
    np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-8)
    (least,), hessian = closure.minimum()
    near = slopes(session(post), place, np.array([[least]]))[1]
    assert abs(near[0, 0]) < 1e-3 * hessian[0, 0]


def test_a_closure_beyond_the_largest_number_is_no_minimum_and_no_warning():
    # a ray without curvature, along which third derivatives are not 0
    third = np.zeros((2, 2, 2))
    third[1, 1, 1] = 1e200
    closure = Closure.__new__(Closure)
    closure.jet, closure.has_prior = Jet(0.0, np.ones(2), np.diag([1.0, 0.0]), third), False
    closure.place = Coordinates(np.zeros(2), np.eye(2))
    value, gradient = closure.slopes(np.array([[0.0, 1e-3], [1e200, 1.0]]))
    assert not np.isfinite(gradient).all()
    assert closure.minimum() is None


@pytest.mark.parametrize("masks", [False, True])
def test_coarse_answers_begin_with_noisy_derivatives(masks):
    post = poisson(rows=200)
    run = accord.sample(post, RING, Importance(), draws=500, seed=1, engine=Local(coarse=True, masks=masks))
    exact = accord.sample(post, RING, Importance(), draws=5000, seed=1)
    # init, modes, derivatives, lines with the first points, and all other points. Noise may cost two more
    assert run.certificate.holds and run.traffic.sums <= 7
    assert {"means by Stein", "sds by Stein"} <= {check.name for check in run.certificate.checks}
    error = 5.0 / np.sqrt(run.points.effective)
    np.testing.assert_array_less(np.abs(run.points.mean - exact.points.mean) / exact.points.sd, error)
    np.testing.assert_array_less(np.abs(run.points.sd / exact.points.sd - 1.0), error)
    assert abs(run.log_evidence[0] - exact.log_evidence[0]) < 5.0 * run.log_evidence[1]


def test_noise_blurs_derivatives_by_its_public_sds():
    post, own = poisson(rows=200), session(poisson(rows=200), coarse=True)
    mode = Coordinates.whitening(*(lambda at: (at[1], at[2]))(combined(session(post))))
    right, found = jet(session(post), mode), [jet(own, mode) for _ in range(40)]
    upper = np.triu_indices(3)
    for name, sd, used in (
        ("gradient", own.noise.expanded[0], ...),
        ("hessian", own.noise.expanded[1], upper),
        ("third", own.noise.expanded[2], (0, slice(1, 2), 2)),
    ):
        apart = np.array([getattr(one, name)[used] - getattr(right, name)[used] for one in found]).ravel()
        # noise and rounding to multiples of it
        assert np.sqrt(np.square(apart).mean()) == pytest.approx(
            sd * (1 + 1 / 12) ** 0.5, rel=4.0 / (2 * apart.size) ** 0.5
        )


def test_two_functions_in_one_message_have_the_noise_of_two_sums():
    post, own = gaussian(), session(gaussian(), coarse=True)
    place = Coordinates(np.zeros(3), np.eye(3))
    rng = np.random.default_rng(0)
    sloped, valued = rng.standard_normal((200, 3)), rng.standard_normal((300, 3))
    (value, gradient), others = ask(own, place, sloped, valued)
    assert own.traffic.sums == 1
    right, slope = slopes(session(post), place, sloped)
    noise, correction = own.noise.value(np.zeros(1))[0], own.noise.correction(np.zeros(1))[0]
    for apart in (value - right, others - values(session(post), place, valued)):
        # the error of the origin is shared by all points
        assert abs(apart.mean() - correction) < 4.0 * (noise / apart.size**0.5 + own.noise.of_origin)
        assert apart.std() == pytest.approx(noise, rel=4.0 / (2 * apart.size) ** 0.5)
    assert (gradient - slope).std() == pytest.approx(own.noise.gradient(np.zeros(1))[0], rel=0.12)


def test_two_functions_in_one_message_equal_two_sums():
    post, place = poisson(), Coordinates(np.array([0.5, 0.3, -0.4]), 0.1 * np.eye(3))
    points = np.random.default_rng(2).standard_normal((300, 3))
    one, two = session(post), session(post)
    found = ask(one, place, points[:40], points[40:])
    np.testing.assert_array_equal(found.values, values(two, place, points[40:]))
    for part, expected in zip(found.slopes, slopes(two, place, points[:40]), strict=True):
        np.testing.assert_array_equal(part, expected)
    assert (one.traffic.sums, two.traffic.sums) == (1, 2)
    assert (one.traffic.bytes_sent == two.traffic.bytes_sent).all()


@pytest.mark.parametrize("masks", [False, True])
def test_a_regression_takes_four_sums(masks):
    post = poisson()
    engine = accord.engines.Local(masks=masks)
    run = accord.sample(post, RING, Importance(), draws=500, engine=engine)
    assert run.traffic.sums == 4 and run.certificate.holds
    assert {"means by Stein", "sds by Stein"} <= {check.name for check in run.certificate.checks}
    # other units give the same points
    scaled = accord.sample(poisson(scale=100.0), RING, Importance(), draws=500, engine=engine)
    assert scaled.traffic.sums == 4


def test_agents_without_a_mode_of_their_own_take_part():
    # two sites have one label each, and the prior is flat
    rng = np.random.default_rng(3)
    X = np.concatenate([np.ones((4, 100, 1)), rng.standard_normal((4, 100, 2))], axis=2)
    labels = (rng.random((4, 100)) < 1.0 / (1.0 + np.exp(-X @ [0.2, 1.0, -0.5]))).astype(float)
    labels[0], labels[1] = 1.0, 0.0
    post = accord.Posterior(
        lambda x, rows: rows[1] * (rows[0] @ x) - jnp.logaddexp(0.0, rows[0] @ x),
        lambda x: 0.0 * x[0],
        list(zip(X, labels, strict=True)),
        np.zeros(3),
    )
    run = accord.sample(post, RING, Importance(), draws=500)
    assert run.certificate.holds and run.traffic.sums <= 10


def test_a_mode_far_from_the_combined_position_is_found_by_newtons_method(monkeypatch):
    post, asked = poisson(), []
    usual = cubic.laplace
    monkeypatch.setattr(cubic, "laplace", lambda session, start=None: asked.append(start) or usual(session, start))
    assert beginning(session(post)).main is not None and not asked
    monkeypatch.setattr(Closure, "minimum", lambda self: (np.full(3, 9.0), np.eye(3)))
    begun = beginning(session(post))
    assert begun.main is None and asked[0] is not None
    monkeypatch.setattr(Closure, "minimum", lambda self: None)
    assert beginning(session(post)).main is None


def breast_cancer(prior_variance):
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    order = np.argsort(X[:, 1], kind="stable")
    shards = list(zip(np.array_split(X[order], 10), np.array_split(y[order].astype(float), 10), strict=True))
    return accord.models.logistic_regression(shards, prior_variance)


def test_a_first_approximation_that_nothing_fits_is_rejected():
    post = breast_cancer(1.0)
    for seed in (2, 3):
        run = accord.sample(post, accord.Network.ring(10), Importance(), seed=seed)
        assert run.certificate.holds and run.traffic.sums <= 20


def test_a_fit_goes_on_if_less_is_expected_of_it_than_before():
    # 236 sums with the fit after three batches, for which .32 effective draws a point are expected, after .51
    post = breast_cancer(1.0)
    for seed in (20, 26):
        run = accord.sample(post, accord.Network.ring(10), Importance(), seed=seed)
        assert run.certificate.holds and run.traffic.sums <= 40


def test_misleading_gradients_do_not_lead_far_away():
    z = np.random.default_rng(0).standard_normal((50, 3))
    moved = _towards(Main.first(3), z, 0.01 * z + 5.0, np.zeros(50))
    assert np.linalg.norm(moved.mean) == pytest.approx(3**0.5)
    np.testing.assert_allclose(_towards(Main.first(3), z, z - 0.5, np.zeros(50)).mean, 0.25)


def test_a_covariance_that_is_not_positive_definite_is_named():
    with pytest.raises(ArithmeticError, match="no proposal fits the points"):
        Main(np.zeros(2), -np.eye(2), 5.0).mixture()


def test_points_without_large_squares_have_no_small_error():
    # the mean of squares is 2.8 errors too low, and so is its sample variance
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2000, 200))
    z = samples[np.argsort(np.square(samples).mean(axis=1))[0]]
    feature, weight = (1.0 - z[:, None] ** 2) / 2.0, np.full(200, 1 / 200)
    shift = float(weight @ feature[:, 0])
    sample_error = feature.std() / 200**0.5
    assert shift / sample_error > 3.5 > shift / _error(weight, feature, np.array([0.5]))[0] > 2.0
    # larger variances count
    assert _error(weight, 3.0 * feature, np.array([0.5]))[0] == pytest.approx(3.0 * sample_error)


def test_steins_identities_refuse_a_proposal_without_the_tail():
    rng = np.random.default_rng(4)

    def checks(points):
        proposal = student(np.zeros(2), np.eye(2), 50.0)
        # weights of a standard normal, and its gradient
        rise = np.square(points).sum(axis=1) / 2.0
        return _stein(Weighing(Batch(proposal, points, rise, points.copy())))

    points = rng.standard_normal((2000, 2))
    assert [check.holds for check in checks(points)] == [True, True]
    # all points beyond one sd on one side are missing, and every weight is good
    means, sds = checks(points[points[:, 0] < 1.0])
    assert not means.holds and "the weights are not the posterior's" in means.text
    assert checks(points[:50]) == []
