"""Certificates of draws: named checks with the value found and its limit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Name of the only check of an interrupted run.
INTERRUPTED = "interrupted"
# Start of the sentence on what a search may miss, at the end of the text of a check.
UNSEEN = "F is not known to be convex"
# Checks whose limit is a smallest value. All other limits are largest values.
_AT_LEAST = ("coverage", "effective draws", "energy fraction", "rows", "columns")


class Check(NamedTuple):
    """One check of a certificate.

    Parameters
    ----------
    name
        Name of the check.
    found, allowed
        The value found and its limit, infinite if the check has no numeric limit.
    holds
        Whether the check passed.
    text
        A sentence with the value, its meaning and, if the check failed, a remedy.
    """

    name: str
    found: float
    allowed: float
    holds: bool
    text: str

    @property
    def result(self) -> str:
        """Either "passed" or "failed"."""
        return "passed" if self.holds else "failed"

    @property
    def number(self) -> str:
        """The value found, as text."""
        return _short(self.found)

    @property
    def limit(self) -> str:
        """The limit as text, such as "at most 0.5"; empty if the limit is infinite."""
        if not np.isfinite(self.allowed):
            return ""
        return f"at {'least' if self.name in _AT_LEAST else 'most'} {_short(self.allowed)}"


class Certificate(NamedTuple):
    """All checks of a run's draws. The draws are certified if every check passed."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether every check passed."""
        return all(check.holds for check in self.checks)

    @property
    def why(self) -> str:
        """The sentences of the failed checks; empty if every check passed."""
        return "; ".join(check.text for check in self.checks if not check.holds)

    @property
    def verdict(self) -> str:
        """Either "Certified" or "Not certified", with the number of checks that passed."""
        passed = sum(check.holds for check in self.checks)
        return f"{'Certified' if self.holds else 'Not certified'}: {passed} of {len(self.checks)} checks passed"

    @property
    def unseen(self) -> str:
        """The sentence on what the search may miss; empty if there is none."""
        return next((check.text[check.text.index(UNSEEN) :] for check in self.checks if UNSEEN in check.text), "")

    def __repr__(self) -> str:
        names, numbers = ([getattr(c, field) for c in self.checks] for field in ("name", "number"))
        lines = [
            f"  {c.result}  {c.name:{max(map(len, names))}}  {c.number:>{max(map(len, numbers))}}  {c.limit}".rstrip()
            for c in self.checks
        ]
        return "\n".join([self.verdict, *lines])

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {c.result}  {c.name}: {c.text}" for c in self.checks)])


def interrupted(what: str) -> Certificate:
    """The certificate of draws that were interrupted by Ctrl-C and not checked."""
    return Certificate((Check(INTERRUPTED, 0.0, np.inf, False, f"interrupted: the {what} were not checked"),))


def _short(value: float) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
