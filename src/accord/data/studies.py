"""Raw columns with names, site by site, for formulas: what is in the files, and what the sites agreed on."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from ..base.errors import DataError, unknown_name_error
from .agreement import Agreed, agree
from .cells import BLANKS, Dates, Rules, SiteTable, Source
from .policy import Policy
from .sources import sources_in_files, sources_in_memory

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("error", "drop", "indicator")
# The level of a factor's missing cells, and what the name of a column that marks missing cells ends in.
_LEVEL, _MARK = "missing", "_missing"


@dataclass(frozen=True, eq=False)
class Study:
    """Rows of several sites, column by column, and what the sites agreed on.

    Parameters
    ----------
    sites : tuple of str
        Names of the sites.
    frames : tuple of pandas.DataFrame
        The rows of each: numbers and yes-no columns as float64, factors as text, no cell without a value.
    agreed : Agreed
        Means, levels, missing cells and the like, of all and by site.
    policies : tuple of Policy
        The floors of each site.
    """

    sites: tuple[str, ...]
    frames: tuple[pd.DataFrame, ...]
    agreed: Agreed
    policies: tuple[Policy, ...]

    def __repr__(self) -> str:
        # rows stay where they are, off the screen too
        rows = sum(self.agreed.rows)
        return (
            f"<Study: {len(self.sites)} sites {', '.join(self.sites)}; {rows} rows; {', '.join(self.agreed.columns)}>"
        )

    def check_parameters(self, parameters: int) -> None:
        """Ask every site whether it has rows enough for a model of so many parameters.

        Raises
        ------
        DataError
            A site refuses; each of them is named, with its floor.
        """
        refusals = [
            f"{site}: {parameters} parameters are more than {policy.parameters:g} of the rows, the floor of the site"
            for site, policy, rows in zip(self.sites, self.policies, self.agreed.rows, strict=True)
            if parameters > policy.parameters * rows
        ]
        _raise(refusals)


def study(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    site: str | None = None,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, str] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] = (),
    blanks: Sequence[str] = BLANKS,
    missing: str = "error",
    constant: Sequence[str] = (),
    policy: Policy | None = None,
) -> Study:
    """Read CSV files, one a site or one with a `site` column, for a formula.

    A column of numbers is numbers, ``true`` and ``false`` are 1 and 0, any other text is a factor. Columns may be in
    another order in each file. All that is wrong with all files is told in one error, which quotes no cell.

    Parameters
    ----------
    files : str, path or sequence of them, optional
        One file a site: a glob, whose files are taken in the order of their names, or a list.
    file, site : str or path, and str, optional
        One file of all sites, and the column that names the site of a row.
    columns : sequence of str, optional
        The columns to read; by default all, or those that `formula` names.
    formula : str or sequence of str, optional
        Formulas whose names say which columns to read, where `columns` does not.
    dates : mapping, optional
        Columns of dates, and how they are written: ``{"admitted": "%Y-%m-%d"}`` makes days since 1970 of them. With
        ``{"format": "%d.%m.%Y", "since": "2020-01-01", "unit": "years"}`` they count from another day, in years.
    positive : mapping, optional
        Columns of two texts, and the one (or several spellings of it) that is 1: ``{"died": "yes"}``.
    strings : sequence of str, optional
        Columns that are factors though their levels look like numbers.
    blanks : sequence of str
        Cells that mean that there is no value.
    missing : {"error", "drop", "indicator"}, default "error"
        Cells without a value are an error that names them; or their rows are left out, counted, with a warning; or
        they are filled with the mean over all sites (factors: with a level ``missing``) and marked in a column of 0
        and 1, ``NAME_missing``. What `formula` has on its left is never filled.
    constant : sequence of str, optional
        Columns that may be the same in every row, such as the number of trials; for others that is an error.
    policy : Policy, optional
        Floors of sites that have no policy file beside their data. For those that have one, the stricter of both.

    Returns
    -------
    Study
        Rows by site, and what the sites agreed on.

    Raises
    ------
    FileNotFoundError
        No file matches.
    DataError
        Something is wrong with the files, or a site refuses; everything is told at once.
    ValueError
        The arguments do not fit together.

    Examples
    --------
    >>> found = study("hospital-*.csv", positive={"died": "yes"}, missing="drop")  # doctest: +SKIP
    >>> found = study(file="all.csv", site="hospital", formula="died ~ age + sex")  # doctest: +SKIP
    """
    sources, problems = sources_in_files(files, file, site, policy)
    rules = Rules.of(dates, positive, strings, blanks)
    return _made(sources, problems, columns, formula, rules, missing, constant)


def describe(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    site: str | None = None,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, str] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] = (),
    blanks: Sequence[str] = BLANKS,
    policy: Policy | None = None,
) -> Agreed:
    """Say what is in the files, by site and together, as far as the floors of the sites allow.

    Missing cells, constant columns and rare levels are told, and are no errors. The parameters are those of `study`.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `study` does.
    """
    sources, problems = sources_in_files(files, file, site, policy)
    tables, found = _tables(sources, columns, formula, Rules.of(dates, positive, strings, blanks))
    _raise([*problems, *found, *_too_small(tables)])
    return agree(tables, [0] * len(tables), floors=True)


def as_study(table: Any, **options: Any) -> Study:
    """Take what people have in memory as a study.

    Parameters
    ----------
    table : Study, or sequence or mapping of tables
        A study stays what it is. Tables are pandas DataFrames or mappings of names to arrays of shape (row,), one a
        site: in a sequence, or in a mapping from the names of the sites.
    **options
        `columns`, `formula`, `dates`, `positive`, `strings`, `blanks`, `missing`, `constant` and `policy` of `study`.

    Raises
    ------
    TypeError
        The table is none of these.
    DataError, ValueError
        As `study` does.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tables = {site: {"age": rng.normal(50, 9, 20), "sex": ["f", "m"] * 10} for site in ("north", "south")}
    >>> as_study(tables)
    <Study: 2 sites north, south; 40 rows; age, sex>
    """
    if isinstance(table, Study):
        if options:
            raise TypeError(f"a Study is read already; found the options {', '.join(options)}")
        return table
    return _from_memory(table, **options)


def _from_memory(
    table: Any,
    *,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, str] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] = (),
    blanks: Sequence[str] = BLANKS,
    missing: str = "error",
    constant: Sequence[str] = (),
    policy: Policy | None = None,
) -> Study:
    sources = sources_in_memory(table, policy or Policy())
    rules = Rules.of(dates, positive, strings, blanks)
    return _made(sources, [], columns, formula, rules, missing, constant)


# --- from cells to a study ---


def _made(
    sources: Sequence[Source],
    problems: Sequence[str],
    columns: Sequence[str] | None,
    formula: str | Sequence[str] | None,
    rules: Rules,
    missing: str,
    constant: Sequence[str],
) -> Study:
    if missing not in MISSING:
        raise unknown_name_error("missing", missing, MISSING)
    tables, found = _tables(sources, columns, formula, rules)
    found = [*problems, *found]
    responses = _responses(formula)
    refused = [name for name in (tables[0].kinds if tables else ()) if missing == "error" or name in responses]
    if missing != "drop":
        found += _without_value(tables, refused)
    dropped = [0] * len(tables)
    if missing == "drop" and not found:
        tables, dropped = _dropped(tables)
    found += _too_small(tables)
    if not problems and tables and all(table.rows for table in tables):
        found += _unusable(tables, constant)
    _raise(found)
    _warn_of_dropped(tables, dropped)
    if missing == "indicator":
        tables = _filled(tables)
    return Study(
        tuple(table.name for table in tables),
        tuple(_frame(table) for table in tables),
        agree(tables, dropped, floors=False),
        tuple(table.policy for table in tables),
    )


def _tables(
    sources: Sequence[Source], columns: Sequence[str] | None, formula: str | Sequence[str] | None, rules: Rules
) -> tuple[list[SiteTable], list[str]]:
    """The sites' tables of all columns that are clear, and what is wrong with the others."""
    names, problems = _chosen(sources, columns, formula, rules)
    tables = []
    for source in sources:
        table, found = source.table([name for name in names if name in source.columns], rules)
        tables.append(table)
        problems += found
    everywhere = [name for name in names if all(name in table.kinds for table in tables)]
    kinds = {}
    for name in everywhere:
        found_kinds = {table.name: table.kinds[name] for table in tables}
        if "unclear" in found_kinds.values():
            continue
        kind = _one_kind(set(found_kinds.values()))
        if kind is None:
            problems.append(_conflict(name, found_kinds))
        elif kind == "empty":
            problems.append(f"column {name!r}: no cell of any site has a value")
        else:
            kinds[name] = kind
    return [table.as_agreed(kinds) for table in tables], problems


def _chosen(
    sources: Sequence[Source], columns: Sequence[str] | None, formula: str | Sequence[str] | None, rules: Rules
) -> tuple[list[str], list[str]]:
    """The names of the columns to read, and what is wrong with the headers."""
    known = list(dict.fromkeys(name for source in sources for name in source.columns))
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, found {columns!r}")
    if columns is not None:
        names = list(dict.fromkeys(columns))
    else:
        mentioned = _mentioned(formula)
        names = [name for name in known if mentioned is None or name in mentioned]
        names += [name for name in rules.named if name not in known]
    owners = {name: next((s.name for s in sources if name in s.columns), None) for name in names}
    problems = []
    for name, owner in owners.items():
        if owner is None and sources:
            problems.append(f"no site has a column {name!r}")
        elif owner is not None:
            lack = [source.where for source in sources if name not in source.columns]
            problems += [f"{where}: there is no column {name!r}, which {owner} has" for where in lack]
    return [name for name, owner in owners.items() if owner is not None], problems


def _mentioned(formula: str | Sequence[str] | None) -> set[str] | None:
    """All that could be a column in formulas: names, and anything in backquotes."""
    if formula is None:
        return None
    formulas = [formula] if isinstance(formula, str) else formula
    return {quoted or name for text in formulas for quoted, name in re.findall(r"`([^`]+)`|([^\W\d][\w.]*)", text)}


def _responses(formula: str | Sequence[str] | None) -> set[str]:
    """The names on the left of formulas."""
    formulas = [] if formula is None else [formula] if isinstance(formula, str) else formula
    return _mentioned([text.partition("~")[0] for text in formulas if "~" in text]) or set()


def _one_kind(kinds: set[str]) -> str | None:
    """The kind that a column has, of those that sites found; None where they differ."""
    kinds = kinds - {"empty"} or {"empty"}
    if kinds == {"number", "yes-no"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


def _conflict(name: str, kinds: Mapping[str, str]) -> str:
    words = {"number": "numbers", "yes-no": "0 and 1", "factor": "texts"}
    sides = [
        f"{word} at {', '.join(site for site, found in kinds.items() if found == kind)}"
        for kind, word in words.items()
        if kind in kinds.values()
    ]
    return f"column {name!r} holds {' and '.join(sides)}; name it in strings or positive, or mend the files"


def _without_value(tables: Sequence[SiteTable], names: Sequence[str]) -> list[str]:
    return [
        table.says(name, rows.tolist(), "no value")
        for table in tables
        for name in names
        if (rows := np.flatnonzero(table.absent[name])).size
    ]


def _too_small(tables: Sequence[SiteTable]) -> list[str]:
    return [
        f"{table.where}: refused, there are fewer than {table.policy.rows} rows, the floor of the site"
        for table in tables
        if table.rows < table.policy.rows
    ]


def _unusable(tables: Sequence[SiteTable], constant: Sequence[str]) -> list[str]:
    """Columns that no model could use, and levels that would tell of a few rows."""
    problems = []
    for name, kind in tables[0].kinds.items():
        values = [np.unique(table.present(name).astype(str if kind == "factor" else float)) for table in tables]
        if len(np.unique(np.concatenate(values))) == 1 and name not in constant:
            problems.append(
                f"column {name!r} is the same in every row of every site; leave it out or name it in constant"
            )
    return problems + _rare(tables)


def _rare(tables: Sequence[SiteTable]) -> list[str]:
    """Refusals of sites where levels are rare; a site whose policy tells them warns."""
    refusals = []
    for table in tables:
        for name, kind in table.kinds.items():
            if kind != "factor":
                continue
            _, counts = np.unique(table.present(name).astype(str), return_counts=True)
            rare = int((counts < table.policy.cells).sum())
            if rare:
                text = (
                    f"{table.where}: column {name!r}: {rare} of {len(counts)} levels have fewer than "
                    f"{table.policy.cells} rows, the floor of the site"
                )
                if table.policy.rare == "refuse":
                    refusals.append(f"{text}; merge levels, or leave the column out")
                else:
                    warnings.warn(text, stacklevel=2)
    return refusals


# --- missing cells ---


def _dropped(tables: Sequence[SiteTable]) -> tuple[list[SiteTable], list[int]]:
    """Tables of the rows whose cells all have a value, and how many others there were."""
    kept: list[Bool[np.ndarray, " row"]] = [
        ~np.any([np.zeros(table.rows, bool), *table.absent.values()], axis=0) for table in tables
    ]
    rest = [table.only(rows) for table, rows in zip(tables, kept, strict=True)]
    return rest, [int((~rows).sum()) for rows in kept]


def _warn_of_dropped(tables: Sequence[SiteTable], dropped: Sequence[int]) -> None:
    parts = [
        f"{table.policy.told(count)} at {table.name}" for table, count in zip(tables, dropped, strict=True) if count
    ]
    if parts:
        warnings.warn(f"rows with a missing cell are left out: {', '.join(parts)}", stacklevel=4)


def _filled(tables: Sequence[SiteTable]) -> list[SiteTable]:
    """Tables without missing cells: filled with what was agreed, and marked in columns of their own."""
    means = agree(tables, [0] * len(tables), floors=False).means
    marked = [name for name in tables[0].kinds if any(table.absent[name].any() for table in tables)]
    return [_filled_at(table, marked, means) for table in tables]


def _filled_at(table: SiteTable, marked: Sequence[str], means: Mapping[str, float]) -> SiteTable:
    kinds, values, absent = dict(table.kinds), dict(table.values), dict(table.absent)
    for name in marked:
        mark, at = f"{name}{_MARK}", table.absent[name]
        if mark in table.kinds:
            raise DataError(f"there is a column {mark!r} already, which is to mark the missing cells of {name!r}")
        kinds[mark], values[mark], absent[mark] = "yes-no", at.astype(np.float64), np.zeros(table.rows, bool)
        values[name] = np.where(at, _LEVEL if kinds[name] == "factor" else means[name], values[name])
        if kinds[name] == "factor":
            # a level as any other; means and standard deviations are those of the cells that have a value
            absent[name] = np.zeros(table.rows, bool)
    return replace(table, kinds=kinds, values=values, absent=absent)


def _frame(table: SiteTable) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(table.values)


def _raise(problems: Sequence[str]) -> None:
    """All problems as one error, if there are any."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        raise DataError("\n  ".join([f"{len(problems)} problems:", *problems]))
