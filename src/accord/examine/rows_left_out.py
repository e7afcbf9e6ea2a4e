"""An agent's sums over its rows for leave-one-out cross-validation with Pareto smoothing (Vehtari et al. 2024).

This is ArviZ's arithmetic in JAX. A compiled program that called ArviZ back would deadlock on a single processor. Tests
compare the results with ArviZ's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from ..results.diagnostics import BOUNDED, efficiency, good_k

# Levels of Pareto k. Counts of rows above them give the largest k to a hundredth.
LEVELS = np.arange(201) / 100
# Smallest number of draws. A tail then has five draws.
_FEWEST = 25
# Number of effective draws up to which a tail is a fifth of all draws.
_FEW = 225
# Largest number of log likelihoods that the agents of a process keep in memory.
_NUMBERS_AT_ONCE = 2**21


class Sampled(NamedTuple):
    """Draws of a posterior and the constants of Pareto smoothing, sent to agents.

    Parameters
    ----------
    positions
        Draws, (draw, dim).
    quantiles
        Probabilities in ascending order at which the fitted Pareto distribution replaces the largest weights, (tail,).
    levels
        Levels of Pareto k above which rows are counted, (level,).
    """

    positions: np.ndarray
    quantiles: np.ndarray
    levels: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray) -> Sampled:
        """From draws (chain, draw, dim); `ValueError` if there are too few."""
        count = draws[..., 0].size
        if count < _FEWEST or draws.shape[1] < 4:
            raise ValueError(
                f"loo needs at least {_FEWEST} draws and 4 per chain, found {draws.shape[0]} chains of {draws.shape[1]}"
            )
        # size of the tail (Vehtari et al. 2024)
        share = efficiency(draws)
        tail = int(3.0 * np.sqrt(count / share)) if count * share > _FEW else count // 5
        positions = draws.reshape(count, -1).astype(np.float64)
        return cls(positions, (np.arange(tail) + 0.5) / tail, np.r_[good_k(count), LEVELS])


class RowSums(NamedTuple):
    """Sums over all rows of all agents, for several posteriors.

    Posteriors after the first are represented by differences from the first, which keeps small differences accurate.

    Parameters
    ----------
    rows
        Number of rows.
    elpd
        Sum of the first posterior's log predictive densities, and of the differences of the others, (posterior,).
    products
        Sums of products of these densities and differences, (posterior, posterior).
    p
        Effective number of parameters, (posterior,).
    above
        Number of rows with a Pareto k above each level, (posterior, level).
    infinite
        Number of rows with an infinite log likelihood at some draw, which the other sums leave out, (posterior,).
    """

    rows: Any
    elpd: Any
    products: Any
    p: Any
    above: Any
    infinite: Any


@of_rows
def row_sums(potential: Potential, shard: Shard, models: tuple[Potential, ...], draws: tuple[Sampled, ...]) -> RowSums:
    """Sums over an agent's rows for leave-one-out cross-validation.

    They may cover a part of the rows. `shard` and `models` belong to a joint posterior.
    """

    def without(row: Array) -> Float[Array, "model 3"]:
        one = jax.tree.map(lambda leaf: leaf[row][None], shard.rows)
        return jnp.stack([_left_out(*each) for each in zip(models, one, draws, strict=True)])

    count, most = len(jax.tree.leaves(shard.rows)[0]), max(len(one.positions) for one in draws)
    # `potential` may cover a part of the rows, and its number of agents is then wrong
    at_once = max(1, min(count, _NUMBERS_AT_ONCE // (most * models[0].num_agents)))
    elpd, p, k = jnp.moveaxis(jax.lax.map(without, jnp.arange(count), batch_size=at_once), -1, 0)
    real = (jnp.arange(count) < shard.size)[:, None]
    finite = jnp.isfinite(elpd) & jnp.isfinite(p)
    elpd, p = (jnp.where(real & finite, x, 0.0) for x in (elpd, p))
    columns = jnp.concatenate([elpd[:, :1], elpd[:, 1:] - elpd[:, :1]], axis=1)
    levels = jnp.stack([one.levels for one in draws])
    return RowSums(
        rows=real.sum().astype(float),
        elpd=columns.sum(axis=0),
        products=columns.T @ columns,
        p=p.sum(axis=0),
        above=(real[..., None] & (k[..., None] > levels[None])).sum(axis=0).astype(float),
        infinite=(real & ~finite).sum(axis=0).astype(float),
    )


def _left_out(model: Potential, row: Any, draws: Sampled) -> Float[Array, " 3"]:
    """`left_out` for one row, which has a leading axis of length 1."""

    def value(x: Float[Array, " dim"]) -> Array:
        return model.log_likelihood(model.unravel(x), row)[0]

    values = jax.lax.map(value, draws.positions, batch_size=min(len(draws.positions), 64))
    return jnp.stack(left_out(values, jnp.asarray(draws.quantiles)))


def left_out(
    log_likelihood: Float[Array, " draw"], quantiles: Float[Array, " tail"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Leave-one-out results of one row.

    Parameters
    ----------
    log_likelihood
        Log likelihood of the row at the draws.
    quantiles
        Probabilities in ascending order at which the fitted Pareto distribution replaces the largest weights.

    Returns
    -------
    elpd, p, k
        The log density of the row given all other rows; the log density given all rows, minus elpd; and the Pareto k
        of the weights, which are inverse likelihoods. k is inf if no distribution fits, and -inf if none is needed, as
        the weights in the tail are equal or none is far above the mean.
    """
    draws, tail, lowest = log_likelihood.size, quantiles.size, log_likelihood.min()
    # ascending, and the largest is 0
    log_weight = jnp.sort(lowest - log_likelihood)
    body, log_raw = log_weight[:-tail], log_weight[-tail:]
    raw, cutoff = jnp.exp(log_raw), jnp.exp(body[-1])
    k, scale = _pareto(raw - cutoff)
    fitted = jnp.minimum(cutoff + scale * jnp.expm1(-k * jnp.log1p(-quantiles)) / k, 1.0)
    alike, fits = log_raw[0] == log_raw[-1], jnp.isfinite(k) & jnp.isfinite(fitted).all()
    log_smooth = jnp.where(fits & ~alike, jnp.log(fitted), log_raw)
    # weight times likelihood is constant outside the tail
    predicted = lowest + jnp.logaddexp(jnp.log(draws - tail), logsumexp(log_smooth - log_raw))
    elpd = predicted - logsumexp(jnp.concatenate([body, log_smooth]))
    p = logsumexp(log_likelihood) - jnp.log(draws) - elpd
    # as in `diagnostics.pareto`: the rounding errors of nearly equal weights look heavy-tailed
    harmless = alike | (jnp.exp(log_weight).mean() * BOUNDED >= 1.0)
    return elpd, p, jnp.where(harmless, -jnp.inf, jnp.where(fits, k, jnp.inf))


def _pareto(excess: Float[Array, " tail"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Shape and scale of a generalised Pareto distribution (Zhang & Stephens 2009), from ascending positive numbers.

    Posterior mean over a grid of -k / scale. A prior of weight ten numbers shrinks the shape towards 1/2.
    """
    count = excess.size
    points = 30 + int(count**0.5)
    spread = 1.0 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    grid = spread / (3.0 * excess[int(count / 4 + 0.5) - 1]) + 1.0 / excess[-1]
    shapes = jnp.log1p(-grid[:, None] * excess[None]).mean(axis=1)
    weight = jax.nn.softmax(count * (jnp.log(-grid / shapes) - shapes - 1.0))
    weight = jnp.where(weight >= 10.0 * np.finfo(np.float64).eps, weight, 0.0)
    best = (grid * weight).sum() / weight.sum()
    shape = jnp.log1p(-best * excess).mean()
    return (count * shape + 5.0) / (count + 10.0), -shape / best
