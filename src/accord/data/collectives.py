"""Where the sites of a study meet: words are gathered, numbers are summed, and nothing else is told.

What sites find out together is written once, as work that each of them does on its own tables and that stops wherever
it needs what the others found. In one process nobody has to wait. By correspondence, a site answers the first question
that it has no answer to, and begins again when it has: what it does between two questions is the same every time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, TypeVar

import numpy as np

Result = TypeVar("Result")
# Numbers of a site by name, which are added: the same names and shapes at all sites.
Numbers = dict[str, Any]


class SiteCollectives(ABC):
    """The sites that take part, and those of them whose tables are here."""

    sites: tuple[str, ...]
    here: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the tables of all sites are here."""
        return len(self.here) == len(self.sites)

    @property
    def names_here(self) -> tuple[str, ...]:
        """The names of the sites whose tables are here."""
        return tuple(self.sites[place] for place in self.here)

    @abstractmethod
    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """What every site says, in their order, of what those here say: values that JSON has."""

    @abstractmethod
    def total(self, own: Sequence[Numbers]) -> Numbers:
        """The sum over all sites, of the numbers of those here."""


@dataclass(frozen=True)
class LocalCollectives(SiteCollectives):
    """All tables are in this process."""

    sites: tuple[str, ...]

    @property
    def here(self) -> tuple[int, ...]:  # type: ignore[override]
        """All of them."""
        return tuple(range(len(self.sites)))

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        return list(own)

    def total(self, own: Sequence[Numbers]) -> Numbers:
        """See `SiteCollectives`."""
        return reduce(added, own)


def added(first: Numbers, second: Numbers) -> Numbers:
    """The sum of two sites' numbers."""
    return {name: first[name] + second[name] for name in first}


def means_and_sds(meeting: SiteCollectives, values: Sequence[Numbers]) -> dict[str, tuple[Any, Any]]:
    """Mean and standard deviation over all sites' rows, the first axis, of arrays by name of each site that is here."""
    sums = meeting.total(
        [{f"{part} {name}": f(x) for name, x in own.items() for part, f in _PARTS.items()} for own in values]
    )
    names = [name.removeprefix("rows ") for name in sums if name.startswith("rows ")]
    rows, means = {name: sums[f"rows {name}"] for name in names}, {}
    for name in names:
        means[name] = sums[f"sum {name}"] / rows[name]
    squares = meeting.total(
        [{name: ((own[name] - mean) ** 2).sum(axis=0) for name, mean in means.items()} for own in values]
    )
    return {name: (mean, np.sqrt(squares[name] / rows[name])) for name, mean in means.items()}


_PARTS: dict[str, Callable[[np.ndarray], Any]] = {"rows": len, "sum": lambda x: x.sum(axis=0)}


@dataclass(frozen=True)
class Question:
    """What is asked for next: words of all sites, or the sum of their numbers; and what this site has to say."""

    kind: Literal["gathered", "total"]
    own: Any


class Pending(Exception):  # noqa: N818 - how work is left that goes on another time
    """The next question has no answer yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.kind)
        self.question = question


@dataclass
class ReplayCollectives(SiteCollectives):
    """One site's tables are here, or none, and answers to the first questions are known.

    Parameters
    ----------
    sites, here
        As `SiteCollectives` has them.
    answers
        What was gathered and summed so far, in the order of the questions.
    """

    sites: tuple[str, ...]
    here: tuple[int, ...]
    answers: Sequence[Any]
    _count: int = field(default=0, init=False)

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        found: list[Any] = self._next(Question("gathered", list(own)))
        return found

    def total(self, own: Sequence[Numbers]) -> Numbers:
        """See `SiteCollectives`."""
        found: Numbers = self._next(Question("total", list(own)))
        return {name: np.asarray(value) for name, value in found.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every answer belonged to a question."""
        return self._count == len(self.answers)

    def _next(self, question: Question) -> Any:
        if self._count == len(self.answers):
            raise Pending(question)
        self._count += 1
        return self.answers[self._count - 1]


def correspond(
    sites: Sequence[str],
    work: Callable[[SiteCollectives], Result],
    ask: Callable[[str, Sequence[Any]], Any],
) -> tuple[Result, list[Any]]:
    """Do work whose tables lie elsewhere, and return what came of it and all answers.

    Parameters
    ----------
    sites
        The names of all sites.
    work
        What every site does, here without a table.
    ask
        `ask(kind, answers)` asks all sites for their next answer, of this kind, given those so far, and returns what
        they say together: a list in their order of what is "gathered", or the sum where it is a "total".
    """
    answers: list[Any] = []
    while True:
        try:
            return work(ReplayCollectives(tuple(sites), (), answers)), answers
        except Pending as open_question:
            answers.append(ask(open_question.question.kind, answers))
