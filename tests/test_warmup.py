"""Warm-up: the mode, the curvature, and coordinates in which the posterior is standard normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from posteriors import by_quadrature, scattered_rows
from tables import AGENTS, METHODS, MIXING_METHODS, NETWORKS, among, unequal_curvature, unequal_shards, walk
from test_honesty import random_intercepts

import accord
from accord.posterior.coordinates import Coordinates
from accord.samplers import DESGLD, GTBAOAB
from accord.samplers.session import Job, Session
from accord.tuning import pilot_run as pilot
from accord.tuning.warmup import warm_up
from accord.tuning.whitened import Estimates


def logistic(prior_variance=10.0, agents=AGENTS, dim=3, rows=12):
    """Labels by a column of far larger scale than another, unequal shards."""
    rng = np.random.default_rng(5)
    shards = []
    for agent in range(agents):
        X = rng.standard_normal((rows + rows // 3 * agent, dim)) * np.logspace(0, 2, dim)
        shards.append((X, (X[:, 0] + rng.standard_normal(len(X)) > 0).astype(float)))
    return accord.models.logistic_regression(shards, prior_variance=prior_variance)


def hessian_in(post, coordinates):
    """The pooled Hessian at the mode, in coordinates."""
    hessian = post.hessians(coordinates.origin).sum(axis=0)
    root = np.diag(coordinates.factor) if coordinates.factor.ndim == 1 else coordinates.factor
    return root.T @ hessian @ root


@pytest.mark.parametrize("network", NETWORKS)
def test_a_gaussian_posterior_is_whitened_exactly(network):
    post, net = unequal_curvature(3), NETWORKS[network]
    with jax.enable_x64(True):
        found = warm_up(post, net)
    np.testing.assert_allclose(found.mode, post.exact().mean, atol=1e-9)
    np.testing.assert_array_equal(found.coordinates.origin, found.mode)
    np.testing.assert_allclose(hessian_in(post, found.coordinates), np.eye(3), atol=1e-9)
    L = found.coordinates.factor
    own = np.linalg.eigvalsh(L.T @ post.hessians() @ L)
    np.testing.assert_allclose(found.curvature, own[:, [0, -1]], rtol=1e-9)
    assert found.stiffness == 1.0


@pytest.mark.parametrize("network", ["star", "path"])
@pytest.mark.long
def test_a_skewed_posterior_is_whitened_by_its_own_mean_and_covariance(network):
    post, net = logistic(rows=3), NETWORKS[network]
    with jax.enable_x64(True):
        found = warm_up(post, net)
    place = found.coordinates
    sd = np.sqrt(np.diag(np.linalg.inv(post.hessians(post.mode()).sum(axis=0))))
    np.testing.assert_allclose((found.mode - post.mode()) / sd, np.zeros(3), atol=1e-4)
    z, weights = by_importance(post, place)
    mean = weights @ z
    cov = (z - mean).T @ (weights[:, None] * (z - mean))
    # the accuracy of some hundred independent draws
    assert np.abs(mean).max() < 0.2
    np.testing.assert_allclose(np.linalg.eigvalsh(cov), np.ones(3), atol=0.25)
    # the mode is further off than that
    assert np.abs(place.inverse(found.mode)).max() > 0.3
    looked_at = np.random.default_rng(8).choice(z, 2000, p=weights)
    hessians = np.stack([post.hessians(x).sum(axis=0) for x in place.origin + looked_at @ place.factor.T])
    largest = np.linalg.eigvalsh(place.factor.T @ hessians @ place.factor)[:, -1]
    assert np.quantile(largest, 0.95) < found.stiffness < 1.1 * largest.max()


def by_importance(post, place):
    """Positions (look, dim) about a posterior in coordinates, and their weights, which sum to one."""
    rng = np.random.default_rng(7)
    z = rng.standard_t(5, size=(20_000, post.dim))
    with jax.enable_x64(True):
        values = np.asarray(jax.vmap(post.logdensity)(jnp.asarray(place.origin + z @ place.factor.T)))
    log_weights = values + 3.0 * np.log1p(z**2 / 5.0).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    return z, weights / weights.sum()


@pytest.mark.long
@pytest.mark.busy
@pytest.mark.parametrize("seed", [1, 5, 6])
def test_a_whitened_run_on_four_rows_is_as_wide_as_the_posterior(seed):
    # how far its tails reach depends much on where the pilot run came to
    run = accord.sample(scattered_rows(), accord.Network.complete(4), accord.Rounds(whiten=True), draws=6000, seed=seed)
    np.testing.assert_allclose(run.average.std(axis=(0, 1)), by_quadrature(scattered_rows)[1], rtol=0.1)


def parted(rows):
    """Labels that one column separates: with few rows the posterior is far from Gaussian."""
    X = np.random.default_rng(1).standard_normal((AGENTS * rows, 8))
    y = (X[:, 0] > 0).astype(float)
    return accord.models.logistic_regression(list(zip(np.split(X, AGENTS), np.split(y, AGENTS), strict=True)), 30.0)


@pytest.mark.parametrize(
    ("post", "pilot"),
    [(logistic(dim=3, rows=150), False), (logistic(rows=3), False), (parted(6), True)],
    ids=["much data", "little data", "parted labels"],
)
@pytest.mark.long
def test_a_pilot_run_follows_if_importance_sampling_fails(post, pilot):
    with jax.enable_x64(True):
        found = warm_up(post, NETWORKS["star"])
    assert (found.spent.sums > 60) == pilot
    assert found.stiffness > 1.01 and found.stiff_draw.any()
    draws = accord.sample(post, NETWORKS["star"], accord.samplers.ChEES(), draws=1000, seed=0).draws[:, :, 0]
    z = found.coordinates.inverse(draws.reshape(-1, post.dim))
    assert np.abs(z.mean(axis=0)).max() < 0.2
    np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(z.T)), 1.0, atol=0.4 if pilot else 0.2)


def test_lanczos_steps_find_the_largest_curvature():
    post, net = logistic(), NETWORKS["irregular"]
    place = Coordinates(np.zeros(3), np.array([0.5, 0.1, 0.02]))
    z = np.random.default_rng(3).standard_normal((20, 3))
    with jax.enable_x64(True):
        found = pilot.stiffest(Session(Job(post, net), most_exchanges=1000), place, z)
    hessians = np.stack([post.hessians(place.origin + place.factor * row).sum(axis=0) for row in z])
    exact = np.linalg.eigvalsh(hessians * place.factor[:, None] * place.factor)[:, -1]
    assert (found <= exact * (1 + 1e-9)).all()
    np.testing.assert_allclose(found, exact, rtol=0.1)
    np.testing.assert_array_equal(pilot.stiff_draw(np.arange(100.0), np.arange(100.0)[:, None]), [99.0])


def test_lanczos_steps_hold_where_a_curvature_is_negative_or_directions_run_out():
    # as many steps as parameters find all eigenvalues, further steps find no others; the largest absolute value counts
    for hessian in (np.diag([1.0, -5.0, 2.0]), np.diag([3.0, 3.0]), np.diag([4.0]), np.zeros((2, 2))):
        post = accord.models.quadratic(np.stack([hessian] * 2), np.zeros((2, len(hessian))))
        place = Coordinates(np.zeros(len(hessian)), np.eye(len(hessian)))
        with jax.enable_x64(True):
            found = pilot.stiffest(
                Session(Job(post, accord.Network.path(2)), most_exchanges=1000), place, np.ones((5, len(hessian)))
            )
        # both agents have it
        np.testing.assert_allclose(found, 2.0 * np.abs(np.diag(hessian)).max(), rtol=1e-9)


def test_second_derivatives_that_are_not_finite_raise_an_error():
    def log_likelihood(x, rows):
        # its second derivative has no bound at zero
        return rows - jnp.abs(x[0]) ** 1.5

    post = accord.Posterior(log_likelihood, lambda x: -0.5 * jnp.sum(x**2), [np.zeros(3)] * 4, np.zeros(2))
    place, some = Coordinates(np.zeros(2), np.eye(2)), np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
    with pytest.raises(ArithmeticError, match="second derivative of the potential is not finite at 1 of 3 points"):
        pilot.stiffest(Session(Job(post, accord.Network.path(4)), most_exchanges=1000), place, some)


def test_only_the_stiffest_of_many_draws_get_all_lanczos_steps():
    post, net = logistic(rows=3), NETWORKS["irregular"]
    place = Coordinates(np.zeros(3), np.array([0.5, 0.1, 0.02]))
    z = np.random.default_rng(3).standard_normal((448, 3))
    with jax.enable_x64(True):
        session = Session(Job(post, net), most_exchanges=1000)
        found = pilot.stiffest(session, place, z)
    # two of four Hessian-vector products at all draws, the other two at 24 draws
    np.testing.assert_array_equal(session.traffic.gradient_rows, 2 * (2 * 448 + 2 * 24) * post.sizes)
    hessians = np.stack([post.hessians(place.origin + place.factor * row).sum(axis=0) for row in z])
    exact = np.linalg.eigvalsh(hessians * place.factor[:, None] * place.factor)[:, -1]
    assert (found <= exact * (1 + 1e-9)).all()
    np.testing.assert_allclose(found.max(), exact.max(), rtol=0.02)


def test_a_pilot_run_finds_the_posteriors_own_mean_and_covariance():
    post = logistic(rows=3)
    with jax.enable_x64(True):
        start = Coordinates.whitening(post.mode(), post.hessians(post.mode()).sum(axis=0))
        found = pilot.explore(Session(Job(post, NETWORKS["star"])), start)
    assert found.draws.shape == found.steep.shape == (64, 3)
    z, weights = by_importance(post, found.coordinates)
    mean = weights @ z
    np.testing.assert_allclose(mean, 0.0, atol=0.1)
    np.testing.assert_allclose(np.linalg.eigvalsh((z - mean).T @ (weights[:, None] * (z - mean))), 1.0, atol=0.13)


@pytest.mark.parametrize(
    ("apart", "runs", "kept"),
    [
        # converged at once; converging, but never below the tolerance
        ([[0.01]], 1, True),
        ([[0.3, 0.2, 0.1]], 1, True),
        # further apart at the end than at first: another run, and the result is kept if no better one follows
        ([[0.1, 0.05, 0.2], [0.3, 0.1]], 2, True),
        ([[0.1, 0.2], [0.1, 0.3], [0.1, 0.2]], 3, True),
        ([[0.1, 0.2], [0.1, 0.9], [0.2, 0.9]], 3, True),
        # diverged
        ([[0.9, 0.8], [0.9, 0.7], [0.9, 0.6]], 3, False),
    ],
)
def test_a_pilot_run_with_diverging_halves_is_repeated(apart, runs, kept, monkeypatch):
    post, looks = logistic(), []

    def estimate(positions, gradients):
        if len(positions) == pilot._FEWEST:
            looks.append(list(apart[len(looks)]))
        left = looks[-1]
        found = Estimates(np.zeros(3), np.eye(3), left.pop(0) if len(left) > 1 else left[0])
        return found, np.zeros((64, 3)), np.zeros((64, 3))

    monkeypatch.setattr(pilot, "_estimate", estimate)
    start = Coordinates(np.zeros(3), 0.1 * np.eye(3))
    found = pilot.explore(Session(Job(post, NETWORKS["star"]), most_exchanges=100_000), start)
    assert len(looks) == runs and (found is not None) == kept


@pytest.mark.long
def test_a_pilot_run_with_diverging_chains_is_repeated_with_shorter_steps():
    post = random_intercepts()
    found = warm_up(post, accord.Network.ring(4))
    place, log_tau = found.coordinates, post.names.index("log_tau")
    # the posterior's is 1.1; chains that diverged with the first step gave 17.8
    assert 0.7 < np.linalg.norm(place.factor[log_tau]) < 1.6


def gaussian_points(count, seed):
    """Draws of a correlated Gaussian, and the gradients of its potential there; mean and covariance."""
    mean, factor = np.array([2.0, -1.0, 0.5]), np.array([[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [0.0, 0.3, 2.0]])
    points = mean + np.random.default_rng(seed).standard_normal((count, 3)) @ factor.T
    cov = factor @ factor.T
    return points, np.linalg.solve(cov, (points - mean).T).T, mean, cov


def test_few_points_with_gradients_give_the_exact_moments_of_a_gaussian():
    points, gradients, mean, cov = gaussian_points(20, 0)
    estimates = Estimates.by(points, gradients, np.zeros(20), np.arange(20) < 10)
    assert estimates.settled and estimates.apart < 1e-9
    np.testing.assert_allclose(estimates.mean, mean, atol=1e-9)
    np.testing.assert_allclose(estimates.cov, cov, atol=1e-9)
    start = Coordinates(np.array([3.0, 4.0, -1.0]), np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 3.0]]))
    found = estimates.whitened(start, points, gradients)
    x = start.origin + points @ start.factor.T
    there = found.coordinates.inverse(x)
    np.testing.assert_allclose(np.sort(found.draws, axis=0), np.sort(there, axis=0), atol=1e-9)
    # the gradient of a standard normal is largest at the draws furthest out
    furthest = there[np.argsort(np.linalg.norm(there, axis=1))]
    np.testing.assert_allclose(found.steep, furthest, atol=1e-9)
    np.testing.assert_allclose(found.coordinates.inverse(start.origin + start.factor @ mean), 0.0, atol=1e-9)
    inverse = np.linalg.inv(found.coordinates.factor)
    np.testing.assert_allclose(inverse @ start.factor @ cov @ start.factor.T @ inverse.T, np.eye(3), atol=1e-9)


def test_gradients_that_mislead_are_left_out():
    points, gradients, mean, cov = gaussian_points(4000, 1)
    # a few very large gradients, as at walls far out, dominate any regression
    gradients = gradients * np.exp(np.random.default_rng(2).standard_normal((4000, 1)) * 3.0)
    estimates = Estimates.by(points, gradients, np.zeros(4000), np.arange(4000) % 2 == 0)
    assert estimates.settled
    inverse = np.linalg.inv(np.linalg.cholesky(cov))
    np.testing.assert_allclose(np.linalg.eigvalsh(inverse @ estimates.cov @ inverse.T), 1.0, atol=0.1)
    np.testing.assert_allclose(inverse @ (estimates.mean - mean), 0.0, atol=0.05)


def test_halves_that_differ_are_not_settled():
    points, gradients, mean, _ = gaussian_points(1000, 1)
    half = np.arange(1000) < 500
    # twice as wide about the same mean
    points = np.where(half[:, None], points, mean + 2.0 * (points - mean))
    estimates = Estimates.by(points, np.where(half[:, None], gradients, gradients / 2.0), np.zeros(1000), half)
    np.testing.assert_allclose(estimates.apart, (4.0 + 1.0 / 4.0 - 2.0) / 4.0, rtol=0.3)
    assert not estimates.settled


def test_halves_of_too_few_points_are_not_settled():
    rng = np.random.default_rng(0)
    z, slope = rng.normal(size=(64, 14)), rng.standard_cauchy(size=(64, 14)) ** 3
    # three points of each half have all the weight, so that the covariance is singular up to rounding
    log_weight = np.where(np.arange(64) < 6, 0.0, -60.0)
    estimates = Estimates.by(z, slope, log_weight, np.arange(64) % 2 == 0)
    assert estimates.apart == np.inf and not estimates.settled


def test_warm_up_counts_what_its_sums_sent():
    post, net = unequal_curvature(3), accord.Network.star(AGENTS)
    with jax.enable_x64(True):
        found = warm_up(post, net)
    # each sum goes to the hub and back: 1 + d + d (d + 1) / 2 doubles
    sums, message = found.spent.exchanges // 2, 8 * (1 + 3 + 6)
    assert 2 <= sums <= 5 and found.spent.exchanges == 2 * sums
    np.testing.assert_array_equal(found.spent.bytes_sent, sums * message * np.r_[AGENTS - 1, np.ones(AGENTS - 1)])
    np.testing.assert_array_equal(found.spent.gradient_rows, sums * (1 + 3) * post.sizes)


@pytest.mark.long
def test_many_parameters_are_whitened_by_the_diagonal_and_send_no_matrix():
    post, net = logistic(), NETWORKS["ring"]
    with jax.enable_x64(True):
        found = warm_up(post, net, dense=2)
    assert found.coordinates.factor.shape == (3,)
    np.testing.assert_allclose(np.diagonal(hessian_in(post, found.coordinates)), 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.coordinates.inverse(post.mode()), np.zeros(3), atol=0.05)
    assert found.stiffness >= np.linalg.eigvalsh(hessian_in(post, found.coordinates))[-1]
    assert (found.spent.bytes_sent == 2 * found.spent.exchanges * 8 * 3).all()


@pytest.mark.parametrize(
    "factor", [np.array([[2.0, 0.0], [1.0, 0.5]]), np.array([2.0, 0.5])], ids=["dense", "diagonal"]
)
def test_coordinates_there_and_back(factor):
    place = Coordinates(np.array([1.0, -1.0]), factor)
    z = np.random.default_rng(0).standard_normal((4, 2))
    with jax.enable_x64(True):
        x = np.stack([np.asarray(place(jnp.asarray(row))) for row in z])
        np.testing.assert_allclose(np.asarray(place.spread(jnp.asarray(z.T))).T, x, rtol=1e-12)
    root = np.diag(factor) if factor.ndim == 1 else factor
    np.testing.assert_allclose(x, [1.0, -1.0] + z @ root.T, rtol=1e-12)
    np.testing.assert_allclose(place.inverse(x), z, rtol=1e-12, atol=1e-12)


@pytest.mark.long
# quickly a kinetic method, a proximal one, and conditionals
@pytest.mark.parametrize("method", among(METHODS, "GTBAOAB", "DADMMS", "Gibbs"))
def test_in_other_coordinates_a_method_samples_the_same_posterior(method):
    # a method on the transformed posterior is the method on the potentials written out in z, and reports x
    post, net = unequal_shards(2), NETWORKS["irregular"]
    place = Coordinates(np.array([0.5, 1.5]), np.array([[0.9, 0.0], [0.3, 0.7]]))
    H = post.hessians()
    b = np.einsum("nij,j->ni", H, np.zeros(2)) - post.gradients(np.zeros(2))
    L = place.factor
    written = accord.models.quadratic(L.T @ H @ L, (b - H @ place.origin) @ L)
    sampler = METHODS[method]()
    start = np.array([0.2, 0.1])
    laws = (
        accord.law(post.transformed(place), net, sampler, init=start),
        accord.law(written, net, sampler, init=place.inverse(start)),
    )
    for k in (0, 3):
        moved, plain = (law.at(k) for law in laws)
        for i in (0, 4):
            np.testing.assert_allclose(
                moved.agent(i).mean, place.origin + L @ plain.agent(i).mean, rtol=1e-8, atol=1e-9
            )
            np.testing.assert_allclose(moved.agent(i).cov, L @ plain.agent(i).cov @ L.T, rtol=1e-8, atol=1e-9)
    with jax.enable_x64(True):
        options = dict(draws=4, burn_in=3, chains=2, seed=3)
        moved = walk(post.transformed(place), net, accord.Rounds(sampler, init=start), **options)
        plain = walk(written, net, accord.Rounds(sampler, init=place.inverse(start)), **options)
    np.testing.assert_allclose(moved.draws, place.origin + plain.draws @ L.T, rtol=1e-7, atol=1e-8)
    assert moved.names == post.names


@pytest.mark.long
@pytest.mark.parametrize("method", among([name for name in MIXING_METHODS if name != "DULA"], "DESGLD", "GTBAOAB"))
def test_whitened_runs_report_the_users_parameters(method):
    post, net = logistic(), NETWORKS["complete"]
    sampler = {
        "DESGLD": lambda: DESGLD(0.1),
        "DESGHMC": lambda: accord.samplers.DESGHMC(0.2, 1.5),
        "GTDULA": lambda: accord.samplers.GTDULA(0.01, 0.15, 0.15),
        "GTBAOAB": lambda: GTBAOAB(0.3, 1.0, mix_rounds=1),
        "EXTRASGLD": lambda: accord.samplers.EXTRASGLD(0.1),
        "DIGingSGLD": lambda: accord.samplers.DIGingSGLD(0.06),
    }[method]()
    run = accord.sample(post, net, accord.Rounds(sampler, burn_in=100, whiten=True), draws=3000, chains=4, seed=1)
    exact = np.linalg.inv(post.hessians(post.mode()).sum(axis=0))
    # the posterior is near its Gaussian approximation; a column's scale is a hundred times another's
    np.testing.assert_allclose(run.average.std(axis=(0, 1)), np.sqrt(np.diag(exact)), rtol=0.25)


@pytest.mark.long
def test_warm_up_is_part_of_the_traffic():
    post, net = logistic(), NETWORKS["ring"]
    method, options = GTBAOAB(0.3, 1.0, mix_rounds=2), dict(draws=5, burn_in=0, chains=2, seed=1)
    plain, whitened = (
        walk(post, net, accord.Rounds(method, whiten=whiten), **options).traffic for whiten in (False, True)
    )
    found = warm_up(post, net)
    assert whitened.exchanges == plain.exchanges + found.spent.exchanges
    np.testing.assert_array_equal(whitened.bytes_sent, plain.bytes_sent + found.spent.bytes_sent)
    np.testing.assert_array_equal(whitened.gradient_rows, plain.gradient_rows + found.spent.gradient_rows)


@pytest.mark.long
def test_a_given_start_is_in_the_users_parameters():
    post, net = logistic(), NETWORKS["ring"]
    point = np.array([0.3, 0.02, -0.001])
    with jax.enable_x64(True):
        for init in (point, np.tile(point, (2, AGENTS, 1)), accord.Gaussian(point, 1e-12 * np.eye(3))):
            method = GTBAOAB(1e-6, 1.0, temperature=0.0, mix_rounds=1)
            run = accord.sample(post, net, accord.Rounds(method, burn_in=0, init=init, whiten=True), draws=1, chains=2)
            np.testing.assert_allclose(run.draws[0, 0], np.tile(point, (AGENTS, 1)), rtol=1e-2)


# --- posteriors without a mode, or with a flat one ---


def test_separated_labels_under_a_flat_prior_have_no_mode():
    def log_likelihood(x, rows):
        X, y = rows
        return -jnp.logaddexp(0.0, jnp.where(y > 0, -1.0, 1.0) * (X @ x))

    shards = [(np.array([[1.0], [2.0]]), np.array([1.0, 1.0])), (np.array([[-1.0], [-3.0]]), np.array([0.0, 0.0]))]
    post = accord.Posterior(log_likelihood, lambda x: jnp.zeros(()), shards, np.zeros(1))
    with pytest.raises(ArithmeticError, match="no mode found.*flattens out.*separated labels under a flat prior"):
        warm_up(post, accord.Network.path(2))


def flat_prior(shards):
    def log_likelihood(x, rows):
        X, y = rows
        return -((y - X @ x) ** 2) / 2.0

    return accord.Posterior(log_likelihood, lambda x: jnp.zeros(()), shards, np.zeros(3))


def test_flat_directions_of_a_rank_deficient_design_are_reported_and_scaled():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((AGENTS, 8, 3))
    X[..., 2] = X[..., 1]
    post = flat_prior([(x, x[:, 0] + rng.standard_normal(8)) for x in X])
    with (
        jax.enable_x64(True),
        pytest.warns(UserWarning, match=r"not log-concave at its mode.*x\[[12]\] is the largest"),
    ):
        found = warm_up(post, NETWORKS["ring"])
    assert np.isfinite(found.coordinates.factor).all()
    values = np.linalg.eigvalsh(hessian_in(post, found.coordinates))
    np.testing.assert_allclose(values, [0.0, 1.0, 1.0], atol=1e-6)


def test_an_agent_without_information_is_allowed():
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((8, 3)), rng.standard_normal(8)) for _ in range(AGENTS)]
    shards[2] = (np.zeros((1, 3)), np.zeros(1))
    post = flat_prior(shards)
    with jax.enable_x64(True):
        found = warm_up(post, NETWORKS["ring"])
    np.testing.assert_allclose(found.curvature[2], 0.0, atol=1e-12)
    np.testing.assert_allclose(hessian_in(post, found.coordinates), np.eye(3), atol=1e-6)


def test_too_few_allowed_exchanges_raise_an_error():
    post, net = unequal_curvature(2, agents=40), accord.Network.path(40)
    with pytest.raises(ArithmeticError, match=r"one sum over this network takes 40 exchanges.*raise max_exchanges"):
        warm_up(post, net, max_exchanges=30)
    with pytest.raises(ArithmeticError, match="no common minimiser in 50 exchanges"):
        warm_up(post, net, dense=0, max_exchanges=50)


def test_a_disconnected_network_is_refused():
    with pytest.raises(ValueError, match="connected"):
        warm_up(unequal_curvature(1), accord.Network.empty(AGENTS))


@pytest.mark.long
def test_a_whitened_run_resumes(tmp_path):
    # one exchange averages exactly there, so that few settings are tried
    post, net, options = logistic(), NETWORKS["complete"], dict(burn_in=5, chains=2, seed=2)
    whole = walk(post, net, draws=12, **options)
    walk(post, net, draws=5, checkpoint=tmp_path, **options)
    resumed = walk(post, net, draws=12, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(resumed.draws, whole.draws)
    with pytest.raises(ValueError, match="cannot resume from"):
        walk(
            post, net, accord.Rounds(GTBAOAB(0.3, mix_rounds=1), whiten=False), draws=5, checkpoint=tmp_path, **options
        )
