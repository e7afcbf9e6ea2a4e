"""Helpers for tests of one-shot methods: similar shards, exact draws of subset posteriors, and common checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tables import POSTERIORS, Z_BOUND, quadrature, quadrature_moments

import accord
from accord.samplers.combine import subsets

# On few compiled programs: one posterior and one set of sizes.
SIZES = dict(draws=400, chains=12, warmup=300)
WRONG_NUMBERS = [
    ({"draws": 0}, "draws must be a whole number >= 1, found 0"),
    ({"draws": 2.5}, "draws must be a whole number >= 1, found 2.5"),
    ({"chains": True}, "chains must be a whole number >= 1, found True"),
    ({"warmup": 0}, "warmup must be a whole number >= 1, found 0"),
    ({"seed": -1}, "seed must be a whole number >= 0, found -1"),
    ({"draws": 1, "chains": 2}, r"draws \* chains must exceed the 2 parameters for covariances, found 1 \* 2"),
]


class Method(NamedTuple):
    """A method as users call it, the power of its subset posteriors, its rule on draws, and options that fit it."""

    run: Callable[..., accord.Run]
    power: int
    rule: Callable[..., Any]
    options: dict[str, Any]


def even_shards(dim, agents=4, rows=15):
    """Linear regression whose shards are random parts of the data, so that all subset posteriors overlap."""
    rng = np.random.default_rng(1)
    shards = [
        (X, X @ np.arange(1.0, dim + 1) + rng.standard_normal(rows)) for X in rng.standard_normal((agents, rows, dim))
    ]
    return accord.models.linear_regression(shards, noise_scale=1.0, prior_variance=10.0)


POSTS = {**POSTERIORS, "even": even_shards}


def subset_laws(post, power=1):
    """Means and covariances of the Gaussian subset posteriors exp(-power f_i)."""
    hessians = post.hessians()
    linear = -post.gradients(np.zeros(post.dim))
    return np.linalg.solve(hessians, linear[..., None])[..., 0], np.linalg.inv(hessians) / power


def exact_draws(post, seed, draws=400, chains=2, power=1):
    means, covariances = subset_laws(post, power)
    normals = np.random.default_rng(seed).standard_normal((chains, draws, *means.shape))
    return means + np.einsum("nij,ctnj->ctni", np.linalg.cholesky(covariances), normals)


def product(means, covariances):
    """The product of Gaussians, by its definition."""
    precisions = np.linalg.inv(covariances)
    cov = np.linalg.inv(precisions.sum(axis=0))
    return accord.Gaussian(cov @ np.einsum("nij,nj->i", precisions, means), cov)


def replicated_z(combine, replicates, law):
    """Worst |z| of mean and covariance over independent replicates of subset draws, and the worst error of one mean.

    The draws of one combination share the errors of its subset draws, which no effective sample size of theirs can
    show; the spread of the estimates between replicates does. Estimates are in units of the law's standard deviations.
    """
    white = np.linalg.inv(np.linalg.cholesky(law.cov))
    means, covariances = [], []
    for index, draws in enumerate(replicates):
        combined = combine(draws, np.random.default_rng([index, 1])).draws
        assert combined.shape == (*draws.shape[:2], draws.shape[3])
        x = (combined.reshape(-1, law.dim) - law.mean) @ white.T
        means.append(x.mean(axis=0))
        covariances.append(x.T @ x / len(x))
    z = [
        np.abs(np.mean(x, axis=0) - truth) / (np.std(x, axis=0, ddof=1) / np.sqrt(len(x)))
        for x, truth in ((means, 0.0), (covariances, np.eye(law.dim)))
    ]
    return max(z[0].max(), z[1].max()), np.std(means, axis=0).max()


def check(combine, post, law, *, draws=400, repeats=12, noise=0.5):
    z, error = replicated_z(combine, [exact_draws(post, [seed, 2], draws) for seed in range(repeats)], law)
    assert z < Z_BOUND
    # a bound on the noise, without which |z| would be no test: no replicate is far from the law. Half a standard
    # deviation is what kernel estimates from a few hundred draws reach for shards three standard deviations apart.
    assert error < noise


def logistic(rows=200, agents=3):
    """Logistic regression whose shards are random parts of the data, with its subset posteriors close to Gaussian."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((agents, rows, 2))
    y = (rng.random((agents, rows)) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5])))).astype(float)
    return accord.models.logistic_regression(list(zip(X, y, strict=True)), prior_variance=10.0)


def averaged(post, points=161):
    """The mean of the average of subset draws weighted by their precisions: not the posterior's, where it is skew."""
    alone = [accord.models.logistic_regression([shard], prior_variance=30.0) for shard in post.shards]
    means, covariances = zip(*(quadrature_moments(one, points) for one in alone), strict=True)
    return product(np.stack(means), np.stack(covariances)).mean


def skewed(*powers):
    """A posterior that is not Gaussian: its moments, and draws of its subsets for each power, in replicates."""
    post = logistic()
    replicates = {
        power: np.split(subsets.sample_subsets(post, power, draws=300, chains=8, seed=1, warmup=300).draws, 8)
        for power in powers
    }
    return post, quadrature(post, 161), replicates


def require_combination(method, post, sampled, folder):
    """A run has the rule's combination of the subset draws, and the method's traffic and settings."""
    run = method.run(post, seed=3, **SIZES, **method.options)
    expected = method.rule(sampled[method.power], np.random.default_rng([3, 1]))
    np.testing.assert_array_equal(run.average, expected.draws.astype(np.float32))
    name = method.run.__name__
    assert run.draws.shape == (12, 400, 4, 2)
    assert (run.draws == run.average[:, :, None]).all()
    assert (run.statistics["consensus_error"] == 0).all()
    assert all(x.shape == (12, 400) for x in run.statistics.values())
    assert run.traffic.rounds == run.traffic.exchanges == 1
    # two numbers a draw; all parametric sends is two means and three covariances, for all chains together
    assert (run.traffic.bytes_sent == (np.ceil(5 * 8 / 12) if name == "parametric" else 400 * 2 * 4)).all()
    assert run.settings["method"].startswith(f"{name}(") and run.settings["seed"] == 3
    # NUTS evaluates at least one gradient a transition
    assert (run.traffic.gradient_rows >= 15 * 700).all()
    assert run.settings["gradients"] >= run.settings["gradients_largest"] >= 700
    # whole rows an agent
    assert abs(run.traffic.gradient_rows.sum() - 15 * run.settings["gradients"]) <= run.traffic.gradient_rows.size
    assert list(run.summary().index) == list(post.names)
    run.save(folder / "run.nc")
    again = accord.Run.load(folder / "run.nc")
    np.testing.assert_array_equal(again.draws, run.draws)
    assert again.settings["method"] == run.settings["method"]


def require_quadrature(method, regression):
    """Means, and widths if the method has them, agree with quadrature for a logistic regression."""
    post, (mean, sd), replicates = regression
    name = method.run.__name__
    if name == "consensus":
        mean = averaged(post)
    power = min(method.power, post.num_agents)
    results = [method.rule(x, np.random.default_rng([r, 2])) for r, x in enumerate(replicates[power])]
    means = np.stack([result.draws.mean(axis=(0, 1)) for result in results])
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    if power > 1:
        # a weighted mean of subset means, each of which lies about the posterior's with N times its variance
        weights = np.full(power, 1 / power)
        if name == "median":
            weights = np.mean([[float(w) for w in result.facts["weights"].split()] for result in results], axis=0)
        error = np.hypot(error, sd * np.sqrt(power * np.sum(weights**2)))
    assert (np.abs(means.mean(axis=0) - mean) < Z_BOUND * error).all()
    if name in ("median", "trees"):
        # the width of one is that of a mixture, wider by how far the subsets' means lie apart; blocks have a width
        return
    spreads = np.stack([np.log(result.draws.std(axis=(0, 1)) / sd) for result in results])
    error = spreads.std(axis=0, ddof=1) / np.sqrt(len(spreads))
    assert (np.abs(spreads.mean(axis=0)) < Z_BOUND * error).all()


def require_proper_shards(method):
    """A shard that does not identify all parameters is named."""
    hessians = np.array([np.eye(2), [[1.0, 1.0], [1.0, 1.0]]])
    post = accord.models.quadratic(hessians, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"agent 1 \(a shard that does not split, 2 parameters\) is improper: the sma"):
        method.run(post)
