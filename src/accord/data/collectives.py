"""Collectives for preprocessing across sites: gather (JSON values) and sum (arrays).

Preprocessing is one function that every site runs on its own tables. It calls a collective wherever it needs values of
other sites. In one process, collectives return at once. Between sites, the function is replayed: it stops at the first
collective without an answer, and starts again from the beginning once the answer is there. It must be deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal, TypeVar

import numpy as np

from ..base.counters import Normals
from ..base.errors import DataError

Result = TypeVar("Result")
# Arrays and numbers by name, with the same names and shapes at all sites.
Numbers = dict[str, Any]
# Most problems that an error lists.
_MOST_PROBLEMS = 50
# Mean divided by standard deviation above which squares are summed again around the mean, as digits cancel.
_FAR = 100.0
# Returns the numbers of a site with noise.
Noisy = Callable[[Normals], Numbers]


class SiteCollectives(ABC):
    """All sites of a study, and the numbers of the sites whose tables are in this process."""

    sites: tuple[str, ...]
    here: tuple[int, ...]
    # whether sites add noise to what they send
    is_coarse = False
    # sites whose rows nothing may depend on, not even an error
    unheard: tuple[str, ...] = ()

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
    def total(self, own: Sequence[Numbers], noisy: Sequence[Noisy] = ()) -> Numbers:
        """Sum over all sites: pass one value per site of this process, and what a site with coarse answers sends."""

    def require(self, problems: Sequence[Sequence[str]]) -> None:
        """Raise `DataError` at all sites if one of them has problems: pass the texts of each site of this process."""
        raise_all(flat(self.gathered(problems)))


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

    def total(self, own: Sequence[Numbers], noisy: Sequence[Noisy] = ()) -> Numbers:
        """See `SiteCollectives`."""
        return reduce(added, own)


def raise_all(problems: Sequence[str]) -> None:
    """Raise one `DataError` with all problems, if there are any."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        raise DataError(f"{len(problems)} problems:\n  {listed(problems)}")


def listed(problems: Sequence[str]) -> str:
    """The first problems, one per line, and the number of others."""
    more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
    return "\n  ".join([*problems[:_MOST_PROBLEMS], *more])


def flat(texts: Sequence[Sequence[str]]) -> list[str]:
    """The texts of all sites."""
    return [text for own in texts for text in own]


def added(first: Numbers, second: Numbers) -> Numbers:
    """The sum of the numbers of two sites."""
    return {name: first[name] + second[name] for name in first}


def means_and_sds(meeting: SiteCollectives, values: Sequence[Numbers]) -> dict[str, tuple[Any, Any]]:
    """Mean and standard deviation over the rows of all sites, the first axis of each array, by name."""

    def summed(around: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
        """The same from one sum, of differences from a centre by name. None: of all arrays, around 0."""

        def of_site(own: Numbers, normals: Normals | None = None) -> Numbers:
            found: Numbers = {}
            for name, x in own.items():
                if around is None or name in around:
                    found[f"rows {name}"] = len(x)
                    centre = 0.0 if around is None else around[name]
                    found[f"sum {name}"], found[f"squares {name}"] = sums_of(x, centre, normals)
            return found

        sums = meeting.total([of_site(own) for own in values], [partial(of_site, own) for own in values])
        names = [name.removeprefix("rows ") for name in sums if name.startswith("rows ")]
        return {name: mean_and_sd(*(sums[f"{part} {name}"] for part in ("rows", "sum", "squares"))) for name in names}

    found = summed(None)
    again = {name: mean for name, (mean, sd) in found.items() if is_far(mean, sd).any()}
    for name, (shift, sd) in (summed(again) if again else {}).items():
        found[name] = (again[name] + shift, sd)
    return found


def sums_of(x: np.ndarray, centre: Any, normals: Normals | None = None) -> tuple[Any, Any]:
    """Sums of differences from a centre and of their squares over the first axis.

    With `normals`, noise is added: half a standard deviation of the numbers, rounded up to a power of two, to the sum,
    and its square to the squares of differences from the mean.
    """
    apart = x - centre
    first, second = apart.sum(axis=0), (apart**2).sum(axis=0)
    if normals is None or not len(x):
        return first, second
    sd = np.asarray(x.std(axis=0))
    # the standard deviation of equal numbers may be a rounding error
    is_spread = (np.ptp(x, axis=0) > 0.0) & np.isfinite(sd)
    size = np.where(is_spread, np.exp2(np.ceil(np.log2(np.where(is_spread, sd, 1.0))) - 1.0), 0.0)
    noise = size * normals.standard_normal(sd.shape)
    return first + noise, second + 2.0 * apart.mean(axis=0) * noise + size**2 * normals.standard_normal(sd.shape)


def mean_and_sd(rows: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """Mean, relative to the centre, and standard deviation from `sums_of`. The sd is infinite on overflow."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = first / rows
        variance = second / rows - mean**2
        return mean, np.sqrt(np.where(np.isfinite(variance), np.maximum(variance, 0.0), np.inf))


def is_far(mean: Any, sd: Any) -> np.ndarray:
    """Whether rounding may spoil a standard deviation, so that it needs differences from the mean."""
    is_column_of_ones = (mean == 1.0) & (sd == 0.0)
    return np.asarray((np.abs(mean) > _FAR * sd) & ~is_column_of_ones)


@dataclass(frozen=True)
class Question:
    """The next collective without an answer: its kind, and the values of the sites in this process."""

    kind: Literal["gathered", "total", "required"]
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

    def total(self, own: Sequence[Numbers], noisy: Sequence[Noisy] = ()) -> Numbers:
        """See `SiteCollectives`."""
        found: Numbers = self._next(Question("total", list(own)))
        return {name: np.asarray(value) for name, value in found.items()}

    def require(self, problems: Sequence[Sequence[str]]) -> None:
        """See `SiteCollectives`."""
        raise_all(flat(self._next(Question("required", list(problems)))))

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
        `ask(kind, answers)` collects the next answer of all sites, given the answers so far. It returns the sum for
        "total", and else a list in the order of the sites.
    """
    answers: list[Any] = []
    while True:
        try:
            return work(ReplayCollectives(tuple(sites), (), answers)), answers
        except Pending as open_question:
            answers.append(ask(open_question.question.kind, answers))
