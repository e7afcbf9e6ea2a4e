"""Standard output in a terminal and in a pipe."""

from __future__ import annotations

import sys

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

# Width outside of a terminal, where lines are neither folded nor cut.
_ENDLESS = 100_000
# Width of tables outside of a terminal.
_PIPE = 100
# Smallest width of a text column beside `no_wrap` columns.
_LEAST_TEXT = 12


def console() -> Console:
    """A console on standard output without markup, and without line folding outside of a terminal."""
    return Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, emoji=False, highlight=False)


def table_width(width: int) -> int:
    """The width of tables on a console of a width: its own, or 100 columns outside of a terminal."""
    return _PIPE if width == _ENDLESS else width


def folded(table: Table, width: int) -> Table:
    """The table with folding columns, so that Rich cuts no text. `no_wrap` columns do not fold if they fit."""
    whole = fits(table, width)
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.no_wrap and whole
    return table


def fits(table: Table, width: int) -> bool:
    """Whether the `no_wrap` columns fit beside the others."""
    _, right, _, left = table.padding
    widths = [_width(column) if column.no_wrap else min(_width(column), _LEAST_TEXT) for column in table.columns]
    return sum(widths) + len(widths) * (left + right) <= width


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).splitlines() or [""])
