"""A formula's model of rows that are elsewhere: every site makes its own part, and what all need is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ..data.elsewhere import StudyAtSites
from ..data.meeting import ByCorrespondence, Meeting, added, correspond
from .regression import Regression


@dataclass(frozen=True)
class ModelAtSites:
    """What every site does: it reads its table and makes a model of it, with what the others say.

    Parameters
    ----------
    build
        `build(study)` is the model.
    table
        The files.
    options
        Of the study, beside those of the table.
    """

    build: Callable[[Any], Regression]
    table: StudyAtSites
    options: dict[str, Any]

    def __call__(self, meeting: Meeting) -> Regression:
        """The model as a site of a meeting knows it."""
        return self.build(self.table.met(meeting, **self.options))


@dataclass(frozen=True)
class SiteRows:
    """The rows of a site, made where its file is, of what all sites agreed on."""

    work: ModelAtSites
    answers: tuple[Any, ...]
    place: int

    def __call__(self) -> Any:
        """The rows as the model takes them."""
        meeting = ByCorrespondence(self.work.table.sites, (self.place,), self.answers)
        return self.work(meeting).source(self.place)


def model_at_sites(work: ModelAtSites) -> Regression:
    """The model of all sites, whose rows are read by an engine's agents."""
    sites = work.table.sites
    with work.table.engine.asking(len(sites)) as ask:

        def together(kind: str, answers: Sequence[Any]) -> Any:
            own = ask(work, sites, answers)
            return own if kind == "gathered" else reduce(added, own)

        # the work restarts with each answer and repeats its warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            post, answers = correspond(sites, work, together)
    left_out = [f"{count} at {site}" for site, count in zip(sites, post.agreed.dropped, strict=True) if count]
    if left_out:
        warnings.warn(f"rows with a missing cell are left out: {', '.join(left_out)}", stacklevel=3)
    for message, category in dict.fromkeys((str(one.message), one.category) for one in caught):
        warnings.warn(message, category, stacklevel=3)
    found = post.reading([SiteRows(work, tuple(answers), place) for place in range(len(sites))])
    assert isinstance(found, Regression)
    return found
