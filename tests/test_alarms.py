"""Warnings from tests of the draws against F, its gradient and other modes, which no Gaussian law predicts."""

import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from posteriors import ROWS, flat, four_rows, rowwise, schools
from tables import NETWORKS, walk
from test_honesty import made, normal, random_intercepts, warned

import accord
from accord.posterior.coordinates import Coordinates
from accord.results import warnings as complaints
from accord.results.findings import FEATURES, Expected, Findings
from accord.samplers import GTBAOAB
from accord.sampling.balance import balanced, measure, num_evaluated
from accord.sampling.diagnostics import examination
from accord.tuning.warmup import warm_up

FOUR = accord.Network.ring(4)


# --- simulated draws ---

DIM, CHAINS, DRAWS, SHAPE = 8, 4, 1000, 2.0


def skewed_draws(seed=0, memory=0.5):
    """Draws of a log gamma variable and seven normal parameters, with F and its gradient."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((CHAINS, DRAWS, DIM))
    for t in range(1, DRAWS):
        x[:, t] = memory * x[:, t - 1] + (1.0 - memory**2) ** 0.5 * x[:, t]
    x[..., 0] = np.log(rng.gamma(SHAPE, size=(CHAINS, DRAWS)))
    return x, *slope_at(x)


def slope_at(x):
    own = np.exp(x[..., 0])
    value = own - SHAPE * x[..., 0] + np.square(x[..., 1:]).sum(axis=2) / 2.0
    return value, np.concatenate([(own - SHAPE)[..., None], x[..., 1:]], axis=2)


def names(dim):
    return complaints._Names(tuple(f"p{d}" for d in range(dim)), None)


def unbalanced(balance, **found):
    return complaints._unbalanced(Findings(balance=balance, **found), names(DIM), short=False)


@pytest.mark.parametrize("seed", range(4))
def test_skewed_draws_of_the_posterior_satisfy_steins_identity(seed):
    x, value, gradient = skewed_draws(seed)
    balance = balanced(x, value, gradient)
    assert unbalanced(balance) == "" and complaints._strayed(Findings(balance=balance)) == ""
    assert 0.0 < np.nanmax(np.abs(balance.off)) and (balance.error > 0).all()


@pytest.mark.parametrize(
    "factor, said",
    # 4,000 draws detect an error of 10% in an sd
    [(1.2, "about +"), (0.8, "about -"), (1.03, "")],
)
def test_the_one_parameter_with_a_wrong_sd_is_named(factor, said):
    x, _, _ = skewed_draws()
    x[..., 5] *= factor
    balance = balanced(x, *slope_at(x))
    text = unbalanced(balance)
    assert ("p5" in text and said in text) if said else text == ""
    if said:
        about = float(text.split("about ")[1].split("%")[0]) / 100.0
        assert abs(about - (factor - 1.0)) < 0.08
        assert "Gaussian approximation: use smaller steps" in text
        assert "minibatches heat the draws" in unbalanced(balance, left_out="the noise of minibatches")
        # the average over parameters hides it
        temperature = 1.0 + balance.off[0].mean()
        assert complaints._heat(Findings(temperature=temperature, temperature_error=0.02), short=False) == ""
        # an error that the law predicts is reported as bias only
        sd = np.ones(DIM)
        sd[5] = factor
        law = Expected(np.zeros((3, DIM)), np.tile(sd, (3, 1)), np.zeros(DIM), sd)
        assert unbalanced(balance, expected=law) == ""


def test_the_predicted_error_of_steins_identity_is_the_error_of_draws():
    rng, sd, mean = np.random.default_rng(0), np.array([1.3, 0.8]), np.array([0.2, 0.0])
    x = mean + sd * rng.standard_normal((4, 20_000, 2))
    balance = balanced(x, np.square(x).sum(axis=2) / 2.0, x)
    law = complaints._by_law(Expected(None, None, mean, sd))
    found = x - np.median(x, axis=(0, 1))
    for h, predicted in zip(FEATURES, law, strict=True):
        np.testing.assert_allclose((h.function(found) * x - h.slope(found)).mean(axis=(0, 1)), predicted, atol=0.03)
    assert (balance.off[0] > 0).tolist() == [True, False]


def test_missing_skewness_is_detected_with_correct_mean_and_sd():
    rng = np.random.default_rng(1)
    x, _, _ = skewed_draws()
    # a normal with the mean and sd of the log gamma variable
    x[..., 0] = x[..., 0].mean() + x[..., 0].std() * rng.standard_normal((CHAINS, DRAWS))
    assert "p0" in unbalanced(balanced(x, *slope_at(x)))


def test_a_draw_without_mass_is_detected_by_f():
    x, value, gradient = skewed_draws()
    # ten draws far out in the exponential tail
    x[2, 500:510, 0] = -30.0
    value, gradient = slope_at(x)
    balance = balanced(x, value, gradient)
    text = complaints._strayed(Findings(balance=balance))
    assert f"F there is {value.max() - value.mean():.0f} above its mean" in text and "smaller steps" in text
    # in a funnel F varies with the volume
    volume = 10.0 * np.random.default_rng(0).standard_normal((CHAINS, DRAWS))
    wide = balanced(x, volume, gradient)
    assert wide.rise > 27.0 and wide.rise < wide.allowed


def test_the_bound_on_f_holds_for_log_concave_posteriors():
    rng = np.random.default_rng(2)
    for dim in (1, 2, 10, 100):
        for value in (rng.gamma(dim, size=(4, 1000)), rng.chisquare(dim, (4, 1000)) / 2.0):
            balance = balanced(rng.standard_normal((4, 1000, dim)), value, np.zeros((4, 1000, dim)))
            assert balance.rise < balance.allowed < dim + 6.0 * dim**0.5 + 30.0


def test_a_long_excursion_without_a_pareto_tail_is_detected_by_its_spread():
    strayed = normal()
    strayed[1, 200:500, 0] -= 25.0 + 25.0 * np.sin(np.linspace(0.0, 3.0, 300))
    drawn = complaints.Drawn(strayed, np.empty((4, 1000, 0, 2)), np.array([], int), ("age", "dose"), Findings())
    series = complaints._series(drawn)
    assert "the draws of age in the average" in complaints._tails(*series, complaints._Names(("age", "dose"), None))


def test_warnings_of_faults_come_before_advice_to_draw_more():
    few = normal(60)
    balance = balanced(few.astype(float), np.square(few).sum(axis=2) / 2.0, few.astype(float))
    (alone,) = warned(made(few, findings=Findings(balance=balance)))
    assert "below 400" in alone and "These draws do not reveal a standard deviation that is" in alone
    (unseen,) = warned(made(few))
    assert "Bias, which more draws do not fix, was not tested" in unseen
    # warnings about predicted bias and slow mixing come before warnings from tests of the draws
    slow, fault = warned(made(few, findings=Findings(balance=balance._replace(rise=100.0))))
    assert "Fix the other warnings first" in slow and "no mass" in fault


def test_the_number_of_evaluated_draws_follows_the_cost_of_the_run():
    post = logistic()
    assert num_evaluated(post, 4, 10.0, 0.0) == 0
    assert num_evaluated(post, 4, 500.0, 0.0) == 2000
    assert num_evaluated(post, 4, 1e9, 0.0) == min(40_000, 4 * 2**18 // (8 * (post.dim + 1)))
    # none with many parameters, unless the run sent many bytes
    large = SimpleNamespace(dim=5000, sizes=np.array([10, 10]))
    assert num_evaluated(large, 1, 1e9, 0.0) == 0 and num_evaluated(large, 1, 1e9, 1e9) > 200


# --- runs ---


def logistic(agents=6):
    rng = np.random.default_rng(3)
    shards = []
    for _ in range(agents):
        X = rng.standard_normal((30, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
        shards.append((X, (rng.random(30) < 1.0 / (1.0 + np.exp(-X @ [1.0, -0.5, 0.3]))).astype(float)))
    return accord.models.logistic_regression(shards, 10.0)


@pytest.fixture(scope="module")
def sampled():
    post = logistic()
    return post, accord.sample(post, NETWORKS["ring"], GTBAOAB(), draws=1000, seed=0)


@pytest.mark.long
def test_a_logistic_regression_has_no_warnings(sampled):
    _, run = sampled
    assert warned(run) == []
    balance = run.findings.balance
    assert balance.off.shape == (3, run.average.shape[2]) and balance.mass.size == 0 and balance.batches > 50


def test_the_checks_of_the_draws_are_part_of_the_traffic(sampled):
    post, run = sampled
    network = NETWORKS["ring"]
    warmup = warm_up(post, network)
    # one sum at the draws, two for other modes, which suffice for a convex F
    assert run.traffic.sums == warmup.spent.sums + 3
    plain = run.traffic.exchanges - warmup.spent.exchanges - 3 * 2 * network.aggregation.height
    assert plain > 0 and plain % run.traffic.rounds == 0
    # no sums without a warm-up
    post = accord.models.gaussian(np.zeros(4), np.ones(4))
    assert accord.sample(post, FOUR, GTBAOAB(0.3, mix_rounds=2), draws=200).traffic.sums == 0


def test_remote_data_keeps_the_measurements_of_the_run(sampled):
    post, run = sampled
    measured = measure(post, NETWORKS["ring"], 1.0, run.average, 400)
    away = post.with_data_at(object())
    found = examination(away, NETWORKS["ring"], GTBAOAB(0.2), None, None, measured)(run.average)
    assert found.balance is measured.balance and found.temperature == measured.temperature
    assert examination(away, NETWORKS["ring"], GTBAOAB(0.2), None, None)(run.average).balance is None


def test_the_balance_is_the_same_in_whitened_coordinates():
    # correlated parameters: slopes along single parameters, and along the axes of the posterior when whitened
    cov = np.array([[1.0, 0.95], [0.95, 1.0]])
    post = accord.models.gaussian(np.zeros((3, 2)), 3.0 * np.tile(cov, (3, 1, 1)))
    x = 1.15 * np.random.default_rng(0).multivariate_normal(np.zeros(2), cov, (4, 1000))
    network, place = accord.Network.ring(3), Coordinates(np.zeros(2), np.linalg.cholesky(cov))
    whitened, plain = (measure(p, network, 1.0, x, 4000).balance for p in (post.transformed(place), post))
    np.testing.assert_allclose(whitened.off[0], 1.15**2 - 1.0, atol=0.12)
    # the whitened slope of a Gaussian is the parameter itself and has less noise
    assert (whitened.error[0] < 0.6 * plain.error[0]).all()


def mixture(ordered):
    """The means of two components with known weights and widths."""
    rng = np.random.default_rng(4)
    y = np.r_[rng.normal(-1.5, 1.0, 30), rng.normal(1.5, 1.0, 30)]

    def means(x):
        return (x[0], x[0] + jnp.exp(x[1])) if ordered else (x[0], x[1])

    def likelihood(x, rows):
        low, high = means(x)
        return jnp.logaddexp(-0.5 * (rows - low) ** 2, -0.5 * (rows - high) ** 2)

    def prior(x):
        low, high = means(x)
        return -0.02 * (low**2 + high**2) + (x[1] if ordered else 0.0)

    return rowwise(likelihood, prior, y, np.array([-0.5, 0.5]))


@pytest.mark.long
@pytest.mark.parametrize("ordered", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_unordered_components_have_a_mode_without_draws(ordered):
    texts = warned(accord.sample(mixture(ordered), FOUR, GTBAOAB(), draws=1000, seed=0))
    if ordered:
        assert texts == []
    else:
        (text,) = texts
        assert "another mode that has no draws" in text and "order the labels" in text
        first, second = (float(part.split(",")[0]) for part in text.split(" = ")[1:])
        assert abs(first - 1.3) < 0.3 and abs(second + 1.8) < 0.3


@pytest.mark.long
def test_a_light_mode_that_dominates_the_standard_deviation_gives_a_warning():
    rows = np.array([-3.0, -2.9, 3.0, -2.95, 3.05])
    post = rowwise(lambda x, y: -jnp.log1p((y - x[0]) ** 2 / 0.09), lambda x: -(x[0] ** 2) / 200.0, rows, np.zeros(1))
    x = np.linspace(-20.0, 20.0, 40_001)
    density = np.exp(-np.log1p((rows[:, None] - x) ** 2 / 0.09).sum(axis=0) - x**2 / 200.0)
    share = density[x > 0].sum() / density.sum()
    run = accord.sample(post, FOUR, GTBAOAB(), draws=1000, seed=0)
    # 0.4% of the mass, which more than doubles the standard deviation
    assert share < 0.005 and run.draws.max() < 0.0
    assert any("another mode that has no draws, at x[0] = 3," in text for text in warned(run))


# --- posteriors with wrong standard deviations ---


def regression():
    """Forty rows, three coefficients and the log noise scale."""
    rng = np.random.default_rng(6)
    X = np.c_[np.ones(40), rng.standard_normal((40, 2))]
    y = X @ [1.0, 2.0, 3.0] + 1.5 * rng.standard_normal(40)

    def likelihood(p, rows):
        X, y = rows
        return -0.5 * ((y - X @ p["slopes"]) * jnp.exp(-p["log_sigma"])) ** 2 - p["log_sigma"]

    def prior(p):
        return -jnp.sum(p["slopes"] ** 2) / 200.0 - p["log_sigma"] ** 2 / 8.0

    return rowwise(likelihood, prior, (X, y), {"slopes": np.zeros(3), "log_sigma": np.zeros(())})


def flat_rows():
    """Four rows under a flat prior: the mean has Student's t distribution with three degrees of freedom."""
    likelihood = lambda x, rows: -0.5 * ((rows - x[0]) * jnp.exp(-x[1])) ** 2 - x[1]  # noqa: E731
    return rowwise(likelihood, flat, ROWS, np.zeros(2))


SILENT = {
    "random intercepts": (random_intercepts, {"thin": 30}, 3),
    "random intercepts, not thinned": (random_intercepts, {}, 3),
    "four rows": (four_rows, {"draws": 5000}, 4),
    "four rows, flat": (flat_rows, {"draws": 20_000}, 4),
    "eight schools": (lambda: schools(centred=False), {"draws": 10_000}, 3),
    "a small regression": (regression, {"draws": 5000}, 3),
}


def wrong(run, exact):
    """Whether standard deviations or the 90% intervals of a run are far off."""
    found, right = (x.reshape(-1, x.shape[2]).astype(float) for x in (run.average, exact))
    width = [np.ptp(np.quantile(x, [0.05, 0.95], axis=0), axis=0) for x in (found, right)]
    # the mean of four rows has no third moment, so its sd varies by 10% at some thousand effective draws
    return (
        np.abs(width[0] / width[1] - 1.0).max() > 0.06 or np.abs(found.std(axis=0) / right.std(axis=0) - 1).max() > 0.3
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", SILENT)
def test_wrong_standard_deviations_give_a_warning(case):
    make, options, seeds = SILENT[case]
    post = make()
    # many draws of cheap posteriors, as quantiles of heavy tails vary too
    many = 3000 if make is random_intercepts else 20_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = accord.sample(post, FOUR, accord.samplers.ChEES(), draws=many, seed=9).average
    for seed in range(seeds):
        run = walk(post, FOUR, GTBAOAB(), seed=seed, **options)
        # advice to take more draws counts only if it names an error that the draws do not reveal
        faults = [text for text in warned(run) if "-hat is" not in text or "do not reveal" in text]
        assert faults or not wrong(run, exact), seed


@pytest.mark.parametrize("scale", [1e-2, 1.0])
@pytest.mark.long
def test_too_few_draws_are_not_blamed_on_long_steps(scale):
    rng = np.random.default_rng(0)
    shards = [(np.c_[np.ones(20), rng.normal(size=20) * scale], rng.normal(size=20)) for _ in range(3)]
    post = accord.models.linear_regression(shards, noise_scale=1.0, prior_variance=1e4)
    # no bias by the law, but the run needs a hundred times the rounds
    method = accord.samplers.DESGLD(1e-3 if scale < 1.0 else 1e-7, noise="common")
    run = accord.sample(post, accord.Network.path(3), method, draws=500, seed=0)
    texts = warned(run)
    assert any("ESS is" in text for text in texts)
    assert any("Take more rounds first" in text for text in texts)
    assert not any("step is too long" in text or "Fix the other warnings" in text for text in texts)
