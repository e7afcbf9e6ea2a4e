"""Declared ranges of columns, from which a model follows instead of from rows.

Preprocessing looks at rows: levels, means, standard deviations, missing cells. For differential privacy nothing may
depend on them. So the model is built from made-up rows, uniform in the ranges, and the rows of sites are put through
the same steps without a say in any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.counters import generator
from ..base.errors import DataError, unknown_name_error
from .collectives import Noisy, Numbers, SiteCollectives, raise_all
from .files import Dialect

# The name of the made-up rows among the sites.
MADE_UP = "declared ranges"
# Made-up rows for each level of a factor, and the fewest.
_EACH, _FEWEST = 20, 1000


@dataclass(frozen=True)
class Ranges:
    """The range of each column, from public knowledge.

    Parameters
    ----------
    columns
        For a column of numbers, the lowest and the highest one. Both are whole numbers if all numbers are. For a
        factor, its levels.

    Raises
    ------
    TypeError, ValueError
        A range is wrong.
    """

    columns: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise TypeError(f"ranges must be a dict by column, found {type(self.columns).__name__}")
        for name, own in self.columns.items():
            if isinstance(own, str) or not isinstance(own, Sequence) or len(own) < 2:
                raise ValueError(f"ranges: {name} needs a lowest and a highest number, or levels, found {own!r}")
            if all(isinstance(one, str) for one in own):
                if len(set(own)) < len(own):
                    raise ValueError(f"ranges: {name} has a level twice, found {own!r}")
                continue
            is_number = all(isinstance(one, int | float) and not isinstance(one, bool) for one in own)
            # the width must be finite too
            if len(own) != 2 or not is_number or not 0.0 < float(own[1]) - float(own[0]) < np.inf:
                raise ValueError(f"ranges: {name} needs a lowest and a higher number, or levels, found {own!r}")

    @property
    def factors(self) -> list[str]:
        """The columns with levels."""
        return [name for name, own in self.columns.items() if isinstance(own[0], str)]

    def require(self, names: Sequence[str]) -> None:
        """Raise `ValueError` unless there is one range for each of these columns."""
        for name in self.columns:
            if name not in names:
                raise unknown_name_error("column in ranges", name, names)
        if missing := [name for name in names if name not in self.columns]:
            raise ValueError(
                f"ranges has no entry for {', '.join(missing)}: the lowest and the highest number or the levels, from "
                "public knowledge"
            )

    def made_up(self) -> dict[str, np.ndarray]:
        """Columns of rows, uniform in the ranges, the same in every process, (row,)."""
        most = max((len(self.columns[name]) for name in self.factors), default=0)
        found, count = {}, max(_FEWEST, _EACH * most)
        for place, (name, own) in enumerate(self.columns.items()):
            random = generator(0, "ranges", place)
            if isinstance(own[0], str):
                values = np.array(own, object)[random.permutation(np.arange(count) % len(own))]
            elif self._is_whole(name):
                values = random.integers(own[0], own[1] + 1, count).astype(np.float64)
            else:
                values = random.uniform(own[0], own[1], count)
            if not isinstance(own[0], str):
                values[:2] = own
            found[name] = values
        return found

    def within(self, columns: Mapping[str, np.ndarray], dialect: Dialect) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows whose cells fit, and which of all rows they are, (row,).

        A number beyond its range counts as the end of the range. A row with another cell that does not fit, such as a
        missing one, is left out.

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
        found, fits = dict[str, np.ndarray](), np.ones(len(next(iter(columns.values()))), bool)
        for name, own in self.columns.items():
            if isinstance(own[0], str):
                texts = np.array([str(cell).strip() for cell in columns[name]], object)
                found[name], is_known = texts, np.isin(texts, own)
            else:
                numbers = np.array([_number(cell, dialect) for cell in columns[name]], np.float64)
                found[name], is_known = np.clip(numbers, *own), ~np.isnan(numbers)
                if self._is_whole(name) and own[1] - own[0] == 1:
                    is_known &= np.isin(numbers, own)
            fits &= is_known
        return {name: values[fits] for name, values in found.items()}, fits

    def _is_whole(self, name: str) -> bool:
        return all(isinstance(one, int) for one in self.columns[name])


def _number(cell: Any, dialect: Dialect) -> float:
    """The number in a cell, nan without one."""
    if isinstance(cell, str):
        found = dialect.number(cell.strip())
        return np.nan if found is None else found
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan


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
