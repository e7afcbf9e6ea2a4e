"""An agent's sums over its rows, each left out in turn by Pareto smoothed importance sampling (Vehtari et al. 2024).

ArviZ smooths arrays of NumPy, one row after another. A compiled program that calls it for its rows stands still where
there is one processor, so that the same arithmetic is here for JAX; the tests hold it to ArviZ's figures.
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

# Levels of Pareto k above which rows are counted, so that the largest is known to a hundredth.
LEVELS = np.arange(201) / 100
# Draws that weights can be smoothed by at all: five of them are a tail.
_FEWEST = 25
# Effective draws up to which a tail is a fifth of all draws.
_FEW = 225
# Log likelihoods of rows at draws that the agents of a process hold at the same time.
_NUMBERS_AT_ONCE = 2**21


class Sampled(NamedTuple):
    """Draws of a posterior, as agents are asked about them.

    Parameters
    ----------
    positions
        The draws, (draw, dim).
    quantiles
        Those of a distribution that the largest weights are replaced by, one for each, ascending from 0 to 1.
    levels
        Values of Pareto k above which rows are to be counted, (level,).
    """

    positions: np.ndarray
    quantiles: np.ndarray
    levels: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray) -> Sampled:
        """Draws (chain, draw, dim) as agents are asked about them; `ValueError` where they are too few."""
        count = draws[..., 0].size
        if count < _FEWEST or draws.shape[1] < 4:
            raise ValueError(
                f"loo needs at least {_FEWEST} draws, and 4 a chain; found {draws.shape[0]} chains of {draws.shape[1]}"
            )
        # as many weights as are a tail (Vehtari et al. 2024)
        share = efficiency(draws)
        tail = int(3.0 * np.sqrt(count / share)) if count * share > _FEW else count // 5
        positions = draws.reshape(count, -1).astype(np.float64)
        return cls(positions, (np.arange(tail) + 0.5) / tail, np.r_[good_k(count), LEVELS])


class RowSums(NamedTuple):
    """Sums over all rows of all agents, of several posteriors.

    Each posterior but the first is given by its differences from the first, so that differences of models that are much
    alike do not drown in rounding.

    Parameters
    ----------
    rows
        Their number.
    elpd
        Of the first posterior's log predictive densities of rows given all others, and of the others' differences from
        it, (posterior,).
    products
        Of products of these, (posterior, posterior).
    p
        How much less the density of a row is than where that row was known too, (posterior,).
    above
        Rows with a Pareto k above each level, (posterior, level).
    infinite
        Rows that are left out of all this since their log likelihood is not finite at some draw, (posterior,).
    """

    rows: Any
    elpd: Any
    products: Any
    p: Any
    above: Any
    infinite: Any


@of_rows
def row_sums(potential: Potential, shard: Shard, models: tuple[Potential, ...], asked: tuple[Sampled, ...]) -> RowSums:
    """An agent's sums over its rows, or some of them; shard and models are those of a joint posterior."""

    def without(row: Array) -> Float[Array, "model 3"]:
        one = jax.tree.map(lambda leaf: leaf[row][None], shard.rows)
        return jnp.stack([_left_out(*each) for each in zip(models, one, asked, strict=True)])

    count, draws = len(jax.tree.leaves(shard.rows)[0]), max(len(one.positions) for one in asked)
    # `potential` may be that of a part of the rows, whose agents are not counted as they are
    at_once = max(1, min(count, _NUMBERS_AT_ONCE // (draws * models[0].num_agents)))
    elpd, p, k = jnp.moveaxis(jax.lax.map(without, jnp.arange(count), batch_size=at_once), -1, 0)
    real = (jnp.arange(count) < shard.size)[:, None]
    finite = jnp.isfinite(elpd) & jnp.isfinite(p)
    elpd, p = (jnp.where(real & finite, x, 0.0) for x in (elpd, p))
    columns = jnp.concatenate([elpd[:, :1], elpd[:, 1:] - elpd[:, :1]], axis=1)
    levels = jnp.stack([one.levels for one in asked])
    return RowSums(
        rows=real.sum().astype(float),
        elpd=columns.sum(axis=0),
        products=columns.T @ columns,
        p=p.sum(axis=0),
        above=(real[..., None] & (k[..., None] > levels[None])).sum(axis=0).astype(float),
        infinite=(real & ~finite).sum(axis=0).astype(float),
    )


def _left_out(model: Potential, row: Any, asked: Sampled) -> Float[Array, " 3"]:
    """The figures of one row, which is on a leading axis of one."""

    def value(x: Float[Array, " dim"]) -> Array:
        return model.log_likelihood(model.unravel(x), row)[0]

    values = jax.lax.map(value, asked.positions, batch_size=min(len(asked.positions), 64))
    return jnp.stack(left_out(values, jnp.asarray(asked.quantiles)))


def left_out(
    log_likelihood: Float[Array, " draw"], quantiles: Float[Array, " tail"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """How well the other rows predict a row.

    Parameters
    ----------
    log_likelihood
        The row's, at the draws.
    quantiles
        Those of a Pareto distribution that the largest weights are replaced by, ascending.

    Returns
    -------
    elpd, p, k
        The log density of the row given all others, how much less that is than given itself too, and the Pareto k of
        the weights, which are the inverse of the likelihood: inf where no distribution fits, -inf where weights need
        none, as those of the tail are all alike or none is far above the mean.
    """
    draws, tail, lowest = log_likelihood.size, quantiles.size, log_likelihood.min()
    # of which the largest is 0
    log_weight = jnp.sort(lowest - log_likelihood)
    body, log_raw = log_weight[:-tail], log_weight[-tail:]
    raw, cutoff = jnp.exp(log_raw), jnp.exp(body[-1])
    k, scale = _pareto(raw - cutoff)
    fitted = jnp.minimum(cutoff + scale * jnp.expm1(-k * jnp.log1p(-quantiles)) / k, 1.0)
    alike, fits = log_raw[0] == log_raw[-1], jnp.isfinite(k) & jnp.isfinite(fitted).all()
    log_smooth = jnp.where(fits & ~alike, jnp.log(fitted), log_raw)
    # weight times likelihood is the same for all draws but those of the tail
    predicted = lowest + jnp.logaddexp(jnp.log(draws - tail), logsumexp(log_smooth - log_raw))
    elpd = predicted - logsumexp(jnp.concatenate([body, log_smooth]))
    p = logsumexp(log_likelihood) - jnp.log(draws) - elpd
    # as in `diagnostics.pareto`: a row that every draw foresees has weights near 1, whose last digits look heavy-tailed
    harmless = alike | (jnp.exp(log_weight).mean() * BOUNDED >= 1.0)
    return elpd, p, jnp.where(harmless, -jnp.inf, jnp.where(fits, k, jnp.inf))


def _pareto(excess: Float[Array, " tail"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Shape and scale of a generalised Pareto distribution (Zhang & Stephens 2009), from ascending numbers above 0.

    The mean of a posterior over a grid of -k / scale, the shape then drawn towards 1/2 as ten more numbers would.
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
