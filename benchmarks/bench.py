"""All benchmarks in one go: ratios of times measured side by side, as tables and as docs/benchmarks.md.

python benchmarks/bench.py                       all sections, and the page
python benchmarks/bench.py --only rounds         some of them, and no page
python benchmarks/bench.py --only many_rows      left out of all, as it takes half an hour; docs/benchmarks-many-rows.md
python benchmarks/bench.py --small               tiny shapes, some seconds, and no page: does it run?
python benchmarks/bench.py --gate                has a round become slower? Exits with 1 where one has
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import jax
import rounds
from measured import Line, Skipped, duration
from rich.console import Console
from rich.live import Live
from rich.table import Table

from accord.base.terminal import console

DOCS = Path(__file__).resolve().parents[1] / "docs"
# modules of this folder, each with TITLE, ABOUT and lines(small)
SECTIONS = ("rounds", "rivals", "growth", "totals", "proximal", "warmups", "engines", "answers", "gpu")
# takes longer than all others, and has a page of its own
LONG = "many_rows"
HEADINGS = ("what", "shape", "ratio", "quartiles", "goal", "", "note")
# What the benchmarks of an earlier source came to: where, in a first line of comment; then what, shape, ratio and note.
BEFORE = Path(__file__).parent / "before.csv"
PACKAGES = ("accord", "jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro", "desgld", "ray")


class Section(NamedTuple):
    """What a section came to."""

    title: str
    about: str
    lines: list[Line]
    skipped: list[Skipped]
    seconds: float


def cells(line: Line) -> tuple[str, ...]:
    goal = "-" if line.goal is None else str(line.goal)
    return line.what, line.shape, str(line.ratio), line.ratio.spread, goal, line.verdict, line.note


def run(title: str, about: str, found: Iterable[Line | Skipped], out: Console) -> Section:
    """Print the table of a section, a line as soon as it is known, and return what it came to."""
    table = Table(*HEADINGS, title=title, title_justify="left", box=None)
    lines, skipped = [], []
    began = time.perf_counter()
    out.print()
    with Live(table, console=out, auto_refresh=False) as live:
        for line in found:
            if isinstance(line, Skipped):
                skipped.append(line)
                continue
            lines.append(line)
            table.add_row(*cells(line))
            live.refresh()
    for left_out in skipped:
        out.print(f"\nleft out: {left_out.what}: {left_out.reason}")
    return Section(title, about, lines, skipped, time.perf_counter() - began)


class Before(NamedTuple):
    """What an earlier source came to: where that was measured, and by what and shape of a line its ratio and note."""

    measured: str
    found: dict[tuple[str, str], str]


def before() -> Before:
    with BEFORE.open(encoding="utf-8", newline="") as file:
        told = file.readline().removeprefix("#").strip()
        rows = {(row["what"], row["shape"]): f"{row['ratio']}: {row['note']}" for row in csv.DictReader(file)}
    return Before(told, rows)


def page(sections: list[Section], title: str, command: str, earlier: Before) -> str:
    """A page of docs/."""
    judged = [line for section in sections for line in section.lines if line.goal is not None]
    met = sum(line.verdict == "met" for line in judged)
    minutes = sum(section.seconds for section in sections) / 60
    parts = [
        f"""# {title}

Times differ between machines; what is told here are ratios of two times that were measured side by side in one process,
or in processes that took turns: medians over repeats, with their quartiles. A ratio is the median of those of all turns
and need not be that of the median times beside it. No quartiles: it was counted, or measured once.
*Before* are the ratio and the note of {earlier.measured}. Floors have become faster since, so that times tell more than
ratios, and lines of BlackJAX have none, as its compiling was timed with its steps then.
Some have a goal: {met} of {len(judged)} medians
meet it, and where one is not met the table says so. The command that wrote this page, {minutes:.0f} minutes:

    {command}

on {machine()}, with {versions()}.
"""
    ]
    for section in sections:
        parts.append(f"## {section.title}\n\n{section.about}\n")
        parts.append(_markdown(section.lines, earlier.found) if section.lines else "")
        parts += [f"Left out: {left_out.what}: {left_out.reason}\n" for left_out in section.skipped]
    return "\n".join(part for part in parts if part)


def _markdown(lines: list[Line], earlier: dict[tuple[str, str], str]) -> str:
    rows = [HEADINGS, ("---", "---", "---:", "---:", "---", "---", "---"), *map(cells, lines)]
    was = [earlier.get((line.what, line.shape)) for line in lines]
    if any(was):
        rows = [(*row, told or "-") for row, told in zip(rows, ("before", "---", *was), strict=True)]
    bold = {"not met": "**not met**"}
    return "".join(f"| {' | '.join(bold.get(cell, cell) for cell in row)} |\n" for row in rows)


def machine() -> str:
    """Processor, cores and memory, and GPUs where JAX sees some."""
    information = Path("/proc/cpuinfo")
    named = platform.processor() or platform.machine()
    if information.exists():
        named = next(
            (line.split(":", 1)[1].strip() for line in information.read_text().splitlines() if "model name" in line),
            named,
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [device.device_kind for device in jax.devices() if device.platform == "gpu"]
    return ", ".join([f"{named}, {cores} cores", *gpus, platform.system()])


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*SECTIONS, LONG), help="some sections; docs/benchmarks.md stays")
    parser.add_argument("--small", action="store_true", help="tiny shapes, in seconds; docs/benchmarks.md stays")
    parser.add_argument("--page", type=Path, help="where to write the page, in place of docs/")
    parser.add_argument(
        "--gate", action="store_true", help="small rounds beside what they took; docs/benchmarks.md stays"
    )
    options = parser.parse_args()
    out = console()
    # a GPU has a section of its own
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    if options.gate:
        found = run(rounds.TITLE, rounds.WATCHED_FOR, rounds.watched(), out)
        sys.exit(any(line.verdict != "met" for line in found.lines))
    file, title, command = "benchmarks.md", "Benchmarks", "make bench"
    if options.only == [LONG]:
        file, title, command = "benchmarks-many-rows.md", "Benchmarks: many rows", f"make bench BENCH='--only {LONG}'"
    partly = options.small or options.only not in (None, [LONG])
    path = options.page or (None if partly else DOCS / file)
    sections = []
    for name in options.only or SECTIONS:
        module = importlib.import_module(name)
        sections.append(run(module.TITLE, module.ABOUT, module.lines(options.small), out))
        if path is not None:
            # after each section: what has been measured is not lost where the rest is broken off
            path.write_text(page(sections, title, command, before()), "utf-8")
    out.print()
    for section in sections:
        out.print(f"{section.title}: {duration(section.seconds)}")
    out.print(f"{duration(sum(section.seconds for section in sections))} in all")


if __name__ == "__main__":
    main()
