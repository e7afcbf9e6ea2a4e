"""Ctrl-C and SIGTERM, heard between two chunks of rounds, or between two parts of a sum."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType

from .progress import current

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = "Ctrl-C was heard: it ends after this step, and at once when pressed again"


@dataclass
class _Heard:
    """Whether Ctrl-C was pressed, whether `let_through` is to raise it, and whether the first one only counts."""

    outer: _Heard | None = None
    pressed: bool = False
    due: bool = False
    held: bool = False

    def was_pressed(self) -> bool:
        return self.pressed


_HEARD: ContextVar[_Heard | None] = ContextVar("interruption", default=None)


@contextlib.contextmanager
def interruptions(anywhere: bool = False) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or SIGTERM came, which a job is ended by: a run and all its processes can stop then.

    A second one does not wait for that. An interrupt that is raised at once may meet a callback of a library, which
    prints it and goes on.

    Parameters
    ----------
    anywhere
        Whether `let_through` raises the first one, once.
    """
    let_through()
    heard = _Heard(_HEARD.get())

    def note(number: int, frame: FrameType | None) -> None:
        if heard.pressed:
            raise KeyboardInterrupt
        heard.pressed, heard.due = True, anywhere and not heard.held

    token = _HEARD.set(heard)
    try:
        with _handled(note, _SIGNALS), _answered():
            yield heard.was_pressed
    finally:
        _HEARD.reset(token)
        if heard.outer is not None:
            heard.outer.pressed |= heard.pressed


def hold() -> None:
    """Let what is under way end first, up to the end of `terminations`: from here on a second interrupt is raised."""
    heard = _HEARD.get()
    while heard is not None:
        heard.held, heard = True, heard.outer


def let_through() -> None:
    """Raise the `KeyboardInterrupt` that is due, if one is: long work calls it where it can be left."""
    heard = _HEARD.get()
    if heard is not None and heard.due:
        heard.due = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def terminations() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM be as Ctrl-C where no rounds run, so that what a run has begun is ended and cleared away.

    Yields whether one came. Both end it at once, until `hold`. Where a callback of a library swallows that, as one of
    JAX does now and then, `let_through` does it again. A handler that somebody has chosen stays, and so does that of an
    outer one.
    """
    heard = _HEARD.get()
    if heard is not None:
        yield heard.was_pressed
        return
    heard = _Heard()

    def stop(number: int, frame: FrameType | None) -> None:
        if heard.held and not heard.pressed:
            heard.pressed = True
            if (shown := current()) is not None:
                # the interrupted code may hold the lock of the display
                threading.Thread(target=shown.notice, args=(_NOTICE,), daemon=True).start()
            return
        heard.pressed = heard.due = True
        raise KeyboardInterrupt

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    token = _HEARD.set(heard)
    try:
        with _handled(stop, tuple(number for number, one in usual.items() if signal.getsignal(number) is one)):
            yield heard.was_pressed
    finally:
        _HEARD.reset(token)


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Say at once that Ctrl-C was heard: Python's own handlers wait until a compiled program or a compiler returns."""
    shown = current()
    if shown is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)

    def listen() -> None:
        while found := os.read(reads, 1):
            if found[0] in _SIGNALS:
                shown.notice(_NOTICE)
            if before >= 0:
                # an event loop, such as a notebook's, has other signals to hear
                with contextlib.suppress(OSError):
                    os.write(before, found)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writes)
        thread.join()
        os.close(reads)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Handle signals while the context lasts; only the main thread of a program can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, one in before.items():
            # None is a handler that was not made by Python
            signal.signal(number, signal.SIG_DFL if one is None else one)
