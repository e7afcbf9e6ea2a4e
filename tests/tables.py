"""Tables of methods, posteriors and networks whose product is tested, its quick part, and Monte Carlo bounds."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recursions import gaussian_potentials, regression

import accord
from accord.samplers import (
    DADMMS,
    DESGHMC,
    DESGLD,
    DGLMC,
    DULA,
    EXTRASGLD,
    FALD,
    GCMC,
    GTBAOAB,
    GTDULA,
    DIGingSGLD,
    Gibbs,
    SplitGTBAOAB,
    StaleSGLD,
)

# Methods with an exact law. Steps are well inside the stable range of every posterior below, on every network below.
METHODS = {
    "DESGLD": lambda **options: DESGLD(step_size=0.15, **options),
    "DESGHMC": lambda **options: DESGHMC(step_size=0.2, friction=1.5, **options),
    "DULA": lambda **options: DULA(step_size=0.025, consensus_step=0.15, **options),
    "GTDULA": lambda **options: GTDULA(step_size=0.02, consensus_step=0.15, tracking_step=0.1, **options),
    "GTBAOAB": lambda **options: GTBAOAB(0.2, 1.5, **{"noise": "independent", "mix_rounds": 1, **options}),
    "SplitGTBAOAB": lambda **options: SplitGTBAOAB(0.2, 1.5, **{"noise": "independent", "mix_rounds": 1, **options}),
    "EXTRASGLD": lambda **options: EXTRASGLD(step_size=0.15, **{"blend": 0.3, **options}),
    "DIGingSGLD": lambda **options: DIGingSGLD(step_size=0.04, **options),
    "DADMMS": lambda **options: DADMMS(rho=0.7, **options),
    "Gibbs": lambda **options: Gibbs(eta=0.3, **options),
    "DGLMC": lambda **options: DGLMC(rho=0.4, step_size=0.045, local_steps=(1, 3, 2, 4, 1, 2), **options),
    "GCMC": lambda **options: GCMC(rho=0.4, conditional="exact", **options),
    "StaleSGLD": lambda **options: StaleSGLD(step_size=0.02, staleness=(0, 3, 1, 2, 3, 1), **options),
    "FALD": lambda **options: FALD(step_size=0.01, local_steps=3, correlation=0.6, **options),
}
# Methods on unreliable links, with one constant for both of GT-DULA's steps.
OVER_LINKS = {
    "DESGLD": METHODS["DESGLD"],
    "GTDULA": lambda **options: GTDULA(step_size=0.002, consensus_step=0.1, tracking_step=0.1, **options),
    "GTBAOAB": lambda **options: GTBAOAB(0.1, 1.5, mix_rounds=4, **options),
    "DADMMS": lambda **options: DADMMS(rho=0.7, noise="common", **options),
    "EXTRASGLD": lambda **options: EXTRASGLD(step_size=0.15, **options),
    "DIGingSGLD": lambda **options: DIGingSGLD(step_size=0.02, **options),
}
MIXING_METHODS = ["DESGLD", "DESGHMC", "DULA", "GTDULA", "GTBAOAB", "EXTRASGLD", "DIGingSGLD"]
COMMON_NOISE_METHODS = [*MIXING_METHODS, "SplitGTBAOAB", "DADMMS"]

AGENTS = 6
NETWORKS = {
    "ring": accord.Network.ring(AGENTS),
    "star": accord.Network.star(AGENTS),
    "path": accord.Network.path(AGENTS),
    "complete": accord.Network.complete(AGENTS),
    "irregular": accord.Network.from_edges(AGENTS, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5), (3, 5), (2, 5)]),
}

# Networks with unreliable links.
LINKS = {
    "lossy": NETWORKS["ring"].links(loss=0.3),
    "late": NETWORKS["irregular"].links(loss=0.1, delay=3),
    "bursts": NETWORKS["path"].links(loss=0.2, burst=3, seed=1),
    "changing": NETWORKS["ring"].links(schedule=[[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (0, 5)]]),
    "by a function": NETWORKS["ring"].links(loss=0.1, schedule=lambda k: k % 2 == np.arange(AGENTS) % 2),
    "one-way": NETWORKS["ring"].links(loss=0.3, directed=[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]),
}


# Options of `accord.Rounds`.
WALKING = ("burn_in", "thin", "init", "whiten", "checkpoint_every")


def walk(post, network, method=None, **options):
    """A run with the options of `accord.sample` and of `accord.Rounds` in one call."""
    own = {name: options.pop(name) for name in WALKING if name in options}
    if own:
        method = replace(method, **own) if isinstance(method, accord.Rounds) else accord.Rounds(method, **own)
    return accord.sample(post, network, method, **options)


def rows(dim, agents=AGENTS, seed=0):
    """Pairs (X, y) of a linear regression with 2 to 12 rows per agent and columns of unequal scale."""
    rng = np.random.default_rng(seed)
    truth = np.arange(1.0, dim + 1.0)
    shards = []
    for agent in range(agents):
        X = rng.standard_normal((2 + 2 * agent, dim)) * np.linspace(0.6, 1.2, dim)
        shards.append((X, X @ truth + 2.0 * rng.standard_normal(len(X))))
    return shards


def unequal_shards(dim, agents=AGENTS, seed=0):
    """The linear regression of `rows`."""
    return accord.models.linear_regression(rows(dim, agents, seed), noise_scale=2.0, prior_variance=10.0)


def gaussians(dim, agents=AGENTS, seed=0):
    """Far means and correlated covariances, up to a factor 10 apart between agents."""
    rng = np.random.default_rng(seed)
    covariances = []
    for agent in range(agents):
        Q, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        covariances.append(Q @ np.diag(np.linspace(0.5, 2.0, dim)) @ Q.T * (0.8 + 1.5 * agent))
    return 3.0 * rng.standard_normal((agents, dim)), np.stack(covariances)


def unequal_curvature(dim, agents=AGENTS, seed=0):
    """Gaussian potentials with these means and covariances."""
    return accord.models.gaussian(*gaussians(dim, agents, seed))


def equal_curvature(dim):
    """Gaussian potentials with distant means and one covariance: agents' average is a Langevin chain."""
    H = np.diag(np.linspace(0.5, 1.5, dim)) + 0.1
    means = 2.0 * np.random.default_rng(0).standard_normal((AGENTS, dim))
    return accord.models.gaussian(means, np.stack([np.linalg.inv(H)] * AGENTS))


# Potentials of the first two posteriors.
POTENTIALS = {
    "shards": lambda dim: regression(rows(dim), 2.0, 10.0),
    "curvature": lambda dim: gaussian_potentials(*gaussians(dim)),
}
POSTERIORS = {"shards": unequal_shards, "curvature": unequal_curvature}


def start(dim):
    """A random start of up to four parameters, away from the modes."""
    return accord.Gaussian(np.ones(dim), np.diag([0.5, 1.0, 1.5, 2.0][:dim]) + 0.2)


def among(names, *quick):
    """The names as parameters of a test, slow except for the quick ones."""
    assert set(quick) <= set(names)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def pairs(first, second, quick):
    """All pairs of names as parameters of a test, slow except for the quick ones."""
    quick, product = set(quick), list(itertools.product(first, second))
    assert quick <= set(product)
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in product]


def quadrature(post, points):
    """Means and standard deviations of a posterior of few parameters, on a grid with this number of points per axis."""
    mean, cov = quadrature_moments(post, points)
    return mean, np.sqrt(np.diag(cov))


def quadrature_moments(post, points):
    """Mean and covariance of a posterior of few parameters, on a grid with this number of points per axis.

    The axes reach 8 standard deviations of the Gaussian at the mode to each side.
    """
    mode, cov = post.mode(), np.linalg.inv(post.hessians(post.mode()).sum(axis=0))
    axes = np.meshgrid(*[np.linspace(-8.0, 8.0, points)] * post.dim)
    grid = mode + np.stack(axes, axis=-1).reshape(-1, post.dim) @ np.linalg.cholesky(cov).T
    with jax.enable_x64(True):
        logs = np.asarray(jax.jit(lambda x: jax.lax.map(post.logdensity, x, batch_size=256))(jnp.asarray(grid)))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, (weights * (grid - mean).T) @ (grid - mean)


# Bound on |z| over all entries of a test: with 10,000 independent entries a true law exceeds it once in 4,000 runs.
Z_BOUND = 5.5


def worst_z(positions, law):
    """The largest |z| of the mean and the covariance of draws (chain, agent, dim) against a joint Gaussian."""
    x = np.asarray(positions, np.float64).reshape(len(positions), -1)
    n, mean, cov = len(x), law.mean, law.cov
    variance = np.diag(cov)
    z_mean = (x.mean(axis=0) - mean) / np.sqrt(variance / n)
    centred = x - mean
    z_cov = (centred.T @ centred / n - cov) / np.sqrt((np.outer(variance, variance) + cov**2) / n)
    return max(np.abs(z_mean).max(), np.abs(z_cov).max())
