"""Effective sample size, R-hat and the columns of a run's summary."""

from __future__ import annotations

import numpy as np

# Ratio of the largest to the mean weight below which weights are harmless, whatever their tail.
BOUNDED = 5.0
# Largest Pareto k of squared deviations from the mean for which a standard deviation has a reliable error.
SQUARES_K = 0.7
# Interquartile range of a normal distribution, in standard deviations.
QUARTILES = 1.349
# Smallest number of draws to which tails are fitted.
_FEWEST_FOR_TAILS = 100


def statistics(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the summary table, each (dim,), of draws (chain, draw, dim)."""
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
    """Bulk ESS and R-hat of draws (chain, draw, dim), each (dim,); NaN if undefined."""
    rhat = _of_varied("rhat", draws) if len(draws) > 1 else np.full(draws.shape[2], np.nan)
    return effective_draws(draws), rhat


def effective_draws(draws: np.ndarray) -> np.ndarray:
    """Bulk ESS of draws (chain, draw, dim), (dim,); NaN if undefined."""
    return _of_varied("ess", draws)


def _of_varied(name: str, draws: np.ndarray) -> np.ndarray:
    """ArviZ's ESS or R-hat, (dim,), of parameters with four draws per chain that are not all equal; else NaN."""
    from arviz_stats.base.array import array_stats

    draws, found = draws.astype(np.float64), np.full(draws.shape[2], np.nan)
    varied = np.flatnonzero(np.ptp(draws, axis=1).min(axis=0) > 0)
    if draws.shape[1] >= 4 and varied.size:
        # half a chain without movement has variance 0
        with np.errstate(divide="ignore", invalid="ignore"):
            found[varied] = getattr(array_stats, name)(draws[..., varied], chain_axis=0, draw_axis=1)
    return found


def pareto_k(draws: np.ndarray) -> np.ndarray:
    """Pareto k of the heavier tail of each parameter, (dim,), from draws (chain, draw, dim).

    The shape k of a generalised Pareto distribution fitted to the furthest draws (Vehtari et al. 2024). Moments of
    order 1 / k and above are infinite, so the variance is infinite if k > 1/2. NaN below 100 draws or if all are equal.
    """
    draws = draws.astype(np.float64)
    k = np.full(draws.shape[2], np.nan)
    if draws[..., 0].size >= _FEWEST_FOR_TAILS:
        for d in np.flatnonzero(np.ptp(draws, axis=(0, 1)) > 0):
            k[d] = np.fmax(_heaviness(draws[..., d], "left"), _heaviness(draws[..., d], "right"))
    return k


def pareto(log_weights: np.ndarray) -> float:
    """Pareto k of log weights (point,); -inf if no weight is far above the mean weight."""
    weights = np.exp(log_weights - log_weights.max())
    if np.count_nonzero(weights) < 25:
        return np.inf
    # the fit mistakes many weights near the largest one for a heavy tail
    if weights.mean() * BOUNDED >= 1.0:
        return -np.inf
    # a tail that rests on one point may overflow
    k = _heaviness(weights[None], "right")
    return np.inf if np.isnan(k) else k


def _heaviness(draws: np.ndarray, tail: str) -> float:
    """Pareto k of one tail of numbers (chain, draw); -inf if all values in the tail are equal, NaN if no fit exists."""
    from arviz_stats.base.array import array_stats

    with np.errstate(all="ignore"):
        try:
            # r_eff=1: the tail has 3 sqrt(draws) values, also for autocorrelated draws
            k = float(array_stats.pareto_khat(draws, chain_axis=0, draw_axis=1, r_eff=1.0, tail=tail))
        except ValueError as error:
            # ArviZ has no exception class of its own for this case
            if "tail values are the same" not in str(error):
                raise
            return -np.inf
    return k if np.isfinite(k) else np.nan


def good_k(draws: int) -> float:
    """The largest Pareto k for which this number of draws suffices to smooth weights (Vehtari et al. 2024)."""
    return min(1.0 - 1.0 / np.log10(draws), 0.7)


def efficiency(draws: np.ndarray) -> float:
    """Relative ESS of means, averaged over parameters, of draws (chain, draw, dim); 1 for a single chain."""
    from arviz_stats.base.array import array_stats

    varied = draws[..., np.ptp(draws, axis=(0, 1)) > 0].astype(np.float64)
    if draws.shape[0] == 1 or varied.shape[2] == 0:
        return 1.0
    return float(np.mean(array_stats.ess(varied, chain_axis=0, draw_axis=1, method="mean"))) / draws[..., 0].size
