"""A check at a site whether it can take part in a study."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import DataError
from ..data.collectives import Pending, Question, ReplayCollectives
from ..data.files import read_sheet
from ..data.ranges import ODD
from ..data.warnings import about_codes
from ..samplers.by_sums.private import COUNTED, Covered
from .document import StudyDocument
from .keys import is_signed, signature
from .ledger import Ledger
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
    unfit
        With differential privacy, the number of rows that are left out, because a cell does not fit into its range.
    clipped
        With differential privacy, the numbers of each column that are beyond its range.
    misfits
        With differential privacy, the cells of each column that do not fit.
    mixed
        Whether a study without differential privacy has read some of these rows.
    coverage
        With differential privacy, the simulated coverage and width of intervals of 90%, if all sites have as many rows.
    epsilon
        With differential privacy, the epsilon of the site's rows over all studies after this one.
    """

    rows: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    forecast: float | None = None
    unfit: int = 0
    clipped: dict[str, int] = field(default_factory=dict)
    misfits: dict[str, int] = field(default_factory=dict)
    mixed: bool = False
    coverage: Covered | None = None
    epsilon: float | None = None


def check(study: StudyDocument, policy: SitePolicy) -> Checked:
    """Check the policy, key and file of a site for a study. Nothing is written or sent."""
    found = Checked()
    try:
        found.wrong += policy.refusals(study)
        found.wrong += _of_key(study, policy)
        found.rows = len(read_sheet(policy.data, study.dialects.at(policy.site)).rows)
        absent = policy.absent(study)
    except (DataError, ValueError) as error:
        found.wrong.append(str(error))
        return found
    found.wrong += [absent_column(policy.data.name, name, near) for name, near in absent.items()]
    if not absent and policy.site in study.sites:
        _make_model(study, policy, found)
    if not found.wrong:
        _enter(study, policy, found)
    if study.private is not None:
        if not found.wrong:
            _forecast_private(study, policy, found)
    elif study.module is None and study.coarse:
        meter, rows = Meter(policy, study), found.rows * len(study.sites)
        found.forecast = meter.forecast(rows)
        found.perhaps += meter.refusals(rows)
    return found


def _enter(study: StudyDocument, policy: SitePolicy, found: Checked) -> None:
    """What the ledger has about the site's rows, and whether it allows a study."""
    ledger = Ledger(policy)
    if study.private is None and not ledger.folder.is_dir():
        return
    try:
        epsilon, mixed = ledger.state(study)
        if study.private is not None:
            found.epsilon, found.mixed = epsilon, mixed
        ledger.require(study)
    except DataError as error:
        found.wrong.append(str(error))


def _forecast_private(study: StudyDocument, policy: SitePolicy, found: Checked) -> None:
    """Forecast what a study with differential privacy finds, from numbers of rows."""
    assert study.private is not None
    place = study.sites.index(policy.site)
    own = study.fitted(place, policy.data)
    found.rows, found.unfit, found.clipped, found.misfits = own.fits.size, own.unfit, own.clipped, own.misfits
    for name, count in own.codes.items():
        if count:
            remedy = "empty these cells, and the study leaves their rows out"
            warnings.warn(about_codes(f"{policy.site} ({policy.data.name})", name, count, remedy), stacklevel=3)
    odd = {"rows are left out": found.unfit} | {
        f"numbers of {name} are beyond its range": count for name, count in own.clipped.items()
    }
    for what, count in odd.items():
        if count > ODD * found.rows:
            found.wrong.append(
                f"{policy.site}: {count} of {found.rows} {what}, which spoils the study: look at units, spellings of "
                "levels and the decimal sign"
            )
    if (1.0 - COUNTED) * found.rows < found.unfit <= ODD * found.rows:
        found.perhaps.append(
            f"the study is not certified: {found.unfit} of {found.rows} rows are left out, at most {1 - COUNTED:.0%} "
            "of the rows of all sites may be"
        )
    post = study.model_within([found.rows] * len(study.sites), {policy.site: own}).alone(place)
    found.coverage = study.private.likely(post, masks=study.masks)
    if why := study.private.too_few(post, found.coverage):
        found.perhaps.append(why)


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
