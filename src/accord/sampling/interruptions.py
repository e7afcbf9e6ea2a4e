"""Ctrl-C and SIGTERM, heard between two chunks of rounds."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: it waits until the run, and all its processes, can stop; a second one does not.

    An interrupt that is raised at once may meet a callback of a library, which prints it and goes on.
    """
    pressed: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
