"""The evidence of logistic regressions against quadrature, bridge sampling and thermodynamic integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base.array import array_stats
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import accord
from accord.posterior.reference import nuts_chain
from accord.samplers import Importance

RING = accord.Network.ring(4)
# standard deviation of the prior
TAU = 1.5


def data(count, dim):
    rng = np.random.default_rng(dim)
    X = rng.standard_normal((count, dim))
    return X, (rng.random(count) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(dim)))).astype(float)


def evidence(X, y):
    """As a run has it."""
    post = accord.models.logistic_regression([(X[i::4], y[i::4]) for i in range(4)], TAU**2)
    return accord.sample(post, RING, Importance(), draws=1000).log_evidence


def log_likelihood(X, y, x):
    """Of all rows, at positions (..., dim)."""
    logits = x @ X.T
    return (y * logits - np.logaddexp(0.0, logits)).sum(axis=-1)


def log_prior(x):
    return multivariate_normal.logpdf(x, np.zeros(x.shape[-1]), TAU**2 * np.eye(x.shape[-1]))


def test_evidence_is_the_integral_of_likelihood_times_prior():
    X, y = data(60, 2)
    line = np.linspace(-8.0, 8.0, 401)
    grid = np.stack(np.meshgrid(line, line), axis=-1)
    exact = logsumexp(log_likelihood(X, y, grid) + log_prior(grid)) + 2.0 * np.log(line[1] - line[0])
    value, error = evidence(X, y)
    assert error < 0.02 and abs(value - exact) < 4.0 * error


def effective(series):
    return float(array_stats.ess(series[None], chain_axis=0, draw_axis=1, method="mean"))


def powers(X, y, temperatures, draws):
    """Draws of NUTS, (temperature, draw, dim), of the prior times powers of the likelihood."""

    def draw(key, power):
        def log_density(x):
            logits = X @ x
            return power * jnp.sum(y * logits - jax.nn.softplus(logits)) - jnp.sum(x**2) / (2.0 * TAU**2)

        start = jnp.zeros(X.shape[1])
        return nuts_chain(key, log_density, start, draws=draws, warmup=500, dense=True).positions

    keys = jax.random.split(jax.random.key(0), len(temperatures))
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(draw))(keys, jnp.asarray(temperatures)))


def by_bridge(X, y):
    """Log evidence and its standard error by bridge sampling (Meng & Wong 1996) from a normal to draws of NUTS."""
    fitted, draws = powers(X, y, np.ones(2), 8000)
    normal = multivariate_normal(fitted.mean(axis=0), np.cov(fitted.T))
    drawn = normal.rvs(20_000, random_state=0)
    ratios = [log_likelihood(X, y, x) + log_prior(x) - normal.logpdf(x) for x in (draws, drawn)]
    counts = np.array([effective(ratios[0]), len(drawn)])
    shares = counts / counts.sum()
    value = 0.0
    for _ in range(100):
        below = [np.logaddexp(np.log(shares[0]) + ratio, np.log(shares[1]) + value) for ratio in ratios]
        terms = -below[0], ratios[1] - below[1]
        value = logsumexp(terms[1]) - np.log(terms[1].size) - logsumexp(terms[0]) + np.log(terms[0].size)
    spread = [np.exp(term - logsumexp(term) + np.log(term.size)).var() for term in terms]
    return value, np.sqrt(spread[0] / counts[0] + spread[1] / counts[1])


def by_temperatures(X, y):
    """By thermodynamic integration: the mean log likelihood under powers of it, integrated from the prior on."""
    # close to one another where the mean is steep
    temperatures = (np.arange(1, 41) / 40.0) ** 5
    prior = TAU * np.random.default_rng(0).standard_normal((20_000, X.shape[1]))
    values = [log_likelihood(X, y, x) for x in (prior, *powers(X, y, temperatures, 1500))]
    mean, variance = (np.array([getattr(np, f)(series) for series in values]) for f in ("mean", "var"))
    step = np.diff(np.r_[0.0, temperatures])
    # the variance is the slope of the mean, so that the rule of trapezoids can be corrected (Friel et al. 2014)
    value = np.sum(step * (mean[1:] + mean[:-1]) / 2.0) - np.sum(step**2 * np.diff(variance)) / 12.0
    weight = (np.r_[step, 0.0] + np.r_[0.0, step]) / 2.0
    return value, np.sqrt(np.sum(weight**2 * variance / [effective(series) for series in values]))


@pytest.mark.slow
@pytest.mark.parametrize("integrate", [by_bridge, by_temperatures])
def test_evidence_is_that_of_other_methods(integrate):
    X, y = data(200, 10)
    (value, error), (expected, its_error) = evidence(X, y), integrate(X, y)
    print(f"{integrate.__name__}: {expected:.3f} +- {its_error:.3f}, importance {value:.3f} +- {error:.3f}")
    assert error < 0.01 and its_error < 0.1
    assert abs(value - expected) < 4.0 * np.hypot(error, its_error)
