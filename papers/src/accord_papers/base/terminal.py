"""Standard output for terminals and pipes, and a progress line on standard error."""

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

# Console width for pipes, so that lines are neither folded nor cut.
_ENDLESS = 100_000
# Least width of a folded column beside columns that are not folded.
_LEAST_TEXT = 12
# Seconds between two log lines.
_LOG_EVERY = 10.0


def console() -> Console:
    """A console on standard output that prints text unchanged, with unlimited width if stdout is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, emoji=False, highlight=False)


def folded(table: Table, width: int) -> Table:
    """The table with columns that fold long cells, so that Rich cuts nothing.

    `no_wrap` columns, such as names, are not folded if the table still fits into the width.
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
    """Context manager that yields a callback `(stage, share)`, which shows both on standard error.

    On a terminal it shows a progress bar, elsewhere at most one line in ten seconds. ACCORD_PROGRESS=off disables both.
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
