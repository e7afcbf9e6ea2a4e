"""Collectives for preprocessing across sites: gather (JSON values) and sum (arrays).

Preprocessing is one function that every site runs on its own tables. It calls a collective wherever it needs values of
other sites. In one process, collectives return at once. Between sites, the function is replayed: it stops at the first
collective without an answer, and starts again from the beginning once the answer is there. It must be deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, TypeVar

import numpy as np

Result = TypeVar("Result")
# Arrays and numbers by name, with the same names and shapes at all sites.
Numbers = dict[str, Any]


class SiteCollectives(ABC):
    """All sites of a study, and the numbers of the sites whose tables are in this process."""

    sites: tuple[str, ...]
    here: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the tables of all sites are in this process."""
        return len(self.here) == len(self.sites)

    @property
    def names_here(self) -> tuple[str, ...]:
        """Names of the sites whose tables are in this process."""
        return tuple(self.sites[place] for place in self.here)

    @abstractmethod
    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """Gather JSON values: pass one per site of this process, get one per site of the study, in their order."""

    @abstractmethod
    def total(self, own: Sequence[Numbers], spread: Sequence[Numbers] = ()) -> Numbers:
        """Sum over all sites: pass one value per site of this process.

        `spread` has the standard deviations of a row's share in these numbers, by name, one value per site. A site
        whose answers are coarse adds noise of about this size. Numbers without one are exact.
        """


@dataclass(frozen=True)
class LocalCollectives(SiteCollectives):
    """Collectives for tables that are all in this process."""

    sites: tuple[str, ...]

    @property
    def here(self) -> tuple[int, ...]:  # type: ignore[override]
        """All sites."""
        return tuple(range(len(self.sites)))

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        return list(own)

    def total(self, own: Sequence[Numbers], spread: Sequence[Numbers] = ()) -> Numbers:
        """See `SiteCollectives`."""
        return reduce(added, own)


def added(first: Numbers, second: Numbers) -> Numbers:
    """The sum of the numbers of two sites."""
    return {name: first[name] + second[name] for name in first}


def means_and_sds(meeting: SiteCollectives, values: Sequence[Numbers]) -> dict[str, tuple[Any, Any]]:
    """Mean and standard deviation over the rows of all sites, the first axis of each array, by name."""
    spread = [{name: x.std(axis=0) for name, x in own.items() if x.size} for own in values]
    sums = meeting.total(
        [{f"{part} {name}": f(x) for name, x in own.items() for part, f in _PARTS.items()} for own in values],
        [{f"sum {name}": sd for name, sd in own.items()} for own in spread],
    )
    names = [name.removeprefix("rows ") for name in sums if name.startswith("rows ")]
    rows, means = {name: sums[f"rows {name}"] for name in names}, {}
    for name in names:
        means[name] = sums[f"sum {name}"] / rows[name]
    squares = meeting.total(
        [{name: ((own[name] - mean) ** 2).sum(axis=0) for name, mean in means.items()} for own in values],
        [{name: sd**2 for name, sd in own.items()} for own in spread],
    )
    return {name: (mean, np.sqrt(np.maximum(squares[name], 0.0) / rows[name])) for name, mean in means.items()}


_PARTS: dict[str, Callable[[np.ndarray], Any]] = {"rows": len, "sum": lambda x: x.sum(axis=0)}


@dataclass(frozen=True)
class Question:
    """The next collective without an answer: its kind, and the values of the sites in this process."""

    kind: Literal["gathered", "total"]
    own: Any


class Pending(Exception):  # noqa: N818 - control flow, not an error
    """Raised to suspend the work until this question is answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.kind)
        self.question = question


@dataclass
class ReplayCollectives(SiteCollectives):
    """Collectives with recorded answers, in a process with the tables of one site or of none.

    Parameters
    ----------
    sites, here
        As in `SiteCollectives`.
    answers
        Results of the collectives so far, in order.
    """

    sites: tuple[str, ...]
    here: tuple[int, ...]
    answers: Sequence[Any]
    _count: int = field(default=0, init=False)

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """See `SiteCollectives`."""
        found: list[Any] = self._next(Question("gathered", list(own)))
        return found

    def total(self, own: Sequence[Numbers], spread: Sequence[Numbers] = ()) -> Numbers:
        """See `SiteCollectives`."""
        found: Numbers = self._next(Question("total", list(own)))
        return {name: np.asarray(value) for name, value in found.items()}

    @property
    def is_complete(self) -> bool:
        """Whether all answers were used."""
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
    """Run work whose tables are all at remote sites. Returns its result and all answers.

    Parameters
    ----------
    sites
        The names of all sites.
    work
        The function that every site runs, here without a table.
    ask
        `ask(kind, answers)` collects the next answer of all sites, given the answers so far. It returns a list in the
        order of the sites for "gathered", and the sum for "total".
    """
    answers: list[Any] = []
    while True:
        try:
            return work(ReplayCollectives(tuple(sites), (), answers)), answers
        except Pending as open_question:
            answers.append(ask(open_question.question.kind, answers))
