"""Tables of `accord describe`: the summary of each column, by site and pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table

from ..data.summaries import QUANTILES, Agreed, Column

TOGETHER = "together"
# Headings of the summaries of a column, by kind.
_HEADINGS = {
    "number": ("missing", "mean", "sd", *(f"{share:.0%}" for share in QUANTILES)),
    "yes-no": ("missing", "share of 1"),
    "factor": ("missing", "rows of each level"),
    "group": ("missing",),
}


def blocks(agreed: Agreed) -> Iterator[Table]:
    """One table for the numbers of rows, and one for each column."""
    rows = _table("rows", ("rows",))
    for site, count in [*zip(agreed.sites, agreed.rows, strict=True), (TOGETHER, sum(agreed.rows))]:
        rows.add_row(site, f"{count:,}")
    yield rows
    for name, together in agreed.columns.items():
        table = _table(f"{name}: {together.kind}", _HEADINGS[together.kind])
        for site, own in zip(agreed.sites, agreed.by_site, strict=True):
            table.add_row(site, *_cells(own[name]))
        table.add_row(TOGETHER, *_cells(together))
        yield table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column(title)
    for heading in headings:
        text = heading.startswith("rows of")
        table.add_column(heading, justify="left" if text else "right", no_wrap=not text)
    return table


def _cells(column: Column) -> list[str]:
    """The summary of a column, in the order of its headings. A dash stands for a number that a floor hides."""
    missing = str(column.missing)
    if column.kind == "factor":
        levels = [f"{level} {count}" for level, count in column.levels]
        levels += [f"{column.unnamed} more that are too rare to be named"] if column.unnamed else []
        return [missing, ", ".join(levels)]
    if column.kind == "group":
        return [missing]
    if column.kind == "yes-no":
        return [missing, *_numbers(column.sd, column.mean)]
    quantiles = [value for _, value in column.quantiles] or [None] * len(QUANTILES)
    return [missing, *_numbers(column.sd, column.mean, column.sd, *quantiles)]


def _numbers(sd: float | None, *values: float | None) -> list[str]:
    """Numbers with three significant digits of the standard deviation."""
    decimals = int(np.clip(2 - np.floor(np.log10(sd)), 0, 6)) if sd and np.isfinite(sd) else 3
    form = f".{decimals}f" if all(abs(value or 0.0) < 1e9 for value in values) else ".4g"
    # z: no sign for rounded zeros
    return ["-" if value is None else format(value, f"z{form}") for value in values]
