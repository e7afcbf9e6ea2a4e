"""Ratios of times measured side by side, as tables in the terminal and in docs/benchmarks.md.

python benchmarks/bench.py                       all sections except many_rows
python benchmarks/bench.py --only rounds         the named sections; many_rows takes half an hour
python benchmarks/bench.py --small               tiny shapes, some seconds, no page
python benchmarks/bench.py --gate                exits with 1 if small rounds have become slower
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

import answers
import engines
import jax
import rivals
import rounds
import totals
from measured import Line, Skipped, duration
from pages import DOCS, fill, measured_on, table
from rich.console import Console
from rich.live import Live
from rich.table import Table

from accord.base.terminal import console

PAGE = DOCS / "benchmarks.md"
# functions of `small` that yield lines, by section of the page
SECTIONS = {
    "rounds": rounds.over_floors,
    "rivals": rivals.lines,
    "growth": rounds.growth,
    "totals": totals.lines,
    "engines": engines.lines,
    "answers": answers.lines,
    "many_rows": answers.many_rows,
}
LONG = "many_rows"
HEADINGS = ("measurement", "shape", "ratio", "quartiles", "goal", "result", "note")


def run(name: str, lines: Iterable[Line | Skipped], out: Console) -> tuple[list[Line], list[Skipped]]:
    """Print a section line by line while it is measured, and return its lines."""
    printed = Table(*HEADINGS, title=name, title_justify="left", box=None)
    found, skipped = [], []
    with Live(printed, console=out, auto_refresh=False) as live:
        for line in lines:
            if isinstance(line, Skipped):
                skipped.append(line)
                continue
            found.append(line)
            printed.add_row(*cells(line))
            live.refresh()
    out.print()
    for left_out in skipped:
        out.print(f"left out: {left_out.what}: {left_out.reason}")
    return found, skipped


def cells(line: Line) -> tuple[str, ...]:
    return line.what, line.shape, str(line.ratio), line.ratio.spread, line.goal, line.verdict, line.note


def text(lines: list[Line], skipped: list[Skipped], seconds: float) -> str:
    """The section of the page."""
    bold = {"not met": "**not met**"}
    parts = [table(HEADINGS, [[bold.get(cell, cell) for cell in cells(line)] for line in lines], texts=2)]
    parts += [f"Left out: {left_out.what}: {left_out.reason}.\n" for left_out in skipped]
    parts.append(f"Measured in {duration(seconds)} on {measured_on()}.")
    return "\n".join(parts if lines else parts[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[name for name in SECTIONS if name != LONG])
    parser.add_argument("--small", action="store_true", help="tiny shapes, which write nothing")
    parser.add_argument("--gate", action="store_true", help="small rounds against their usual ratios")
    options = parser.parse_args()
    out = console()
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    if options.gate:
        found, _ = run("gate", rounds.watched(), out)
        sys.exit(any(line.verdict != "met" for line in found))
    for name in options.only:
        began = time.perf_counter()
        found = run(name, SECTIONS[name](options.small), out)
        seconds = time.perf_counter() - began
        out.print(f"{name}: {duration(seconds)}\n")
        if not options.small:
            fill(PAGE, name, text(*found, seconds))


if __name__ == "__main__":
    main()
