"""Print the reason of a failed study as the last line of the server's log, without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.errors import is_deliberate


class StudyEndedError(RuntimeError):
    """A study has failed. The reason is in the log."""


@contextmanager
def ended_in_words(log: Callable[[str], None], logger: str = "flwr") -> Iterator[None]:
    """Print an error that accord raises in one line, and let the run fail without a traceback.

    Errors of Python and of other libraries are defects. They pass unchanged with their traceback.

    Parameters
    ----------
    log
        Prints a line.
    logger
        Name of Flower's logger, which would print the error again with its traceback.

    Raises
    ------
    StudyEndedError
        The study has failed.
    """
    try:
        yield
    except Exception as error:
        if not is_deliberate(error):
            raise
        log(f"the study ended: {error}")
        logging.getLogger(logger).addFilter(_is_new)
        raise StudyEndedError(str(error)) from None


def _is_new(record: logging.LogRecord) -> bool:
    """Whether a log record is about something other than the error of the failed study."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, StudyEndedError) and "unhandled exception" not in record.getMessage()
