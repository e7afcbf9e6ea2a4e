"""Checks of draws against F and its gradient, summed over the agents: Stein's identity, excursions, missed modes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import scipy

from ..network import Network
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..results.diagnostics import QUARTILES
from ..results.findings import FEATURES, Balance
from ..results.traffic import Traffic
from ..samplers.by_sums.evaluations import NOWHERE, slopes
from ..samplers.by_sums.mode_search import other_modes, probe
from ..samplers.session import Job, Session
from ..tuning.warmup import Warmup

# Fewest and most draws at which F is evaluated.
_FEWEST_DRAWS, _MOST_DRAWS = 200, 40_000
# Most numbers of data (rows times parameters) read for these evaluations.
_READ = 5e8
# Most bytes sent for the evaluations, as a share of the run's.
_SHARE_OF_BYTES = 0.1
# Bytes that the evaluations may always send.
_FEW_BYTES = 2**18
# Probability that draws of a log-concave posterior exceed the limit on F.
_FALSE_ALARM = 1e-3
# Mass, relative to the mass at the draws, above which a missed mode is reported.
_MASS = 0.01
# Share of a variance above which a missed mode is reported: a light mode far away can dominate a standard deviation.
_VARIANCE = 0.1


class Measured(NamedTuple):
    """Temperature of draws, its Monte Carlo error (NaN: unknown), balance, and traffic per chain."""

    temperature: float = np.nan
    error: float = np.nan
    balance: Balance | None = None
    spent: Traffic = Traffic()


def num_evaluated(post: Posterior, chains: int, gradients: float, bytes_sent: float) -> int:
    """Number of draws at which to evaluate F, for a run with this many gradients and bytes per chain; 0 if too few.

    The evaluations take at most as many gradients as the run, all in one sum.
    """
    number = (post.dim + 1) * 8
    most = min(
        _MOST_DRAWS,
        int(_READ / (float(post.sizes.sum()) * post.dim)),
        int(chains * gradients),
        int(chains * max(_FEW_BYTES, _SHARE_OF_BYTES * bytes_sent) / number),
    )
    return most if most >= _FEWEST_DRAWS else 0


def num_evaluated_here(post: Posterior) -> int:
    """Number of draws at which to evaluate F if all data is in this process."""
    return int(np.clip(_READ / (float(post.sizes.sum()) * post.dim), _FEWEST_DRAWS, _MOST_DRAWS))


def measure(
    post: Posterior,
    network: Network,
    temperature: float,
    average: np.ndarray,
    count: int,
    warmup: Warmup | None = None,
    seed: int = 0,
) -> Measured:
    """Measurements from F and its gradient, summed over the agents at draws of the average.

    Parameters
    ----------
    post, network, temperature
        The arguments of the run, in the coordinates in which the method moved.
    average
        Draws of the average, (chain, draw, dim).
    count
        Number of draws at which F is evaluated, in all chains together.
    warmup
        The warm-up that found these coordinates. With it other modes are searched too.
    seed
        Seed of the search for other modes.
    """
    chains, draws, _ = average.shape
    chosen = np.unique(np.linspace(0, draws - 1, max(1, count // chains)).astype(int))
    x = average[:, chosen].astype(np.float64)
    if chosen.size < 4 or not np.ptp(x, axis=(0, 1)).all():
        return Measured()
    place = post.coordinates
    with jax.enable_x64(True):
        session = Session(Job(post.in_parameters(), network, seed=seed))
        z = x if place is None else place.inverse(x)
        value, gradient = slopes(session, place, z.reshape(-1, post.dim))
        at_draws = session.traffic
        unvisited = _unvisited(session, place, z) if warmup is not None else None
        more = session.traffic
    # per chain: its share of the evaluations at draws, and the whole search for other modes
    spent = Traffic(
        exchanges=more.exchanges,
        bytes_sent=more.bytes_sent - at_draws.bytes_sent + at_draws.bytes_sent // chains,
        gradient_rows=more.gradient_rows - at_draws.gradient_rows + at_draws.gradient_rows // chains,
        sums=more.sums,
    )
    value, gradient = value.reshape(x.shape[:2]), gradient.reshape(x.shape)
    if value.max() >= NOWHERE:
        return Measured(spent=spent)
    return Measured(
        *_temperature(z, gradient), balanced(x, value, gradient, place, temperature, unvisited), spent=spent
    )


def _temperature(z: np.ndarray, gradient: np.ndarray) -> tuple[float, float]:
    """The temperature of draws and its Monte Carlo error.

    Under exp(-F / T) the mean of (z - c)' grad F(z) is dim T for any fixed c and any shape of F (integrate by parts).
    The ratio of a variance to the nearest Gaussian's would mistake skewness for temperature.
    """
    from arviz_stats.base.array import array_stats

    rises = np.einsum("cti,cti->ct", z - z.mean(axis=(0, 1)), gradient) / z.shape[2]
    effective = float(array_stats.ess(rises, chain_axis=0, draw_axis=1, method="mean"))
    return float(rises.mean()), float(rises.std() / np.sqrt(effective))


def balanced(
    x: np.ndarray,
    value: np.ndarray,
    gradient: np.ndarray,
    place: Coordinates | None = None,
    temperature: float = 1.0,
    unvisited: tuple[np.ndarray, np.ndarray] | None = None,
) -> Balance:
    """The balance of draws x, (chain, draw, dim), given F, (chain, draw), and its gradient in coordinates.

    `unvisited` has modes without draws and their masses, None if no modes were searched.
    """
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75], axis=(0, 1))
    factor = (high - low) / QUARTILES if place is None else place.factor
    if factor.ndim == 1:
        scale = np.abs(factor)
        slope = gradient * (factor if place is None else np.sign(factor))
    else:
        scale = np.linalg.norm(factor, axis=1)
        # the gradient in x times the covariance, in the parameter's standard deviations
        slope = gradient @ factor.T / scale
    u = (x - middle) / np.where(scale > 0, scale, 1.0)
    off, error = np.empty((2, len(FEATURES), x.shape[2]))
    batches = 0
    for k, feature in enumerate(FEATURES):
        off[k], error[k], batches = _mean(feature.function(u) * slope - temperature * feature.slope(u))
    rise = float(value.max() - value.mean()) / temperature
    none = np.zeros((0, x.shape[2])), np.zeros(0)
    return Balance(off, error, batches, rise, _allowed(value / temperature, x.shape[2]), *(unvisited or none))


def _mean(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Means of numbers (chain, draw, dim), their errors by batch means, and the number of batches."""
    chains, draws, dim = numbers.shape
    # batches grow faster than their number, so that autocorrelation dies out within a batch
    each = max(2, int(2.0 * draws ** (1.0 / 3.0)))
    length = draws // each
    if length == 0:
        return numbers.mean(axis=(0, 1)), np.full(dim, np.nan), 0
    means = numbers[:, : each * length].reshape(chains * each, length, dim).mean(axis=1)
    return numbers.mean(axis=(0, 1)), means.std(axis=0, ddof=1) / len(means) ** 0.5, len(means)


def _allowed(value: np.ndarray, dim: int) -> float:
    """The limit on max F - mean F over the draws, for a posterior with tails no heavier than log-concave.

    A log-concave posterior has P(F > mean + t) <= exp(-d (s - log(1 + s))) with s = t / d (Fradelizi, Madiman & Wang
    2016) and var F <= d. d is the dimension, or 2 var F if that is larger than a Gaussian's (var F = d / 2), as in a
    funnel, in which F varies with the volume.
    """
    low, high = np.quantile(value, [0.25, 0.75])
    effective = max(float(dim), 2.0 * ((high - low) / QUARTILES) ** 2)
    target = np.log(value.size / _FALSE_ALARM) / effective
    # s - log(1 + s) >= s^2 / (2 (1 + s)) bounds the root from above
    above = target + np.sqrt(target**2 + 2.0 * target)
    return effective * float(scipy.optimize.brentq(lambda s: s - np.log1p(s) - target, 0.0, above + 1e-9))


def _unvisited(session: Session, place: Coordinates | None, z: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Modes without draws, in the user's parameters, and their masses; None if no modes were searched."""
    if place is None or place.factor.ndim == 1:
        return None
    lines = probe(session, place)
    modes = [] if lines.convex else other_modes(session, place, lines).modes
    flat = z.reshape(-1, z.shape[2])
    # draws from a mode are about sqrt(dim) of its standard deviations away from it
    near = z.shape[2] ** 0.5 + 3.0
    missed = [
        mode
        for mode in modes
        if np.exp(min(mode.log_mass, 0.0)) > min(_MASS, _VARIANCE / max(mode.mean @ mode.mean, 1.0))
        and np.linalg.norm(np.linalg.solve(mode.factor, (flat - mode.mean).T), axis=0).min() > near
    ]
    where = [place.origin + place.factor @ mode.mean for mode in missed]
    return np.reshape(where, (-1, z.shape[2])), np.exp([min(mode.log_mass, 700.0) for mode in missed])
