"""Time to a posterior of 200,000 rows that can be trusted: half an hour, nearly all of it that of NUTS."""

from __future__ import annotations

from collections.abc import Iterator

from answers import ABOUT as ABOUT
from answers import TITLE as TITLE
from answers import programs_on
from measured import Line, Skipped


def lines(small: bool) -> Iterator[Line | Skipped]:
    yield from programs_on("logistic-2000x10" if small else "logistic-200000x100", 1)
