"""Weierstrass sampler: smooth the subset densities by Gaussians and combine them in pairs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from accord import Posterior, Run
from accord.samplers.combine import Combination, Moments, moments, one_shot, pooled

from .kernels import check_bandwidth, default_bandwidth, shrinkage_factor

# Rows of pairs per batch. 256 rows times 4,000 points take 8 MB.
_BLOCK = 256


def weierstrass(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    shrinkage: bool = True,
) -> Run:
    """Weierstrass rejection sampler, over pairs of subset posteriors.

    From agent i:  draws `t_i` of `exp(-f_i)`. For two sets of draws, the hub accepts pairs with probability
    `exp(-(t_1 - t_2)' (h^2 S_1 + h^2 S_2)^-1 (t_1 - t_2) / 2)`. Each accepted pair gives one draw of
    `N(V (S_1^-1 t_1 + S_2^-1 t_2) / h^2, V)`, `V = h^2 (S_1^-1 + S_2^-1)^-1`. The results are combined in the same way
    until one set is left.

    Wang and Dunson 2013 (Parallelizing MCMC via Weierstrass sampler), the rejection sampler with combination in pairs,
    which keeps the acceptance from vanishing with N. The kernels' covariance is h^2 S_i, so h has no unit. The method
    is exact as h falls and the number of draws grows. At h > 0 the paper's form inflates a Gaussian's covariance by
    1 + h^2 at every level of the tree. With shrinkage, the default here, the t_i first move towards their mean
    (`kernels.shrinkage_factor`), which makes Gaussian shards exact at every h, up to Monte Carlo error. Instead of
    rejection, all pairs are weighted, and pairs are drawn in proportion to their weights, in the number of draws. Their
    law is that of accepted pairs, the cost does not depend on the acceptance, and no draw is lost.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `accord.samplers.combine.consensus`. The draws of all chains are combined together. Draws of the result
        are exchangeable. Time grows with the square of draws * chains.
    bandwidth
        h, in (0, 1], in units of the draws' standard deviations, or h > 0 with `shrinkage=False`. Default:
        `kernels.default_bandwidth` for each pair, which is Scott's rule, or more if the two sets overlap little.
    shrinkage
        Whether to shrink centres. False is the paper's form.

    Returns
    -------
    Run
        The same draws for every agent. Settings: `bandwidth`, the largest h in the tree, `acceptance`, the smallest
        acceptance rate of a pair, and `effective_draws`, the smallest effective number of draws of a set.

    Raises
    ------
    ValueError, ImportError
        As in `accord.samplers.combine.consensus`, or the bandwidth is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers.combine import weierstrass
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = weierstrass(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    check_bandwidth(bandwidth, scaled=shrinkage)
    return one_shot(
        post,
        partial(tree_of_pairs, bandwidth=bandwidth, shrinkage=shrinkage),
        method=f"weierstrass(bandwidth={bandwidth}, shrinkage={shrinkage})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def tree_of_pairs(
    subsets: np.ndarray, rng: np.random.Generator, *, bandwidth: float | None = None, shrinkage: bool = True
) -> Combination:
    """Combine subset draws (chain, draw, agent, dim) in pairs."""
    sets = list(pooled(subsets))
    points, dim = sets[0].shape
    largest, acceptance, effective = 0.0, 1.0, float(points)
    while len(sets) > 1:
        merged = []
        for left, right in zip(sets[::2], sets[1::2], strict=False):
            pair = np.stack([left, right])
            fitted = moments(pair)
            h = default_bandwidth(fitted, points) if bandwidth is None else float(bandwidth)
            both, rate, size = _merge(pair, fitted, rng, h, float(shrinkage_factor(h)) if shrinkage else 1.0)
            merged.append(both)
            largest, acceptance, effective = max(largest, h), min(acceptance, rate), min(effective, size)
        # an odd set waits for the next level, where its covariance gives it the right weight
        sets = merged + sets[2 * len(merged) :]
    # permuted, because neighbours in a set share their first point
    mixed = rng.permutation(sets[0])
    return Combination(
        mixed.reshape(*subsets.shape[:2], dim),
        facts={"bandwidth": largest, "acceptance": acceptance, "effective_draws": effective},
    )


def _merge(
    pair: np.ndarray, fitted: Moments, rng: np.random.Generator, h: float, factor: float
) -> tuple[np.ndarray, float, float]:
    """Draws of the smoothed product of two sets (2, point, dim), the acceptance, and the effective number of draws."""
    _, points, dim = pair.shape
    centres = fitted.means[:, None] + factor * (pair - fitted.means[:, None])
    root = np.linalg.cholesky(h**2 * fitted.covariances.sum(axis=0))
    white = np.linalg.solve(root, (centres - fitted.means.mean(axis=0)).reshape(-1, dim).T).T.reshape(pair.shape)
    with jax.enable_x64(True):
        log_rows, log_columns = (np.asarray(part) for part in _weigh(*map(jnp.asarray, white)))
        top = log_rows.max()
        rows = np.exp(log_rows - top)
        # systematic resampling: each point appears its expected number of times, rounded up or down
        cut = (np.arange(points) + rng.random()) / points
        first = np.minimum(np.searchsorted(np.cumsum(rows) / rows.sum(), cut), points - 1)
        luck = rng.random(points)
        second = np.asarray(_partners(*map(jnp.asarray, (white[0][first], white[1], luck))))
    spread = np.linalg.inv(fitted.precisions.sum(axis=0))
    weighted = centres[0][first] @ fitted.precisions[0] + centres[1][second] @ fitted.precisions[1]
    kernel = h * rng.standard_normal((points, dim)) @ np.linalg.cholesky(spread).T
    columns = np.exp(log_columns - log_columns.max())
    effective = min(float(w.sum() ** 2 / np.square(w).sum()) for w in (rows, columns))
    return rng.permutation(weighted @ spread + kernel), float(np.exp(top) * rows.sum() / points**2), effective


def _log_weights(point: jax.Array, others: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(jnp.square(others - point[None, :]), axis=1)


@jax.jit
def _weigh(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each point of two sets of whitened points (point, dim), the log sum of weights over the other set."""

    def total(point: jax.Array, others: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(_log_weights(point, others))

    return (
        jax.lax.map(lambda point: total(point, right), left, batch_size=_BLOCK),
        jax.lax.map(lambda point: total(point, left), right, batch_size=_BLOCK),
    )


@jax.jit
def _partners(chosen: jax.Array, others: jax.Array, luck: jax.Array) -> jax.Array:
    """For every chosen point, the index of a random other point with probability proportional to its weight."""

    def partner(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        point, uniform = inputs
        log_weights = _log_weights(point, others)
        mass = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
        return jnp.minimum(jnp.searchsorted(mass, uniform * mass[-1], side="right"), len(others) - 1)

    return jax.lax.map(partner, (chosen, luck), batch_size=_BLOCK)
