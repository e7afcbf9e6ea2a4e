"""Missing cells: list them, drop their rows, or fill and mark them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from ..base.errors import DataError
from .cells import SiteTable
from .summaries import NUMERIC, Agreed, Column

# Level of a factor for missing cells.
_LEVEL = "missing"
# Suffix of columns that mark missing cells.
MARK = "_missing"


def in_files(names: Iterable[str], missing: str) -> list[str]:
    """The columns of a model that files must have: all except the marks that "indicator" adds."""
    return [name for name in names if missing != "indicator" or not name.endswith(MARK)]


def without_value(table: SiteTable, names: frozenset[str] | None) -> list[str]:
    """Problems with missing cells of these columns, or of all columns if None."""
    left_out = 'no value: missing = "drop" leaves such rows out'
    filled = f'{left_out}, missing = "indicator" fills such cells and marks them'
    return [
        table.cell_problem(name, np.flatnonzero(absent).tolist(), filled if names is None else left_out)
        for name, absent in table.absent.items()
        if (names is None or name in names) and absent.any()
    ]


def without_missing(tables: Sequence[SiteTable]) -> tuple[list[SiteTable], list[int]]:
    """Tables of the complete rows, and the number of dropped rows of each."""
    kept: list[Bool[np.ndarray, " row"]] = [
        ~np.any([np.zeros(table.rows, bool), *table.absent.values()], axis=0) for table in tables
    ]
    rest = [table.only(rows) for table, rows in zip(tables, kept, strict=True)]
    return rest, [int((~rows).sum()) for rows in kept]


def warn_of_dropped(tables: Sequence[SiteTable], dropped: Sequence[int]) -> None:
    """Warn of the number of dropped rows of each site."""
    parts = [
        f"{table.policy.disclosed(count)} at {table.name}"
        for table, count in zip(tables, dropped, strict=True)
        if count
    ]
    if parts:
        warnings.warn(f"rows with a missing cell are left out: {', '.join(parts)}", stacklevel=4)


def filled(
    kinds: Mapping[str, str], tables: Sequence[SiteTable], agreed: Agreed
) -> tuple[dict[str, str], list[SiteTable]]:
    """Kinds and tables without missing cells: numbers get the mean and a mark, factors get a level."""
    marked = [name for name, column in agreed.columns.items() if column.missing != 0 and kinds[name] in NUMERIC]
    for name in marked:
        if f"{name}{MARK}" in kinds:
            raise DataError(
                f"column {name + MARK!r}, which would mark the missing cells of {name!r}, is already in the data"
            )
        if name not in agreed.means:
            raise DataError(
                f"column {name!r} has missing cells and no mean to fill them with: at some site, few cells have a "
                'value, or all but a few are the same. Leave the column out, or use missing = "drop"'
            )
    for name, levels in agreed.levels.items():
        if _LEVEL in levels and agreed.columns[name].missing != 0:
            raise DataError(
                f"column {name!r} already has a level {_LEVEL!r}, which would hold its missing cells: name it in "
                "blanks, or rename it with strings"
            )
    kinds = {**kinds, **{f"{name}{MARK}": "yes-no" for name in marked}}
    return kinds, [_filled_at(table, kinds, marked, agreed.means) for table in tables]


def _filled_at(
    table: SiteTable, kinds: Mapping[str, str], marked: Sequence[str], means: Mapping[str, float]
) -> SiteTable:
    values, absent = dict(table.values), dict(table.absent)
    for name in marked:
        # means and standard deviations of the cells with a value
        mark, at = f"{name}{MARK}", table.absent[name]
        values[mark], absent[mark] = at.astype(np.float64), np.zeros(table.rows, bool)
        values[name] = np.where(at, means[name], values[name])
    for name, kind in kinds.items():
        if kind not in NUMERIC:
            # missing cells become a level
            values[name] = np.where(table.absent[name], _LEVEL, values[name])
            absent[name] = np.zeros(table.rows, bool)
    return replace(table, kinds=dict(kinds), values=values, absent=absent)


def with_counts(agreed: Agreed, before: Agreed) -> Agreed:
    """The summaries of filled columns, with the counts of missing cells from before filling."""
    own = zip(agreed.by_site, before.by_site, strict=True)
    return replace(
        agreed,
        columns=_with_counts(agreed.columns, before.columns),
        by_site=tuple(_with_counts(columns, earlier) for columns, earlier in own),
    )


def _with_counts(columns: Mapping[str, Column], before: Mapping[str, Column]) -> dict[str, Column]:
    return {
        name: replace(column, missing=before[name].missing) if name in before else column
        for name, column in columns.items()
    }
