"""The exact law by round, and whether chains have it: scores whose own law is known."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from scipy import stats

from accord import Network, Posterior, Run, Sampler, law

from .frame import whole_run

# Chains of one run: what bounds memory, not the result.
_BATCH = 500


class Tally:
    """Means and variances over chains, gathered batch by batch and compared with Gaussian laws.

    Parameters
    ----------
    means, variances
        What the law says of every number, shapes (round, number); variances > 0.
    """

    def __init__(self, means: np.ndarray, variances: np.ndarray) -> None:
        self.chains = 0
        self._means, self._variances = means, variances
        # sums of deviations from the law's mean: no digits are lost to a mean far from zero
        self._sum, self._squares = np.zeros(means.shape), np.zeros(means.shape)

    def add(self, numbers: np.ndarray) -> None:
        """Count a batch, shape (chain, round, number)."""
        deviations = numbers - self._means
        self.chains += len(numbers)
        self._sum += deviations.sum(axis=0)
        self._squares += (deviations**2).sum(axis=0)

    @property
    def means(self) -> np.ndarray:
        """Over chains, shape (round, number)."""
        return self._means + self._sum / self.chains

    @property
    def variances(self) -> np.ndarray:
        """Over chains, unbiased, shape (round, number)."""
        return (self._squares - self._sum**2 / self.chains) / (self.chains - 1)

    def mean_scores(self) -> np.ndarray:
        """Each standard normal under the law, shape (round, number)."""
        return self._sum / np.sqrt(self.chains * self._variances)

    def variance_scores(self) -> np.ndarray:
        """Each standard normal under the law, shape (round, number): the chi-square quantile as a normal one."""
        freedom = self.chains - 1
        statistic = freedom * self.variances / self._variances
        above, below = stats.chi2.sf(statistic, freedom), stats.chi2.cdf(statistic, freedom)
        # by the nearer tail, where it has all its digits
        return np.where(above < below, stats.norm.isf(above), -stats.norm.isf(below))


def bound(tests: int, chance: float = 0.001) -> float:
    """The size that the largest of so many scores, however dependent, exceeds with at most this chance (Bonferroni)."""
    return float(stats.norm.isf(chance / (2 * tests)))


def laws(post: Posterior, network: Network, sampler: Sampler, rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Means and covariances of all agents' positions after 1, 2, ..., `rounds` rounds, by `accord.law`.

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
    """Runs with every state from round 1 on, of as many chains together, in double precision.

    Single precision rounds by as much as the smallest steps of a schedule that falls move.
    """
    for first in range(0, chains, _BATCH):
        size, seed = min(_BATCH, chains - first), int(rng.integers(2**63))
        with jax.enable_x64(True):
            run = whole_run(post, network, sampler, draws=rounds, burn_in=0, thin=1, chains=size, seed=seed)
        yield run
