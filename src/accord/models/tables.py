"""A table as the rows of a model: what each site makes of its own, and what is summed over all."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.errors import DataError, unknown_name_error
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

# What other packages call a family, and its name here.
_ELSEWHERE = {
    **dict.fromkeys(("gaussian", "gauss", "linear", "ols"), "normal"),
    **dict.fromkeys(("t", "student_t", "studentt"), "student"),
    **dict.fromkeys(("binary", "logistic", "logit"), "bernoulli"),
    **dict.fromkeys(("nb", "nb2", "nbinom", "nbinom2", "negbin", "negbinomial"), "negative_binomial"),
    **dict.fromkeys(("multinomial", "multinom", "softmax"), "categorical"),
    **dict.fromkeys(("cumulative", "polr", "ordered"), "ordinal"),
    **dict.fromkeys(("coxph", "phreg"), "cox"),
    "exponential": "weibull",
}

# Standard deviations of columns and responses. Their squares are far from the limits of float32.
_LEAST_SD, _MOST_SD = 1e-15, 1e15
# Largest distance of a mean from 0, in standard deviations.
_MOST_SDS = 1e10
# Largest standard deviation that is rounding, as a fraction of the mean.
_CONSTANT = 1e-15
# Largest standard deviation of equal responses, as a fraction of a mean that is divided by exposures.
_ALIKE = 1e-12


def needed(formula: str, *columns: str | None) -> dict[str, Any]:
    """What a study is asked for: the columns that a formula names, and those beside it that are named."""
    named = [name for name in columns if name is not None]
    # the number of trials, a weight or an exposure may well be the same everywhere
    left = formula.partition("~")[0]
    several = [name.strip() for name in left.partition("(")[2].rstrip(" )").split(",")] if "(" in left else []
    return {"formula": [formula, *named], "constant": [*named, *several]}


def as_table(table: Any, formula: str, *columns: str | None) -> Study:
    """The table, with the columns that are named."""
    return table if isinstance(table, Study) else as_study(table, **needed(formula, *columns))


def warn_of_filled(study: Study, formula: str) -> None:
    """Warn where the formula has a filled column without the column that marks its missing cells."""
    names = FormulaNames.of(formula).names
    marks = [
        f"{name}{MARK}"
        for name, column in study.agreed.columns.items()
        if name in names and column.missing != 0 and f"{name}{MARK}" in study.agreed.columns
    ]
    left_out = [mark for mark in marks if mark not in names]
    if left_out:
        warnings.warn(
            f"the formula has columns whose missing cells are filled, and lacks {', '.join(left_out)}: add it, or the "
            'filled rows bias the effect; or read the study with missing = "drop"',
            stacklevel=3,
        )
    groups = [name for name, column in study.agreed.columns.items() if column.kind == "group" and column.missing != 0]
    if named := [name for name in groups if name in names]:
        warnings.warn(
            f"rows without a value of {', '.join(named)} are one group, 'missing', at each site: name the groups, or "
            'read the study with missing = "drop"',
            stacklevel=3,
        )


def warn_of_levels_apart(study: Study, formula: str) -> None:
    """Warn of a factor of the formula of which a site has no level that another site has; groups are apart as such."""
    named = FormulaNames.of(formula)
    for name in study.agreed.levels:
        if name in named.names - named.groups:
            sites = zip(study.meeting.names_here, study.frames, strict=True)
            for text in apart(name, {site: set(frame[name]) for site, frame in sites}):
                warnings.warn(text, stacklevel=3)


def require_unfilled(study: Study, responses: Sequence[str], weights: str | None, exposure: str | None) -> None:
    """Raise `ValueError` where missing cells of a response, of weights or of an exposure were filled."""
    filled = [
        *((name, "a response is") for name in responses),
        (weights, "weights are"),
        (exposure, "an exposure is"),
    ]
    for name, what in filled:
        if name in study.agreed.columns and study.agreed.columns[name].missing != 0:
            raise ValueError(
                f"missing cells of {name} were filled when the study was read, and {what} never filled: read the "
                'study with missing = "drop"'
            )


def require_columns_beside(known: Sequence[str], study: Study, weights: str | None, exposure: str | None) -> None:
    """Raise `ValueError` where weights or exposure name no column; `known` are the columns of the table, for errors."""
    for what, name in (("weights", weights), ("exposure", exposure)):
        if name is not None and name not in study.agreed.columns:
            raise unknown_name_error(f"column of {what}", name, known)


def columns_of(table: Any, study: Study) -> list[str]:
    """The names of all columns of the table, of which the study may have some."""
    if isinstance(table, Study):
        return list(study.agreed.columns)
    tables = table.values() if isinstance(table, Mapping) else table
    return list(dict.fromkeys(name for own in tables for name in own))


def family_of(family: str | Family) -> Family:
    """The family of a name."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str):
        raise ValueError(f"family must be the name of one, or one of accord.models.families, found {family!r}")
    if family not in FAMILIES:
        raise unknown_name_error("family", family, FAMILIES, _ELSEWHERE.get(family.lower()))
    return FAMILIES[family]()


def settled(
    family: Family, design: Formula, study: Study, weights: str | None, exposure: str | None
) -> tuple[Family, list[Rows]]:
    """The family with what the sites agreed on, and the rows of each site that is here as numbers."""
    if weights is not None and not family.splits:
        raise ValueError(f"rows of the family {family.name} cannot be weighted: they enter together")
    if exposure is not None and not (family.is_log_linear and family.columns == ("y",)):
        raise ValueError(f"the family {family.name} has no exposure: its linear predictor is not the log of a mean")
    if not family.has_intercept and not design.has_intercept:
        raise ValueError(
            f"the family {family.name} has a baseline in place of an intercept: take '0 +' out of the formula"
        )
    responses = [
        design.response(frame, site) for site, frame in zip(study.meeting.names_here, study.frames, strict=True)
    ]
    if any(len(columns) != len(family.columns) for columns in responses):
        raise ValueError(
            f"the family {family.name} needs {family.left} on the left of the formula, found {design.left}"
            + (f"; {family.instead}" if family.instead else "")
        )
    if family.tells_classes:
        _require_frequent(study, [columns[0] for columns in responses])
    made, looked_at = [], []
    for site, frame in zip(study.meeting.names_here, study.frames, strict=True):
        matrices = design.matrices(frame, site)
        beside: dict[str, np.ndarray] = {}
        if exposure is not None:
            beside["exposure"] = _column(frame, exposure, site, "exposure", least=0.0, strictly=True)
        if weights is not None:
            beside["weight"] = _column(frame, weights, site, "weights", least=0.0, strictly=False)
        made.append((site, matrices, beside))
        named = {"exposure": exposure, "weight": weights}
        looked_at.append([*design.columns(frame, site, matrices), *((str(named[k]), x) for k, x in beside.items())])
    study.check_columns(looked_at)
    family = family.settled(study.meeting, responses)
    shards = []
    for (site, matrices, beside), response in zip(made, responses, strict=True):
        rows = family.rows(f"{design.left} at site {site!r}", response)
        rows["design"] = matrices.design if family.has_intercept else matrices.design[:, 1:]
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
    """Raise `DataError` where a class would be told that few rows of a site have; of texts that has been looked at."""
    refusals: list[list[str]] = []
    for site, policy, column in zip(study.meeting.names_here, study.policies, responses, strict=True):
        _, counts = np.unique(np.asarray(column), return_counts=True)
        few = int((counts < policy.cells).sum())
        refusals.append([])
        if few and policy.rare == "refuse":
            refusals[-1].append(
                f"{site}: refused, {few} of {len(counts)} classes of the response have fewer than {policy.cells} rows, "
                "the floor of the site; say which classes there are, as in Categorical(levels=(0, 1, 2))"
            )
    if found := [text for own in study.meeting.gathered(refusals) for text in own]:
        raise DataError("\n  ".join(found))


def _column(frame: pd.DataFrame, name: str, site: str, what: str, least: float, strictly: bool) -> np.ndarray:
    try:
        values = frame[name].to_numpy().astype(np.float64)
    except ValueError:
        raise ValueError(f"{what} must be numbers, and {name!r} holds texts at site {site!r}") from None
    wrong = ~((values > least) if strictly else (values >= least)) | ~np.isfinite(values)
    if wrong.any():
        raise ValueError(
            f"{what} must be finite and {'>' if strictly else '>='} {least:g}, and some rows of site {site!r} are not: "
            f"see column {name!r}"
        )
    return values


class Figures(NamedTuple):
    """What sites agree on of the rows of a model: of the response, and mean and standard deviation of each column."""

    summary: Summary
    centre: np.ndarray
    spread: np.ndarray
    # of the columns whose effects vary from group to group, where there are some
    effects: np.ndarray


def figures_of(meeting: SiteCollectives, family: Family, shards: Sequence[Rows]) -> Figures:
    """The figures of all sites, by two sums."""
    values = []
    for rows in shards:
        first, second = family.amounts(rows)
        nothing = np.empty((len(first), 0))
        values.append(
            {"first": first, "second": second, "design": rows["design"], "effects": rows.get("effects", nothing)}
        )
    # what overflows is looked for in `require_usual_scales`
    with np.errstate(over="ignore", invalid="ignore"):
        found = means_and_sds(meeting, values)
    (first, sd), (second, _) = found["first"], found["second"]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = float(np.float64(first) / np.float64(second))
    summary = Summary(mean, float(sd), any("offset" in rows for rows in shards))
    return Figures(summary, *found["design"], found["effects"][1])


def require_usual_scales(family: Family, design: Formula, columns: Sequence[str], figures: Figures) -> None:
    """Raise `ValueError` where a column or the response has a scale that float32 cannot compute with."""
    response = f"the response {design.left}"
    found = [(f"the effect of {name}", 0.0, sd) for name, sd in zip(design.effects, figures.effects, strict=True)]
    found += zip(columns, figures.centre, figures.spread, strict=True)
    mean, sd, _ = figures.summary
    if family.is_log_linear:
        # the mean may be divided by exposures, and equal responses have no scale
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
                f"{name} has the mean {centre:.3g} and the standard deviation {spread:.3g}, which is too small "
                "beside it: subtract a constant"
            )
    unit = family.unit(figures.summary)
    for name, sd in zip(columns, figures.spread, strict=True):
        if unit < _LEAST_SD * sd:
            raise ValueError(
                f"{response} varies by {unit:.3g} and {name} by {sd:.3g}, which is too much beside it: "
                "change the unit of one of them"
            )


def warn_of_one_response(family: Family, response: str, summary: Summary) -> None:
    """Warn where a response of 0 and 1 is the same in all rows of all sites."""
    if family.separates and summary.sd == 0.0:
        warnings.warn(
            f"the response {response} is {summary.mean:g} in all rows of all sites: the posterior rests on the prior",
            stacklevel=3,
        )
