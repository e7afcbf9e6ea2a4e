"""Certificates of weighted points: what was checked, what was found, what is allowed."""

from __future__ import annotations

from typing import NamedTuple

# The check that a run lacks which was interrupted.
INTERRUPTED = "interrupted"


class Check(NamedTuple):
    """One thing that was looked at.

    Parameters
    ----------
    name
        What it is.
    found, allowed
        The number found, and the largest or smallest that is allowed.
    holds
        Whether it is.
    text
        A sentence for people: the number, what it means, and a remedy where it does not hold.
    """

    name: str
    found: float
    allowed: float
    holds: bool
    text: str


class Certificate(NamedTuple):
    """All checks of a run's weights; draws are certified where every one of them holds."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether all checks hold."""
        return all(check.holds for check in self.checks)

    @property
    def why(self) -> str:
        """Why it does not hold, in sentences; empty where it does."""
        return "; ".join(check.text for check in self.checks if not check.holds)

    def __str__(self) -> str:
        lines = [f"{'ok ' if c.holds else 'NO '} {c.name}: {c.text}" for c in self.checks]
        return "\n".join(["certified" if self.holds else "not certified", *lines])


def interrupted(what: str) -> Certificate:
    """That of draws which were there when somebody pressed Ctrl-C."""
    return Certificate((Check(INTERRUPTED, 0.0, 0.0, False, f"interrupted: the {what} were not checked"),))
