"""A check at a site whether it can take part in a study."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..base.errors import DataError
from ..data.collectives import Pending, Question, ReplayCollectives
from ..data.files import read_sheet
from .document import StudyDocument
from .keys import is_signed, signature
from .meter import Meter
from .policy import SitePolicy
from .program import absent_column


@dataclass
class Checked:
    """The result of a check.

    Parameters
    ----------
    rows
        Number of rows of the site's file.
    kinds
        Kind of each column that the study reads.
    wrong
        Problems that prevent the study at this site.
    perhaps
        Problems that prevent it if all other sites have rows like this one.
    forecast
        The least sd of a cell that the study leaves to someone with all other rows, if all sites have as many rows, see
        `accord.federation.meter`. None if it is not known.
    """

    rows: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    forecast: float | None = None


def check(study: StudyDocument, policy: SitePolicy) -> Checked:
    """Check the policy, key and file of a site for a study. Nothing is written or sent."""
    found = Checked()
    try:
        found.wrong += policy.refusals(study)
        found.wrong += _of_key(study, policy)
        sheet = read_sheet(policy.data, study.dialects.at(policy.site))
        found.rows = len(sheet.rows)
        absent = policy.absent(study)
    except (DataError, ValueError) as error:
        found.wrong.append(str(error))
        return found
    found.wrong += [absent_column(policy.data.name, name, near) for name, near in absent.items()]
    if not absent and policy.site in study.sites:
        _make_model(study, policy, found)
    if study.module is None and study.coarse:
        meter, rows = Meter(policy, study), found.rows * len(study.sites)
        found.forecast = meter.forecast(rows)
        found.perhaps += meter.refusals(rows)
    return found


def _of_key(study: StudyDocument, policy: SitePolicy) -> list[str]:
    """Problems with the site's own key."""
    if policy.identity is None:
        return [f"{policy.site}: its policy names no `identity`"]
    own, message = policy.peers.get(policy.site), b"accord study check 1"
    if own is not None and not is_signed(own, message, signature(policy.identity, message)):
        return [f"{policy.site}: its key in `peers` does not belong to its `identity`, {policy.identity.name}"]
    return []


def _make_model(study: StudyDocument, policy: SitePolicy, found: Checked) -> None:
    """Build the model as if all other sites had the rows of this one."""
    answers: list[Any] = []
    here, others = (study.sites.index(policy.site),), len(study.sites)
    while True:
        try:
            study.model(ReplayCollectives(study.sites, here, answers), policy.data, policy.floors)
        except Pending as stop:
            refused = _noted(stop.question, found)
            if refused:
                found.wrong += refused
                return
            (own,) = stop.question.own
            answers.append(
                {name: others * value for name, value in own.items()}
                if stop.question.kind == "total"
                else [own] * others
            )
        except (DataError, ValueError) as error:
            # with a module, the model depends on the site's own rows only
            (found.perhaps if study.module is None else found.wrong).append(str(error))
            return
        else:
            return


def _noted(question: Question, found: Checked) -> list[str]:
    """The refusals in a question. Records the kinds of columns."""
    (own,) = question.own
    if isinstance(own, dict) and "kinds" in own:
        found.kinds = dict(own["kinds"])
    return list(own) if question.kind == "required" else []
