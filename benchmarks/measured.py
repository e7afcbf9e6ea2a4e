"""Functions that benchmarks share: interleaved timing, subprocesses, ratios of times and lines of tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

_MARK = "measured "


class Ratio(NamedTuple):
    """Median and quartiles of a ratio over repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> Ratio:
        low, median, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return short(self.median)

    @property
    def spread(self) -> str:
        return "-" if self.low == self.high else f"{short(self.low)} to {short(self.high)}"


class Line(NamedTuple):
    """One measured ratio, with a bound for its median. `note` has the times of both sides."""

    what: str
    shape: str
    ratio: Ratio
    note: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def goal(self) -> str:
        if self.most is not None:
            return f"at most {short(self.most)}"
        return "-" if self.least is None else f"at least {short(self.least)}"

    @property
    def verdict(self) -> str:
        if self.goal == "-":
            return "-"
        above = self.most is not None and self.ratio.median > self.most
        below = self.least is not None and self.ratio.median < self.least
        return "not met" if above or below else "met"


class Skipped(NamedTuple):
    """A measurement that is not possible on this machine, and the reason."""

    what: str
    reason: str


def effort(small: bool, repeats: int = 9, seconds: float = 0.1) -> dict[str, Any]:
    """Number of repeats, and seconds of each."""
    return {"repeats": 3, "seconds": 0.002} if small else {"repeats": repeats, "seconds": seconds}


def side_by_side(sides: Mapping[Any, Callable[[], Any]], repeats: int, rest: float = 0.0) -> dict[Any, np.ndarray]:
    """Seconds of each side, (repeat,), after a first run that compiles. `rest` are seconds before each run."""
    for work in sides.values():
        jax.block_until_ready(work())
    seconds: dict[Any, list[float]] = {side: [] for side in sides}
    for repeat in range(repeats):
        # alternate the order, because a run changes caches and clock rates for the next one
        for side in list(sides)[:: 1 if repeat % 2 else -1]:
            time.sleep(rest)
            start = time.perf_counter()
            jax.block_until_ready(sides[side]())
            seconds[side].append(time.perf_counter() - start)
    return {side: np.array(found) for side, found in seconds.items()}


def enough(work: Callable[[int], Any], seconds: float) -> int:
    """The least number of rounds, a power of two, that takes `seconds` or more."""
    rounds = 1
    while True:
        # a program may be compiled for each number of rounds
        jax.block_until_ready(work(rounds))
        start = time.perf_counter()
        jax.block_until_ready(work(rounds))
        taken = time.perf_counter() - start
        if taken >= seconds:
            return rounds
        rounds *= 2 if 4 * taken >= seconds else 4


def compared(
    own: Callable[[int], Any], other: Callable[[int], Any], *, repeats: int, seconds: float
) -> tuple[Ratio, float, float]:
    """The ratio of two sides' times for a round, own over other, and the median seconds of each."""
    sides = {"own": own, "other": other}
    rounds = {side: enough(work, seconds) for side, work in sides.items()}
    found = side_by_side({side: partial(work, rounds[side]) for side, work in sides.items()}, repeats)
    each = {side: taken / rounds[side] for side, taken in found.items()}
    return Ratio.of(each["own"] / each["other"]), float(np.median(each["own"])), float(np.median(each["other"]))


def fastest(sides: Sequence[Callable[[int], Any]], *, repeats: int, seconds: float) -> Callable[[int], Any]:
    """The side whose least time is the smallest."""
    rounds = enough(sides[0], seconds)
    timed = side_by_side({str(place): partial(side, rounds) for place, side in enumerate(sides)}, repeats)
    return sides[int(min(timed, key=lambda place: timed[place].min()))]


def in_process(script: str, *arguments: str, **environment: str) -> list[Any]:
    """The values that a script reports in a new process. Raises `ChildProcessError` with the error of the process."""
    # files, because processes of Ray that end later would keep pipes open
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command, variables = [sys.executable, script, *arguments], {**os.environ, **environment}
        ended = subprocess.run(command, env=variables, stdout=output, stderr=errors, check=False)
        output.seek(0)
        errors.seek(0)
        if ended.returncode:
            lines = errors.read().strip().splitlines() or ["no message"]
            # the last line may be advice after the error
            raise ChildProcessError(next((line for line in reversed(lines) if "Error" in line), lines[-1])[:120])
        return [json.loads(line.removeprefix(_MARK)) for line in output if line.startswith(_MARK)]


def report(value: Any) -> None:
    """Send a value to the process that called `in_process`."""
    print(_MARK + json.dumps(value), flush=True)


def against(own: float, other: float) -> str:
    """Seconds of both sides, as a note."""
    return f"{duration(own)} / {duration(other)}"


def duration(seconds: float) -> str:
    """Seconds with three digits and a unit: "12.3 us", "4.56 ms"."""
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def short(number: float) -> str:
    """A number with three digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
