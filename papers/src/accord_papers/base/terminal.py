"""Standard output for people and programs, and the line that long work shows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

# More columns than any line needs: what another program reads is neither folded nor cut.
_ENDLESS = 100_000
# Columns that the text of a table is left with, at least, beside numbers that are kept whole.
_LEAST_TEXT = 12
# Seconds between two lines of a log.
_LOG_EVERY = 10.0


def console() -> Console:
    """A console on standard output that shows text as it is, on lines without end where that is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, emoji=False, highlight=False)


def folded(table: Table, width: int) -> Table:
    """The table with columns that fold what is too long for them, so that Rich cuts nothing.

    Columns that are marked `no_wrap`, such as names, are kept whole where the others have room beside them.
    """
    _, right, _, left = table.padding
    widths = [_width(column) if column.no_wrap else min(_width(column), _LEAST_TEXT) for column in table.columns]
    whole = sum(widths) + len(widths) * (left + right) <= width
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.no_wrap and whole
    return table


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).splitlines() or [""])


@contextmanager
def share_done(title: str) -> Iterator[Callable[[str, float], None]]:
    """What is called with what is being done, and the share that is done; both are shown on standard error.

    On a terminal that is one line that moves, elsewhere a line every ten seconds at most, and nothing where the
    environment has ACCORD_PROGRESS=off.
    """
    shown = os.environ.get("ACCORD_PROGRESS") != "off"
    if shown and sys.stderr.isatty():
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as line:
            task = line.add_task(title, total=1.0)

            def move(what: str, share: float) -> None:
                line.update(task, description=f"{title}, {what}", completed=share)

            yield move
        return
    last = time.monotonic()

    def log(what: str, share: float) -> None:
        nonlocal last
        if shown and time.monotonic() - last >= _LOG_EVERY:
            last = time.monotonic()
            print(f"{title}, {what}, {share:.0%}", file=sys.stderr, flush=True)

    yield log
