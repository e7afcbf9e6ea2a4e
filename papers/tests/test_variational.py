"""Variational consensus Monte Carlo against closed forms."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from tables import POSTERIORS, Z_BOUND, unequal_shards

import accord
from accord.samplers.combine.consensus import weighted_average
from accord_papers.combine import variational
from accord_papers.combine.variational import fitted_average

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("name", "dim"), [("shards", 2), ("curvature", 1)])
def test_variational_weights_combine_gaussian_shards_exactly(name, dim):
    post = POSTERIORS[name](dim)
    law = post.exact()
    means = np.linalg.solve(post.hessians(), -post.gradients(np.zeros(dim))[..., None])[..., 0]
    roots = np.linalg.cholesky(np.linalg.inv(post.hessians()))
    found, plain = [], []
    for seed in range(6):
        normals = np.random.default_rng(seed).standard_normal((2, 300, *means.shape))
        draws = means + np.einsum("nij,ctnj->ctni", roots, normals)
        for combine, into in ((partial(fitted_average, post=post), found), (weighted_average, plain)):
            x = combine(draws, np.random.default_rng(seed)).draws.reshape(-1, dim)
            into.append([*(x.mean(axis=0) - law.mean) / law.sd, *np.log(x.std(axis=0) / law.sd)])
    error = np.std(plain, axis=0, ddof=1) / np.sqrt(len(plain))
    assert (np.abs(np.mean(found, axis=0)) < Z_BOUND * error).all()
    # evaluations of F make means better than with the same number of exact draws
    assert np.abs(np.array(found)[:, :dim]).max() < 0.2 * np.abs(np.array(plain)[:, :dim]).max()


def test_the_entropy_bound_favours_equal_weights():
    widths = np.array([1.0, 9.0])
    post = accord.models.gaussian([0.0, 0.0], widths)
    precision = np.sum(1.0 / widths)

    def spread(v):
        return v**2 * widths[0] + (1.0 - v) ** 2 * widths[1]

    best = scipy.optimize.minimize_scalar(
        lambda v: precision * spread(v) / 2 - np.log(v * (1.0 - v)) / 2, bounds=(0.01, 0.99), method="bounded"
    ).x
    draws = np.random.default_rng(0).standard_normal((1, 20_000, 2, 1)) * np.sqrt(widths)[:, None]
    rng = np.random.default_rng(0)
    found = fitted_average(draws, rng, post=post, points=20_000, entropy="bound").draws.var()
    assert spread(best) > 1.05 / precision
    # the variance of 20,000 draws has a relative error of a hundredth
    np.testing.assert_allclose(found, spread(best), rtol=Z_BOUND * 0.01)
    ours = fitted_average(draws, rng, post=post, points=20_000).draws.var()
    np.testing.assert_allclose(ours, 1.0 / precision, rtol=Z_BOUND * 0.01)


COUNTS, EXPOSURES = np.array([3.0, 8.0, 2.0, 5.0]), np.array([1.0, 2.0, 2.0, 1.0])


def counts():
    """Log rates of Poisson counts: shards and posterior are laws of log gamma variables, which are skewed."""

    def likelihood(x, shard):
        return shard["count"] * x[0] - shard["exposure"] * jnp.exp(x[0])

    shards = [{"count": c, "exposure": e} for c, e in zip(COUNTS[:, None], EXPOSURES[:, None], strict=True)]
    return accord.Posterior(lambda x, s: likelihood(x, s)[0], lambda x: 0.0 * x[0], shards, np.zeros(1))


def test_variational_weights_correct_the_mean_of_skewed_shards():
    draws = np.log(np.random.default_rng(0).gamma(COUNTS, size=(4, 3000, 4)) / EXPOSURES)[..., None]
    mean = scipy.special.digamma(COUNTS.sum()) - np.log(EXPOSURES.sum())
    sd = np.sqrt(scipy.special.polygamma(1, COUNTS.sum()))
    plain = weighted_average(draws, np.random.default_rng(0)).draws
    fitted = fitted_average(draws, np.random.default_rng(0), post=counts(), points=3000)
    before, after = abs(plain.mean() - mean) / sd, abs(fitted.draws.mean() - mean) / sd
    assert before > 0.2 and after < before / 3.0
    assert fitted.facts["gain"] > 0.01


@pytest.mark.long
def test_a_run_of_variational():
    run = variational(counts(), draws=50, chains=2, warmup=200, points=40)
    evaluations = run.settings["evaluations"] + 1
    assert run.traffic.rounds == 1 + evaluations and run.traffic.exchanges == 1 + 2 * evaluations
    # draws in single precision, then a value and a gradient at each point
    assert (run.traffic.bytes_sent == (100 * 4 + evaluations * 40 * 2 * 8) / 2).all()
    assert run.draws.shape == (2, 50, 4, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "points must be a whole number >= 2, found 1"),
        ({"entropy": "exact"}, "entropy .*exact.*gaussian"),
    ],
)
def test_wrong_numbers_of_variational_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        variational(unequal_shards(2), **options)
