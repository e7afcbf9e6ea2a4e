"""Checks of a finished run: the bias that its method's law predicts, and the temperature of its draws."""

from __future__ import annotations

import warnings
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float

from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.findings import Examination, Expected, Findings, recalled
from ..samplers.protocol import HasLaw, Sampler
from .forecast import Forecast, forecast, gaussian_model, left_out
from .warmup import Warmup, warm_up

# Parameters up to which a warm-up sums Hessians; above, a forecast knows the largest curvatures only.
_MOST_PARAMETERS = 200
# Draws that the gradient of F is evaluated at, from the fewest to the most, and the numbers of data read for all.
_FEWEST_LOOKS, _MOST_LOOKS, _READ = 200, 4000, 2e8


def examination(
    post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None, foreseen: Forecast | None
) -> Examination:
    """A function that examines a run's average, shape (chain, draw, dim), when it is called.

    Parameters
    ----------
    post, network, sampler
        As the method ran, in the coordinates that it moved in.
    warmup
        What warm-up found, if these are its coordinates.
    foreseen
        What the choice of the method already expected of it.
    """
    if post.is_held_elsewhere:
        # those who hold the data are gone when a run is summarised, and what they send for it would have to be counted
        expected, reason = _expected(post, network, sampler, warmup, foreseen)
        known = Findings(expected, reason, sampler.temperature, agreeing=_agreeing(sampler))
        return partial(recalled, known._replace(left_out=_left_out(expected, sampler)))
    return partial(examine, post, network, sampler, warmup, foreseen)


def examine(
    post: Posterior,
    network: Network,
    sampler: Sampler,
    warmup: Warmup | None,
    foreseen: Forecast | None,
    average: np.ndarray,
) -> Findings:
    """Examine a run, as `examination` defers it; takes seconds where no warm-up and forecast were made before."""
    expected, reason = _expected(post, network, sampler, warmup, foreseen)
    temperature, error = (np.nan, np.nan) if sampler.temperature == 0 else _temperature(post, average)
    told = (temperature, error, _agreeing(sampler), _left_out(expected, sampler))
    return Findings(expected, reason, sampler.temperature, *told)


def _left_out(expected: Expected | None, sampler: Sampler) -> str:
    return "" if expected is None else left_out(sampler)


def _agreeing(sampler: Sampler) -> bool:
    # travelling chains are drawn one by one
    return sampler.needs(1).inbox != "permuted"


def _expected(
    post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None, foreseen: Forecast | None
) -> tuple[Expected | None, str]:
    """The bias predicted for a method, or the reason why it is not known."""
    if sampler.temperature != 1.0:
        return None, f"the method samples at the temperature {sampler.temperature:g}, which is not the posterior's"
    if post.dim > _MOST_PARAMETERS or (foreseen is not None and foreseen.mean.shape[1] != post.dim):
        return None, f"{post.dim} parameters are too many for a forecast of each"
    if foreseen is None:
        if post.is_held_elsewhere:
            return None, "the data lies elsewhere, where nothing was asked about the method's law"
        if isinstance(sampler, HasLaw) and not sampler.is_constant():
            return None, "a method with a step schedule has no stationary law"
        if not isinstance(sampler, HasLaw) or sampler.needs(post.dim).key:
            return None, f"the law of {type(sampler).__name__} is not known exactly"
        try:
            foreseen = _forecast(post, network, sampler, warmup)
        except (ArithmeticError, TypeError, ValueError) as error:
            return None, str(error)
    return Expected(foreseen.mean, foreseen.sd, foreseen.average_mean, foreseen.average_sd), ""


def _forecast(post: Posterior, network: Network, sampler: Sampler, warmup: Warmup | None) -> Forecast:
    # what a warm-up warns of it has said before, or is none of a run's that had none
    with warnings.catch_warnings(), jax.enable_x64(True):
        warnings.simplefilter("ignore")
        if warmup is not None:
            model: Posterior | None = gaussian_model(post, warmup).whitened
        else:
            warmup = warm_up(post, network)
            model = gaussian_model(post.transformed(warmup.coordinates), warmup).plain
        assert model is not None
        return forecast(model, post.sizes, network, sampler)


def _temperature(post: Posterior, average: np.ndarray) -> tuple[float, float]:
    """The temperature of draws (chain, draw, dim) of the average, and its Monte Carlo error.

    Under exp(-F / T) the mean of (x - c)' grad F(x) is dim T for any fixed c (integrate by parts), whatever the shape
    of F: a variance over that of the nearest Gaussian would take a skewed posterior for a hot one.
    """
    from arviz_stats.base.array import array_stats

    chains, draws, _ = average.shape
    looks = np.clip(_READ / (float(post.sizes.sum()) * post.dim), _FEWEST_LOOKS, _MOST_LOOKS)
    chosen = np.unique(np.linspace(0, draws - 1, max(1, round(looks / chains))).astype(int))
    x = average[:, chosen].astype(np.float64)
    place = post.coordinates
    z = x if place is None else place.inverse(x)
    flat = z.reshape(-1, post.dim)
    if chosen.size < 4 or not np.ptp(flat, axis=0).all():
        return np.nan, np.nan
    rises = post.each(_rise, flat, flat.mean(axis=0)).sum(axis=0).reshape(chains, -1) / post.dim
    if not np.isfinite(rises).all():
        return np.nan, np.nan
    effective = float(array_stats.ess(rises, chain_axis=0, draw_axis=1, method="mean"))
    return float(rises.mean()), float(rises.std() / np.sqrt(effective))


def _rise(
    potential: Potential, shard: Shard, positions: Float[Array, "look dim"], center: Float[Array, " dim"]
) -> Float[Array, " look"]:
    """How fast an agent's potential rises away from a center, at positions."""
    # one after another: some rows' gradients at all positions would take memory
    return jax.lax.map(lambda x: (x - center) @ potential.gradient(shard, x), positions)
