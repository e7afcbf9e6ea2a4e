"""Declared ranges of columns, from which a model follows instead of from rows.

Preprocessing looks at rows: levels, means, standard deviations, missing cells. For differential privacy nothing may
depend on them. So the model is built from made-up rows, uniform in the ranges, and the rows of sites are put through
the same steps without a say in any. What becomes of a row depends on this row only.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.counters import generator
from ..base.errors import DataError
from .collectives import Noisy, Numbers, SiteCollectives, raise_all
from .files import BLANKS, Dialect
from .warnings import far_codes

# The name of the made-up rows among the sites.
MADE_UP = "declared ranges"
# Made-up rows for each level of a factor, and the fewest.
_EACH, _FEWEST = 20, 1000
# Largest share of rows that do not fit, and of numbers beyond their range, with which a site can take part.
ODD = 0.2
# Share of numbers beyond their range above which their owner is warned.
_FEW = 0.01
# A date, with or without a time.
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T].*)?")
# Largest size of a whole number, up to which doubles have all of them.
_LARGEST = 2**53


class Fitted(NamedTuple):
    """Rows of a site within declared ranges.

    Parameters
    ----------
    columns
        The columns of the rows that fit, (row,) each.
    fits
        Which of all rows they are, (row,).
    clipped
        For each column, how many numbers are beyond its range.
    misfits
        For each column, how many cells do not fit.
    codes
        For each column of numbers, how many often mean a missing value, such as 999, and are far from all others.
    """

    columns: dict[str, np.ndarray]
    fits: np.ndarray
    clipped: dict[str, int]
    misfits: dict[str, int]
    codes: dict[str, int]

    @property
    def unfit(self) -> int:
        """The number of rows that do not fit."""
        return int((~self.fits).sum())

    @property
    def most_misfits(self) -> str:
        """The column with the most cells that do not fit."""
        return max(self.misfits, key=lambda name: self.misfits[name])

    @property
    def warning(self) -> str:
        """A text about cells that do not fit, for the owner of the rows only; empty if few do not fit."""
        rows = self.fits.size
        found = [
            f"more than {_FEW:.0%} of the numbers of {name} are beyond its range and count as its end"
            for name, count in self.clipped.items()
            if count > _FEW * rows
        ]
        if self.unfit > ODD * rows:
            found.append(
                f"more than a fifth of the rows are left out, most of them for a cell of {self.most_misfits} that does "
                "not fit"
            )
        if not found:
            return ""
        return (
            f"{', and '.join(found)}. Look at units, codes such as 999, spellings of levels and missing cells. This "
            "warning depends on the rows, so it is for their owner only"
        )


@dataclass(frozen=True)
class Ranges:
    """The range of each column, from public knowledge.

    Parameters
    ----------
    columns
        For a column of numbers, the lowest and the highest one. Two whole numbers in a row, such as 0 and 1, are the
        only values of their column. For a factor, its levels.
    counts
        Columns of counts. A range of whole numbers has whole numbers only, and others are rounded.

    Raises
    ------
    TypeError, ValueError
        A range is wrong.
    """

    columns: Mapping[str, Sequence[Any]]
    counts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise TypeError(f"ranges must be a dict by column, found {type(self.columns).__name__}")
        for name, own in self.columns.items():
            if isinstance(own, str) or not isinstance(own, Sequence) or len(own) < 2:
                raise ValueError(f"ranges: {name} needs a lowest and a highest number, or levels, found {own!r}")
            if len(own) == 2 and all(map(_DATE.fullmatch, map(str, own))):
                raise ValueError(
                    f"ranges: {name} has two dates, and dates cannot be a range, found {own!r}: write days since a "
                    "fixed date as numbers, in ranges and in the rows"
                )
            if all(isinstance(one, str) for one in own):
                if len(set(own)) < len(own):
                    raise ValueError(f"ranges: {name} has a level twice, found {own!r}")
                for level in own:
                    if level != level.strip() or level in BLANKS:
                        raise ValueError(
                            f"ranges: {name} has the level {level!r}, which means a missing cell, or begins or ends "
                            "with a space"
                        )
                continue
            is_number = all(isinstance(one, int | float) and not isinstance(one, bool) for one in own)
            # the width must be finite too
            is_wide = len(own) == 2 and is_number and all(abs(one) < np.inf for one in own)
            if not is_wide or not 0.0 < float(own[1]) - float(own[0]) < np.inf:
                raise ValueError(f"ranges: {name} needs a lowest and a higher number, or levels, found {own!r}")
            if all(isinstance(one, int) for one in own) and max(map(abs, own)) > _LARGEST:
                raise ValueError(f"ranges: {name} has whole numbers beyond 2^53, write them with a decimal point")

    @property
    def factors(self) -> list[str]:
        """The columns with levels."""
        return [name for name, own in self.columns.items() if isinstance(own[0], str)]

    def require(self, names: Sequence[str]) -> None:
        """Raise `ValueError` unless there is one range for each of the formula's columns."""
        for name in self.columns:
            if name not in names:
                raise ValueError(f"ranges has an entry for {name!r}, and the formula has {', '.join(names)} only")
        if missing := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"ranges has no entry for {', '.join(missing)}: the lowest and the highest number or the levels, from "
                "public knowledge"
            )

    def made_up(self) -> dict[str, np.ndarray]:
        """Columns of rows, evenly spread over the ranges, the same in every process, (row,)."""
        most = max((len(self.columns[name]) for name in self.factors), default=0)
        found, count = {}, max(_FEWEST, _EACH * most)
        for place, (name, own) in enumerate(self.columns.items()):
            random = generator(0, "ranges", place)
            if isinstance(own[0], str):
                found[name] = np.array(own, object)[random.permutation(np.arange(count) % len(own))]
                continue
            if self.is_whole(name):
                found[name] = random.integers(own[0], own[1] + 1, count).astype(np.float64)
                found[name][:2] = own
            else:
                # evenly spaced, so that mean and sd are the middle and width / sqrt(12), to .1%
                found[name] = random.permutation(np.linspace(own[0], own[1], count))
        return found

    def within(self, columns: Mapping[str, np.ndarray], dialect: Dialect) -> Fitted:
        """The rows whose cells fit.

        A number beyond its range counts as the end of the range, and a count that is not whole is rounded. A row with
        another cell that does not fit, such as a missing one, is left out, and so is a row whose 0 or 1 is another
        number.

        Parameters
        ----------
        columns
            Cells as texts or numbers, (row,).
        dialect
            How numbers are written.

        Raises
        ------
        DataError
            A column is absent.
        """
        for name in self.columns:
            if name not in columns:
                raise DataError(f"there is no column {name!r} (names must match exactly)")
        found = dict[str, np.ndarray]()
        clipped, misfits, codes = dict[str, int](), dict[str, int](), dict[str, int]()
        fits = np.ones(len(next(iter(columns.values()))), bool)
        for name, own in self.columns.items():
            if isinstance(own[0], str):
                levels = {dialect.level(one): one for one in own}
                found[name] = np.array([levels.get(dialect.level(str(cell).strip())) for cell in columns[name]], object)
                is_known = found[name] != None  # noqa: E711 - of each element
            else:
                numbers = np.array([_number(cell, dialect) for cell in columns[name]], np.float64)
                found[name], is_known = np.clip(numbers, *own), ~np.isnan(numbers)
                codes[name] = far_codes(numbers[np.isfinite(numbers)])
                if self.is_whole(name):
                    if own[1] - own[0] == 1:
                        is_known &= np.isin(numbers, own)
                    found[name] = np.rint(found[name])
                clipped[name] = int((is_known & ((numbers < own[0]) | (numbers > own[1]))).sum())
            misfits[name] = int((~is_known).sum())
            fits &= is_known
        return Fitted({name: values[fits] for name, values in found.items()}, fits, clipped, misfits, codes)

    def is_whole(self, name: str) -> bool:
        """Whether a column of numbers has whole numbers only."""
        own = self.columns[name]
        return all(isinstance(one, int) for one in own) and (name in self.counts or own[1] - own[0] == 1)


def _number(cell: Any, dialect: Dialect) -> float:
    """The number in a cell, nan without one."""
    if isinstance(cell, str):
        found = dialect.number(cell.strip())
        return np.nan if found is None else found
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def records(path: Path, dialect: Dialect) -> dict[str, np.ndarray]:
    """The cells of a CSV file as texts, by column, (row,).

    Each line below the header is a row, except for empty lines. A line that is no row, for example as it has too many
    cells, has empty cells. So a line has no effect on another one.

    Raises
    ------
    ValueError
        The encoding has lines that are not separated by a single byte, or the file has no header.
    """
    require_lines(dialect)
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    lines = [line.decode(dialect.encoding, "replace").rstrip("\r") for line in content]
    if len(lines) < dialect.header:
        raise ValueError(f"{path.name}: there is no header in line {dialect.header}")
    header = [name.strip() for name in cells_of(lines[dialect.header - 1], dialect) or []]
    empty = [""] * len(header)
    found = [cells_of(line, dialect) for line in lines[dialect.header :] if line.strip()]
    rows = [cells if cells is not None and len(cells) == len(header) else empty for cells in found]
    columns = np.array(rows, object).reshape(len(rows), len(header)).T
    return {name: own for name, own in zip(header, columns, strict=True) if name}


def require_lines(dialect: Dialect) -> None:
    """Raise `ValueError` if lines of a file are not separated by a single byte."""
    if codecs.encode("\n", dialect.encoding) != b"\n":
        raise ValueError(f'a study with ranges needs an encoding such as "utf-8", found {dialect.encoding!r}')


def cells_of(line: str, dialect: Dialect) -> list[str] | None:
    """The cells of a line, split as in `read_sheet`. None if it is no row."""
    try:
        (found,) = csv.reader([line], delimiter=dialect.separator, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        return None
    return [cell.strip() for cell in found]


@dataclass(frozen=True)
class MadeUpCollectives(SiteCollectives):
    """Collectives in which the first site, the made-up rows, answers for all.

    Parameters
    ----------
    sites
        `MADE_UP`, then the sites whose rows are here.
    """

    sites: tuple[str, ...]

    @property
    def here(self) -> tuple[int, ...]:  # type: ignore[override]
        """All sites."""
        return tuple(range(len(self.sites)))

    @property
    def unheard(self) -> tuple[str, ...]:  # type: ignore[override]
        """All but the made-up rows."""
        return self.sites[1:]

    @property
    def is_whole(self) -> bool:
        """False: nothing that needs the rows of all sites may follow from rows."""
        return False

    def gathered(self, own: Sequence[Any]) -> list[Any]:
        """The value of the made-up rows for every site."""
        return [own[0]] * len(self.sites)

    def total(self, own: Sequence[Numbers], noisy: Sequence[Noisy] = ()) -> Numbers:
        """The numbers of the made-up rows."""
        return own[0]

    def require(self, problems: Sequence[Sequence[str]]) -> None:
        """Raise `DataError` if the made-up rows have problems."""
        raise_all(problems[0])
