"""Verdicts on claims, and estimates with the uncertainty that the verdicts depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy import stats

# Least distance of an estimate from a threshold, in standard errors. A verdict is wrong with probability 1 / 740.
SURE = 3.0


class Verdict(StrEnum):
    """Verdict on a claim. The value is the text on pages."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, holds: bool) -> Verdict:
        """The verdict from numbers without Monte Carlo error, such as moments of an exact law."""
        return cls.HOLDS if holds else cls.FAILS

    @classmethod
    def all(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """The verdict on several statements together: FAILS if any fails, then UNDECIDED if any is undecided."""
        given = set(verdicts)
        return next((one for one in (cls.FAILS, cls.UNDECIDED) if one in given), cls.HOLDS)


# Singular and plural of each verdict.
_PHRASES = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.FAILS: ("does not hold", "do not hold"),
    Verdict.UNDECIDED: ("undecided", "undecided"),
}


class Estimate(NamedTuple):
    """A simulated number and its uncertainty.

    Parameters
    ----------
    value
        The number.
    error
        Monte Carlo standard error. Infinite or nan if the run is too short to estimate it.
    trend
        Possible change with more rounds, from `moving`. 0 for numbers that are stationary from the start.
    """

    value: float
    error: float
    trend: float = 0.0

    @property
    def doubt(self) -> float:
        """Half-width of the uncertainty: `SURE` standard errors and the trend."""
        return SURE * self.error + self.trend

    def below(self, threshold: float) -> Verdict:
        """Verdict on value < threshold: undecided if the threshold is within the doubt or the doubt is unknown."""
        # nan compares as false
        if not abs(self.value - threshold) > self.doubt:
            return Verdict.UNDECIDED
        return Verdict.of(self.value < threshold)

    def above(self, threshold: float) -> Verdict:
        """Verdict on value > threshold."""
        return Estimate(-self.value, self.error, self.trend).below(-threshold)

    def within(self, threshold: float) -> Verdict:
        """Verdict on |value| < threshold."""
        return Estimate(abs(self.value), self.error, self.trend).below(threshold)

    def less(self, other: Estimate) -> Estimate:
        """The difference to an independent estimate."""
        return Estimate(self.value - other.value, float(np.hypot(self.error, other.error)), self.trend + other.trend)

    def times(self, factor: float) -> Estimate:
        """The estimate times a constant."""
        return Estimate(*(abs(factor) * part for part in self))._replace(value=factor * self.value)

    def over(self, other: Estimate) -> Estimate:
        """The ratio to an independent estimate, with uncertainties to first order."""
        ratio = self.value / other.value
        relative = Estimate(0.0, *(np.array(self[1:]) / abs(self.value)).tolist())
        whole = relative.less(Estimate(0.0, *(np.array(other[1:]) / abs(other.value)).tolist()))
        return whole.times(abs(ratio))._replace(value=ratio)

    def __str__(self) -> str:
        parts = [f"{SURE:g} standard errors are {SURE * self.error:.2g}"]
        parts += [f"what more rounds may change is {self.trend:.2g}"] if self.trend else []
        return f"{self.value:.3g}, of which {', '.join(parts)}"


def tally(verdicts: Iterable[Verdict]) -> str:
    """The count of each verdict as text, or "none"."""
    counts = Counter(verdicts)
    parts = (f"{counts[one]} {words[counts[one] > 1]}" for one, words in _PHRASES.items() if counts[one])
    return ", ".join(parts) or "none"


def to_come(change: float, before: float) -> float:
    """Possible change with more rounds, from the changes in the last two doublings of the rounds, both >= 0.

    With q = change / before, all later doublings together change q + q^2 + ... = q / (1 - q) times `change`. The result
    is at least `change`, which is exact for convergence as 1 / rounds. It is infinite if changes do not decrease.
    """
    if change == 0.0:
        return 0.0
    if not change < before:
        return np.inf
    return change * max(1.0, change / (before - change))


def moving(now: Estimate, halfway: float, quarter: float) -> Estimate:
    """The estimate with its trend, from its values at half and at a quarter of the rounds.

    If the change since half of the rounds is within its error, this change is the trend.
    """
    change = abs(now.value - halfway)
    # now and halfway are independent
    still = change <= SURE * now.error * np.sqrt(2.0)
    return now._replace(trend=change if still else to_come(change, abs(halfway - quarter)))


def by_copies(value: float, copies: np.ndarray) -> Estimate:
    """An estimate with the sd over resampled data or repeated runs as its error, copies of shape (copy,)."""
    return Estimate(value, float(np.std(copies, ddof=1)))


def mean_of(values: np.ndarray) -> Estimate:
    """The mean of independent numbers, shape (number,).

    The error includes the factor of Student's t, so that `SURE` errors cover the same probability as for a normal law.
    """
    count = len(values)
    if count < 2:
        return Estimate(float(np.mean(values)), np.inf)
    wider = float(stats.t.isf(stats.norm.sf(SURE), count - 1)) / SURE
    return Estimate(float(np.mean(values)), wider * float(np.std(values, ddof=1)) / count**0.5)
