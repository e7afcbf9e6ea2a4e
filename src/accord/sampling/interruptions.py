"""Ctrl-C and SIGTERM, heard between two chunks of rounds."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or SIGTERM came, which a job is ended by: a run and all its processes can stop then.

    A second one does not wait for that. An interrupt that is raised at once may meet a callback of a library, which
    prints it and goes on.
    """
    pressed: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    with _handled(note, _SIGNALS):
        yield lambda: bool(pressed)


@contextlib.contextmanager
def terminations() -> Iterator[None]:
    """Let SIGTERM be as Ctrl-C where no rounds run, so that what a run has begun is ended and cleared away.

    A handler that somebody has chosen stays.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    chosen = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    with _handled(stop, () if chosen else (signal.SIGTERM,)):
        yield


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
