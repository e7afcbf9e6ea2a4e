"""Progress display: the current stage, its completed share, elapsed and remaining time.

The display is an animated line in a terminal, an updated line in a notebook, and a line every ten seconds elsewhere,
as in a log file. Any function reports progress through `stage` and `step`.
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

# Seconds between two lines of a log.
_LOG_EVERY = 10.0
# Seconds between two updates in a notebook.
_NOTEBOOK_EVERY = 0.5
# Largest number of news lines.
_MOST_LINES = 24
# Seconds of a stage before its remaining time is shown.
_SECONDS = 0.5
# Completed share of a stage before its remaining time is shown.
_PART = 0.02
# JAX's event before the compilation of a program.
_BEGUN = "/jax/core/compile/jaxpr_to_mlir_module_duration"
# JAX's event after the compilation of a program.
_MADE = "/jax/core/compile/backend_compile_duration"


class _Compiler:
    """Whether JAX is compiling a program, from its monitoring events since the first display."""

    is_listening = is_busy = False

    def listen(self) -> None:
        if not self.is_listening:
            jax.monitoring.register_event_duration_secs_listener(self._note)
        self.is_listening = True

    def _note(self, event: str, duration_secs: float, **more: str | int) -> None:
        if event in (_BEGUN, _MADE):
            self.is_busy = event == _BEGUN


_compiler = _Compiler()


def current() -> Progress | None:
    """The current progress display, or None."""
    return _CURRENT.get()


def stage(text: str) -> None:
    """Begin a stage of the current progress display, if any."""
    if (shown := _CURRENT.get()) is not None:
        shown.begin(text)


def step(done: float, total: float) -> None:
    """Update the completed share of the stage, if there is a progress display."""
    if (shown := _CURRENT.get()) is not None:
        shown.advance(done, total)


class Progress:
    """A progress display on standard error; a context manager.

    A nested `Progress` forwards its stages to the outer one.

    Parameters
    ----------
    title
        Start of the line.
    show
        Whether to show the display. None: show it unless the environment has ACCORD_PROGRESS=off. The line appears at
        once in a terminal and a notebook, elsewhere after ten seconds.
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
            _compiler.listen()
        self._sink.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _CURRENT.reset(self._token)
        self._sink.stop()

    def begin(self, text: str) -> None:
        """Begin a stage."""
        self._stage, self._detail, self._stage_began = text, "", time.monotonic()
        # a failed compilation sends no final event
        _compiler.is_busy = False
        self._done = self._total = 0.0
        if self._outer is not None and self._show:
            self._outer.begin(f"{self.title}: {text}")

    def advance(self, done: float, total: float, detail: str = "") -> None:
        """Update the completed share of the stage and the detail beside it."""
        self._done, self._total, self._detail = done, total, detail
        if self._outer is not None and self._show:
            self._outer.advance(done, total, detail)

    def news(self, lines: list[str]) -> None:
        """Replace the lines below the progress line."""
        self._news = lines

    def notice(self, text: str) -> None:
        """Show a text at once and until the end. Thread-safe."""
        (self if self._outer is None else self._outer)._note(text)

    def _note(self, text: str) -> None:
        self._notice = text
        self._sink.show()

    @property
    def part(self) -> float | None:
        """The completed share of the stage, 0 to 1, or None if unknown."""
        return min(1.0, self._done / self._total) if self._total > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end of the stage, or None if unknown."""
        gone = time.monotonic() - self._stage_began
        if self.part is None or gone < _SECONDS or self.part < _PART:
            return None
        return gone * (1.0 - self.part) / self.part

    def text(self) -> str:
        """The progress line."""
        head = ": ".join(filter(None, (self.title, self._stage)))
        part = "" if self.part is None else f"{100 * self.part:.0f}%"
        left = "" if self.seconds_left is None else f"{human_seconds(self.seconds_left)} left"
        gone = human_seconds(time.monotonic() - self._began)
        compiling = "compiling" if _compiler.is_busy and self._stage != "compiling" else ""
        return ", ".join(filter(None, (head, self._detail, compiling, part, gone, left)))

    def lines(self) -> list[str]:
        """The notice and the news lines below the progress line."""
        hidden = len(self._news) - _MOST_LINES
        news = [*self._news[:_MOST_LINES], f"and {hidden} more"] if hidden > 0 else self._news
        return [self._notice, *news] if self._notice else news


_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


# --- displays ---


class _Sink(Protocol):
    """A display of a `Progress`."""

    def start(self) -> None:
        """Open the display."""

    def show(self) -> None:
        """Refresh the display now."""

    def stop(self) -> None:
        """Close the display."""


class _Nowhere:
    def start(self) -> None:
        pass

    def show(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Terminal:
    """An animated line that disappears at the end."""

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
    """A display refreshed by a thread, because the main thread may be busy in compiled code."""

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
    _begun = False

    def show(self) -> None:
        self._begun = True
        print(self.progress.text(), *self.progress.lines(), sep="\n", file=sys.stderr, flush=True)

    def stop(self) -> None:
        super().stop()
        # a last line, except in the log of short work
        if self._begun:
            self.show()


class _Notebook(_Ticker):
    """A line below the cell, without widgets."""

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
        from IPython.display import Pretty

        super().stop()
        self._handle.update(Pretty(""))


def _sink() -> Callable[[Progress], _Sink]:
    if _in_notebook():
        return _Notebook
    return _Terminal if sys.stderr.isatty() else _Log


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # IPython in a terminal has no kernel
    return getattr(shell, "kernel", None) is not None
