"""Handling of Ctrl-C and SIGTERM between two chunks of rounds or two parts of a sum."""

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
_NOTICE = "Ctrl-C received: stopping after this step. Press Ctrl-C again to stop at once"


@dataclass
class _Interrupt:
    """State of the interrupt handling in one context."""

    outer: _Interrupt | None = None
    pressed: bool = False
    due: bool = False  # `let_through` raises
    held: bool = False  # the first interrupt is recorded but not raised

    def was_pressed(self) -> bool:
        return self.pressed


_CURRENT: ContextVar[_Interrupt | None] = ContextVar("interruption", default=None)


@contextlib.contextmanager
def interruptions(anywhere: bool = False) -> Iterator[Callable[[], bool]]:
    """Record Ctrl-C and SIGTERM, so that a run and its processes can stop between two chunks.

    Yields a function that returns whether a signal arrived. A second signal raises `KeyboardInterrupt` at once. The
    first does not, because a library callback may swallow the exception.

    Parameters
    ----------
    anywhere
        Whether the next `let_through` raises `KeyboardInterrupt` after the first signal.
    """
    let_through()
    interrupt = _Interrupt(_CURRENT.get())

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed, interrupt.due = True, anywhere and not interrupt.held

    token = _CURRENT.set(interrupt)
    try:
        with _handled(note, _SIGNALS), _acknowledged():
            yield interrupt.was_pressed
    finally:
        _CURRENT.reset(token)
        if interrupt.outer is not None:
            interrupt.outer.pressed |= interrupt.pressed


def hold() -> None:
    """Record the next interrupt without raising it, until the end of `terminations`. A second interrupt raises."""
    interrupt = _CURRENT.get()
    while interrupt is not None:
        interrupt.held, interrupt = True, interrupt.outer


def let_through() -> None:
    """Raise `KeyboardInterrupt` if one is due. Long computations call this at points where they can stop."""
    interrupt = _CURRENT.get()
    if interrupt is not None and interrupt.due:
        interrupt.due = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def terminations() -> Iterator[Callable[[], bool]]:
    """Treat SIGTERM like Ctrl-C outside of rounds, so that a run cleans up after itself.

    Yields a function that returns whether a signal arrived. Before `hold`, a signal raises `KeyboardInterrupt` at once.
    If a library callback swallows the exception, as a callback of JAX sometimes does, `let_through` raises it again.
    Custom signal handlers and the handlers of an outer `terminations` stay in place.
    """
    interrupt = _CURRENT.get()
    if interrupt is not None:
        yield interrupt.was_pressed
        return
    interrupt = _Interrupt()

    def stop(number: int, frame: FrameType | None) -> None:
        if interrupt.held and not interrupt.pressed:
            interrupt.pressed = True
            if (shown := current()) is not None:
                # a thread, because the interrupted code may hold the display's lock
                threading.Thread(target=shown.notice, args=(_NOTICE,), daemon=True).start()
            return
        interrupt.pressed = interrupt.due = True
        raise KeyboardInterrupt

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    token = _CURRENT.set(interrupt)
    try:
        with _handled(stop, tuple(number for number, one in usual.items() if signal.getsignal(number) is one)):
            yield interrupt.was_pressed
    finally:
        _CURRENT.reset(token)


@contextlib.contextmanager
def _acknowledged() -> Iterator[None]:
    """Show a notice at once on Ctrl-C. Python's signal handlers wait until compiled code returns."""
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
                # pass the signal on to an event loop, such as a notebook's
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
    """Install a signal handler for the context. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, one in before.items():
            # None: the handler was not installed from Python
            signal.signal(number, signal.SIG_DFL if one is None else one)
