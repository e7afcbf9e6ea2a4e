"""Which files hold whose rows, and their cells as text."""

from __future__ import annotations

import csv
import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, eq=False, repr=False)
class Sheet:
    """The cells of one file, as text without the spaces around them.

    Parameters
    ----------
    header : list of str
        The names in the first line.
    rows : list of list of str
        The cells below it, as many a row as there are names.
    lines : list of int
        The line of the file that each row ends in, counted from 1.
    problems : list of str
        What is wrong with the file; no cell is quoted.
    """

    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_sheet(path: Path) -> Sheet:
    """Read a CSV file whole; whatever is wrong with it becomes a problem, not an exception."""
    sheet = Sheet()
    short = []
    try:
        # a byte order mark, which spreadsheets write, is no part of the first name
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, skipinitialspace=True, strict=True)
            for cells in reader:
                cells = [cell.strip() for cell in cells]
                if not sheet.header:
                    sheet.header.extend(cells)
                elif len(cells) == len(sheet.header):
                    sheet.rows.append(cells)
                    sheet.lines.append(reader.line_num)
                elif cells:  # a line without anything is no row
                    short.append(reader.line_num)
    except FileNotFoundError:
        sheet.problems.append("there is no such file")
    except csv.Error as error:
        # these messages name rules of CSV, never a cell
        sheet.problems.append(f"line {reader.line_num} cannot be read as CSV: {error}")
    except UnicodeError:
        sheet.problems.append("the file is not UTF-8 text")
    except OSError as error:
        sheet.problems.append(f"the file cannot be read: {error.strerror}")
    if short:
        sheet.problems.append(f"{some_lines(short)} not as many cells as the header ({len(sheet.header)})")
    if not sheet.problems:
        sheet.problems.extend(_header_problems(sheet))
    return sheet


def _header_problems(sheet: Sheet) -> list[str]:
    if not sheet.header:
        return ["the file is empty"]
    missing = missing_header(sheet.header)
    if missing:
        return [missing]
    problems = twice_named(sheet.header)
    problems += [f"column {n} has no name" for n, name in enumerate(sheet.header, 1) if not name]
    return problems if sheet.rows else [*problems, "there are no rows below the header"]


def missing_header(names: Sequence[str]) -> str:
    """What is to be said of names that may be the cells of a row; "" where there is nothing."""
    numbers = [n for n, name in enumerate(names, 1) if is_number(name)]
    return f"the name of column {numbers[0]} is a number: is the header missing?" if numbers else ""


def twice_named(names: Sequence[str]) -> list[str]:
    """Which columns have a name that another has; it is not quoted, as it may be a cell where there is no header."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names, 1):
        places.setdefault(name, []).append(place)
    return [
        f"columns {', '.join(map(str, own[:-1]))} and {own[-1]} have the same name"
        for name, own in places.items()
        if name and len(own) > 1
    ]


def is_number(text: str) -> bool:
    """Whether a text is a number as people write it: no underscores, which Python would allow."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def some_lines(lines: Sequence[int], line: str = "line", most: int = 5) -> str:
    """The first of some lines in words, with a verb: "line 7 has", "lines 7, 9 and 12 more have"."""
    named = ", ".join(map(str, lines[:most]))
    if len(lines) > most:
        named += f" and {len(lines) - most} more"
    return f"{line} {named} has" if len(lines) == 1 else f"{line}s {named} have"


def paths_of(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[Path]:
    """Return the files of a glob, sorted, or of a list, as listed.

    Raises
    ------
    FileNotFoundError
        No file matches.
    ValueError
        The list is empty, or one file is there twice, by its name or by a link.
    """
    if isinstance(files, (str, os.PathLike)):
        pattern = os.path.expanduser(files)
        paths = [Path(name) for name in sorted(glob.glob(pattern, recursive=True), key=natural)]
        if not paths:
            raise FileNotFoundError(f"no file matches {os.fspath(files)!r}")
    else:
        paths = [Path(os.path.expanduser(path)) for path in files or ()]
        if not paths:
            raise ValueError("files is an empty list")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ValueError(f"files lists {twice[0]} more than once; its rows would count as often")
    found: dict[tuple[int, int], Path] = {}
    for path in paths:
        if path.exists():
            status = path.stat()
            first = found.setdefault((status.st_dev, status.st_ino), path)
            if first is not path:
                raise ValueError(f"{first} and {path} are one file by a link; its rows would count twice")
    return paths


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that compares runs of digits by value: site2 before site10."""
    parts = re.split(r"(\d+)", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def site_names(paths: list[Path]) -> tuple[str, ...]:
    """The names of agents after their files: the shortest that differ."""
    stems, whole = tuple(path.stem for path in paths), tuple(map(str, paths))
    for names in (stems, whole):
        if len(set(names)) == len(names):
            return names
    # the same path on different machines
    return tuple(f"agent {i}" for i in range(len(paths)))
