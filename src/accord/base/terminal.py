"""Standard output for people and programs."""

from __future__ import annotations

import sys

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

# More columns than any line needs: what another program reads is neither folded nor cut.
_ENDLESS = 100_000
# Columns that the text of a table is left with, at least, beside numbers that are kept whole.
_LEAST_TEXT = 12


def console() -> Console:
    """A console on standard output that shows text as it is, on lines without end where that is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, emoji=False, highlight=False)


def folded(table: Table, width: int) -> Table:
    """The table with columns that fold what is too long for them, so that Rich cuts nothing.

    Columns that are marked `no_wrap`, such as numbers, are kept whole where the others have room beside them.
    """
    whole = fits(table, width)
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.no_wrap and whole
    return table


def fits(table: Table, width: int) -> bool:
    """Whether columns that are marked `no_wrap` can be kept whole."""
    _, right, _, left = table.padding
    widths = [_width(column) if column.no_wrap else min(_width(column), _LEAST_TEXT) for column in table.columns]
    return sum(widths) + len(widths) * (left + right) <= width


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).splitlines() or [""])
