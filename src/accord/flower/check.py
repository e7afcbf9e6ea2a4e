"""Whether a site can take part in a study: found out at the site, before any server asks it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..base.errors import DataError
from ..data.collectives import Pending, Question, ReplayCollectives
from ..data.files import read_sheet
from .keys import is_signed, signature
from .policy import SitePolicy
from .site import absent_column
from .study import StudyDocument


@dataclass
class Checked:
    """What was found.

    Parameters
    ----------
    rows
        How many rows the site's file has.
    kinds
        What its columns hold, of those that the study reads.
    wrong
        Why the study would not run at this site.
    perhaps
        Why it would not if the rows of all other sites were as these are.
    """

    rows: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)


def check(study: StudyDocument, policy: SitePolicy) -> Checked:
    """Look at a site's policy, key and file as the study's questions would; nothing is written, and nobody is asked."""
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
    return found


def _of_key(study: StudyDocument, policy: SitePolicy) -> list[str]:
    """What is wrong with the site's own key."""
    if not study.masks:
        return []
    if policy.identity is None:
        return [f"{policy.site}: its policy names no `identity`"]
    own, message = policy.peers.get(policy.site), b"accord flower check 1"
    if own is not None and not is_signed(own, message, signature(policy.identity, message)):
        return [f"{policy.site}: its key in `peers` is not that of its `identity`, {policy.identity.name}"]
    return []


def _make_model(study: StudyDocument, policy: SitePolicy, found: Checked) -> None:
    """Make the model of the site's rows, as if all other sites had the same."""
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
                [own] * others
                if stop.question.kind == "gathered"
                else {name: others * value for name, value in own.items()}
            )
        except (DataError, ValueError) as error:
            # of a module the rows are the site's own, and the model needs no other
            (found.perhaps if study.module is None else found.wrong).append(str(error))
            return
        else:
            return


def _noted(question: Question, found: Checked) -> list[str]:
    """What the site would refuse for itself; what its columns hold is noted on the way."""
    (own,) = question.own
    if isinstance(own, dict) and "kinds" in own:
        found.kinds = dict(own["kinds"])
    return list(own) if question.kind == "gathered" and isinstance(own, list) else []
