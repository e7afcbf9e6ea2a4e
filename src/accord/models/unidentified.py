"""Checks before sampling for coefficients that the data does not identify."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from ..data.collectives import SiteCollectives
from ..posterior.newton import NearlyFlatError, NotIdentifiedError
from .families import Family
from .families.family import Rows
from .priors import Flat, Prior
from .regression import Regression
from .tables import Figures

# Largest eigenvalue of a direction that counts as collinear, for columns scaled to length 1.
_FLAT = 1e-10
# Largest eigenvalue of columns that are collinear up to rounding, for standardised columns.
_COLLINEAR = 1e-13


def require_identified(
    meeting: SiteCollectives, family: Family, shards: Sequence[Rows], columns: Sequence[str], priors: Sequence[Prior]
) -> None:
    """Raise `ValueError` if columns with flat priors are collinear, or if one column separates the responses.

    The checks need the rows of all sites in this process. Between sites the search for the mode finds flat directions.
    It finds other kinds of separation too, see `require_bounded`.
    """
    if not meeting.is_whole:
        return
    each = max(len(family.predictors), 1)
    flat = [column for column in range(len(columns)) if isinstance(priors[column * each], Flat)]
    if not flat:
        return
    _require_rank(meeting.sites, shards, columns, flat)
    _require_overlap(family, shards, columns, flat)


def require_bounded(post: Regression, priors: Sequence[Prior]) -> None:
    """Raise `ValueError` if columns with flat priors separate the responses, so that there is no mode."""
    if not post.family.separates or not any(isinstance(prior, Flat) for prior in priors):
        return
    try:
        post.mode()
    except (NotIdentifiedError, NearlyFlatError):
        # `require_identified` has found full rank, so this is rounding
        return
    except ArithmeticError as error:
        raise ValueError(
            "under flat priors the coefficients are unbounded, probably because columns separate the responses: "
            f"{error}"
        ) from error


def warn_of_collinear(
    meeting: SiteCollectives, family: Family, shards: Sequence[Rows], columns: Sequence[str], figures: Figures
) -> None:
    """Warn if columns are collinear, so that only priors identify their coefficients.

    The check runs only if all rows are in this process: sites do not send the products of all columns for it.
    """
    rows = sum(len(own["design"]) for own in shards)
    if not meeting.is_whole or len(columns) >= rows:
        return
    # an intercept or a baseline absorbs the mean of each column
    is_centred = "Intercept" in columns or not family.has_intercept
    centre = figures.centre if is_centred else np.zeros(len(columns))
    places = [place for place, name in enumerate(columns) if name != "Intercept"]
    if not places:
        return
    # a constant column has a standard deviation from rounding
    lengths = np.sqrt(figures.spread**2 + (figures.centre - centre) ** 2)
    scale = np.maximum(lengths, 1e-12 * np.abs(figures.centre))[places]
    scale[scale == 0.0] = 1.0
    gram = np.zeros((len(places), len(places)))
    for own in shards:
        values = (own["design"][:, places] - centre[places]) / scale
        gram += values.T @ values
    sizes, directions = np.linalg.eigh(gram / rows)
    flat = directions[:, sizes <= _COLLINEAR]
    if not flat.shape[1]:
        return
    named = [columns[place] for place, part in zip(places, np.abs(flat).max(axis=1), strict=True) if part > 1e-3]
    shifts = (centre[places] / scale) @ flat
    if "Intercept" in columns and np.abs(shifts).max() > 1e-3:
        named.insert(0, "Intercept")
    warnings.warn(
        f"the columns of {', '.join(named)} are collinear, so only priors identify their coefficients: leave one out",
        stacklevel=3,
    )


def _require_rank(sites: Sequence[str], shards: Sequence[Rows], columns: Sequence[str], flat: list[int]) -> None:
    own = [rows["design"][:, flat] for rows in shards]
    lengths = np.sqrt(sum((values**2).sum(axis=0) for values in own))
    for place, length in zip(flat, lengths, strict=True):
        if length == 0:
            raise ValueError(f"{columns[place]} is 0 in all rows of all sites: a flat prior does not identify it")
    sizes, directions = np.linalg.eigh(sum((values / lengths).T @ (values / lengths) for values in own))
    if sizes[0] > _FLAT:
        return
    parts = np.abs(directions[:, 0])
    named = [columns[place] for place, part in zip(flat, parts, strict=True) if part > 0.1 * parts.max()]
    is_there = np.array([(values != 0).any(axis=0) for values in own])
    only_somewhere = (parts > 0.1 * parts.max()) & (is_there.sum(axis=0) == 1)
    alone = [site for site, has in zip(sites, is_there, strict=True) if (has & only_somewhere).any()]
    where = f" (possibly because only {alone[0]} has a level)" if len(alone) == 1 else ""
    others = [name for name in named if name != "Intercept"]
    far = f", or centre a column far from 0, as center({others[0]})" if others and "Intercept" in named else ""
    raise ValueError(
        f"under flat priors the coefficients of {', '.join(named)} are not identified: their columns are "
        f"collinear{where}. Leave one out, or give one a prior{far}"
    )


def _require_overlap(family: Family, shards: Sequence[Rows], columns: Sequence[str], flat: list[int]) -> None:
    """Raise `ValueError` if one column alone separates the extreme rows, by its range among them and among the rest."""
    extreme = [family.extreme(rows) for rows in shards]
    if not any(own.any() for own in extreme):
        return
    has_intercept = "Intercept" in columns
    for place in flat:
        if columns[place] == "Intercept":
            continue
        low, high = _range(shards, extreme, place)
        rest_low, rest_high = _range(shards, [~own for own in extreme], place)
        if not has_intercept:
            # without an intercept, separated rows lie on both sides of 0
            low, high, rest_low, rest_high = (float(np.sign(x)) for x in (low, high, rest_low, rest_high))
            beyond = (high <= 0 <= rest_low) or (low >= 0 >= rest_high)
        else:
            beyond = high <= rest_low or low >= rest_high
        if not family.separates:
            # the other responses are exact: the column must be constant among them
            beyond = beyond and rest_low == rest_high and (has_intercept or rest_low == 0)
        if beyond and not low == high == rest_low == rest_high:
            raise ValueError(
                f"{columns[place]} separates the responses completely, so its coefficient is unbounded under a flat "
                "prior: give it a prior"
            )


def _range(shards: Sequence[Rows], chosen: Sequence[np.ndarray], place: int) -> tuple[float, float]:
    """The range of a column among chosen rows of all sites."""
    found = [rows["design"][own, place] for rows, own in zip(shards, chosen, strict=True) if own.any()]
    if not found:
        return np.inf, -np.inf
    return float(min(own.min() for own in found)), float(max(own.max() for own in found))
