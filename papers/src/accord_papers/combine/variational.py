"""Variational consensus Monte Carlo: average the subset draws, with weights fitted to the posterior."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from accord import Posterior, Run
from accord.posterior import Potential, Shard
from accord.samplers.combine import Combination, moments, one_shot, pooled

from ..base.checks import unknown_name_error, whole_number

# Largest number of L-BFGS iterations.
_ITERATIONS = 200


def variational(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    points: int = 1000,
    entropy: str = "gaussian",
) -> Run:
    """Variational consensus Monte Carlo.

    From agent i:  draws `x_it` of `exp(-f_i)`. The hub forms `x_t = sum_i W_i x_it`, `sum_i W_i = I`, with W_i that
    minimise `mean_t F(x_t) - entropy(W)`. Agents send values and gradients of f_i at the points x_t.

    Rabinovich, Angelino and Jordan 2015 (Variational consensus Monte Carlo, arXiv:1506.03074): W minimises the
    Kullback-Leibler divergence from the law of x_t to the posterior, with an approximate entropy of that law. "bound"
    is our recollection of their relaxation, `sum_i log |det W_i| / N`, a lower bound by the entropy power inequality.
    It favours equal W_i, so that draws are too wide for Gaussian shards of different widths, for which consensus Monte
    Carlo is exact. "gaussian" (ours) is the entropy of the Gaussian with the covariance of x_t, `log det Cov(x_t) / 2`.
    It is accurate if x_t is nearly Gaussian, as averages are, and exact for Gaussian shards. Linear averages correct
    means, and standard deviations hardly. The search starts at consensus Monte Carlo's weights. It takes about one
    round per evaluation of F by L-BFGS, so this is no one-message method.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `accord.samplers.combine.consensus`.
    points
        Number of draws at which F is evaluated, >= 2, at most all.
    entropy
        "gaussian" (default) or "bound".

    Returns
    -------
    Run
        The same draws for every agent. Settings: `gain`, the decrease of the objective from consensus Monte Carlo's
        weights, in nats, and `evaluations`.

    Raises
    ------
    ValueError, ImportError
        As in `accord.samplers.combine.consensus`, or an option is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers.combine import variational
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = variational(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    whole_number("points", points, 2)
    if entropy not in ENTROPIES:
        raise unknown_name_error("entropy", entropy, ENTROPIES)
    return one_shot(
        post,
        partial(fitted_average, post=post, points=points, entropy=entropy),
        method=f"variational(points={points}, entropy={entropy})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def fitted_average(
    subsets: np.ndarray, rng: np.random.Generator, *, post: Posterior, points: int = 1000, entropy: str = "gaussian"
) -> Combination:
    """Combine subset draws (chain, draw, agent, dim) by fitted weights."""
    flat = pooled(subsets)
    fitted = moments(flat)
    product = fitted.product()
    # x = mean + R y, W = R V R^-1 with the product of the subsets' Gaussians gives L-BFGS one scale
    root = np.linalg.cholesky(product.cov)
    white = np.linalg.solve(root, (flat - product.mean).reshape(-1, post.dim).T).T.reshape(flat.shape)
    start = np.linalg.solve(root, product.cov @ fitted.precisions @ root)
    some = rng.permutation(flat.shape[1])[:points]
    with jax.enable_x64(True):
        inputs = (root, product.mean, white[:, some], start)
        fixed = (post.potential, post.stacked(), *map(jnp.asarray, inputs))
        # subtracted, because F may be thousands of nats
        level = float(_objective(np.zeros_like(start), *fixed, entropy=entropy)[0])

        def objective(change: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = _objective(change.reshape(start.shape), *fixed, entropy=entropy)
            return float(value) - level, np.asarray(slope).ravel()

        found = scipy.optimize.minimize(
            objective, np.zeros(start.size), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}
        )
    V = _weights(start, found.x.reshape(start.shape))
    averaged = product.mean + np.einsum("nij,ntj->ti", V, white) @ root.T
    return Combination(
        averaged.reshape(*subsets.shape[:2], post.dim),
        facts={"gain": float(-found.fun), "evaluations": int(found.nfev)},
        asked=(int(found.nfev) + 1) * len(some),
        rounds=2 + int(found.nfev),
    )


def _weights(start: Any, change: Any) -> Any:
    """Matrices with the sum of the initial ones, I."""
    return start + change - change.mean(axis=0, keepdims=True)


def _gaussian(V: jax.Array, y: jax.Array) -> jax.Array:
    # at the same points as F: otherwise W could fit F at its points and be wide at the others
    centred = y - jnp.mean(y, axis=0, keepdims=True)
    return 0.5 * jnp.linalg.slogdet(centred.T @ centred / (len(y) - 1))[1]


def _bound(V: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(jnp.linalg.slogdet(V)[1])


ENTROPIES = {"gaussian": _gaussian, "bound": _bound}


@partial(jax.jit, static_argnames=("entropy",))
@partial(jax.value_and_grad, argnums=0)
def _objective(
    change: jax.Array,
    potential: Potential,
    shards: Shard,
    root: jax.Array,
    mean: jax.Array,
    white: jax.Array,
    start: jax.Array,
    *,
    entropy: str,
) -> jax.Array:
    """The mean of F over the averaged points minus the entropy, for white draws (agent, point, dim)."""
    V = _weights(start, change)
    y = jnp.einsum("nij,ntj->ti", V, white)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(potential.value, in_axes=(0, None))(shards, x))

    return jnp.mean(jax.vmap(total)(mean[None] + y @ root.T)) - ENTROPIES[entropy](V, y)
