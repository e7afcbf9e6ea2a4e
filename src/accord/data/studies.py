"""Studies: columns read from the files of several sites, and the summaries that the sites agreed on."""

from __future__ import annotations

import inspect
import os
import warnings
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.checks import whole_number
from ..base.errors import DataError, unknown_name_error
from .cells import AboutCells, Dates, SiteTable, Source
from .collectives import LocalCollectives, SiteCollectives, flat, listed, raise_all
from .columns import ColumnSpec, Problems, absent_column, tables_of
from .files import Dialects
from .missing import MARK, filled, warn_of_dropped, with_counts, without_missing, without_value
from .policy import IN_MEMORY, Policy
from .ranges import MADE_UP, MadeUpCollectives, Ranges
from .sources import source_at, sources_in_file, sources_in_files, sources_in_memory, sources_shared_out
from .summaries import NUMERIC, Agreed, agree, rare_levels
from .warnings import look_alike, spellings, warn_of

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("error", "drop", "indicator")


@dataclass(frozen=True, eq=False)
class Matrix:
    """Design matrices and responses by site, ready for a model.

    Parameters
    ----------
    shards : list of (array, array), or of functions
        For each site its covariates X_i, shape (row, dim), and its responses y_i, shape (row,), float64, or a function
        that reads both (`at_sites`).
    columns : tuple of str
        The names of the columns of X. ``"intercept"`` comes first if it was added.
    sites : tuple of str
        The names of the sites, in the order of the shards.
    sds : dict of float
        For each standardised column, the standard deviation that it was divided by.
    """

    shards: list[Any]
    columns: tuple[str, ...]
    sites: tuple[str, ...]
    sds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        # no data in a repr
        return f"<Matrix: {len(self.sites)} sites {', '.join(self.sites)}; columns {', '.join(self.columns)}>"


def require_chosen(columns: Sequence[str], target: str, *, intercept: bool) -> None:
    """Raise `ValueError` unless these columns can be the covariates of a matrix with this target."""
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ValueError(f"columns lists {twice[0]!r} more than once")
    if target in columns:
        raise ValueError(f"columns lists the target {target!r}")
    if intercept and "intercept" in columns:
        raise ValueError("a column is already named 'intercept': pass intercept=False or leave it out of columns")
    if not columns and not intercept:
        raise ValueError(f"there is no covariate besides the target {target!r}, and intercept is False")


def _moments(X: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column."""
    constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
    if constant.size:
        raise DataError(f"column {names[constant[0]]!r} is the same in every row: leave it out of columns")
    return X.mean(axis=0), X.std(axis=0)


@dataclass(frozen=True, eq=False)
class Study:
    """Rows of several sites, and the summaries that the sites agreed on.

    Parameters
    ----------
    meeting : SiteCollectives
        The collectives between the sites, with the numbers of the sites whose rows this process has.
    frames : tuple of pandas.DataFrame
        The rows of each of these sites: numeric and yes-no columns as float64, factors as text, without missing values.
    agreed : Agreed
        Means, levels, missing cells and other summaries, by site and pooled.
    policies : tuple of Policy
        The policy of each of these sites.
    ones : dict of tuple of str
        For each column in `positive`, the texts that are coded as 1.
    lines : tuple of sequences of int
        For each of these sites, the lines of its rows in the file.
    """

    meeting: SiteCollectives
    frames: tuple[pd.DataFrame, ...]
    agreed: Agreed
    policies: tuple[Policy, ...]
    ones: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lines: tuple[Sequence[int], ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites."""
        return self.meeting.sites

    def __repr__(self) -> str:
        # no data in a repr
        rows = sum(self.agreed.rows)
        return (
            f"<Study: {len(self.sites)} sites {', '.join(self.sites)}; {rows} rows; {', '.join(self.agreed.columns)}>"
        )

    def matrix(
        self,
        target: str,
        columns: Sequence[str] | None = None,
        *,
        standardise: bool = True,
        intercept: bool = True,
    ) -> Matrix:
        """The design matrix and response of each site, for models without a formula.

        Parameters
        ----------
        target : str
            The column of the response.
        columns : sequence of str, optional
            The columns of X, in this order. By default all except `target`.
        standardise : bool, default True
            Shift and scale each column of X to mean 0 and standard deviation 1 (n in the denominator) over all sites.
        intercept : bool, default True
            Put a column of ones first.

        Raises
        ------
        ValueError
            A column is unknown or is listed twice, or the rows of some sites are not here.
        DataError
            A column holds texts, cells of the target are missing, or a site's policy refuses the model.

        Examples
        --------
        >>> table = study("hospital-*.csv").matrix("recovered")  # doctest: +SKIP
        >>> post = accord.models.logistic_regression(table.shards, names=table.columns)  # doctest: +SKIP
        """
        if len(self.frames) < len(self.sites):
            raise ValueError("matrix() needs the rows of all sites here: accord.data.at_sites reads each at its site")
        for name, flag in (("standardise", standardise), ("intercept", intercept)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be true or false, found {flag!r}")
        known = list(self.agreed.columns)
        names = [name for name in known if name not in (target, target + MARK)] if columns is None else list(columns)
        require_chosen(names, target, intercept=intercept)
        for name in (target, *names):
            if name not in known:
                raise unknown_name_error("column", name, known)
            if self.agreed.kinds[name] not in NUMERIC:
                raise DataError(f"column {name!r} holds texts: leave it out of columns or use a formula")
        if self.agreed.columns[target].missing != 0:
            raise DataError(f'column {target!r} is the response and has missing cells: pass missing = "drop"')
        X = [frame[names].to_numpy(np.float64) for frame in self.frames]
        self.check_columns([list(zip(names, own.T, strict=True)) for own in X], X)
        self.check_parameters(len(names) + intercept)
        sds: dict[str, float] = {}
        if standardise:
            means, spread = _moments(np.concatenate(X), names)
            X = [(own - means) / spread for own in X]
            sds = dict(zip(names, spread.tolist(), strict=True))
        if intercept:
            X = [np.column_stack([np.ones(len(own)), own]) for own in X]
            names = ["intercept", *names]
        y = [frame[target].to_numpy(np.float64) for frame in self.frames]
        return Matrix(list(zip(X, y, strict=True)), tuple(names), self.sites, sds)

    def check_parameters(self, parameters: int) -> None:
        """Check at every site that it has enough rows for a model with this number of parameters.

        Raises
        ------
        DataError
            Sites refuse. The message names each of them and its floor.
        """
        refusals = [
            policy.refusals(site, parameters, len(frame))
            for site, policy, frame in zip(self.meeting.names_here, self.policies, self.frames, strict=True)
        ]
        if any(refusals):
            # fewer levels need fewer parameters
            refusals[0] = [*spellings(self.agreed.levels), *refusals[0]]
        self.meeting.require(refusals)

    def check_columns(self, columns: Sequence[Sequence[tuple[str, np.ndarray]]], designs: Sequence[np.ndarray]) -> None:
        """Check at every site that no column of a model, nor all together, single out fewer rows than the site's floor.

        Parameters
        ----------
        columns
            For each site that is here, pairs of a term and a column of its design matrix, shape (row,).
        designs
            For each of these sites, the columns that are checked together, shape (row, column).

        Raises
        ------
        DataError
            Sites refuse. The message names each of them and its floor.
        """
        refusals: list[list[str]] = []
        for site, policy, own, design in zip(self.meeting.names_here, self.policies, columns, designs, strict=True):
            few = dict.fromkeys(term for term, values in own if policy.singles_out(values))
            refusals.append([])
            # only one term leaves the site: a list of terms could identify a person
            for term in few if self.meeting.is_whole else list(few)[:1]:
                text = (
                    f"in {term}, fewer than {policy.cells} rows differ from the most frequent value (within a "
                    "thousandth of the range), the floor of the site"
                )
                if policy.rare == "refuse":
                    refusals[-1].append(
                        f"{site}: refused, {text}. Leave the term out, merge levels, or take a function such as log(x) "
                        'of a column with a few large values. Its administrator may allow it (rare = "warn" in its '
                        "policy)"
                    )
                else:
                    warnings.warn(f"{site}: {text}", stacklevel=4)
            if few or not policy.singles_out_together(design):
                continue
            text = (
                f"together the terms of the formula single out fewer than {policy.cells} rows, the floor of the site. "
                "Leave out an interaction, a cut-off or a power, or take log(x) of a column with a few large values"
            )
            if too_many := policy.refusals(site, design.shape[1], len(design)):
                refusals[-1] += too_many
            elif policy.rare == "refuse" and policy is not IN_MEMORY:
                refusals[-1].append(
                    f'{site}: refused, {text}. Its administrator may allow it (rare = "warn" in its policy)'
                )
            else:
                warnings.warn(f"{site}: {text}", stacklevel=4)
        self.meeting.require(refusals)


def study(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    site: str | None = None,
    split: str | None = None,
    agents: int | None = None,
    column: str | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, Any] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] | Mapping[str, Mapping[str, str | Sequence[str]]] = (),
    blanks: Sequence[str] = (),
    missing: str = "error",
    constant: Sequence[str] = (),
    policy: Policy | None = None,
    separator: str | Mapping[str, str] = ",",
    decimal: str | Mapping[str, str] = ".",
    thousands: str | None | Mapping[str, str] = None,
    encoding: str | Mapping[str, str] = "utf-8",
    header: int | Mapping[str, int] = 1,
) -> Study:
    """Read CSV files, one per site or one for all sites, for a formula or a matrix.

    Cells decide the type of a column: numbers are numeric, ``true`` and ``false`` are 1 and 0, any other text makes a
    factor. The order of the columns may differ between files. Columns without a name, such as an index, are ignored.
    One error lists all problems in all files. Messages never quote a cell.

    Parameters
    ----------
    files : str, path or sequence of them, optional
        One file per site: a list, or a glob pattern, whose files are sorted by name.
    file, site : str or path, and str, optional
        One file for all sites, and the column with the name of each row's site.
    split : str, optional
        A rule that splits the rows of `file` over simulated agents, which have no floors: one of `SPLITS`, with its
        argument in brackets, such as ``"dirichlet(0.5)"``. See `split`.
    agents : int, optional
        Number of agents for `split`. With `files` or `site` it must equal the number of sites.
    column : str, optional
        The column that `split` sorts by or takes labels from. By default, labels are the response of `formula`.
    seed : int, default 0
        Seed of `split`.
    columns : sequence of str, optional
        The columns to read. By default those in `formula`, or all without a formula.
    formula : str or sequence of str, optional
        A formula, or a formula and names of further columns such as weights. Its columns are read if `columns` is not
        given. A column in ``C(...)`` is a factor. A column that is only behind a bar, as in ``(1 | ward)``, gives the
        group of each row. Names of groups never leave their site.
    dates : mapping, optional
        Date columns and their format: ``{"admitted": "%Y-%m-%d"}`` converts to days since 1970-01-01. Use
        ``{"format": "%d.%m.%Y", "since": "2020-01-01", "unit": "years"}`` for another origin and unit. The format may
        be a mapping by site that names all sites.
    positive : mapping, optional
        Columns with two texts, and the text (or several spellings of it) that is coded as 1: ``{"died": "yes"}``.
    strings : sequence of str or mapping, optional
        Columns that are factors although their levels look like numbers. Whole numbers such as ``1.0``, which pandas
        writes when cells are missing, become the level ``1``. ``01`` and ``1.50`` stay as they are. A mapping also
        gives other spellings of levels: ``{"sex": {"F": ["f", "female"], "M": ["m", "male"]}}``. They apply before
        `positive`. A level in the mapping is never a missing value: ``{"country": {"NA": []}}``.
    blanks : sequence of str, optional
        Texts that mean a missing value, in addition to empty cells, NA, N/A, NaN and null. A number such as ``"-999"``
        also matches ``-999.0``.
    missing : {"error", "drop", "indicator"}, default "error"
        "error" raises an error that lists missing cells. "drop" drops rows with missing cells and warns with their
        number. "indicator" fills numbers with the mean over all sites, adds a column ``NAME_missing`` of 0 and 1, and
        gives factors a level ``missing``. Responses of `formula` are never filled.
    constant : sequence of str, optional
        Columns that may be the same in every row, such as a number of trials. Other constant columns are an error.
    policy : Policy, optional
        Policy of sites without a policy file beside their data. Other sites use the stricter of both for each floor.
    separator : str or mapping, default ","
        Separator of cells: one character, such as ``";"`` or a tab. This option and the next four may be a mapping
        from the names of the sites that differ from the default: ``{"sued": ";"}``.
    decimal : {".", ","} or mapping, default "."
        Decimal separator.
    thousands : str or mapping, optional
        Thousands separator: ``","``, ``"."``, ``"'"`` or a space.
    encoding : str or mapping, default "utf-8"
        Encoding of the file, such as ``"cp1252"`` or ``"utf-16"``.
    header : int or mapping, default 1
        Number of the line with the column names, from 1. Lines above it are ignored.

    Returns
    -------
    Study
        Rows by site, and what the sites agreed on.

    Raises
    ------
    FileNotFoundError
        No file matches.
    DataError
        Files have problems or sites refuse. The message lists everything.
    ValueError
        The arguments contradict each other.

    Examples
    --------
    >>> found = study("hospital-*.csv", positive={"died": "yes"}, missing="drop")  # doctest: +SKIP
    >>> found = study(file="all.csv", site="hospital", formula="died ~ age + sex")  # doctest: +SKIP
    """
    dialects = Dialects(separator, decimal, thousands, encoding, header)
    wanted = ColumnSpec.of(columns, formula, dates, positive, strings, blanks)
    _require_missing(missing)
    if agents is not None:
        agents = whole_number("agents", agents, 1)
    if split is not None and not isinstance(split, str):
        raise ValueError(f'split must be a rule, such as "iid" or "dirichlet(0.5)", found {split!r}')
    seed = whole_number("seed", seed, 0)
    given = {"site": site, "split": split, "column": column}
    if file is not None and split is not None and site is None:
        if agents is None:
            raise ValueError(f"split {split!r} needs agents, the number of agents")
        if files is not None:
            raise ValueError("pass either files or file, found both")
        labels = sorted(wanted.responses)
        if column is None and split.partition("(")[0] in ("by-label", "dirichlet"):
            if len(labels) != 1:
                raise ValueError(f"split {split!r} needs column, the column of labels, or a formula with one response")
            column = labels[0]
        sources, problems = sources_shared_out(file, split, agents, column, seed, policy, dialects, wanted.rules)
    else:
        if column is not None and file is not None:
            raise ValueError("column is an argument of split, and split is not given")
        sources, problems = _sources(files, file, given, policy, dialects, wanted.rules.blanks, drop=missing == "drop")
    if agents is not None and not problems and agents != len(sources):
        found = f"{len(sources)} files" if file is None else f"{len(sources)} sites in column {site!r}"
        raise ValueError(f"agents is {agents}, but there are {found}")
    return _met(_in_one_place(sources), sources, problems, wanted, missing, constant)


def _sources(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    file: str | os.PathLike[str] | None,
    given: Mapping[str, str | None],
    policy: Policy | None,
    dialects: Dialects,
    blanks: Sequence[str],
    *,
    drop: bool,
) -> tuple[list[Source], list[str]]:
    """The cells of each site, from one file per site or from one file with a site column, and problems of the files."""
    if (files is None) == (file is None):
        raise ValueError(f"pass either files or file, found {'neither' if files is None else 'both'}")
    if files is not None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is an argument for file (one file for all sites), found it with files")
        return sources_in_files(files, policy, dialects)
    site = given["site"]
    if file is None or site is None or given.get("split") is not None:
        found = "neither" if site is None else "both"
        raise ValueError(f"file needs either site or split, to assign its rows to sites, found {found}")
    return sources_in_file(file, site, policy, dialects, blanks, drop=drop)


def describe(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    site: str | None = None,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, Any] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] | Mapping[str, Mapping[str, str | Sequence[str]]] = (),
    blanks: Sequence[str] = (),
    policy: Policy | None = None,
    separator: str | Mapping[str, str] = ",",
    decimal: str | Mapping[str, str] = ".",
    thousands: str | None | Mapping[str, str] = None,
    encoding: str | Mapping[str, str] = "utf-8",
    header: int | Mapping[str, int] = 1,
) -> Agreed:
    """Summarise the columns of all files, by site and pooled, within the floors of the sites.

    See `study` for the parameters. Missing cells and constant columns are no errors here. Columns that `study`
    would reject are skipped with a warning. Levels that are rare at every site are counted without their names.
    Warnings point out likely mistakes: two spellings of a level, codes for missing values, different units, or 1.234
    that may mean 1234.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `study` does.
    """
    dialects = Dialects(separator, decimal, thousands, encoding, header)
    wanted = ColumnSpec.of(columns, formula, dates, positive, strings, blanks)
    sources, problems = _sources(files, file, {"site": site}, policy, dialects, wanted.rules.blanks, drop=False)
    meeting, found = _in_one_place(sources), Problems([[] for _ in sources])
    if not problems:
        wanted.rules.require_sites(meeting.sites)
    kinds, tables = tables_of(meeting, sources, wanted, found)
    unclear = [text for text in flat(found.own) if isinstance(text, AboutCells)]
    others = [text for text in flat(found.own) if not isinstance(text, AboutCells)]
    refused = [table.policy.too_few(table.where, table.rows) for table in tables]
    raise_all([*problems, *others, *flat(refused), *found.shared])
    if unclear:
        warnings.warn("skipped these columns:\n  " + listed(unclear), stacklevel=2)
    agreed = agree(meeting, kinds, tables, [0] * len(tables), floors=True)
    warn_of(sources, tables, kinds, agreed, stacklevel=3, described=True)
    return agreed


def as_study(table: Any, **options: Any) -> Study:
    """Make a study of tables in memory.

    Parameters
    ----------
    table : Study, or sequence or mapping of tables
        One pandas DataFrame, or mapping of names to arrays of shape (row,), per site: in a sequence, or in a mapping
        from names of sites. A `Study` is returned unchanged.
    **options
        `columns`, `formula`, `dates`, `positive`, `strings`, `blanks`, `missing`, `constant`, `policy`, `decimal` and
        `thousands` of `study`.

    Raises
    ------
    TypeError
        `table` has another type.
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
            raise TypeError(f"options cannot be changed for a Study, found {', '.join(options)}")
        return table
    require_options("as_study", options, (*SETTINGS, "policy", "decimal", "thousands"))
    dialects = Dialects.pop_from(options)
    sources = sources_in_memory(table, options.pop("policy", None), dialects)
    return _met(_in_one_place(sources), sources, [], *_settings(**options))


def study_at(
    meeting: SiteCollectives, file: str | os.PathLike[str] | None, policy: Policy | None, **options: Any
) -> Study:
    """The study of several sites, in a process with the file of one of them or of none.

    Raises
    ------
    DataError, ValueError
        As `study` does. Unreadable files are reported before the columns of the others.
    """
    dialects = Dialects.pop_from(options)
    dialects.require_sites(meeting.sites)
    wanted, missing, constant = _settings(**options)
    sources: list[Source] = []
    unread: list[list[str]] = []
    if file is not None:
        (name,), place = meeting.names_here, Path(os.path.expanduser(file))
        sources, problems = source_at(name, place, policy, dialects)
        unread = [problems]
    meeting.require(unread)
    return _met(meeting, sources, [], wanted, missing, constant)


def study_of_made_up(ranges: Ranges, tables: Mapping[str, Mapping[str, np.ndarray]], formula: str) -> Study:
    """The study of rows that are made up from declared ranges, and of sites whose rows have no say in it.

    Parameters
    ----------
    ranges
        The ranges of all columns.
    tables
        The rows of each site whose rows are here, within the ranges.
    formula
        The formula.
    """
    rows = {MADE_UP: ranges.made_up(), **tables}
    sources = sources_in_memory(rows, Policy.none(), Dialects())
    settings = _settings(columns=list(ranges.columns), formula=formula, strings=ranges.factors)
    return _met(MadeUpCollectives(tuple(rows)), sources, [], *settings)


# --- from cells to a study ---


def _settings(
    *,
    columns: Sequence[str] | None = None,
    formula: str | Sequence[str] | None = None,
    dates: Mapping[str, str | Mapping[str, Any] | Dates] | None = None,
    positive: Mapping[str, str | Sequence[str]] | None = None,
    strings: Sequence[str] | Mapping[str, Mapping[str, str | Sequence[str]]] = (),
    blanks: Sequence[str] = (),
    missing: str = "error",
    constant: Sequence[str] = (),
) -> tuple[ColumnSpec, str, Sequence[str]]:
    """Column specification, treatment of missing cells, and columns that may be constant."""
    _require_missing(missing)
    return ColumnSpec.of(columns, formula, dates, positive, strings, blanks), missing, constant


# Options of `study` about columns, which functions for tables in memory have too.
SETTINGS = tuple(inspect.signature(_settings).parameters)


def require_options(function: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise `TypeError` with the nearest known name if an option is unknown."""
    for name in options:
        if name not in known:
            raise TypeError(str(unknown_name_error(f"option of {function}", name, known)))


def _require_missing(missing: str) -> None:
    if missing not in MISSING:
        raise unknown_name_error("missing", missing, MISSING)


def _in_one_place(sources: Sequence[Source]) -> LocalCollectives:
    return LocalCollectives(tuple(source.name for source in sources))


def _met(
    meeting: SiteCollectives,
    sources: Sequence[Source],
    unread: Sequence[str],
    wanted: ColumnSpec,
    missing: str,
    constant: Sequence[str],
) -> Study:
    """The study of these sources. `unread` are problems of files that could not be read."""
    if isinstance(constant, str):
        raise ValueError(f"constant must be a list of names, found {constant!r}")
    if not unread:
        wanted.rules.require_sites(meeting.sites)
    problems = Problems([[] for _ in sources])
    kinds, tables = tables_of(meeting, sources, wanted, problems)
    dropped = [0] * len(tables)
    if missing == "drop":
        tables, dropped = without_missing(tables)
    factors = [name for name, kind in kinds.items() if kind == "factor"]
    # sites refuse before any of their counts leave
    for table, own in zip(tables, problems.own, strict=True):
        if missing != "drop":
            own += without_value(table, None if missing == "error" else wanted.responses)
        own += table.policy.too_few(table.where, table.rows) + _rare(table, factors, wanted.responses)
    if not meeting.is_whole:
        raise_all(problems.shared)
        meeting.require(problems.own)
    found = [*unread, *flat(problems.own), *problems.shared]
    if meeting.is_whole and not unread:
        known = list(dict.fromkeys(name for source in sources for name in source.columns))
        # formulas report their own unknown names
        named = () if wanted.mentions is None else wanted.mentions.names
        found += [f"constant: {absent_column(name, known)}" for name in constant if name not in {*known, *named}]
    # a column may be constant at some sites only
    if unread or not all(table.rows for table in tables):
        raise_all(found)
    agreed = agree(meeting, kinds, tables, dropped, floors=False)
    raise_all([*found, *_unusable(agreed, {*constant, *wanted.steady})])
    warn_of(sources, tables, kinds, agreed, stacklevel=4)
    warn_of_dropped(tables, dropped)
    if missing == "indicator":
        kinds, tables = filled(kinds, tables, agreed)
        agreed = with_counts(agree(meeting, kinds, tables, dropped, floors=False), agreed)
    ones = {name: words for name, words in wanted.rules.positive.items() if name in kinds}
    policies, lines = tuple(table.policy for table in tables), tuple(table.lines for table in tables)
    return Study(meeting, tuple(map(_frame, tables)), agreed, policies, ones, lines)


def _unusable(agreed: Agreed, constant: Container[str]) -> list[str]:
    """Problems of columns that are constant or overflow."""
    problems = []
    for name, column in agreed.columns.items():
        same = column.kind == "factor" and len(column.levels) == 1
        if column.mean is not None and column.sd is not None:
            if np.isinf(column.sd):
                problems.append(f"column {name!r}: the sum of its squares overflows float64: change its unit")
            # exact comparison: every row of a constant column has the same rounding error
            same = column.sd == 0.0
        if same and name not in constant:
            problems.append(f"column {name!r} is the same in every row: leave it out, or name it in constant")
    return problems


def _rare(table: SiteTable, factors: Sequence[str], responses: Container[str]) -> list[str]:
    """Refusals of a site with rare levels. With ``rare="warn"`` in its policy, they are warnings."""
    refusals = []
    for name in factors:
        rare, levels = rare_levels(table, name)
        if not rare:
            continue
        where = f"{table.where}: column {name!r}"
        text = f"{len(rare)} of {len(levels)} levels have fewer than {table.policy.cells} rows, the floor of the site"
        if table.policy.rare != "refuse":
            warnings.warn(f"{where}: {text}", stacklevel=4)
            continue
        remedy = "leave the column out"
        if name in responses:
            remedy = f'make 0 and 1 of it by positive = {{{name} = "..."}}'
        refusal = f"{where}: {text}: merge levels, or {remedy}"
        if any(set(group) & set(rare) for group in look_alike(levels)):
            # whether rare levels look like others is about the few rows of these levels
            refusal = AboutCells.of(
                f"{where} has levels that look alike (the same number, or the same text apart from case and spaces): "
                f"give them one spelling in the file, because {text}",
                elsewhere=refusal,
            )
        refusals.append(refusal)
    return refusals


def _frame(table: SiteTable) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(table.values)
