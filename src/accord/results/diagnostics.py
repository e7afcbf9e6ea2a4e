"""Effective sample size, R-hat and the columns of a run's summary."""

from __future__ import annotations

import numpy as np

# Weights of which none is above so many times their mean are harmless whatever their tail looks like.
BOUNDED = 5.0
# Largest Pareto k of squared distances from a mean: above it a standard deviation has no reliable error.
SQUARES_K = 0.7
# What a normal distribution's quartiles are apart, in standard deviations.
QUARTILES = 1.349
# Draws below which a tail has too few to fit anything to.
_FEWEST_FOR_TAILS = 100


def statistics(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the summary from draws of shape (chain, draw, dim)."""
    draws = draws.astype(np.float64)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    ess, rhat = diagnostics(draws)
    return {
        "mean": draws.mean(axis=(0, 1)),
        "sd": draws.std(axis=(0, 1)),
        "5%": low,
        "95%": high,
        "ess": ess,
        "rhat": rhat,
    }


def diagnostics(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bulk ESS and R-hat by parameter, each (dim,), from draws of shape (chain, draw, dim); NaN where there is none."""
    from arviz_stats.base.array import array_stats

    draws = draws.astype(np.float64)
    ess, rhat = np.full((2, draws.shape[2]), np.nan)
    # both need at least four draws a chain that differ, and R-hat two chains
    varied = np.flatnonzero(np.ptp(draws, axis=1).min(axis=0) > 0)
    if draws.shape[1] >= 4 and varied.size:
        # where half a chain has not moved there is nothing to divide by
        with np.errstate(divide="ignore", invalid="ignore"):
            ess[varied] = array_stats.ess(draws[..., varied], chain_axis=0, draw_axis=1)
            if draws.shape[0] > 1:
                rhat[varied] = array_stats.rhat(draws[..., varied], chain_axis=0, draw_axis=1)
    return ess, rhat


def pareto_k(draws: np.ndarray) -> np.ndarray:
    """How heavy the heavier tail of each parameter's draws is, (dim,), from draws of shape (chain, draw, dim).

    The shape k of a generalised Pareto distribution fitted to the furthest draws (Vehtari et al. 2024): moments from
    the (1 / k)-th on are infinite, the variance where k is above 1/2. NaN below 100 draws, or where they are alike.
    """
    draws = draws.astype(np.float64)
    k = np.full(draws.shape[2], np.nan)
    if draws[..., 0].size >= _FEWEST_FOR_TAILS:
        for d in np.flatnonzero(np.ptp(draws, axis=(0, 1)) > 0):
            k[d] = np.fmax(_heaviness(draws[..., d], "left"), _heaviness(draws[..., d], "right"))
    return k


def pareto(log_weights: np.ndarray) -> float:
    """The Pareto k of some log weights, shape (point,); -inf where none is far above their mean."""
    weights = np.exp(log_weights - log_weights.max())
    if np.count_nonzero(weights) < 25:
        return np.inf
    # many weights near a largest one look like a heavy tail to the fit, and are the lightest that there is
    if weights.mean() * BOUNDED >= 1.0:
        return -np.inf
    # a tail that hangs on one point may overflow, and is as heavy as can be
    k = _heaviness(weights[None], "right")
    return np.inf if np.isnan(k) else k


def _heaviness(draws: np.ndarray, tail: str) -> float:
    """The Pareto k of one tail, of numbers (chain, draw); -inf where all in it are alike, NaN if none fits."""
    from arviz_stats.base.array import array_stats

    with np.errstate(all="ignore"):
        try:
            # of three times the root of the number of draws, dependent as they may be
            k = float(array_stats.pareto_khat(draws, chain_axis=0, draw_axis=1, r_eff=1.0, tail=tail))
        except ValueError as error:
            # ArviZ says so of no other fault, and how many are in a tail is its own affair
            if "tail values are the same" not in str(error):
                raise
            return -np.inf
    return k if np.isfinite(k) else np.nan


def good_k(draws: int) -> float:
    """The largest Pareto k with which so many draws are enough to smooth weights by (Vehtari et al. 2024)."""
    return min(1.0 - 1.0 / np.log10(draws), 0.7)


def efficiency(draws: np.ndarray) -> float:
    """Effective draws of means per draw, the mean over parameters, of draws (chain, draw, dim); 1 of a single chain."""
    from arviz_stats.base.array import array_stats

    varied = draws[..., np.ptp(draws, axis=(0, 1)) > 0].astype(np.float64)
    if draws.shape[0] == 1 or varied.shape[2] == 0:
        return 1.0
    return float(np.mean(array_stats.ess(varied, chain_axis=0, draw_axis=1, method="mean"))) / draws[..., 0].size
