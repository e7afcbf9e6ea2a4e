"""Comparison of chains with the exact law by round: scores that are standard normal under the law."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from scipy import stats

from accord import Network, Posterior, Run, Sampler, law

from .frame import whole_run

# Chains in one batch, which bounds memory and does not change results.
_BATCH = 500


class Tally:
    """Means and variances over chains, accumulated in batches and compared with Gaussian laws.

    Parameters
    ----------
    means, variances
        Moments of every number under the law, shapes (round, number), variances > 0.
    """

    def __init__(self, means: np.ndarray, variances: np.ndarray) -> None:
        self.chains = 0
        self._means, self._variances = means, variances
        # sums of deviations from the law's mean avoid cancellation
        self._sum, self._squares = np.zeros(means.shape), np.zeros(means.shape)

    def add(self, numbers: np.ndarray) -> None:
        """Add a batch of chains, shape (chain, round, number)."""
        deviations = numbers - self._means
        self.chains += len(numbers)
        self._sum += deviations.sum(axis=0)
        self._squares += (deviations**2).sum(axis=0)

    @property
    def means(self) -> np.ndarray:
        """Means over chains, shape (round, number)."""
        return self._means + self._sum / self.chains

    @property
    def variances(self) -> np.ndarray:
        """Unbiased variances over chains, shape (round, number)."""
        return (self._squares - self._sum**2 / self.chains) / (self.chains - 1)

    def mean_scores(self) -> np.ndarray:
        """Scores of the means, standard normal under the law, shape (round, number)."""
        return self._sum / np.sqrt(self.chains * self._variances)

    def variance_scores(self) -> np.ndarray:
        """Scores of the variances, chi-square statistics mapped to normal quantiles, shape (round, number)."""
        freedom = self.chains - 1
        statistic = freedom * self.variances / self._variances
        above, below = stats.chi2.sf(statistic, freedom), stats.chi2.cdf(statistic, freedom)
        # the smaller tail keeps its digits
        return np.where(above < below, stats.norm.isf(above), -stats.norm.isf(below))


def bound(tests: int, chance: float = 0.001) -> float:
    """Bonferroni bound: the largest of `tests` absolute scores exceeds it with probability at most `chance`."""
    return float(stats.norm.isf(chance / (2 * tests)))


def laws(post: Posterior, network: Network, sampler: Sampler, rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Joint means and covariances of all agents after 1, 2, ..., `rounds` rounds, from `accord.law`.

    Yields
    ------
    mean, cov : np.ndarray
        Shapes (agent * dim,) and (agent * dim, agent * dim).
    """
    exact = law(post, network, sampler)
    for k in range(1, rounds + 1):
        joint = exact.at(k).joint
        yield joint.mean, joint.cov


def batches(
    post: Posterior, network: Network, sampler: Sampler, *, rounds: int, chains: int, rng: np.random.Generator
) -> Iterator[Run]:
    """Yield runs that record every round, with `chains` chains in total, in double precision.

    In single precision, rounding errors are as large as the smallest steps of a decreasing schedule.
    """
    for first in range(0, chains, _BATCH):
        size, seed = min(_BATCH, chains - first), int(rng.integers(2**63))
        with jax.enable_x64(True):
            run = whole_run(post, network, sampler, draws=rounds, burn_in=0, thin=1, chains=size, seed=seed)
        yield run
