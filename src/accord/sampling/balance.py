"""The draws of a run beside F and its gradient, which the agents sum at them: Stein's identity, excursions, modes."""

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
from ..samplers.by_sums.mode_search import look, other_modes
from ..samplers.session import Job, Session
from ..tuning.warmup import Warmup

# Draws that F is evaluated at, from the fewest to the most, and the numbers of data read for all.
_FEWEST_LOOKS, _MOST_LOOKS, _READ = 200, 40_000, 5e8
# Looking at draws may take as many gradients as the run itself, all of them in one sum, and a share of its bytes, where
# they are more than so many.
_SHARE_OF_BYTES, _FEW_BYTES = 0.1, 2**18
# Chance that draws of a log-concave posterior have an F so high.
_FALSE_ALARM = 1e-3
# Mass relative to that of the draws at which another mode is told, and what it adds to the variance of one of them: a
# mode of little mass far away makes a standard deviation all the same.
_MASS, _VARIANCE = 0.01, 0.1


class Measured(NamedTuple):
    """What was measured of draws: their temperature, its Monte Carlo error (NaN: not known), their balance, and costs.

    What it took is that of one chain, as a run's traffic is.
    """

    temperature: float = np.nan
    error: float = np.nan
    balance: Balance | None = None
    spent: Traffic = Traffic()


def looks(post: Posterior, chains: int, gradients: float, bytes_sent: float) -> int:
    """Draws to look at of a run in which each chain took some gradients and sent some bytes; 0 where few do not pay."""
    number = (post.dim + 1) * 8
    most = min(
        _MOST_LOOKS,
        int(_READ / (float(post.sizes.sum()) * post.dim)),
        int(chains * gradients),
        int(chains * max(_FEW_BYTES, _SHARE_OF_BYTES * bytes_sent) / number),
    )
    return most if most >= _FEWEST_LOOKS else 0


def looks_here(post: Posterior) -> int:
    """The same where nothing has to be sent."""
    return int(np.clip(_READ / (float(post.sizes.sum()) * post.dim), _FEWEST_LOOKS, _MOST_LOOKS))


def measure(
    post: Posterior,
    network: Network,
    temperature: float,
    average: np.ndarray,
    count: int,
    warmup: Warmup | None = None,
    seed: int = 0,
) -> Measured:
    """Sum F and its gradient at draws of the average, (chain, draw, dim); with a warm-up, look for other modes too.

    Parameters
    ----------
    post, network, temperature
        As the method ran, in the coordinates that it moved in.
    average
        Its draws.
    count
        Draws to look at, of all chains.
    warmup
        What warm-up found, if these are its coordinates, in which other modes are looked for.
    seed
        Of the places where they are looked for.
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
    # each chain has looked at its own draws, and all of them for other modes
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
    """The temperature of draws, and its Monte Carlo error.

    Under exp(-F / T) the mean of (z - c)' grad F(z) is dim T for any fixed c (integrate by parts), whatever the shape
    of F: a variance over that of the nearest Gaussian would take a skewed posterior for a hot one.
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
    """The balance of draws x, (chain, draw, dim), given F there, (chain, draw), and its gradient in coordinates.

    `unvisited` are other modes and their masses, where somebody looked.
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
    """Means of numbers (chain, draw, dim), their errors by means of batches, and how many batches there are."""
    chains, draws, dim = numbers.shape
    # batches grow faster than their number, so that what draws remember of one another is forgotten within one
    each = max(2, int(2.0 * draws ** (1.0 / 3.0)))
    length = draws // each
    if length == 0:
        return numbers.mean(axis=(0, 1)), np.full(dim, np.nan), 0
    means = numbers[:, : each * length].reshape(chains * each, length, dim).mean(axis=1)
    return numbers.mean(axis=(0, 1)), means.std(axis=0, ddof=1) / len(means) ** 0.5, len(means)


def _allowed(value: np.ndarray, dim: int) -> float:
    """How far above its mean F may be at one of some draws of a posterior that is no heavier than log-concave ones.

    For these P(F > mean + t) <= exp(-d (s - log(1 + s))) with s = t / d (Fradelizi, Madiman & Wang 2016), and no
    variance of F is above d. Where F varies more than a Gaussian's, whose variance is d / 2, d is twice that variance:
    in a funnel F goes up and down with the volume.
    """
    low, high = np.quantile(value, [0.25, 0.75])
    effective = max(float(dim), 2.0 * ((high - low) / QUARTILES) ** 2)
    target = np.log(value.size / _FALSE_ALARM) / effective
    # s - log(1 + s) >= s^2 / (2 (1 + s)) bounds the root from above
    above = target + np.sqrt(target**2 + 2.0 * target)
    return effective * float(scipy.optimize.brentq(lambda s: s - np.log1p(s) - target, 0.0, above + 1e-9))


def _unvisited(session: Session, place: Coordinates | None, z: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Other modes that no draw is of, in the user's parameters, and their masses; None where nobody looked."""
    if place is None or place.factor.ndim == 1:
        return None
    lines = look(session, place)
    modes = [] if lines.convex else other_modes(session, place, lines).modes
    flat = z.reshape(-1, z.shape[2])
    # draws of a mode are about the root of the dimension away from it, in its own standard deviations
    near = z.shape[2] ** 0.5 + 3.0
    missed = [
        mode
        for mode in modes
        if np.exp(min(mode.log_mass, 0.0)) > min(_MASS, _VARIANCE / max(mode.mean @ mode.mean, 1.0))
        and np.linalg.norm(np.linalg.solve(mode.factor, (flat - mode.mean).T), axis=0).min() > near
    ]
    where = [place.origin + place.factor @ mode.mean for mode in missed]
    return np.reshape(where, (-1, z.shape[2])), np.exp([min(mode.log_mass, 700.0) for mode in missed])
