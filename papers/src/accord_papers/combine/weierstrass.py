"""Weierstrass sampler: smooth the subset densities by Gaussians, and combine them in pairs, up a tree."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from accord import Posterior, Run
from accord.samplers.combine import Combination, Moments, moments, one_shot, pooled

from .kernels import check_bandwidth, default_bandwidth, shrinkage_factor

# Rows of pairs weighed at once: a block of 256 rows against 4000 points is 8 MB.
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

    From agent i:  draws `t_i` of `exp(-f_i)`; at the hub, for two sets of draws, pairs are accepted with probability
    `exp(-(t_1 - t_2)' (h^2 S_1 + h^2 S_2)^-1 (t_1 - t_2) / 2)`, and each accepted pair gives one draw of
    `N(V (S_1^-1 t_1 + S_2^-1 t_2) / h^2, V)`, `V = h^2 (S_1^-1 + S_2^-1)^-1`; the results are combined in the same
    way until one set is left.

    Wang and Dunson 2013 (Parallelizing MCMC via Weierstrass sampler), the rejection sampler with its combination in
    pairs, which keeps the acceptance from vanishing with N. The kernels' covariance h^2 S_i follows the draws', so
    that h has no unit.
    Exact as h falls and the draws grow in number. At h > 0 the paper's form has a Gaussian's covariance inflated by
    1 + h^2 at every level of the tree; with shrinkage, the default here, the t_i are moved to their mean first
    (`kernels.shrinkage_factor`), which makes Gaussian shards exact at every h, up to the error of a finite number of
    draws. Instead of proposing pairs until enough are accepted, accepted pairs are drawn directly: all pairs of the
    two sets are weighed, and as many as there are draws are picked in proportion. That is the law of the pairs that a
    rejection sampler accepts from the same draws, at a cost that does not depend on the acceptance, with no draw lost.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `accord.samplers.combine.consensus`. The draws of all chains are combined together; draws of the result
        are exchangeable. Time and the square of draws * chains grow together.
    bandwidth
        h, in (0, 1], in units of the draws' standard deviations; > 0 with `shrinkage=False`. Left out it is chosen
        for each pair by `kernels.default_bandwidth`: Scott's rule, or more where the two sets overlap little.
    shrinkage
        False is the paper's form.

    Returns
    -------
    Run
        The same draws for every agent. Settings: `bandwidth`, the largest h in the tree, `acceptance`, the smallest of
        the pairs' acceptance rates, and `effective_draws`, the smallest effective number of draws of a set.

    Raises
    ------
    ValueError, ImportError
        As in `accord.samplers.combine.consensus`; or a bandwidth out of its range.

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
    """The combination of subset draws (chain, draw, agent, dim)."""
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
        # an odd one waits for the next level; its own covariance gives it the right weight there
        sets = merged + sets[2 * len(merged) :]
    # a new order: neighbours in a set share their first point
    mixed = rng.permutation(sets[0])
    return Combination(
        mixed.reshape(*subsets.shape[:2], dim),
        facts={"bandwidth": largest, "acceptance": acceptance, "effective_draws": effective},
    )


def _merge(
    pair: np.ndarray, fitted: Moments, rng: np.random.Generator, h: float, factor: float
) -> tuple[np.ndarray, float, float]:
    """As many draws of the smoothed product of two sets (2, point, dim); acceptance and effective number of draws."""
    _, points, dim = pair.shape
    centres = fitted.means[:, None] + factor * (pair - fitted.means[:, None])
    root = np.linalg.cholesky(h**2 * fitted.covariances.sum(axis=0))
    white = np.linalg.solve(root, (centres - fitted.means.mean(axis=0)).reshape(-1, dim).T).T.reshape(pair.shape)
    with jax.enable_x64(True):
        log_rows, log_columns = (np.asarray(part) for part in _weigh(*map(jnp.asarray, white)))
        top = log_rows.max()
        rows = np.exp(log_rows - top)
        # one uniform for all: each point is picked its expected number of times, rounded up or down
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
    """Log of the summed weights of every point of two sets of whitened points (point, dim), over the other set."""

    def total(point: jax.Array, others: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(_log_weights(point, others))

    return (
        jax.lax.map(lambda point: total(point, right), left, batch_size=_BLOCK),
        jax.lax.map(lambda point: total(point, left), right, batch_size=_BLOCK),
    )


@jax.jit
def _partners(chosen: jax.Array, others: jax.Array, luck: jax.Array) -> jax.Array:
    """For every chosen point the index of one of the others, in proportion to its weight, by inversion."""

    def partner(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        point, uniform = inputs
        log_weights = _log_weights(point, others)
        mass = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
        return jnp.minimum(jnp.searchsorted(mass, uniform * mass[-1], side="right"), len(others) - 1)

    return jax.lax.map(partner, (chosen, luck), batch_size=_BLOCK)
