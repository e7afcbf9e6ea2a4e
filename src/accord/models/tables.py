"""From tables to the rows of a model: arrays of each site, and statistics over all sites."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.errors import unknown_name_error
from ..data import Study, as_study
from ..data.collectives import SiteCollectives, means_and_sds
from ..data.formula_names import FormulaNames
from ..data.missing import MARK
from ..data.warnings import apart
from . import families
from .families import Family
from .families.family import Rows, Summary
from .formula import Formula

if TYPE_CHECKING:
    import pandas as pd

FAMILIES: dict[str, type[Family]] = {
    cls.name: cls for cls in (getattr(families, name) for name in families.__all__) if cls is not Family
}

# Names of families in other packages, and their names in accord.
_ALIASES = {
    **dict.fromkeys(("gaussian", "gauss", "linear", "ols"), "normal"),
    **dict.fromkeys(("t", "student_t", "studentt"), "student"),
    **dict.fromkeys(("binary", "logistic", "logit"), "bernoulli"),
    **dict.fromkeys(("nb", "nb2", "nbinom", "nbinom2", "negbin", "negbinomial"), "negative_binomial"),
    **dict.fromkeys(("multinomial", "multinom", "softmax"), "categorical"),
    **dict.fromkeys(("cumulative", "polr", "ordered"), "ordinal"),
    **dict.fromkeys(("coxph", "phreg"), "cox"),
    "exponential": "weibull",
}

# Smallest standard deviation of a column or response. Its square must not underflow in float32.
_LEAST_SD = 1e-15
# Largest standard deviation of a column or response. Its square must not overflow in float32.
_MOST_SD = 1e15
# Largest distance of a mean from 0, in standard deviations.
_MOST_SDS = 1e10
# Relative standard deviation up to which a column counts as constant.
_CONSTANT = 1e-15
# Relative standard deviation up to which responses count as equal.
_ALIKE = 1e-12


def needed(formula: str, *columns: str | None) -> dict[str, Any]:
    """Options of `as_study`: the columns that a formula and other arguments name, and which may be constant."""
    named = [name for name in columns if name is not None]
    # numbers of trials, weights and exposures may be constant
    left = formula.partition("~")[0]
    several = [name.strip(" `") for name in left.partition("(")[2].rstrip(" )").split(",")] if "(" in left else []
    names = FormulaNames.of(formula).names
    return {"formula": [formula, *named], "constant": [*named, *(name for name in several if name in names)]}


def as_table(table: Any, formula: str, *columns: str | None) -> Study:
    """The study of a table, with the columns that the formula and other arguments name."""
    return table if isinstance(table, Study) else as_study(table, **needed(formula, *columns))


def warn_of_filled(study: Study, formula: str) -> None:
    """Warn if the formula has a filled column without the column that marks its missing cells."""
    names = FormulaNames.of(formula).names
    marks = [
        f"{name}{MARK}"
        for name, column in study.agreed.columns.items()
        if name in names and column.missing != 0 and f"{name}{MARK}" in study.agreed.columns
    ]
    left_out = [mark for mark in marks if mark not in names]
    if left_out:
        warnings.warn(
            f"the formula has columns with filled missing cells, but not {', '.join(left_out)}: add it, or the filled "
            'rows bias the effect. Or read the study with missing = "drop"',
            stacklevel=3,
        )
    groups = [name for name, column in study.agreed.columns.items() if column.kind == "group" and column.missing != 0]
    if named := [name for name in groups if name in names]:
        warnings.warn(
            f"rows without a value of {', '.join(named)} form one group, 'missing', at each site: name the groups, or "
            'read the study with missing = "drop"',
            stacklevel=3,
        )


def warn_of_levels_apart(study: Study, formula: str) -> None:
    """Warn if no level of a factor at a site occurs at another site. Grouping factors are exempt."""
    named = FormulaNames.of(formula)
    for name in study.agreed.levels:
        if name in named.names - named.groups:
            sites = zip(study.meeting.names_here, study.frames, strict=True)
            for text in apart(name, {site: set(frame[name]) for site, frame in sites}):
                warnings.warn(text, stacklevel=3)


def require_unfilled(study: Study, responses: Sequence[str], weights: str | None, exposure: str | None) -> None:
    """Raise `ValueError` if missing cells of a response, of weights or of an exposure were filled."""
    filled = [
        *((name, "a response") for name in responses),
        (weights, "weights"),
        (exposure, "an exposure"),
    ]
    for name, what in filled:
        if name in study.agreed.columns and study.agreed.columns[name].missing != 0:
            raise ValueError(
                f"missing cells of {name} were filled when the study was read, and {what} must not be filled: read "
                'the study with missing = "drop"'
            )


def require_columns_beside(known: Sequence[str], study: Study, weights: str | None, exposure: str | None) -> None:
    """Raise `ValueError` if weights or exposure name no column; `known` are the choices in the message."""
    for what, name in (("weights", weights), ("exposure", exposure)):
        if name is not None and name not in study.agreed.columns:
            raise unknown_name_error(f"column of {what}", name, known)


def columns_of(table: Any, study: Study) -> list[str]:
    """The names of all columns of the table. The study may have a part of them."""
    if isinstance(table, Study):
        return list(study.agreed.columns)
    tables = table.values() if isinstance(table, Mapping) else table
    return list(dict.fromkeys(name for own in tables for name in own))


def family_of(family: str | Family) -> Family:
    """A family by its name; an instance is returned unchanged."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str):
        raise ValueError(f"family must be a name, or an instance from accord.models.families, found {family!r}")
    if family not in FAMILIES:
        raise unknown_name_error("family", family, FAMILIES, _ALIASES.get(family.lower()))
    return FAMILIES[family]()


def settled(
    family: Family, design: Formula, study: Study, weights: str | None, exposure: str | None
) -> tuple[Family, list[Rows]]:
    """The family with classes or cuts of all sites, and the numeric rows of each site in this process."""
    if weights is not None and not family.splits:
        raise ValueError(f"the family {family.name} has no weights: its likelihood is not a product over rows")
    if exposure is not None and not (family.is_log_linear and family.columns == ("y",)):
        raise ValueError(f"the family {family.name} has no exposure: its linear predictor is not the log of a mean")
    if not family.has_intercept and not design.has_intercept:
        raise ValueError(
            f"the family {family.name} has a baseline in place of an intercept: remove '0 +' from the formula"
        )
    responses = [
        design.response(frame, site) for site, frame in zip(study.meeting.names_here, study.frames, strict=True)
    ]
    if any(len(columns) != len(family.columns) for columns in responses):
        raise ValueError(
            f"the family {family.name} needs {family.left} on the left of the formula, found {design.left}"
            + (f"; {family.instead}" if family.instead else "")
        )
    if family.gathers_classes:
        _require_frequent(study, [columns[0] for columns in responses])
    made, checked = [], []
    for site, frame in zip(study.meeting.names_here, study.frames, strict=True):
        matrices = design.matrices(frame, site)
        beside: dict[str, np.ndarray] = {}
        if exposure is not None:
            beside["exposure"] = _column(frame, exposure, site, "exposure", least=0.0, strictly=True)
        if weights is not None:
            beside["weight"] = _column(frame, weights, site, "weights", least=0.0, strictly=False)
        made.append((site, matrices, beside))
        named = {"exposure": exposure, "weight": weights}
        checked.append([*design.columns(frame, site, matrices), *((str(named[k]), x) for k, x in beside.items())])
    study.check_columns(checked, [matrices.together for _, matrices, _ in made])
    family = family.settled(study.meeting, responses)
    shards = []
    for (site, matrices, beside), response in zip(made, responses, strict=True):
        rows = family.rows(f"{design.left} at site {site!r}", response)
        rows["design"] = matrices.design if family.has_intercept else matrices.design[:, 1:]
        if study.meeting.unheard:
            # a term may be infinite at single values
            is_finite = np.asarray(np.isfinite(rows["design"]).all(axis=1))
            rows["design"] = np.where(is_finite[:, None], rows["design"], 0.0)
            rows["weight"] = is_finite.astype(np.float64)
        offset = matrices.offset
        if "exposure" in beside:
            log_exposure = np.log(beside["exposure"])
            offset = log_exposure if offset is None else offset + log_exposure
        if matrices.effects is not None and matrices.group is not None:
            rows |= {"effects": matrices.effects, "group": matrices.group}
        if offset is not None:
            rows["offset"] = offset
        if "weight" in beside:
            rows["weight"] = beside["weight"]
        shards.append(rows)
    return family, shards


def _require_frequent(study: Study, responses: Sequence[np.ndarray]) -> None:
    """Raise `DataError` at all sites if a class has fewer rows at a site than the site's floor allows to reveal."""
    refusals: list[list[str]] = []
    for site, policy, column in zip(study.meeting.names_here, study.policies, responses, strict=True):
        _, counts = np.unique(np.asarray(column), return_counts=True)
        few = int((counts < policy.cells).sum())
        refusals.append([])
        if few and policy.rare == "refuse":
            refusals[-1].append(
                f"{site}: refused, {few} of {len(counts)} classes of the response have fewer than {policy.cells} rows, "
                "the floor of the site; name the classes, as in Categorical(levels=(0, 1, 2))"
            )
    study.meeting.require(refusals)


def _column(frame: pd.DataFrame, name: str, site: str, what: str, least: float, strictly: bool) -> np.ndarray:
    try:
        values = frame[name].to_numpy().astype(np.float64)
    except ValueError:
        raise ValueError(f"{what} must be numbers, and column {name!r} holds text at site {site!r}") from None
    wrong = ~((values > least) if strictly else (values >= least)) | ~np.isfinite(values)
    if wrong.any():
        raise ValueError(
            f"{what} must be finite and {'>' if strictly else '>='} {least:g}, and some rows of column {name!r} at "
            f"site {site!r} are not"
        )
    return values


class Figures(NamedTuple):
    """Statistics over all sites: of the response, and mean and standard deviation of each column."""

    summary: Summary
    centre: np.ndarray
    spread: np.ndarray
    # standard deviations of the columns with effects of groups, shape (effect,)
    effects: np.ndarray


def figures_of(meeting: SiteCollectives, family: Family, shards: Sequence[Rows]) -> Figures:
    """Statistics over all sites, from two sums."""
    values = []
    for rows in shards:
        first, second = family.amounts(rows)
        nothing = np.empty((len(first), 0))
        values.append(
            {"first": first, "second": second, "design": rows["design"], "effects": rows.get("effects", nothing)}
        )
    # `require_usual_scales` reports overflow
    with np.errstate(over="ignore", invalid="ignore"):
        found = means_and_sds(meeting, values)
    (first, sd), (second, _) = found["first"], found["second"]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = float(np.float64(first) / np.float64(second))
    summary = Summary(mean, float(sd), any("offset" in rows for rows in shards))
    return Figures(summary, *found["design"], found["effects"][1])


def require_usual_scales(family: Family, design: Formula, columns: Sequence[str], figures: Figures) -> None:
    """Raise `ValueError` if the scale of a column or of the response is out of the range of float32."""
    response = f"the response {design.left}"
    found = [(f"the effect of {name}", 0.0, sd) for name, sd in zip(design.effects, figures.effects, strict=True)]
    found += zip(columns, figures.centre, figures.spread, strict=True)
    mean, sd, _ = figures.summary
    if family.is_log_linear:
        # the mean may be divided by exposures; equal responses have no scale
        mean, sd = 0.0, sd if sd > _ALIKE * abs(mean) else 0.0
    for name, centre, spread in [*found, (response, mean, sd)]:
        if spread <= _CONSTANT * abs(centre):
            continue
        if not _LEAST_SD <= spread <= _MOST_SD:
            raise ValueError(
                f"the standard deviation of {name} is {spread:.3g}, and must be between {_LEAST_SD:g} and "
                f"{_MOST_SD:g}: change the unit"
            )
        if abs(centre) > _MOST_SDS * spread:
            raise ValueError(
                f"{name} has the mean {centre:.3g} and the standard deviation {spread:.3g}, which is too small for "
                "float32: subtract a constant"
            )
    unit = family.unit(figures.summary)
    for name, sd in zip(columns, figures.spread, strict=True):
        if unit < _LEAST_SD * sd:
            raise ValueError(
                f"{response} varies by {unit:.3g} and {name} by {sd:.3g}, a ratio too large for float32: change the "
                "unit of one of them"
            )


def warn_of_one_response(family: Family, response: str, summary: Summary) -> None:
    """Warn if a response of 0 and 1 is the same in all rows of all sites."""
    if family.separates and summary.sd == 0.0:
        warnings.warn(
            f"the response {response} is {summary.mean:g} in all rows of all sites: the posterior depends on the prior",
            stacklevel=3,
        )
