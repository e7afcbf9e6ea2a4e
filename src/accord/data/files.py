"""Read CSV files: find them, split them into cells, and report what is wrong with their format."""

from __future__ import annotations

import codecs
import csv
import glob
import io
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import unknown_name_error

# Texts that mean a missing value.
BLANKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
# Signs at the beginning of a line of comments.
_COMMENTS = ("#", "%", "//", "--", "!", "*", "'")
# Separators that messages can suggest.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_DECIMALS = (".", ",")
_THOUSANDS = (",", ".", " ", "'")
# Translation of no-break and thin spaces, and of the Swiss apostrophe, to the signs of `_THOUSANDS`.
_AS_TYPED = str.maketrans(
    "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\N{RIGHT SINGLE QUOTATION MARK}", "   '"
)


@dataclass(frozen=True)
class Dialect:
    """Format of a CSV file.

    Parameters
    ----------
    separator : str, default ","
        Separator of cells: one character.
    decimal : {".", ","}, default "."
        Decimal separator.
    thousands : str, optional
        Thousands separator: one of ``",", ".", " ", "'"``. A space also matches no-break spaces.
    encoding : str, default "utf-8"
        A Python codec, such as ``"cp1252"`` or ``"utf-16"``.
    header : int, default 1
        Number of the line with the column names, from 1. Lines above it are ignored.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    header: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.thousands, str):
            object.__setattr__(self, "thousands", self.thousands.translate(_AS_TYPED))
        if not isinstance(self.separator, str) or len(self.separator) != 1 or self.separator in '"\r\n':
            raise ValueError(f'separator must be one character, such as ";" or "\\t", found {self.separator!r}')
        if self.decimal not in _DECIMALS:
            raise ValueError(f'decimal must be "." or ",", found {self.decimal!r}')
        if self.thousands is not None and self.thousands not in _THOUSANDS:
            raise ValueError(f"thousands must be one of {', '.join(map(repr, _THOUSANDS))}, found {self.thousands!r}")
        if self.thousands == self.decimal:
            raise ValueError(f"decimal and thousands must differ, found {self.decimal!r} for both")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ValueError(
                f'encoding must be a codec that Python knows, such as "cp1252" or "utf-16", found {self.encoding!r}'
            ) from None
        if isinstance(self.header, bool) or not isinstance(self.header, int) or self.header < 1:
            raise ValueError(f"header must be the number of a line, from 1, found {self.header!r}")

    def number(self, text: str) -> float | None:
        """The number in a text, or None if it is not a number. Python's own forms such as ``1_000`` do not count."""
        if self.thousands is not None:
            text = text.translate(_AS_TYPED)
        if self.thousands is not None and self.thousands in text:
            if not re.fullmatch(self._grouped, text):
                return None
            text = text.replace(self.thousands, "")
        if self.decimal == ",":
            if "." in text:
                return None
            text = text.replace(",", ".")
        try:
            found = float(text)
        except ValueError:
            return None
        return None if "_" in text else found

    @property
    def _grouped(self) -> str:
        sign = re.escape(self.thousands or "")
        return rf"[+-]?[1-9]\d{{0,2}}({sign}\d{{3}})+({re.escape(self.decimal)}\d*)?([eE][+-]?\d+)?"

    def level(self, text: str) -> str:
        """The name of a level: with a decimal point, and "1" for "1.0", which is how pandas may write integers."""
        if self.decimal == "," and self.number(text) is not None:
            text = text.translate(_AS_TYPED).replace(self.thousands or "", "").replace(",", ".")
        whole, zero = text[:-2], text[-2:]
        return whole if zero == ".0" and whole.lstrip("+-").isdecimal() else text

    def alternatives(self, texts: Sequence[str]) -> str:
        """Other values of `decimal` and `thousands` for which all texts are numbers, joined by "or", or ""."""
        found, signs = [], set().union(*(text.translate(_AS_TYPED) for text in texts))
        for thousands in (None, *_THOUSANDS):
            for decimal in _DECIMALS:
                if thousands == decimal:
                    continue
                other = replace(self, decimal=decimal, thousands=thousands)
                # a thousands separator that no text has is redundant
                if all(other.number(text) is not None for text in texts) and (not thousands or thousands in signs):
                    options = {name: getattr(other, name) for name in ("decimal", "thousands")}
                    changed = {k: v for k, v in options.items() if v != getattr(self, k)}
                    found.append(" and ".join(f'{k} = "{v}"' if v else f"no {k}" for k, v in changed.items()))
        return " or ".join(found)


@dataclass(frozen=True)
class Dialects:
    """Formats of the files of all sites: each option of `Dialect` is one value, or a mapping by site."""

    separator: str | Mapping[str, str] = ","
    decimal: str | Mapping[str, str] = "."
    thousands: str | None | Mapping[str, str] = None
    encoding: str | Mapping[str, str] = "utf-8"
    header: int | Mapping[str, int] = 1

    def __post_init__(self) -> None:
        for site in ("", *self._named):
            self.at(site)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(own.name for own in fields(cls))

    @classmethod
    def pop_from(cls, options: dict[str, Any]) -> Dialects:
        """The formats in a dict of options of `study`, which are removed from the dict."""
        return cls(**{name: options.pop(name) for name in cls.options() if name in options})

    def at(self, site: str) -> Dialect:
        """The format of a site."""
        options = {}
        for own in fields(self):
            value = getattr(self, own.name)
            options[own.name] = value.get(site, own.default) if isinstance(value, Mapping) else value
        return Dialect(**options)

    @property
    def of_one_file(self) -> Dialect:
        """The format of a single file for all sites.

        Raises
        ------
        ValueError
            An option is a mapping by site.
        """
        if self._named:
            raise ValueError("a single file for all sites has one format, found options by site")
        return self.at("")

    def require_sites(self, sites: Sequence[str]) -> None:
        """Raise `ValueError` if an option names an unknown site."""
        for name in self._named:
            if name not in sites:
                raise unknown_name_error("site of an option such as decimal", name, sites)

    @property
    def _named(self) -> list[str]:
        values = [getattr(self, own.name) for own in fields(self)]
        return list(dict.fromkeys(site for value in values if isinstance(value, Mapping) for site in value))


@dataclass(frozen=True, eq=False, repr=False)
class Sheet:
    """The cells of one file, as stripped text.

    Parameters
    ----------
    header : list of str
        The names in the header line, "" for unnamed columns.
    rows : list of list of str
        The cells below, with the length of the header.
    lines : list of int
        The line in which each row ends, from 1.
    problems : list of str
        What is wrong with the file, without quoting a cell.
    """

    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The named columns as arrays of text, shape (row,). An index has no name."""
        cells = np.array(self.rows, object).T
        return {name: own for name, own in zip(self.header, cells, strict=True) if name}


def read_sheet(path: Path, dialect: Dialect) -> Sheet:
    """Read a CSV file in one pass, which allows pipes. Problems are in the sheet, never exceptions."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Sheet(problems=["there is no such file"])
    except OSError as error:
        return Sheet(problems=[f"the file cannot be read: {error.strerror}"])
    for begins, found in _NO_TEXT.items():
        if content.startswith(begins):
            return Sheet(problems=[f"the file is {found}, not text: save it as CSV"])
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and codecs.lookup(dialect.encoding).name == "utf-8":
        return Sheet(problems=['the file is UTF-16 text: write encoding = "utf-16"'])
    try:
        # the byte order mark of spreadsheets is not part of the first name
        text = content.decode(dialect.encoding).removeprefix("\N{BYTE ORDER MARK}")
    except (UnicodeError, LookupError):
        return Sheet(problems=[f"the file is not {dialect.encoding.upper()} text: {_ENCODINGS}"])
    if codecs.lookup(dialect.encoding).name in _OF_BYTES and _is_utf8(content):
        return Sheet(problems=['the file is UTF-8 text: write encoding = "utf-8"'])
    sheet, ragged = _cells_of(text, dialect)
    if sheet.problems or ragged or len(sheet.header) == 1:
        sheet.problems[:] = _shape_problems(sheet, ragged, text, dialect)
    if not sheet.problems:
        sheet.problems.extend(_header_problems(sheet, dialect.header))
    return sheet


# First bytes of common formats that are not text.
_NO_TEXT = {b"\x1f\x8b": "compressed (gzip)", b"PK\x03\x04": "a workbook or a zip archive", b"PAR1": "Parquet"}
# Single-byte encodings, which decode UTF-8 to wrong letters.
_OF_BYTES = ("cp1252", "iso8859-1", "iso8859-15", "cp850", "mac-roman")
_ENCODINGS = 'write its encoding, such as encoding = "cp1252" (Excel and R in Western Europe), "latin-1" or "utf-16"'


def _is_utf8(content: bytes) -> bool:
    """Whether the content has bytes beyond ASCII and all are UTF-8, which is rare in single-byte encodings."""
    try:
        return not content.decode("utf-8").isascii()
    except UnicodeError:
        return False


def _cells_of(text: str, dialect: Dialect) -> tuple[Sheet, dict[int, int]]:
    """The cells of a text. The dict has the number of cells of each line that has more or fewer than the header."""
    sheet, ragged = Sheet(), dict[int, int]()
    lines = io.StringIO(text, newline="")
    above = sum(1 for _ in itertools.islice(lines, dialect.header - 1))
    reader = csv.reader(lines, delimiter=dialect.separator, skipinitialspace=True, strict=True)
    end = 0
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            begin, end = end, reader.line_num
            if not sheet.header and cells[:1] and re.fullmatch("sep=.?", cells[0]):
                # the line above the header in which Excel names the separator
                continue
            if not sheet.header:
                sheet.header.extend(cells)
            elif end - begin > 2 and any(_holds_rows(cell, dialect.separator, len(sheet.header)) for cell in cells):
                where = f"the quoted cell that ends in line {above + end}"
                sheet.problems.append(f"{where} holds whole rows: is a quotation mark missing or extra?")
                break
            elif len(cells) == len(sheet.header):
                sheet.rows.append(cells)
                sheet.lines.append(above + end)
            elif cells:  # an empty line is not a row
                ragged[above + end] = len(cells)
    except csv.Error as error:
        # messages of csv.Error never quote a cell
        sheet.problems.append(f"line {above + reader.line_num} cannot be read as CSV: {error}")
    return sheet, ragged


def _holds_rows(cell: str, separator: str, columns: int) -> bool:
    """Whether all inner lines of a cell have the number of separators of a row."""
    within = cell.splitlines()[1:-1]
    return columns > 1 and bool(within) and all(line.count(separator) == columns - 1 for line in within)


def _shape_problems(sheet: Sheet, ragged: dict[int, int], text: str, dialect: Dialect) -> list[str]:
    """Problems with the number of cells per row, or with a header of one cell."""
    for separator, word in _SEPARATORS.items() if not _fits(sheet, ragged, text, dialect) else ():
        parted, rest = _cells_of(text, replace(dialect, separator=separator))
        begin = _header_line(parted, rest, text, replace(dialect, separator=separator))
        is_table = not rest and len(parted.header) > 1
        if separator == dialect.separator or parted.problems or not (is_table or begin):
            continue
        options = [f'separator = "{separator}"'.replace("\t", "\\t")]
        if begin:
            parted, _ = _cells_of(text, replace(dialect, separator=separator, header=begin))
        comma = replace(dialect, decimal=",")
        cells = {cell for row in parted.rows for cell in row}
        if any(dialect.number(cell) is None and comma.number(cell) is not None for cell in cells):
            options.append('decimal = ","')
        if begin:
            options.append(f"header = {begin}")
        *most, last = options
        found = _lengths(sheet, ragged)
        return [f"{found}. Are cells separated by {word}? Write {', '.join(most)}{' and ' if most else ''}{last}"]
    if sheet.problems or not ragged:
        return sheet.problems
    found = _lengths(sheet, ragged)
    if begin := _header_line(sheet, ragged, text, dialect) or _lower_header(sheet):
        return [f"{found}. Is the header in line {begin}? Write header = {begin}"]
    if not sheet.rows and set(ragged.values()) == {len(sheet.header) + 1}:
        return [
            f"all rows have one cell more than the header ({len(sheet.header)}): name the column of row names, which R "
            "does with col.names = NA, or delete separators at the ends of rows"
        ]
    is_below = len(ragged) < len(sheet.rows) and min(ragged) > sheet.lines[-1]
    if is_below and max(ragged.values()) < len(sheet.header):
        return [f"{found}: delete lines below the table"]
    return [found]


def _fits(sheet: Sheet, ragged: dict[int, int], text: str, dialect: Dialect) -> bool:
    """Whether the separator parts most lines. Commas and spaces, which cells may have, must also part a header."""
    several = len(sheet.rows) * (len(sheet.header) > 1) + sum(count > 1 for count in ragged.values())
    if sheet.problems or 2 * several <= len(sheet.rows) + len(ragged):
        return False
    if begin := _header_line(sheet, ragged, text, dialect):
        sheet, _ = _cells_of(text, replace(dialect, header=begin))
    is_header = _is_header(sheet.header, sheet.rows) and not re.search(r"\d", "".join(sheet.header))
    return dialect.separator not in ", " or is_header


def _lengths(sheet: Sheet, ragged: dict[int, int]) -> str:
    """The number of columns of the header, and the lines with more or fewer."""
    columns = len(sheet.header)
    found = f"the header has {columns} column{'' if columns == 1 else 's'}"
    differs = sorted({"more" if count > columns else "fewer" for count in ragged.values()})
    return f"{found}, {some_lines(list(ragged))} {' or '.join(differs)} cells" if ragged else found


def _header_line(sheet: Sheet, ragged: dict[int, int], text: str, dialect: Dialect) -> int | None:
    """The line of the likely header below other text: the first of the longer rows, if most rows are longer."""
    if not ragged:
        return None
    usual, times = Counter(ragged.values()).most_common(1)[0]
    is_comment = sheet.header[0].startswith(_COMMENTS)
    if usual <= (1 if is_comment else len(sheet.header)) or times <= len(sheet.rows):
        return None
    begin = next(line for line, count in ragged.items() if count == usual)
    if usual <= len(sheet.header) + 1:
        # rows with names, which R writes without a name for their column, are one longer too
        below, _ = _cells_of(text, replace(dialect, header=begin))
        return begin if _is_header(below.header, below.rows) else None
    return begin


def _is_header(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column has a name in letters and only numbers below."""
    numbers = [[cell for cell in cells if cell not in BLANKS] for cells in zip(*rows, strict=True)]
    return any(
        own and name not in BLANKS and name[:1].isalpha() and all(_is_number(cell) for cell in own)
        for name, own in zip(names, numbers, strict=False)
    )


def _is_number(text: str) -> bool:
    number = Dialect().number(text)
    if number is None:
        number = Dialect(decimal=",").number(text)
    return number is not None and math.isfinite(number)


def _lower_header(sheet: Sheet) -> int | None:
    """The line of the likely header below a title or a comment that has as many cells as a row."""
    names = sheet.header
    is_comment = names[0].startswith(_COMMENTS)
    if "" not in names[1:] and not is_comment:
        return None
    most = 0 if is_comment else sum(map(bool, names))
    for place, row in enumerate(sheet.rows):
        if row[0].startswith(_COMMENTS):
            continue
        if sum(map(bool, row)) > most:
            is_header = not any(map(_is_number, row)) and _is_header(row, sheet.rows[place + 1 :])
            return sheet.lines[place] if is_header else None
    return None


def _header_problems(sheet: Sheet, line: int) -> list[str]:
    if not sheet.header:
        return ["the file is empty" if line == 1 else f"there is no line {line}, where the header should be"]
    if begin := _lower_header(sheet):
        return [f"line {line} looks like a title or a comment. Is the header in line {begin}? Write header = {begin}"]
    # a row of data has no names above numbers
    numbers = [n for n, name in enumerate(sheet.header, 1) if _is_number(name)]
    below = {n: [row[n - 1] for row in sheet.rows] for n in numbers}
    doubtful = [n for n, cells in below.items() if not _is_name(sheet.header[n - 1], cells, len(numbers) == 1)]
    if numbers and (2 * len(doubtful) >= sum(map(bool, sheet.header)) or not _is_header(sheet.header, sheet.rows)):
        return [
            f"the name of column {numbers[0]} is a number: is the header missing? If it is a name, begin it with a "
            "letter, such as y2019"
        ]
    problems = twice_named(sheet.header)
    if not any(sheet.header):
        problems.append("no column has a name")
    return problems if sheet.rows else [*problems, "there are no rows below the header"]


def _is_name(number: str, cells: Sequence[str], alone: bool) -> bool:
    """Whether a number above cells is a name: a year or, if alone, a whole number, unless most cells look like it."""
    year = r"(19|20)\d\d"
    alike = year if re.fullmatch(year, number) else rf"\d{{{len(number)}}}" if alone and number.isdecimal() else ".*"
    return 2 * sum(re.fullmatch(alike, cell) is not None for cell in cells) < len(cells)


def twice_named(names: Sequence[str]) -> list[str]:
    """Messages about columns with the same name. They quote no name, which may be a cell if the header is missing."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names, 1):
        places.setdefault(name, []).append(place)
    return [
        f"columns {', '.join(map(str, own[:-1]))} and {own[-1]} have the same name"
        for name, own in places.items()
        if name and len(own) > 1
    ]


def some_lines(lines: Sequence[int], line: str = "line", most: int = 5) -> str:
    """Line numbers with a verb: "line 7 has", "lines 7, 9 and 12 more have"."""
    named = ", ".join(map(str, lines[:most]))
    if len(lines) > most:
        named += f" and {len(lines) - most} more"
    return f"{line} {named} has" if len(lines) == 1 else f"{line}s {named} have"


def paths_of(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[Path]:
    """The files of a glob pattern, sorted by name, or of a list, in its order.

    Raises
    ------
    FileNotFoundError
        No file matches.
    ValueError
            The list is empty, or lists a file twice, by name or by a link.
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
        raise ValueError(f"files lists {twice[0]} more than once: its rows would count more than once")
    found: dict[tuple[int, int], Path] = {}
    for path in paths:
        if path.exists():
            status = path.stat()
            first = found.setdefault((status.st_dev, status.st_ino), path)
            if first is not path:
                raise ValueError(f"{first} and {path} are links to one file: its rows would count twice")
    return paths


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that compares runs of digits by value: site2 before site10."""
    parts = re.split(r"(\d+)", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def site_names(paths: list[Path]) -> tuple[str, ...]:
    """Names of agents: the stems of their files if these differ, else the whole paths."""
    stems, whole = tuple(path.stem for path in paths), tuple(map(str, paths))
    for names in (stems, whole):
        if len(set(names)) == len(names):
            return names
    # the same path on different machines
    return tuple(f"agent {i}" for i in range(len(paths)))
