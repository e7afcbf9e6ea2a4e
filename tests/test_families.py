"""Log densities of families and priors, against NumPyro, SciPy and direct sums."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats

from accord.data.collectives import LocalCollectives
from accord.models import families, priors

ETA = np.array([-3.0, -0.4, 0.0, 0.7, 2.5])


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


def density(family, rows, params, eta=ETA):
    params = {name: jnp.asarray(value) for name, value in params.items()}
    rows = {name: jnp.asarray(value) for name, value in rows.items()}

    @jax.jit
    def both(params, eta, rows):
        def total(params, eta):
            each = family.log_density(params, eta, rows)
            return jnp.sum(each), each

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, eta)

    (_, value), slopes = both(params, jnp.asarray(eta), rows)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    return np.asarray(value)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def checked(family, *columns):
    return family.rows("a.csv", [np.asarray(column) for column in columns])


REAL = np.array([-5.0, 0.3, 0.0, 1.0, 40.0])
COUNTS = np.array([0.0, 1.0, 0.0, 7.0, 300.0])
ABOVE = np.array([1e-3, 0.3, 1.0, 9.0, 400.0])
BETWEEN = np.array([1e-3, 0.3, 0.5, 0.9, 0.999])
TRIALS = np.array([0.0, 1.0, 5.0, 9.0, 300.0])
# family, columns of the response, parameters, and NumPyro's distribution
DENSITIES = {
    "normal": (families.Normal(), [REAL], {"sigma": 2.0}, lambda: dist.Normal(ETA, 2.0).log_prob(REAL)),
    "student": (
        families.Student(),
        [REAL],
        {"sigma": 2.0, "nu": 3.5},
        lambda: dist.StudentT(3.5, ETA, 2.0).log_prob(REAL),
    ),
    "student of known nu": (
        families.Student(nu=4.0),
        [REAL],
        {"sigma": 2.0},
        lambda: dist.StudentT(4.0, ETA, 2.0).log_prob(REAL),
    ),
    "bernoulli": (
        families.Bernoulli(),
        [np.array([0, 1, 1, 0, 1])],
        {},
        lambda: dist.Bernoulli(logits=ETA).log_prob(np.array([0, 1, 1, 0, 1])),
    ),
    "binomial": (
        families.Binomial(),
        [np.minimum(COUNTS, TRIALS), TRIALS],
        {},
        lambda: scipy.stats.binom.logpmf(np.minimum(COUNTS, TRIALS), TRIALS, sigmoid(ETA)),
    ),
    "poisson": (families.Poisson(), [COUNTS], {}, lambda: dist.Poisson(np.exp(ETA)).log_prob(COUNTS)),
    "negative binomial": (
        families.NegativeBinomial(),
        [COUNTS],
        {"concentration": 1.7},
        lambda: scipy.stats.nbinom.logpmf(COUNTS, 1.7, 1.7 / (1.7 + np.exp(ETA))),
    ),
    "gamma": (families.Gamma(), [ABOVE], {"shape": 2.5}, lambda: dist.Gamma(2.5, 2.5 / np.exp(ETA)).log_prob(ABOVE)),
    "beta": (
        families.Beta(),
        [BETWEEN],
        {"precision": 6.0},
        lambda: dist.Beta(6.0 * sigmoid(ETA), 6.0 * sigmoid(-ETA)).log_prob(BETWEEN),
    ),
    "ordinal": (
        families.Ordinal(("low", "middle", "high", "top")),
        [np.array(["low", "top", "middle", "high", "low"])],
        {"cutpoints": np.array([-1.0, 0.5, 3.0])},
        lambda: dist.OrderedLogistic(ETA, np.array([-1.0, 0.5, 3.0])).log_prob(np.array([0, 3, 1, 2, 0])),
    ),
    "ordinal of two": (
        families.Ordinal((0, 1)),
        [np.array([0, 1, 1, 0, 1])],
        {"cutpoints": np.array([0.5])},
        lambda: dist.Bernoulli(logits=ETA - 0.5).log_prob(np.array([0, 1, 1, 0, 1])),
    ),
    "weibull": (
        families.Weibull(),
        [ABOVE, np.array([1, 0, 1, 0, 1])],
        {"shape": 1.3},
        lambda: np.where(
            np.array([1, 0, 1, 0, 1]),
            scipy.stats.weibull_min.logpdf(ABOVE, 1.3, scale=np.exp(ETA)),
            scipy.stats.weibull_min.logsf(ABOVE, 1.3, scale=np.exp(ETA)),
        ),
    ),
}


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.long_from(8)
def test_families_have_the_densities_of_numpyro(name):
    family, columns, params, expected = DENSITIES[name]
    np.testing.assert_allclose(density(family, checked(family, *columns), params), expected(), rtol=1e-9, atol=1e-9)


def test_a_categorical_response_has_log_odds_against_its_first_class():
    family = families.Categorical(("a", "b", "c"))
    assert family.predictors == ("b", "c")
    eta, y = np.array([[1.0, -30.0], [0.3, 0.2], [40.0, 0.0]]), np.array(["c", "a", "b"])
    found = density(family, checked(family, y), {}, eta)
    expected = dist.Categorical(logits=np.c_[np.zeros(3), eta]).log_prob(np.array([2, 0, 1]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_densities_hold_far_out():
    far = np.array([-80.0, 80.0])
    np.testing.assert_allclose(
        density(families.Ordinal((0, 1, 2)), {"y": np.array([1, 1])}, {"cutpoints": [-1.0, 1.0]}, far),
        np.array([-79.0, -79.0]) + np.log(-np.expm1(-2.0)),
        rtol=1e-12,
    )
    # on both sides of the switch to the series
    counts, params = np.array([3.0, 0.0, 700.0]), np.array([1.0, 2.0, 3.0])
    for size in (1e-3, 63.0, 65.0, 3000.0):
        np.testing.assert_allclose(
            density(families.NegativeBinomial(), {"y": counts}, {"concentration": size}, params),
            scipy.stats.nbinom.logpmf(counts, size, size / (size + np.exp(params))),
            rtol=1e-10,
        )
    # a large concentration approaches the Poisson
    counts = np.array([3.0, 0.0])
    np.testing.assert_allclose(
        density(families.NegativeBinomial(), {"y": counts}, {"concentration": 1e9}, np.array([1.0, 2.0])),
        scipy.stats.poisson.logpmf(counts, np.exp([1.0, 2.0])),
        rtol=1e-6,
    )


def test_a_piecewise_exponential_hazard_is_that_of_its_intervals():
    family = families.PiecewiseExponential(cuts=(1.0, 3.0))
    time, event = np.array([0.5, 1.0, 2.0, 3.0, 9.0]), np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    hazard = np.array([0.3, 0.1, 0.7])
    met = np.array([0.15, 0.3, 0.3 + 0.1, 0.3 + 0.2, 0.3 + 0.2 + 6 * 0.7])
    expected = event * (np.log(hazard[[0, 0, 1, 1, 2]]) + ETA) - met * np.exp(ETA)
    found = density(family, checked(family, time, event), {"log_hazard": np.log(hazard)})
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # the density up to t and the survival after t sum to one
    one = {"log_hazard": np.log(hazard)}
    grid = np.linspace(1e-6, 4.0, 40001)
    rows = checked(family, grid, np.ones_like(grid))
    died = scipy.integrate.trapezoid(np.exp(density(family, rows, one, np.full(len(grid), 0.4))), grid)
    left = np.exp(density(family, checked(family, [4.0, 4.0], [0.0, 1.0]), one, np.full(2, 0.4)))
    np.testing.assert_allclose(died + left[0], 1.0, rtol=1e-4)


def test_intervals_have_equal_numbers_of_events():
    rng = np.random.default_rng(0)
    columns = [(rng.gamma(2.0, 3.0, rows), rng.integers(0, 2, rows)) for rows in (40, 200, 7)]
    family = families.PiecewiseExponential(intervals=4).settled(LocalCollectives(("a", "b", "c")), columns)
    pooled = np.concatenate([time[event == 1] for time, event in columns])
    counts = np.histogram(pooled, [0.0, *family.cuts, np.inf])[0]
    assert counts.max() - counts.min() <= 1
    assert families.PiecewiseExponential(cuts=[1, 2]).settled(LocalCollectives(()), []).cuts == (1.0, 2.0)


def by_hand(time, event, eta, efron):
    """The textbook log partial likelihood, event by event."""
    total = 0.0
    for moment in np.unique(time[event == 1]):
        dead = (time == moment) & (event == 1)
        risk, tied = np.exp(eta[time >= moment]).sum(), np.exp(eta[dead]).sum()
        for place in range(dead.sum()):
            total -= np.log(risk - (place / dead.sum() * tied if efron else 0.0))
        total += eta[dead].sum()
    return total


@pytest.mark.parametrize("efron", [True, False])
def test_cox_is_the_partial_likelihood_with_ties_whatever_the_padding(efron):
    rng = np.random.default_rng(1)
    time, event, eta = rng.integers(1, 8, 30).astype(float), rng.integers(0, 2, 30).astype(float), rng.normal(size=30)
    family = families.Cox(efron=efron)
    rows = {**checked(family, time, event), "eta": eta}
    for longest in (30, 37):
        shard = family.shard(rows, longest)
        own = shard.pop("eta")
        assert all(len(leaf) == longest for leaf in shard.values())
        np.testing.assert_allclose(density(family, shard, {}, own), by_hand(time, event, eta, efron), rtol=1e-12)


def with_cumlogsumexp(shard, eta):
    """The log partial likelihood of a shard without ties or padding."""
    return jnp.sum(shard["event"] * (eta - jax.lax.cumlogsumexp(eta)))


@pytest.mark.parametrize("width", [1.0, 30.0, 140.0])
@pytest.mark.long
def test_cox_has_the_derivatives_of_a_stable_sum_where_predictors_are_far_apart(width):
    rng = np.random.default_rng(2)
    rows = checked(families.Cox(), rng.permutation(40) + 1.0, rng.integers(0, 2, 40).astype(float))
    shard = families.Cox().shard(rows, 40)
    eta = width * rng.normal(size=40)
    assert np.ptp(eta) < 700
    own, right = partial(families.Cox().log_density, {}, rows=shard), partial(with_cumlogsumexp, shard)
    for derivative in (lambda f: f, jax.grad, jax.hessian):
        np.testing.assert_allclose(derivative(own)(eta), derivative(right)(eta), rtol=1e-9, atol=1e-12)


def test_cox_is_concave_and_never_too_large_where_predictors_are_beyond_the_range_of_exp():
    rng = np.random.default_rng(3)
    rows = checked(families.Cox(), rng.permutation(40) + 1.0, np.ones(40))
    shard = families.Cox().shard(rows, 40)
    direction = rng.normal(size=40)
    at = np.linspace(-2000.0, 2000.0, 401)
    own, slopes = jax.vmap(jax.value_and_grad(lambda t: families.Cox().log_density({}, t * direction, shard)))(at)
    right = jax.vmap(lambda t: with_cumlogsumexp(shard, t * direction))(at)
    assert np.isfinite(own).all() and np.isfinite(slopes).all()
    assert (own <= right + 1e-9 * np.abs(right)).all() and (own < right - 1.0).any()
    assert (np.diff(own, 2) <= 1e-8 * np.abs(own[1:-1])).all()


WRONG = {
    "bernoulli": (families.Bernoulli(), [[0, 2, 1]], "some responses of a.csv are not 0 or 1"),
    "text": (families.Bernoulli(), [["yes", "no"]], "name the level"),
    "binomial": (families.Binomial(), [[1, 5], [2, 4]], "some .* whole numbers from 0 to their trials"),
    "trials": (families.Binomial(), [[0, 0], [-1, 1.5]], "some .* trials"),
    "counts": (families.Poisson(), [[1.5, -1.0, 2.0]], "some .* counts"),
    "gamma": (families.Gamma(), [[0.0, 1.0]], "some .* numbers > 0"),
    "beta": (families.Beta(), [[0.0, 1.0, 0.5]], "some .* between 0 and 1"),
    "missing": (families.Normal(), [[np.nan, 1.0]], "some .* finite"),
    "class": (families.Categorical(("a", "b")), [["a", "q"]], r"some .* one of the classes \['a', 'b'\]"),
    "time": (families.Weibull(), [[0.0, 1.0], [1, 1]], "some .* times > 0: .* use the family cox"),
    "event": (families.Cox(), [[2.0, 1.0], [1, 3]], "some .* events 0 or 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_about_the_domain_quote_no_response(name):
    family, columns, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        checked(family, *columns)


PRIORS = {
    "normal": (priors.Normal(1.0, 2.0), dist.Normal(1.0, 2.0)),
    "student": (priors.StudentT(3.0, 1.0, 2.0), dist.StudentT(3.0, 1.0, 2.0)),
    "laplace": (priors.Laplace(1.0, 2.0), dist.Laplace(1.0, 2.0)),
    "half-normal": (priors.HalfNormal(2.0), dist.HalfNormal(2.0)),
    "half-cauchy": (priors.HalfCauchy(2.0), dist.HalfCauchy(2.0)),
    "exponential": (priors.Exponential(2.0), dist.Exponential(0.5)),
    "gamma": (priors.Gamma(2.0, 0.1), dist.Gamma(2.0, 0.1)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_have_the_densities_of_numpyro(name):
    prior, expected = PRIORS[name]
    x = np.array([0.01, 0.5, 3.0, 20.0])
    found = prior.log_density(jnp.asarray(x))
    np.testing.assert_allclose(found, expected.log_prob(x), rtol=1e-12)
    both = priors.stacked([prior, prior]).log_density(jnp.asarray(x[:2]))
    np.testing.assert_allclose(both, found[:2], rtol=1e-12)


@pytest.mark.long
def test_a_horseshoe_is_a_normal_with_its_half_cauchy_integrated_out():
    scale, floor = 0.3, 0.2
    prior = priors.Horseshoe(scale, floor)

    def tilted(log_u):
        return scipy.stats.halfcauchy.pdf(np.exp(log_u)) * np.exp(log_u - (floor * np.exp(-log_u)) ** 2 / 2.0)

    total = scipy.integrate.quad(tilted, -25.0, 40.0, limit=500)[0]
    for x in (0.0, 0.05, 0.4, 0.61, 3.0, 50.0):
        expected = scipy.integrate.quad(
            lambda log_u, x=x: scipy.stats.norm.pdf(x, 0.0, scale * np.exp(log_u)) * tilted(log_u),
            -10.0,
            40.0,
            limit=500,
        )
        np.testing.assert_allclose(prior.log_density(jnp.asarray(x)), np.log(expected[0] / total), rtol=1e-6)
    # second derivative, on both sides of the switch to the continued fraction
    for x in (0.0, 0.4, 0.7):
        curvature = jax.jit(jax.hessian(prior.log_density))(x)
        below, at, above = (prior.log_density(jnp.asarray(x + step)) for step in (-1e-4, 0.0, 1e-4))
        np.testing.assert_allclose(curvature, (below - 2.0 * at + above) / 1e-8, rtol=1e-4)


def test_cutpoints_by_their_probabilities_are_normalised():
    prior = priors.Probabilities(2.5)

    def joint(second, first):
        return float(np.exp(prior.log_density(jnp.asarray([first, first + second]))))

    grid = np.linspace(-12.0, 12.0, 241), np.linspace(1e-3, 12.0, 121)
    values = np.exp(
        jax.vmap(lambda a: jax.vmap(lambda b: prior.log_density(jnp.stack([a, a + b])))(jnp.asarray(grid[1])))(
            jnp.asarray(grid[0])
        )
    )
    total = scipy.integrate.trapezoid(scipy.integrate.trapezoid(values, grid[1], axis=1), grid[0])
    np.testing.assert_allclose(total, 1.0, rtol=2e-3)
    # concentration 1 is uniform: the density for two classes is the slope of the sigmoid
    one = priors.Probabilities(1.0).log_density(jnp.asarray([0.3]))
    np.testing.assert_allclose(one, scipy.stats.logistic.logpdf(0.3), rtol=1e-12)


def test_priors_refuse_invalid_scales():
    with pytest.raises(ValueError, match="scale"):
        priors.Normal(0.0, 0.0)
    with pytest.raises(ValueError, match="loc"):
        priors.Laplace(np.nan, 1.0)
    assert repr(priors.Normal(0, 2.5)) == "Normal(loc=0.0, scale=2.5)"
