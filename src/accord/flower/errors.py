"""How a study that cannot go on ends: in accord's own words, as the last line of the server's log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..base.errors import has_own_words


class StudyEndedError(RuntimeError):
    """A study has ended, for a reason that has been told."""


@contextmanager
def ended_in_words(tell: Callable[[str], None], logger: str = "flwr") -> Iterator[None]:
    """Tell an error that accord raises itself in one line, and let the run fail without a traceback.

    What Python or another library raises is a defect, whose traceback is needed: that passes as it is.

    Parameters
    ----------
    tell
        What is told.
    logger
        The name of Flower's logger, which would log the error again with its traceback.

    Raises
    ------
    StudyEndedError
        The study has ended.
    """
    try:
        yield
    except Exception as error:
        if not has_own_words(error):
            raise
        tell(f"the study ended: {error}")
        logging.getLogger(logger).addFilter(_is_new)
        raise StudyEndedError(str(error)) from None


def _is_new(record: logging.LogRecord) -> bool:
    """Whether a record says more than that a study has ended, and that nobody handled the error by which it did."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, StudyEndedError) and "unhandled exception" not in record.getMessage()
