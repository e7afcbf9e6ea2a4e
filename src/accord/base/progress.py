"""What long work says of itself: the stage that it is at, what of it is done, seconds gone and seconds left.

On a terminal this is one line that moves, in a notebook one that changes, and elsewhere, as in a log file, a line every
ten seconds. Whoever does a part of the work says so by `stage` and `step`, wherever it is called from.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

import jax.monitoring
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from .text import human_seconds

# Seconds between two lines of a log, and between two looks of a notebook.
_LOG_EVERY, _NOTEBOOK_EVERY = 10.0, 0.5
# Lines of news that fit below the line.
_MOST_LINES = 24
# What is left is said once a stage has gone on for so many seconds, and so large a part of it is done.
_SECONDS, _PART = 0.5, 0.02


# What JAX says when it hands a program to the compiler, and when that has made it.
_BEGUN, _MADE = "/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration"


class _Compiler:
    """Whether a program is being compiled, as JAX says; it is asked from the first line on that is shown."""

    is_heard = is_busy = False

    def hear(self) -> None:
        """Listen from now on."""
        if not self.is_heard:
            jax.monitoring.register_event_duration_secs_listener(self._note)
        self.is_heard = True

    def _note(self, event: str, duration_secs: float, **more: str | int) -> None:
        if event in (_BEGUN, _MADE):
            self.is_busy = event == _BEGUN


_compiler = _Compiler()


def current() -> Progress | None:
    """The line that is shown now, or None."""
    return _CURRENT.get()


def stage(text: str) -> None:
    """Say what is being done now, if anybody shows it."""
    if (shown := _CURRENT.get()) is not None:
        shown.say(text)


def step(done: float, total: float) -> None:
    """Say how much of the stage is done, if anybody shows it."""
    if (shown := _CURRENT.get()) is not None:
        shown.advance(done, total)


class Progress:
    """What is being done, shown on standard error; a context manager.

    One within another says its stages there.

    Parameters
    ----------
    title
        What the line begins with.
    show
        Whether to show it; None shows it on a terminal and in a notebook at once, elsewhere after ten seconds, unless
        the environment has ACCORD_PROGRESS=off.
    """

    def __init__(self, title: str, show: bool | None = None) -> None:
        self.title = title
        self._show = os.environ.get("ACCORD_PROGRESS") != "off" if show is None else show
        self._began = self._stage_began = time.monotonic()
        self._stage, self._detail = "", ""
        self._done, self._total = 0.0, 0.0
        self._news: list[str] = []
        self._notice = ""
        self._outer: Progress | None = None
        self._sink: _Sink = _Nowhere()
        self._token: Token[Progress | None] | None = None

    def __enter__(self) -> Progress:
        self._began = self._stage_began = time.monotonic()
        self._outer = _CURRENT.get()
        self._token = _CURRENT.set(self)
        if self._show and self._outer is None:
            self._sink = _sink()(self)
            _compiler.hear()
        self._sink.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _CURRENT.reset(self._token)
        self._sink.stop()

    def say(self, text: str) -> None:
        """Say what is being done now: a new stage."""
        self._stage, self._detail, self._stage_began = text, "", time.monotonic()
        # a program that could not be compiled is never made
        _compiler.is_busy = False
        self._done = self._total = 0.0
        if self._outer is not None and self._show:
            self._outer.say(f"{self.title}: {text}")

    def advance(self, done: float, total: float, detail: str = "") -> None:
        """Say how much of the stage is done, and what else there is to say of it."""
        self._done, self._total, self._detail = done, total, detail
        if self._outer is not None and self._show:
            self._outer.advance(done, total, detail)

    def news(self, lines: list[str]) -> None:
        """Show lines below, in place of those there."""
        self._news = lines

    def notice(self, text: str) -> None:
        """Say something at once that stays to the end; any thread may."""
        (self if self._outer is None else self._outer)._note(text)

    def _note(self, text: str) -> None:
        self._notice = text
        self._sink.show()

    @property
    def part(self) -> float | None:
        """The part of the stage that is done, 0 to 1; None where nobody knows."""
        return min(1.0, self._done / self._total) if self._total > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the stage is over, if it goes on as it did; None where that cannot be told yet."""
        gone = time.monotonic() - self._stage_began
        if self.part is None or gone < _SECONDS or self.part < _PART:
            return None
        return gone * (1.0 - self.part) / self.part

    def text(self) -> str:
        """All of it in a line."""
        said = ": ".join(filter(None, (self.title, self._stage)))
        part = "" if self.part is None else f"{100 * self.part:.0f}%"
        left = "" if self.seconds_left is None else f"{human_seconds(self.seconds_left)} left"
        gone = human_seconds(time.monotonic() - self._began)
        compiling = "compiling" if _compiler.is_busy else ""
        return ", ".join(filter(None, (said, self._detail, compiling, part, gone, left)))

    def lines(self) -> list[str]:
        """What is shown below."""
        hidden = len(self._news) - _MOST_LINES
        news = [*self._news[:_MOST_LINES], f"and {hidden} more"] if hidden > 0 else self._news
        return [self._notice, *news] if self._notice else news


_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


# --- where it is shown ---


class _Sink(Protocol):
    """Shows what a `Progress` says, from start to stop."""

    def start(self) -> None:
        """Begin."""

    def show(self) -> None:
        """Show what is new now."""

    def stop(self) -> None:
        """End, with what was said last."""


class _Nowhere:
    def start(self) -> None:
        pass

    def show(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Terminal:
    """A line that moves by itself, also while nothing is said; it is gone at the end."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self._spinner = progress, Spinner("dots")
        self._live = Live(
            get_renderable=self._whole, console=Console(stderr=True), refresh_per_second=8, transient=True
        )

    def _whole(self) -> RenderableType:
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [self._spinner, Text(self.progress.text())]
        if self.progress.part is not None:
            cells.append(ProgressBar(total=1.0, completed=self.progress.part, width=24))
        line.add_row(*cells)
        return Group(line, *map(Text, self.progress.lines()))

    def start(self) -> None:
        self._live.start()

    def show(self) -> None:
        self._live.refresh()

    def stop(self) -> None:
        self._live.stop()


class _Ticker:
    """Tells it again and again, from a thread: one that works may hear nobody for long."""

    every: float

    def __init__(self, progress: Progress) -> None:
        self.progress, self._over = progress, threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._over.wait(self.every):
            self.show()

    def show(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class _Log(_Ticker):
    """A line every ten seconds."""

    every = _LOG_EVERY

    def show(self) -> None:
        print(self.progress.text(), *self.progress.lines(), sep="\n", file=sys.stderr, flush=True)


class _Notebook(_Ticker):
    """A line below the cell, which needs no widgets."""

    every = _NOTEBOOK_EVERY

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._whole(), display_id=True)
        super().start()

    def _whole(self) -> Any:
        from IPython.display import Pretty

        return Pretty("\n".join([self.progress.text(), *self.progress.lines()]))

    def show(self) -> None:
        self._handle.update(self._whole())

    def stop(self) -> None:
        super().stop()
        self.show()


def _sink() -> Callable[[Progress], _Sink]:
    """What shows it here."""
    if _in_notebook():
        return _Notebook
    return _Terminal if sys.stderr.isatty() else _Log


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # a terminal's IPython has none
    return getattr(shell, "kernel", None) is not None
