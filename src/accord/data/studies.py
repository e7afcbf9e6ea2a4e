"""Raw columns with names, site by site, for formulas: what is in the files, and what the sites agreed on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import DataError, unknown_name_error
from .agreement import Agreed, agree, rare_levels
from .cells import BLANKS, Dates, SiteTable, Source
from .meeting import InOnePlace, Meeting
from .missing import filled, warn_of_dropped, without_missing, without_value
from .policy import Policy
from .sources import sources_in_files, sources_in_memory
from .wanted import Problems, Wanted, tables_of

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("error", "drop", "indicator")


@dataclass(frozen=True, eq=False)
class Study:
    """Rows of several sites, column by column, and what the sites agreed on.

    Parameters
    ----------
    meeting : Meeting
        The sites, and whose rows are here.
    frames : tuple of pandas.DataFrame
        The rows of each site that is here: numbers and yes-no columns as float64, factors as text, no cell without a
        value.
    agreed : Agreed
        Means, levels, missing cells and the like, of all and by site.
    policies : tuple of Policy
        The floors of each site that is here.
    """

    meeting: Meeting
    frames: tuple[pd.DataFrame, ...]
    agreed: Agreed
    policies: tuple[Policy, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return self.meeting.sites

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
            policy.refusals(site, parameters, len(frame))
            for site, policy, frame in zip(self.meeting.names_here, self.policies, self.frames, strict=True)
        ]
        _raise(_flat(self.meeting.gathered(refusals)))

    def check_columns(self, columns: Sequence[Sequence[tuple[str, np.ndarray]]]) -> None:
        """Ask every site whether columns of a model single out few of its rows.

        Parameters
        ----------
        columns
            Of each site that is here, the columns by the terms that they are of: arrays of shape (row,).

        Raises
        ------
        DataError
            A site refuses; each of them is named, with its floor.
        """
        refusals: list[list[str]] = []
        for site, policy, own in zip(self.meeting.names_here, self.policies, columns, strict=True):
            few = dict.fromkeys(term for term, values in own if policy.singles_out(values))
            refusals.append([])
            # between sites one term is named: a list of them would answer many questions about one person
            for term in few if self.meeting.is_whole else list(few)[:1]:
                text = (
                    f"in {term}, fewer than {policy.cells} rows differ from the most frequent value (within a "
                    "thousandth of the range), the floor of the site"
                )
                if policy.rare == "refuse":
                    refusals[-1].append(
                        f"{site}: refused, {text}. Leave the term out, merge levels, or take a function such as log(x) "
                        'of a column with a few large values. Its administrator may allow it (rare = "tell" in its '
                        "policy)"
                    )
                else:
                    warnings.warn(f"{site}: {text}", stacklevel=4)
        _raise(_flat(self.meeting.gathered(refusals)))


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
        A formula whose names say which columns to read, where `columns` does not, and names of columns beside it, such
        as that of weights. What it has in ``C(...)`` is a factor, and what it has only behind a bar, as in
        ``(1 | ward)``, says which group a row is in: of those nobody but the site hears.
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
    wanted = Wanted.of(columns, formula, dates, positive, strings, blanks)
    return _met(_in_one_place(sources), sources, problems, wanted, missing, constant)


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

    Missing cells and constant columns are told, and are no errors; levels that too few rows of every site have are
    counted and not named. The parameters are those of `study`.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `study` does.
    """
    sources, problems = sources_in_files(files, file, site, policy)
    meeting, found = _in_one_place(sources), Problems([[] for _ in sources])
    kinds, tables = tables_of(meeting, sources, Wanted.of(columns, formula, dates, positive, strings, blanks), found)
    refused = [_too_small(table) for table in tables]
    _raise([*problems, *_flat(found.own), *_flat(refused), *found.plain])
    return agree(meeting, kinds, tables, [0] * len(tables), floors=True)


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
    sources = sources_in_memory(table, options.pop("policy", None))
    return _met(_in_one_place(sources), sources, [], *_settings(**options))


def study_at(meeting: Meeting, file: str | os.PathLike[str] | None, policy: Policy | None, **options: Any) -> Study:
    """The study of a meeting by correspondence, of whose files this process has one, or none.

    Raises
    ------
    DataError, ValueError
        As `study` does; of a file that cannot be read at once.
    """
    wanted, missing, constant = _settings(**options)
    sources: list[Source] = []
    if file is not None:
        (name,), place = meeting.names_here, Path(os.path.expanduser(file))
        found, problems = sources_in_files([place], None, None, policy)
        _raise([f"{name}: {problem}" for problem in problems])
        sources = [replace(found[0], name=name, where=f"{name} ({place.name})")]
    return _met(meeting, sources, [], wanted, missing, constant)


# --- from cells to a study ---


def _settings(
    *,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, str] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] = (),
    blanks: Sequence[str] = BLANKS,
    missing: str = "error",
    constant: Sequence[str] = (),
) -> tuple[Wanted, str, Sequence[str]]:
    """What is wanted, what becomes of missing cells, and which columns may be constant."""
    return Wanted.of(columns, formula, dates, positive, strings, blanks), missing, constant


def _in_one_place(sources: Sequence[Source]) -> InOnePlace:
    return InOnePlace(tuple(source.name for source in sources))


def _met(
    meeting: Meeting,
    sources: Sequence[Source],
    unread: Sequence[str],
    wanted: Wanted,
    missing: str,
    constant: Sequence[str],
) -> Study:
    """The study of sources, in some of which there may be what could not be read."""
    if missing not in MISSING:
        raise unknown_name_error("missing", missing, MISSING)
    problems = Problems([[] for _ in sources])
    kinds, tables = tables_of(meeting, sources, wanted, problems)
    dropped = [0] * len(tables)
    if missing == "drop":
        tables, dropped = without_missing(tables)
    factors = [name for name, kind in kinds.items() if kind == "factor"]
    # before a site counts anything for others it says whether it takes part at all
    for table, own in zip(tables, problems.own, strict=True):
        if missing != "drop":
            own += without_value(table, None if missing == "error" else wanted.responses)
        own += _too_small(table) + _rare(table, factors)
    found = [*unread, *_flat(meeting.gathered(problems.own)), *problems.plain]
    # of some sites only, columns may look constant
    if not meeting.is_whole or unread or not all(table.rows for table in tables):
        _raise(found)
    agreed = agree(meeting, kinds, tables, dropped, floors=False)
    _raise([*found, *_unusable(agreed, {*constant, *wanted.steady})])
    warn_of_dropped(tables, dropped)
    if missing == "indicator":
        kinds, tables = filled(kinds, tables, agreed)
        agreed = agree(meeting, kinds, tables, dropped, floors=False)
    return Study(meeting, tuple(map(_frame, tables)), agreed, tuple(table.policy for table in tables))


def _flat(texts: Sequence[Sequence[str]]) -> list[str]:
    return [text for own in texts for text in own]


def _too_small(table: SiteTable) -> list[str]:
    if table.rows >= table.policy.rows:
        return []
    return [f"{table.where}: refused, there are fewer than {table.policy.rows} rows, the floor of the site"]


def _unusable(agreed: Agreed, constant: Container[str]) -> list[str]:
    """Columns that no model could use."""
    problems = []
    for name, column in agreed.columns.items():
        same = column.kind == "factor" and len(column.levels) == 1
        if column.mean is not None and column.sd is not None:
            if np.isinf(column.sd):
                problems.append(f"column {name!r}: the sum of its squares is beyond float64; change its unit")
            # exactly: distances of a constant from its rounded mean are a few units in the last place, all alike
            same = column.sd == 0.0
        if same and name not in constant:
            problems.append(f"column {name!r} is the same in every row; leave it out, or name it in constant")
    return problems


def _rare(table: SiteTable, factors: Sequence[str]) -> list[str]:
    """Refusals of a site where levels are rare; one whose policy tells them warns."""
    refusals = []
    for name in factors:
        rare, levels = rare_levels(table, name)
        if not rare:
            continue
        text = (
            f"{table.where}: column {name!r}: {rare} of {levels} levels have fewer than {table.policy.cells} rows, "
            "the floor of the site"
        )
        if table.policy.rare == "refuse":
            refusals.append(f"{text}; merge levels, or leave the column out")
        else:
            warnings.warn(text, stacklevel=4)
    return refusals


def _frame(table: SiteTable) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(table.values)


def _raise(problems: Sequence[str]) -> None:
    """All problems as one error, if there are any."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        raise DataError("\n  ".join([f"{len(problems)} problems:", *problems]))
