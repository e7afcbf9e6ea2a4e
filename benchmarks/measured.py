"""What the sections of `bench.py` share: ratios of times measured side by side, and the lines that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

# Seconds between turns where a side is NumPy's linear algebra, whose threads keep a processor busy after their work.
REST = 0.1


def effort(small: bool, repeats: int = 9, seconds: float = 0.1) -> dict[str, Any]:
    """How often two sides take turns, and for how many seconds each time; hardly at all where shapes are tiny too."""
    return {"repeats": 3, "seconds": 0.002} if small else {"repeats": repeats, "seconds": seconds}


class Ratio(NamedTuple):
    """A ratio over repeats: its median, and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> Ratio:
        low, median, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return _short(self.median)

    @property
    def spread(self) -> str:
        return "-" if self.low == self.high else f"{_short(self.low)} to {_short(self.high)}"


class Goal(NamedTuple):
    """A bound that a ratio is to keep."""

    bound: float
    least: bool

    def met(self, ratio: Ratio) -> bool:
        return ratio.median >= self.bound if self.least else ratio.median <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.least else 'most'} {_short(self.bound)}"


def at_most(bound: float) -> Goal:
    return Goal(bound, False)


def at_least(bound: float) -> Goal:
    return Goal(bound, True)


class Line(NamedTuple):
    """One measured ratio. `note` says what it is made of, such as the times of both sides."""

    what: str
    shape: str
    ratio: Ratio
    goal: Goal | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return "-"
        return "met" if self.goal.met(self.ratio) else "not met"


class Skipped(NamedTuple):
    """What is not measured here, and why."""

    what: str
    reason: str


def side_by_side(sides: Mapping[Any, Callable[[], Any]], repeats: int, rest: float = 0.0) -> dict[Any, np.ndarray]:
    """Seconds of each side, (repeat,). Sides take turns, in either order; each runs once before, which compiles.

    `rest` are seconds before each turn."""
    for work in sides.values():
        jax.block_until_ready(work())
    seconds: dict[Any, list[float]] = {side: [] for side in sides}
    for repeat in range(repeats):
        # what runs second finds the machine as the first left it: each is second as often
        for side in list(sides)[:: 1 if repeat % 2 else -1]:
            time.sleep(rest)
            start = time.perf_counter()
            jax.block_until_ready(sides[side]())
            seconds[side].append(time.perf_counter() - start)
    return {side: np.array(found) for side, found in seconds.items()}


def enough(work: Callable[[int], Any], seconds: float) -> int:
    """A number of rounds that takes so many seconds or more, a power of two."""
    rounds = 1
    while True:
        # a program may be compiled for each number of rounds, which is none of their time
        jax.block_until_ready(work(rounds))
        start = time.perf_counter()
        jax.block_until_ready(work(rounds))
        taken = time.perf_counter() - start
        if taken >= seconds:
            return rounds
        # most of the way at once: a moment's work tells little about how long it takes
        rounds *= 2 if 4 * taken >= seconds else 4


def compared(
    own: Callable[[int], Any], other: Callable[[int], Any], *, repeats: int, seconds: float
) -> tuple[Ratio, float, float]:
    """The ratio of two sides' times for a round, own over other, and the median seconds of each.

    Each side is given as many rounds as take it about so many seconds, so that no side is too short to be timed.
    """
    sides = {"own": own, "other": other}
    rounds = {side: enough(work, seconds) for side, work in sides.items()}
    found = side_by_side({side: partial(work, rounds[side]) for side, work in sides.items()}, repeats)
    each = {side: taken / rounds[side] for side, taken in found.items()}
    return Ratio.of(each["own"] / each["other"]), float(np.median(each["own"])), float(np.median(each["other"]))


def fastest(sides: Sequence[Callable[[int], Any]], *, repeats: int, seconds: float) -> Callable[[int], Any]:
    """Of several ways to do the same rounds, the one that was fastest once."""
    rounds = enough(sides[0], seconds)
    timed = side_by_side({str(place): partial(side, rounds) for place, side in enumerate(sides)}, repeats)
    return sides[int(min(timed, key=lambda place: timed[place].min()))]


def against(own: float, other: float) -> str:
    """Seconds of both sides, as a note."""
    return f"{duration(own)} / {duration(other)}"


def duration(seconds: float) -> str:
    """Seconds with three digits and a unit: "12.3 us", "4.56 ms"."""
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
