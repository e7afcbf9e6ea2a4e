"""Posterior predictive checks: histograms of responses, summed over the sites.

A site with a count above 0 and below the floor in any bin is left out. The number of bins is the largest that keeps the
most sites. Bins depend on the mean and standard deviation of all responses only, so that no edge reveals a row.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..network import Network
from ..posterior import Posterior
from ..posterior.masks import FEWEST
from ..posterior.model_info import Predictive
from ..posterior.potential import Potential, Shard
from ..posterior.totals import Totals
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import Agents, agents_of
from .loo import certified_draws

# Candidate numbers of bins, in descending order.
_BINS = (16, 12, 8, 6, 5, 4, 3, 2)
# Largest number of draws of the parameters at which responses are replicated.
_DRAWS = 200


class Histogram(NamedTuple):
    """Binned responses of the sites that take part in the check.

    Parameters
    ----------
    labels
        Labels of the bins.
    observed
        Rows in each bin, (bin,).
    replicated
        Rows in each bin for responses drawn from the model at draws of the run, (draw, bin).
    sites, of_sites
        Number of sites that take part, and of all sites.
    rows
        Number of rows of the sites that take part.
    floor
        The smallest count above 0 that a site sends.
    """

    labels: tuple[str, ...]
    observed: np.ndarray
    replicated: np.ndarray
    sites: int
    of_sites: int
    rows: int
    floor: int


def predictive_check(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> Histogram:
    """Posterior predictive check: histograms of the responses, observed and drawn from the model.

    Each site counts its own responses and responses that it draws from the model at draws of the run. The counts are
    summed over the sites. A site with a count above 0 and below its floor in any bin is left out.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.

    Raises
    ------
    ArithmeticError
        The draws are not certified or not at temperature 1.
    ValueError
        The model cannot draw responses, the floors of the sites hide every histogram, the rows do not fit into memory,
        or the run is of another posterior or network.
    """
    certified_draws(run, "predictive_check")
    with agents_of(run, post, network, engine) as agents:
        return check_of(run, agents)


def check_of(run: Run, agents: Agents) -> Histogram:
    """`predictive_check`, for agents that `agents_of` returned."""
    draws, info = certified_draws(run, "predictive_check"), agents.post.info
    if info.predictive is None:
        raise ValueError(f"No posterior predictive check: {info.why_no_check}.")
    if agents.placed.reads_in_chunks:
        raise ValueError("No posterior predictive check: it needs all rows in memory at once, and they do not fit.")
    positions, seed = draws.reshape(-1, draws.shape[2]), int(run.settings.get("seed", 0))
    return checked(info.predictive, agents.totals, positions, info.floor, seed, agents.masks)


def checked(
    predictive: Predictive, totals: Totals, positions: np.ndarray, floor: int, seed: int, masked: bool = False
) -> Histogram:
    """The posterior predictive check; `ValueError` if it is impossible.

    Parameters
    ----------
    predictive
        Draws responses from the model.
    totals
        Sums over the sites, called in double precision.
    positions
        Draws of the run, (draw, dim). At most 200 are used.
    floor
        The smallest count above 0 that a site sends.
    seed
        Seed of the responses.
    masked
        Whether the sums are masked. Then at least three sites must take part, as masks protect no fewer.
    """
    labels = predictive.labels
    if labels:
        candidates, names = [np.arange(1, len(labels)) - 0.5], [labels]
    else:
        mean, sd, count = _moments_of(predictive, totals)
        if count < floor:
            raise ValueError(f"No posterior predictive check: the sites have fewer than {floor} rows, their floor.")
        candidates = _candidates(mean, sd, predictive.whole)
        names = [_labels(edges, predictive.whole) for edges in candidates]
    widest = max(map(len, candidates))
    edges = np.stack([np.concatenate([one, np.full(widest - len(one), np.inf)]) for one in candidates])
    counted: Any = totals(partial(small_cells, predictive, floor), edges)
    # the first minimum is the largest number of bins
    best = int(np.argmin(np.asarray(counted["small"])))
    of_sites, small = round(float(counted["sites"])), round(float(counted["small"][best]))
    if masked and of_sites - small < FEWEST:
        raise ValueError(
            f"No posterior predictive check: at fewer than {FEWEST} sites every bin is empty or has at least {floor} "
            "rows, and masks protect no fewer sites."
        )
    if small == of_sites:
        raise ValueError(
            f"No posterior predictive check: every site has a bin with some rows and fewer than {floor}, the smallest "
            "count that sites send."
        )
    some = np.linspace(0, len(positions) - 1, min(_DRAWS, len(positions))).round().astype(int)
    key = np.asarray([seed & 0xFFFFFFFF, 0], np.uint32)
    found: Any = totals(partial(histograms, predictive, floor), edges[best], positions[some], key)
    bins = len(names[best])
    return Histogram(
        labels=tuple(names[best]),
        observed=np.round(np.asarray(found["observed"])[:bins]),
        replicated=np.round(np.asarray(found["replicated"])[:, :bins]),
        sites=round(float(found["sites"])),
        of_sites=of_sites,
        rows=round(float(found["rows"])),
        floor=floor,
    )


def _moments_of(predictive: Predictive, totals: Totals) -> tuple[float, float, float]:
    """Mean, standard deviation and number of all responses."""
    count, first, second = np.asarray(totals(partial(moments, predictive)))
    mean = first / count
    return float(mean), float(np.sqrt(max(second / count - mean**2, 0.0))), float(count)


def _candidates(mean: float, sd: float, whole: bool) -> list[np.ndarray]:
    """Candidate edges between bins, from many bins to few. Bins of normal responses have about equal counts."""
    found: list[np.ndarray] = []
    for bins in _BINS:
        edges = mean + sd * scipy.stats.norm.ppf(np.arange(1, bins) / bins)
        # edges of counts lie between integers and above 0
        edges = np.unique(np.ceil(np.maximum(edges, 0.5)) - 0.5) if whole else edges
        if not any(len(edges) == len(other) and (edges == other).all() for other in found):
            found.append(edges)
    return found


def _labels(edges: np.ndarray, whole: bool) -> tuple[str, ...]:
    """Labels of the bins between edges."""
    if not whole:
        texts = [f"{edge:.3g}" for edge in edges]
        inner = [f"{low} to {high}" for low, high in zip(texts[:-1], texts[1:], strict=True)]
        return (f"below {texts[0]}", *inner, f"above {texts[-1]}")
    ends = np.concatenate([[-0.5], edges])
    inner = [
        f"{low + 0.5:.0f}" if high - low == 1 else f"{low + 0.5:.0f} to {high - 0.5:.0f}"
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    return (*inner, f"{edges[-1] + 0.5:.0f} or more")


# --- computed at a site ---


def moments(predictive: Predictive, potential: Potential, shard: Shard) -> Float[Array, " 3"]:
    """The number of a site's responses, their sum and their sum of squares."""
    y = predictive.observed(shard.rows)
    real = jnp.arange(y.shape[0]) < shard.size
    return jnp.stack([jnp.where(real, x, 0.0).sum() for x in (jnp.ones_like(y), y, y**2)])


def small_cells(
    predictive: Predictive, floor: int, potential: Potential, shard: Shard, edges: Float[Array, "candidate edge"]
) -> dict[str, Array]:
    """Whether a site has a bin below the floor, 0 or 1, for each candidate of edges."""
    y = predictive.observed(shard.rows)
    counts = jax.vmap(lambda own: _counts(y, own, shard))(edges)
    return {"small": (~_no_small(counts, floor)).astype(float), "sites": jnp.ones(())}


def histograms(
    predictive: Predictive,
    floor: int,
    potential: Potential,
    shard: Shard,
    edges: Float[Array, " edge"],
    positions: Float[Array, "draw dim"],
    key: Array,
) -> dict[str, Array]:
    """A site's observed and replicated counts in bins; zeros if an observed count is above 0 and below the floor."""
    y = predictive.observed(shard.rows)
    observed = _counts(y, edges, shard)
    takes_part = _no_small(observed, floor).astype(float)
    own = _own_key(key, shard)

    def replicated(numbered: tuple[Array, Array]) -> Array:
        draw, x = numbered
        params = potential.unravel(x)
        return _counts(predictive.replicated(params, shard.rows, jax.random.fold_in(own, draw)), edges, shard)

    found = jax.lax.map(replicated, (jnp.arange(len(positions)), positions))
    numbers = {"observed": observed, "replicated": found, "sites": jnp.ones(()), "rows": shard.size.astype(float)}
    return {name: takes_part * value for name, value in numbers.items()}


def _counts(y: Float[Array, " row"], edges: Float[Array, " edge"], shard: Shard) -> Float[Array, " bin"]:
    real = (jnp.arange(y.shape[0]) < shard.size).astype(y.dtype)
    place = jnp.searchsorted(edges, y, side="right")
    return jax.ops.segment_sum(real, place, num_segments=edges.shape[0] + 1)


def _no_small(counts: Float[Array, "... bin"], floor: int) -> Array:
    """Whether every count is 0 or at least the floor."""
    return jnp.all((counts < 0.5) | (counts > floor - 0.5), axis=-1)


def _own_key(key: Array, shard: Shard) -> Array:
    """A key that differs between sites, derived from the rows, as a summand does not know its site's number."""
    for leaf in jax.tree.leaves(shard.rows):
        flat = jnp.ravel(leaf).astype(jnp.float32)
        bits = jax.lax.bitcast_convert_type(flat, jnp.uint32)
        place = jnp.arange(flat.size, dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(1)
        key = jax.random.fold_in(key, jnp.sum(bits * place, dtype=jnp.uint32))
    return key
