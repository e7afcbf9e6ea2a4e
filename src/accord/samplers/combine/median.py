"""Median posterior: the geometric median of the subset posteriors, robust against a share of bad shards."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ...base.checks import positive, whole_number
from ...posterior import Posterior
from ...results.run import Run
from .pooling import pooled
from .subsets import Combination, one_shot

_TOLERANCE, _ITERATIONS = 1e-12, 10_000


def median(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    kernel_draws: int = 500,
) -> Run:
    """Median posterior (M-posterior).

    From agent i:  draws of `exp(-N f_i)`. At the hub: the weights w of `argmin_q sum_i |q - q_i|_k`, q = sum_i w_i q_i,
    in the Hilbert space of the kernel `k(x, y) = exp(-|x - y|^2 / (2 h^2))`, and draws of the mixture q.

    Minsker, Srivastava, Lin and Dunson 2014 (Scalable and robust Bayesian inference via the median posterior),
    algorithms 1 and 2: Weiszfeld's iterations find the weights, weights below 1 / (2 N) become 0, and the rest are
    normalised. Distances of x are in units of the mean covariance of the subset posteriors, so that h has no unit. The
    mixture is not the posterior. It is robust: fewer than half of the shards, with any data, cannot move it far.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `consensus`.
    bandwidth
        h > 0. None: the median distance between draws of all agents.
    kernel_draws
        Largest number of draws per agent, evenly spaced, in the kernel's averages, >= 2. Time grows as the square of
        this number times N.

    Returns
    -------
    Run
        The same draws for every agent. Statistic: `source`, the agent of each draw. Settings: the agents' `weights`,
        and `bandwidth`.

    Raises
    ------
    ValueError, ImportError
        As in `consensus`, or `bandwidth` or `kernel_draws` is out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.median(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    if bandwidth is not None:
        positive("bandwidth", bandwidth)
    whole_number("kernel_draws", kernel_draws, 2)
    return one_shot(
        post,
        partial(geometric_median, bandwidth=bandwidth, kernel_draws=kernel_draws),
        method=f"median(bandwidth={bandwidth}, kernel_draws={kernel_draws})",
        likelihood_power=post.num_agents,
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def geometric_median(
    subsets: np.ndarray, rng: np.random.Generator, *, bandwidth: float | None = None, kernel_draws: int = 500
) -> Combination:
    """Combine subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    white = _whitened(points[:, np.unique(np.linspace(0, points.shape[1] - 1, kernel_draws).astype(int))])
    h = _median_distance(white) if bandwidth is None else float(bandwidth)
    with jax.enable_x64(True):
        gram = np.asarray(_gram(jnp.asarray(white / h)))
    weights = _trimmed(weiszfeld(gram))
    source = rng.choice(len(weights), size=subsets.shape[:2], p=weights)
    # draw t of the same chain of the source agent, so that no draw repeats
    mixed = np.take_along_axis(subsets, source[:, :, None, None], axis=2)[:, :, 0]
    facts = {"weights": " ".join(f"{w:.6g}" for w in weights), "bandwidth": h}
    return Combination(mixed, statistics={"source": source}, facts=facts)


def weiszfeld(gram: np.ndarray) -> np.ndarray:
    """Weights of the geometric median of N points with the inner products `gram`, shape (agent, agent)."""
    agents = len(gram)
    weights = np.full(agents, 1.0 / agents)
    # a tiny lower bound on distances keeps the weights finite if the median coincides with a point
    floor = 1e-10 * np.sqrt(np.diag(gram).max())
    for _ in range(_ITERATIONS):
        squared = np.diag(gram) - 2.0 * gram @ weights + weights @ gram @ weights
        inverse = 1.0 / np.maximum(np.sqrt(np.maximum(squared, 0.0)), floor)
        updated = inverse / inverse.sum()
        change = np.abs(updated - weights).max()
        weights = updated
        if change < _TOLERANCE:
            break
    return weights


def _trimmed(weights: np.ndarray) -> np.ndarray:
    kept = np.where(weights < 0.5 / len(weights), 0.0, weights)
    return kept / kept.sum()


def _whitened(points: np.ndarray) -> np.ndarray:
    """Points (agent, point, dim) in coordinates where the mean covariance of an agent's points is I."""
    centred = points - points.mean(axis=1, keepdims=True)
    cov = np.einsum("nti,ntj->ij", centred, centred) / (points.shape[0] * points.shape[1])
    white = np.linalg.solve(np.linalg.cholesky(cov), (points - points.mean(axis=(0, 1))).reshape(-1, len(cov)).T)
    return white.T.reshape(points.shape)


def _median_distance(white: np.ndarray) -> float:
    # a thousand points (half a million distances) suffice for a median
    flat = white.reshape(-1, white.shape[2])
    return float(np.median(scipy.spatial.distance.pdist(flat[:: -(-len(flat) // 1000)])))


@jax.jit
def _gram(points: jax.Array) -> jax.Array:
    """Inner products (agent, agent) of empirical laws (agent, point, dim) under the kernel exp(-|x - y|^2 / 2)."""

    def against(own: jax.Array) -> jax.Array:
        def average(other: jax.Array) -> jax.Array:
            squared = jnp.sum(jnp.square(own[:, None, :] - other[None, :, :]), axis=2)
            return jnp.mean(jnp.exp(-0.5 * squared))

        return jax.lax.map(average, points)

    return jax.lax.map(against, points)
