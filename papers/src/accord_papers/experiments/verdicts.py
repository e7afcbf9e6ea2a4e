"""Verdicts on claims: what holds, what does not, and what a run of that size cannot decide; the rule is here alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from scipy import stats

# Standard errors that a statistic must be away from a threshold: a wrong side is met once in 740.
SURE = 3.0


class Verdict(StrEnum):
    """What was found of a claim, in the words that are shown."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, holds: bool) -> Verdict:
        """The verdict by numbers that have no Monte Carlo error, such as those of an exact law."""
        return cls.HOLDS if holds else cls.FAILS

    @classmethod
    def all(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """The verdict on all of several sentences together: one that fails is enough, whatever the others are."""
        given = set(verdicts)
        return next((one for one in (cls.FAILS, cls.UNDECIDED) if one in given), cls.HOLDS)


# of one, and of several
_SPOKEN = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.FAILS: ("does not hold", "do not hold"),
    Verdict.UNDECIDED: ("undecided", "undecided"),
}


class Estimate(NamedTuple):
    """A number found by simulation, and how far it may be off.

    Parameters
    ----------
    value
        The number.
    error
        Its Monte Carlo standard error; infinite or nan where the run is too short to tell.
    trend
        How far it may still move with more rounds, as `moving` has it; 0 for what is stationary from the start.
    """

    value: float
    error: float
    trend: float = 0.0

    @property
    def doubt(self) -> float:
        """How far the number may be off, both ways."""
        return SURE * self.error + self.trend

    def below(self, threshold: float) -> Verdict:
        """Whether it is below: undecided where the threshold is within the doubt, or the doubt is not known."""
        # nan compares as false
        if not abs(self.value - threshold) > self.doubt:
            return Verdict.UNDECIDED
        return Verdict.of(self.value < threshold)

    def above(self, threshold: float) -> Verdict:
        """Whether it is above."""
        return Estimate(-self.value, self.error, self.trend).below(-threshold)

    def within(self, threshold: float) -> Verdict:
        """Whether its size is below."""
        return Estimate(abs(self.value), self.error, self.trend).below(threshold)

    def less(self, other: Estimate) -> Estimate:
        """Its difference to another, found apart from it."""
        return Estimate(self.value - other.value, float(np.hypot(self.error, other.error)), self.trend + other.trend)

    def times(self, factor: float) -> Estimate:
        """A multiple of it."""
        return Estimate(*(abs(factor) * part for part in self))._replace(value=factor * self.value)

    def over(self, other: Estimate) -> Estimate:
        """Its ratio to another, found apart from it, to the first order in what both may be off."""
        ratio = self.value / other.value
        relative = Estimate(0.0, *(np.array(self[1:]) / abs(self.value)).tolist())
        whole = relative.less(Estimate(0.0, *(np.array(other[1:]) / abs(other.value)).tolist()))
        return whole.times(abs(ratio))._replace(value=ratio)

    def __str__(self) -> str:
        parts = [f"{SURE:g} standard errors are {SURE * self.error:.2g}"]
        parts += [f"what more rounds may change is {self.trend:.2g}"] if self.trend else []
        return f"{self.value:.3g}, of which {', '.join(parts)}"


def tally(verdicts: Iterable[Verdict]) -> str:
    """How many there are of each verdict, those apart that are undecided; "none" of none."""
    counts = Counter(verdicts)
    said = (f"{counts[one]} {words[counts[one] > 1]}" for one, words in _SPOKEN.items() if counts[one])
    return ", ".join(said) or "none"


def to_come(change: float, before: float) -> float:
    """How much more rounds may change, from what the last doubling of the rounds changed and the one before, both >= 0.

    If the last is q times the one before, all later ones change q + q^2 + ... = q / (1 - q) times as much as the last:
    of what nears its end as 1 / rounds just as much, the least that is taken. Where changes do not fall there is no
    saying.
    """
    if change == 0.0:
        return 0.0
    if not change < before:
        return np.inf
    return change * max(1.0, change / (before - change))


def moving(now: Estimate, halfway: float, quarter: float) -> Estimate:
    """A number with what more rounds may change, from what it was at half and at a quarter of the rounds.

    Where what changed since half of them is within the error of the number, that is it.
    """
    change = abs(now.value - halfway)
    # now and halfway are found apart
    still = change <= SURE * now.error * np.sqrt(2.0)
    return now._replace(trend=change if still else to_come(change, abs(halfway - quarter)))


def by_copies(value: float, copies: np.ndarray) -> Estimate:
    """A number whose error is the sd of what resampled data, or other runs, make of it; copies of shape (copy,)."""
    return Estimate(value, float(np.std(copies, ddof=1)))


def mean_of(values: np.ndarray) -> Estimate:
    """The mean of independent numbers, shape (number,).

    Its error is the larger the fewer they are, as Student's t has it: `SURE` errors leave out as much as of a normal.
    """
    count = len(values)
    if count < 2:
        return Estimate(float(np.mean(values)), np.inf)
    wider = float(stats.t.isf(stats.norm.sf(SURE), count - 1)) / SURE
    return Estimate(float(np.mean(values)), wider * float(np.std(values, ddof=1)) / count**0.5)
