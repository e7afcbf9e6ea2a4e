"""Standard output for people and programs, and a progress bar: rounds per second, time left, consensus error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

# More columns than any line needs: what another program reads is neither folded nor cut.
_ENDLESS = 100_000
# Columns that the text of a table is left with, at least, beside numbers that are kept whole.
_LEAST_TEXT = 12
# Lines of news that fit below a bar.
_MOST_LINES = 24


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


@contextmanager
def waiting(description: str, show: bool | None) -> Iterator[None]:
    """A spinner on standard error while something of unknown length goes on; None shows it on a terminal."""
    with Progression(description, show):
        yield


class Progression:
    """One line on standard error that says what is being done; a context manager.

    Parameters
    ----------
    title
        What the line begins with.
    show
        Whether to show it; None shows it where standard error is a terminal.
    """

    def __init__(self, title: str, show: bool | None) -> None:
        shown = sys.stderr.isatty() if show is None else show
        self._title, self._status = title, Console(stderr=True).status(title) if shown else None

    def __enter__(self) -> Progression:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Say what is being done now."""
        if self._status is not None:
            self._status.update(Text(f"{self._title}: {text}"))


class ProgressBar:
    """A bar on standard error over the rounds of a run; a context manager.

    Parameters
    ----------
    description
        Shown before the bar.
    rounds
        Rounds of the whole run.
    show
        Whether to draw it; None draws it where standard error is a terminal.
    """

    def __init__(self, description: str, rounds: int, show: bool | None) -> None:
        self._shown = sys.stderr.isatty() if show is None else show
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]:>9,.0f} rounds/s"),
            TimeRemainingColumn(),
            TextColumn("consensus error {task.fields[error]}"),
        )
        self._news: list[str] = []
        console = Console(stderr=True)
        self._live = Live(get_renderable=self._whole, console=console, refresh_per_second=10) if self._shown else None
        self._task = self._bar.add_task(description, total=rounds, speed=0.0, error="-")

    def __enter__(self) -> ProgressBar:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _whole(self) -> RenderableType:
        hidden = len(self._news) - _MOST_LINES
        shown = [*self._news[:_MOST_LINES], f"and {hidden} more"] if hidden > 0 else self._news
        return Group(self._bar, *map(Text, shown))

    def news(self, lines: list[str]) -> None:
        """Show lines below the bar, in place of those there."""
        self._news = lines

    def update(self, rounds: int, consensus_error: float | None) -> None:
        """Say how many rounds are done and how far the agents are apart (None: not known in burn-in)."""
        task = self._bar.tasks[self._task]
        fields: dict[str, Any] = {"speed": rounds / task.elapsed if task.elapsed else 0.0}
        if consensus_error is not None:
            fields["error"] = f"{consensus_error:.3g}"
        self._bar.update(self._task, completed=rounds, **fields)
