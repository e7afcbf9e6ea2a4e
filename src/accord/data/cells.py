"""Parse the cells of a site into numbers, yes-no values and factors. No message quotes a cell."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..base.errors import unknown_name_error
from .files import BLANKS, Dialect, some_lines
from .policy import Policy

UNITS = {"days": 1.0, "years": 365.2425}
_BOOLEANS = {"true": 1.0, "false": 0.0}
# Smallest whole number above which float64 skips whole numbers.
WHOLE = 2.0**53
# Common codes for missing values.
MISSING_WORDS = frozenset(
    [
        *("#N/A", "#N/A N/A", "#NA", "#NV", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!"),
        *(".", "?", "-", "--", "na", "Na", "n/a", "n.a.", "None", "Null", "<NA>", "NA_character_", "NaT", "nil"),
        *(
            "\\N",
            "(null)",
            "<null>",
            "-9",
            "-99",
            "-999",
            "999",
            "9999",
            "._",
            *(f".{c}" for c in string.ascii_uppercase),
        ),
    ]
)
# Words for missing values in any case. A factor may have them as levels, so that no warning names the last ones.
_MISSING = {word.lower() for word in MISSING_WORDS} | {"unknown", "missing", "none", "n.d.", "not done", "no data"}
# A number before or after a currency, a percent sign or a common unit of measurement. Labels such as 3G have no space.
_AMOUNT = r"[+-]?\d[\d.,']*(e[+-]?\d+)?"
_UNIT = (
    r"([kmcdnp\u00b5\u03bcu]?(g|l|m|mol|eq|iu)|mm ?hg|k?pa|cmh2o|k?cal|k?j|bpm|hz|lbs?|oz|inch|min|h|hrs?|hours?|days?|"
    r"weeks?|months?|mo|yrs?|years?|iu)"
)
_WITH_UNIT = re.compile(
    rf"(?!\d+[a-gi-z]$)([+-]?(\p|eur|usd|gbp|chf) ?{_AMOUNT}|{_AMOUNT} ?(\p|eur|usd|gbp|chf|\u00b0 ?[cf]?|"
    rf"{_UNIT}[23\u00b2\u00b3]?(/{_UNIT}[23\u00b2\u00b3]?)*))".replace(r"\p", r"[%\u2030$\u20ac\u00a3\u00a5]"),
    re.IGNORECASE,
)
# A negative number with a dash of Unicode, in parentheses, or with the sign at the end.
_DASHES = "[\u2010-\u2015\u2212\ufe63\uff0d]"
_NEGATIVE = re.compile(rf"{_DASHES} ?(\W?\d.*)|\((\W?\d.*)\)|(\W?\d.*)-")
# Largest number of levels of a factor.
_MOST_LEVELS = 5_000
# Date formats that messages can suggest.
_DATES = tuple(
    day + time
    for day in (
        *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y", "%d %b %Y"),
        *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    )
    for time in (
        "",
        " %H:%M",
        " %H:%M:%S",
        " %H:%M:%S.%f",
        "T%H:%M:%S",
        "T%H:%M:%S.%f",
        "T%H:%M:%S%z",
        "T%H:%M:%S.%f%z",
    )
)


@dataclass(frozen=True)
class Dates:
    """Date format of a column, with the origin and unit of the resulting numbers.

    Parameters
    ----------
    format : str or mapping
        A `strptime` format such as ``"%Y-%m-%d"``, or a mapping from the name of each site to its format.
    since : str, default "1970-01-01"
        The date that becomes 0, as year-month-day.
    unit : {"days", "years"}, default "days"
        A year has 365.2425 days.
    """

    format: str | Mapping[str, str]
    since: str = "1970-01-01"
    unit: str = "days"

    def __post_init__(self) -> None:
        formats = list(self.format.values()) if isinstance(self.format, Mapping) else [self.format]
        if not formats or not all(isinstance(form, str) for form in formats):
            raise ValueError(
                "format of dates must be a text such as '%Y-%m-%d', or a mapping with one for each site, found "
                f"{self.format!r}"
            )
        if self.unit not in UNITS:
            raise unknown_name_error("unit of dates", self.unit, UNITS)
        try:
            date.fromisoformat(self.since)
        except (TypeError, ValueError):
            raise ValueError(f"since of dates must be a date such as 1970-01-01, found {self.since!r}") from None

    def require_sites(self, name: str, sites: Sequence[str]) -> None:
        """Raise `ValueError` if formats by site miss a site or name an unknown one."""
        if isinstance(self.format, str):
            return
        for site in self.format:
            if site not in sites:
                raise unknown_name_error(f"site in dates of {name!r}", site, sites)
        lacking = [site for site in sites if site not in self.format]
        if lacking:
            raise ValueError(f"dates of {name!r} have no format for {', '.join(lacking)}")

    def at(self, site: str) -> str:
        """The format of a site. Raises `ValueError` if it has none."""
        if isinstance(self.format, str):
            return self.format
        if site not in self.format:
            raise ValueError(f"dates have formats by site, but none for {site}")
        return self.format[site]

    def number(self, text: str, form: str) -> float:
        """Time from `since` to a date in UTC, in `unit`. Raises `ValueError` if the text has another format."""
        time = datetime.strptime(text, form)
        if time.tzinfo is not None:
            time = time.astimezone(UTC).replace(tzinfo=None)
        return self.from_days((time - datetime(1970, 1, 1)) / timedelta(days=1))

    def from_days(self, days: Any) -> Any:
        """Convert days since 1970-01-01 to units since `since`."""
        return (days - (date.fromisoformat(self.since) - date(1970, 1, 1)).days) / UNITS[self.unit]


@dataclass(frozen=True)
class Rules:
    """Parsing rules of columns, see `study`."""

    dates: Mapping[str, Dates] = field(default_factory=dict)
    positive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strings: tuple[str, ...] = ()
    # by column, the level of each spelling
    spellings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    blanks: tuple[str, ...] = BLANKS
    groups: tuple[str, ...] = ()
    # factors that only the formula names, as in C(size)
    coded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        dates: Mapping[str, str | Mapping[str, Any] | Dates] | None,
        positive: Mapping[str, str | Sequence[str]] | None,
        strings: Sequence[str] | Mapping[str, Mapping[str, str | Sequence[str]]],
        blanks: Sequence[str],
        factors: Sequence[str],
        groups: Sequence[str],
    ) -> Rules:
        """The rules from the arguments of `study`, with the factors and groups of its formula."""
        named = _words("strings", list(strings) if isinstance(strings, Mapping) else strings)
        return cls(
            {name: _dates(name, value) for name, value in (dates or {}).items()},
            {name: _words(f"positive of {name!r}", value) for name, value in (positive or {}).items()},
            (*named, *factors),
            {name: _spellings(name, own) for name, own in strings.items()} if isinstance(strings, Mapping) else {},
            tuple(dict.fromkeys([*BLANKS, *_words("blanks", blanks)])),
            tuple(groups),
            tuple(name for name in factors if name not in named),
        )

    @property
    def named(self) -> list[str]:
        """The columns with a rule."""
        return [*self.dates, *self.positive, *self.strings]

    def reader(
        self, site: str, name: str, dialect: Dialect
    ) -> Callable[[np.ndarray, Bool[np.ndarray, " row"]], Reading]:
        """The function that parses the cells of a column of a site."""
        if name in self.dates:
            return partial(_days, self.dates[name], self.dates[name].at(site))
        texts = partial(_texts, dialect, self.spellings.get(name, {}))
        if name in self.positive:
            return partial(_yes_no, texts, [dialect.level(word) for word in self.positive[name]])
        if name in self.groups:
            return partial(_group, texts)
        return partial(_factor, texts) if name in self.strings else partial(_unruled, dialect, texts)

    def blanks_of(self, name: str) -> list[str]:
        """The texts that mean a missing value in a column, without those that are named as its levels."""
        return [word for word in self.blanks if word not in self.spellings.get(name, ())]

    def require_sites(self, sites: Sequence[str]) -> None:
        """Raise `ValueError` if date formats by site do not match these sites."""
        for name, dates in self.dates.items():
            dates.require_sites(name, sites)


def _spellings(name: str, levels: Any) -> dict[str, str]:
    """A mapping from each spelling, and from each level itself, to the level."""
    if not isinstance(levels, Mapping):
        raise ValueError(f'strings of {name!r} must be a table of levels, as {{F = ["f", "female"]}}, found {levels!r}')
    found = {level: level for level in levels}
    for level, words in levels.items():
        for word in _words(f"the spellings of {level!r} in strings of {name!r}", words):
            if found.setdefault(word, level) != level:
                raise ValueError(f"strings of {name!r}: {word!r} is listed for two levels")
    return found


def _dates(name: str, value: str | Mapping[str, Any] | Dates) -> Dates:
    if isinstance(value, str):
        return Dates(value)
    if isinstance(value, Mapping):
        try:
            return Dates(**value)
        except TypeError:
            raise ValueError(f"dates of {name!r} must have format, and may also have since and unit") from None
    if not isinstance(value, Dates):
        raise ValueError(f"dates of {name!r} must be a format such as '%Y-%m-%d', found {value!r}")
    return value


def _words(what: str, value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{what} must be a text or a list of texts, found {value!r}")
    return tuple(words)


# A function from cells to names of levels.
Texts = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """The parsed cells of a column.

    Parameters
    ----------
    kind
        "number", "yes-no", "factor", "group" (a factor whose levels stay at the site), "empty" (all cells are missing)
        or "unclear".
    values
        Shape (row,): float64 with NaN for missing cells, or texts with "".
    problem, rows
        A problem with the cells of these rows, or "".
    zero
        For a column in `positive`, the text that is coded as 0.
    """

    kind: str
    values: np.ndarray
    problem: str = ""
    rows: Sequence[int] = ()
    zero: str = ""


class AboutCells(str):
    """A problem with some cells and their lines.

    Attributes
    ----------
    elsewhere
        The message for other sites and the server, without lines and their number. From these, a study that names
        `blanks` or `dates` could learn which rows have a value.
    """

    elsewhere: str

    @classmethod
    def of(cls, text: str, *, elsewhere: str) -> AboutCells:
        """A problem, and its message for others."""
        found = cls(text)
        found.elsewhere = elsewhere
        return found


@dataclass(frozen=True, eq=False, repr=False)
class SiteTable:
    """The parsed rows of one site.

    Parameters
    ----------
    name : str
        Name of the site.
    policy : Policy
        Policy of the site.
    kinds : dict of str
        Kind of each column, as in `Reading`.
    values : dict of arrays
        Values of each column, shape (row,).
    absent : dict of arrays
        For each column, True at missing cells, shape (row,).
    lines : sequence of int
        Line of each row in the file.
    where, line : str
        Names for messages: the site with its file, and the word for a row.
    zeros : dict of str
        For each column in `positive`, the text that is coded as 0.
    """

    name: str
    policy: Policy
    kinds: dict[str, str]
    values: dict[str, np.ndarray]
    absent: dict[str, Bool[np.ndarray, " row"]]
    lines: Sequence[int]
    where: str
    line: str = "line"
    zeros: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def present(self, name: str) -> np.ndarray:
        """The values of a column at cells that are not missing."""
        return self.values[name][~self.absent[name]]

    def cell_problem(self, column: str, rows: Sequence[int], what: str) -> AboutCells:
        """The message about some rows of a column."""
        where = f"{self.where}: column {column!r}"
        lines = some_lines([int(self.lines[row]) for row in rows], self.line)
        elsewhere = f"{where}: some cells have {what}. The site's own log lists the lines"
        return AboutCells.of(f"{where}: {lines} {what}", elsewhere=elsewhere)

    def only(self, kept: Bool[np.ndarray, " row"]) -> SiteTable:
        """The table with the rows in a mask only."""
        return replace(
            self,
            values={name: values[kept] for name, values in self.values.items()},
            absent={name: absent[kept] for name, absent in self.absent.items()},
            lines=np.asarray(self.lines)[kept],
        )

    def as_agreed(self, kinds: Mapping[str, str]) -> SiteTable:
        """The table with these kinds. A column that is empty here gets the kind that it has at other sites."""
        texts, numbers = np.full(self.rows, "", object), np.full(self.rows, np.nan)
        empty = {"factor": texts, "group": texts, "number": numbers, "yes-no": numbers}
        values = {
            name: empty[kind] if self.kinds[name] == "empty" else self.values[name] for name, kind in kinds.items()
        }
        # missing cells are reported even for columns without an agreed kind
        absent = {name: cells for name, cells in self.absent.items() if name in kinds or self.kinds[name] != "empty"}
        return replace(self, kinds=dict(kinds), values=values, absent=absent)


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """The cells of a site before parsing.

    Parameters
    ----------
    name, where, line
        The name of the site, and names for messages: the site with its file, and the word for a row.
    policy
        Policy of the site.
    columns
        Arrays of shape (row,): texts of a file, or arrays from memory.
    lines
        Line or number of each row.
    dialect
        Number format.
    """

    name: str
    where: str
    line: str
    policy: Policy
    columns: dict[str, np.ndarray]
    lines: Sequence[int]
    dialect: Dialect = Dialect()

    def part(self, name: str, rows: Bool[np.ndarray, " row"], policy: Policy) -> Source:
        """The rows in a mask, as a source with another name."""
        columns = {column: cells[rows] for column, cells in self.columns.items()}
        lines = np.asarray(self.lines)[rows]
        return replace(self, name=name, where=f"{name} ({self.where})", policy=policy, columns=columns, lines=lines)

    def table(self, columns: Sequence[str], rules: Rules) -> tuple[SiteTable, list[str]]:
        """The table of these columns, and the problems with its cells."""
        kinds, values, absent, wrong, zeros = {}, {}, {}, {}, {}
        for name in columns:
            cells, absent[name] = _cells(self.columns[name], rules.blanks_of(name), self.dialect)
            read = rules.reader(self.name, name, self.dialect)
            reading = _empty(cells) if absent[name].all() else read(cells, absent[name])
            kinds[name], values[name], zeros[name] = reading.kind, reading.values, reading.zero
            if reading.problem:
                wrong[name] = (reading.rows, reading.problem)
        table = SiteTable(self.name, self.policy, kinds, values, absent, self.lines, self.where, self.line, zeros)
        return table, [table.cell_problem(name, *found) for name, found in wrong.items()]


def _cells(raw: np.ndarray, blanks: Sequence[str], dialect: Dialect) -> tuple[np.ndarray, Bool[np.ndarray, " row"]]:
    """Cells as float64 or text, and a mask of missing cells. A numeric blank matches in every number format."""
    codes = [number for word in blanks if (number := Dialect().number(word)) is not None and np.isfinite(number)]
    if raw.dtype.kind in "iu" and np.abs(raw.astype(np.float64)).max(initial=0.0) >= WHOLE:
        # texts keep whole numbers apart that float64 would merge
        raw = raw.astype(str).astype(object)
    if raw.dtype.kind in "biuf":
        numbers = raw.astype(np.float64)
        return numbers, np.isnan(numbers) | np.isin(numbers, codes)
    if raw.dtype.kind == "M":
        # days since 1970-01-01
        days = raw.astype("datetime64[us]").astype(np.int64) / 86_400e6
        return np.where(np.isnat(raw), np.nan, days), np.isnat(raw)
    # NaN and similar objects, which differ from themselves, are missing
    texts = ["" if cell is None or cell != cell else str(cell).strip() for cell in raw.tolist()]
    none = {text for text in set(texts) if text in blanks or (codes and dialect.number(text) in codes)}
    return np.array(texts, object), np.array([text in none for text in texts], bool)


def _empty(cells: np.ndarray) -> Reading:
    return Reading("empty", np.full(len(cells), np.nan))


def _filled(values: Sequence[float | None], absent: Bool[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """An array with these values at the cells that are not missing, and NaN at the others."""
    filled = np.full(len(absent), np.nan)
    filled[~absent] = values
    return filled


def _unruled(dialect: Dialect, texts: Texts, cells: np.ndarray, absent: Bool[np.ndarray, " row"]) -> Reading:
    """Parse a column without a rule: as booleans, numbers or texts if all its cells are."""
    if cells.dtype != object:
        return _numbers(cells, absent)
    present, rows = cells[~absent].tolist(), np.flatnonzero(~absent)
    if all(cell.lower() in _BOOLEANS for cell in present):
        return Reading("yes-no", _filled([_BOOLEANS[cell.lower()] for cell in present], absent))
    known = {cell: dialect.number(cell) for cell in set(present)}
    values = [known[cell] for cell in present]
    numeric = np.array([value is not None for value in values])
    if numeric.all():
        return _numbers(_filled(values, absent), absent)
    problem, alike = _suggestion(dialect, Counter(present), [cell for cell, value in known.items() if value is None])
    if problem:
        is_alike = np.isin(np.array(present, object).astype(str), list(alike))
        if not (numeric | is_alike).all():
            problem += ". Correct the other texts, or name them in blanks if they are missing"
        return Reading("unclear", cells, problem, rows[is_alike].tolist())
    if not numeric.any():
        return _factor(texts, cells, absent)
    remedy = "correct them, name them in blanks if they are missing, or name the column in strings if it is a factor"
    if numeric.mean() >= 0.5:
        return Reading("unclear", cells, f"a text where others have numbers: {remedy}", rows[~numeric].tolist())
    return Reading("unclear", cells, f"a number where others have texts: {remedy}", rows[numeric].tolist())


def _suggestion(dialect: Dialect, cells: Counter[str], texts: Collection[str]) -> tuple[str, Collection[str]]:
    """What the cells of a column may be, with a remedy, and the texts of this form, or "" for plain texts.

    Words for missing values and a tenth of the other cells may have another form.
    """
    numbers = list(cells.keys() - set(texts))
    texts = [text for text in texts if text.lower() not in _MISSING]
    rare = (sum(cells[cell] for cell in numbers) + sum(cells[text] for text in texts)) / 10

    def most(is_form: Callable[[str], Any]) -> list[str]:
        found = [text for text in texts if is_form(text)]
        return found if sum(cells[text] for text in texts) - sum(cells[text] for text in found) <= rare else []

    digits = most(re.compile(r"\d").search)
    options = dialect.alternatives([*numbers, *digits]) if digits else ""
    if options:
        return f"numbers in another format: write {options}, or name the column in strings if it is a factor", digits
    limits = most(lambda text: _is_limit(text, dialect))
    if numbers and limits:
        return (
            'a number after "<" or ">" where others have numbers: replace it by a number, such as half of the limit '
            "of detection, or name the cells in blanks to treat them as missing"
        ), limits
    amounts = most(lambda text: _WITH_UNIT.fullmatch(_with_minus(text)))
    if amounts and len(numbers) + len(amounts) > 1:
        return (
            "numbers with a sign or a unit, such as % or kg: remove it from the cells, or name the column in strings "
            "if it is a factor"
        ), amounts
    negative = most(lambda text: re.fullmatch("-" + _AMOUNT, _with_minus(text), re.IGNORECASE))
    if negative and (numbers or re.match(_DASHES, negative[0])):
        return (
            "negative numbers in another form, such as with a longer dash or in parentheses: begin them with the sign "
            "-, or name the column in strings if it is a factor"
        ), negative
    if digits and not numbers:
        formats = [form for form in _DATES if all(_is_date(text, form) for text in digits)]
        if formats:
            forms = " or ".join(f'"{form}"' for form in formats)
            return f"dates: name the column in dates with the format {forms}, or in strings if it is a factor", digits
    return "", ()


def _with_minus(text: str) -> str:
    """A negative number in another form as a text that begins with a minus. Other texts stay as they are."""
    found = _NEGATIVE.fullmatch(text)
    return text if found is None else "-" + next(filter(None, found.groups()))


def _is_limit(text: str, dialect: Dialect) -> bool:
    limit = re.sub(r"^[<>\u2264\u2265]=?\s*", "", text)
    return limit != text and dialect.number(limit) is not None


def _is_date(text: str, form: str) -> bool:
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def _numbers(values: Float[np.ndarray, " row"], absent: Bool[np.ndarray, " row"]) -> Reading:
    present = values[~absent]
    beyond = np.flatnonzero(~np.isfinite(values) & ~absent)
    if beyond.size:
        return Reading("unclear", values, "no finite float64 number", beyond.tolist())
    return Reading("yes-no" if np.isin(present, (0.0, 1.0)).all() else "number", values)


def _factor(texts: Texts, cells: np.ndarray, absent: Bool[np.ndarray, " row"]) -> Reading:
    values = np.where(absent, "", texts(cells))
    if len(set(values.tolist())) > _MOST_LEVELS:
        problem = f"more than {_MOST_LEVELS:,} different texts, like names of persons: leave the column out"
        return Reading("unclear", cells, problem, np.flatnonzero(~absent).tolist())
    return Reading("factor", values)


def _group(texts: Texts, cells: np.ndarray, absent: Bool[np.ndarray, " row"]) -> Reading:
    return Reading("group", np.where(absent, "", texts(cells)))


def _texts(dialect: Dialect, spellings: Mapping[str, str], cells: np.ndarray) -> np.ndarray:
    """Names of levels. A whole number has the same name in files and in memory: 2, not 2.0."""
    if cells.dtype == object:
        known = {cell: dialect.level(cell) for cell in set(cells.tolist())}
    else:
        cells = np.nan_to_num(cells)
        known = {cell: f"{cell:.17g}" if cell == round(cell) else repr(cell) for cell in set(cells.tolist())}
    named = {cell: spellings.get(str(cell), spellings.get(level, level)) for cell, level in known.items()}
    return np.array([named[cell] for cell in cells.tolist()], object)


def _yes_no(to_texts: Texts, words: Sequence[str], cells: np.ndarray, absent: Bool[np.ndarray, " row"]) -> Reading:
    """1 for cells with one of the words, 0 for the others, which must all be the same text."""
    texts = to_texts(cells)
    ones = np.isin(texts.astype(str), words)
    others = ~ones & ~absent
    usual = [text for text, _ in Counter(texts[others].tolist()).most_common(1)]
    strange = np.flatnonzero(others & ~np.isin(texts.astype(str), usual))
    if strange.size and not ones.any():
        # all rows are listed, as a part of them would reveal the rows of the rarer text
        return Reading("unclear", texts, "several texts, none of them in positive", np.flatnonzero(others).tolist())
    if strange.size:
        problem = (
            "a third text besides the two of a yes-no column: name all spellings of 1 in positive, and all of 0 in "
            'strings, as {COLUMN = {no = ["No", "0"]}}'
        )
        return Reading("unclear", texts, problem, strange.tolist())
    return Reading("yes-no", np.where(absent, np.nan, ones.astype(np.float64)), zero="".join(usual))


def _days(dates: Dates, form: str, cells: np.ndarray, absent: Bool[np.ndarray, " row"]) -> Reading:
    if cells.dtype != object:
        return Reading("number", dates.from_days(cells))
    numbers, wrong = np.full(len(cells), np.nan), []
    for row in np.flatnonzero(~absent):
        try:
            numbers[row] = dates.number(cells[row], form)
        except ValueError:
            wrong.append(int(row))
    if wrong:
        return Reading("unclear", cells, f"no date of the format {form}", wrong)
    return Reading("number", numbers)
