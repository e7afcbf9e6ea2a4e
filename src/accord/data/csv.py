"""Reading CSV files into shards: one file for each agent, a site column, or a split rule."""

from __future__ import annotations

import csv
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..base.errors import DataError, unknown_name_error
from .files import missing_header, natural, paths_of, read_sheet, site_names, twice_named
from .splits import Parts, split

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Table:
    """Rows by agent, ready for a model.

    Parameters
    ----------
    shards : list of (array, array), or of functions
        For each agent its covariates X_i, shape (row, dim), and its responses y_i, shape (row,), float64; or a
        function that reads them (`at_sites`).
    columns : tuple of str
        The names of the columns of X, ``"intercept"`` first if it was added.
    sites : tuple of str
        The names of the agents, in the order of the shards.
    sds : dict of float
        By column, what it was divided by where it was standardised.
    """

    shards: list[Any]
    columns: tuple[str, ...]
    sites: tuple[str, ...]
    sds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        # rows stay where they are, off the screen too
        return f"<Table: {len(self.sites)} sites {', '.join(self.sites)}; columns {', '.join(self.columns)}>"


def read(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    target: str,
    file: str | os.PathLike[str] | None = None,
    site: str | None = None,
    split: str | None = None,
    agents: int | None = None,
    columns: Sequence[str] | None = None,
    column: str | None = None,
    standardise: bool = True,
    intercept: bool = True,
    seed: int = 0,
) -> Table:
    """Read CSV files into one shard an agent.

    The data is either one file an agent (`files`), or one `file` that a `site` column or a `split` rule
    shares out over the agents. Every file has a header; booleans count as 0 and 1.

    Standardising uses the pooled mean and standard deviation of each column, over the rows of all agents.
    Where these may not be pooled, standardise at the sites and pass ``standardise=False``.

    Parameters
    ----------
    files : str, path or sequence of them, optional
        A glob, whose files are taken in the order of their names (numbers in them by value: 2 before 10),
        or a list of files, taken as listed.
    target : str
        The column of the response.
    file : str or path, optional
        The one file of all agents.
    site : str, optional
        The column of `file` that names the agent of a row; agents are sorted as file names are.
    split : str, optional
        The rule that shares out the rows of `file`: one of `SPLITS`, an argument in brackets, as in
        ``"dirichlet(0.5)"``. See `split`.
    agents : int, optional
        How many agents `split` makes; with `files` or `site` it must be the number found.
    columns : sequence of str, optional
        The columns of X, in this order; by default every column of the file but `target` and `site`.
    column : str, optional
        The column that ``by-column`` sorts by; it need not be among `columns`.
    standardise : bool, default True
        Shift and scale each column of X to mean 0 and standard deviation 1 over all agents.
    intercept : bool, default True
        Put a column of ones first.
    seed : int, default 0
        Seed of the split rule.

    Returns
    -------
    Table
        Shards, names of the columns, names of the agents.

    Raises
    ------
    FileNotFoundError
        If a file is not there, or the glob matches none.
    ValueError
        If a file cannot be read or has no rows, a column is missing, constant or not finite numbers (file, column and
        line are named, no cell is quoted), or the arguments do not fit together.

    Examples
    --------
    >>> table = read("sites/*.csv", target="ill")  # doctest: +SKIP
    >>> table = read(file="all.csv", split="dirichlet(0.5)", agents=10, target="ill")  # doctest: +SKIP
    >>> post = accord.models.logistic_regression(table.shards)  # doctest: +SKIP
    """
    if (files is None) == (file is None):
        raise ValueError(f"give one of files and file; found {'neither' if files is None else 'both'}")
    if site == target:
        raise ValueError(f"site and target are one column, {site!r}: a site cannot be explained by its own name")
    for name, flag in [("standardise", standardise), ("intercept", intercept)]:
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be true or false, found {flag!r}")
    if file is None:
        for name, value in [("site", site), ("split", split), ("column", column)]:
            if value is not None:
                raise ValueError(f"{name} goes with file, one file of all agents; found it with files")
        paths = paths_of(files)
    else:
        if (site is None) == (split is None):
            found = "neither" if site is None else "both"
            raise ValueError(f"file needs one of site and split, to know whose rows are whose; found {found}")
        if split is not None and agents is None:
            raise ValueError(f"split {split!r} needs agents, the number of agents")
        if split is None and column is not None:
            raise ValueError("column goes with split 'by-column'; found it with site")
        paths = [Path(os.path.expanduser(file))]

    frames = [_frame(path, site) for path in paths]
    names = _covariates(frames, paths, target, site, columns, intercept)
    tables = [_matrix(frame, path, [*names, target]) for frame, path in zip(frames, paths, strict=True)]
    if file is None:
        sites = site_names(paths)
        parts = np.split(np.arange(sum(map(len, tables))), np.cumsum([len(t) for t in tables])[:-1])
    elif site is not None:
        sites, parts = _by_site(frames[0], paths[0], site)
    else:
        values = None if column is None else _matrix(frames[0], paths[0], [column])[:, 0]
        assert split is not None and agents is not None
        parts = _split(split, tables[0][:, :-1], tables[0][:, -1], agents, seed, values)
        sites = tuple(f"agent {i}" for i in range(agents))
    if agents is not None and agents != len(sites):
        found = f"{len(sites)} files" if file is None else f"{len(sites)} sites in column {site!r}"
        raise ValueError(f"agents is {agents}, but there are {found}")

    rows = np.concatenate(tables)
    X, y = rows[:, :-1], rows[:, -1]
    sds: dict[str, float] = {}
    if standardise:
        X, divisors = _standardised(X, names)
        sds = dict(zip(names, divisors.tolist(), strict=True))
    if intercept:
        X = _with_ones(X)
        names = ["intercept", *names]
    return Table([(X[part], y[part]) for part in parts], tuple(names), sites, sds)


def at_sites(
    files: Sequence[str | os.PathLike[str]],
    *,
    target: str,
    columns: Sequence[str],
    intercept: bool = True,
) -> Table:
    """Name one CSV file an agent, to be read at its site only.

    Nothing is read here: the shards are functions that a model calls where an agent's data is needed. So the columns
    have to be named, and nothing is pooled. Columns are not standardised, as that takes the mean and the spread over
    all sites: agree on units, or standardise at the sites, and give the model a prior that fits them.

    Parameters
    ----------
    files : sequence of str or path
        The file of each agent, by its name where it is read: ``~`` and relative paths are those of that process. Two
        sites may use the same name.
    target : str
        The column of the response.
    columns : sequence of str
        The columns of X, in this order.
    intercept : bool, default True
        Put a column of ones first.

    Returns
    -------
    Table
        Functions that read the shards, names of the columns, names of the agents (after the files).

    Raises
    ------
    ValueError
        If `files` is a pattern or empty, or `columns` is empty, names a column twice or the target.
        What is wrong with a file is raised where it is read, as by `read`.

    Examples
    --------
    >>> table = at_sites(["~/north.csv", "~/south.csv"], target="ill", columns=["age", "dose"])
    >>> table.sites, table.columns
    (('north', 'south'), ('intercept', 'age', 'dose'))
    >>> post = accord.models.logistic_regression(table.shards, names=table.columns)  # doctest: +SKIP
    """
    if isinstance(files, str | os.PathLike):
        raise ValueError(
            f"files must list one file an agent, found {os.fspath(files)!r}: what a pattern matches is known only "
            "where the files lie"
        )
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, found {columns!r}")
    if len(files) == 0:
        raise ValueError("files is an empty list")
    _check_chosen(columns, target)
    _check_intercept("columns", columns, target, intercept)
    read_one = partial(_read_site, target=target, columns=tuple(columns), intercept=intercept)
    names = ("intercept", *columns) if intercept else tuple(columns)
    return Table([partial(read_one, os.fspath(file)) for file in files], names, site_names([Path(f) for f in files]))


def _read_site(
    file: str, target: str, columns: tuple[str, ...], intercept: bool
) -> tuple[Float[np.ndarray, "row dim"], Float[np.ndarray, " row"]]:
    path = Path(os.path.expanduser(file))
    frame = _frame(path, None)
    names = _covariates([frame], [path], target, None, columns, intercept)
    rows = _matrix(frame, path, [*names, target])
    X, y = rows[:, :-1], rows[:, -1]
    return (_with_ones(X) if intercept else X), y


_split = split  # `read` has an argument of that name


# --- files ---


def _by_site(frame: pd.DataFrame, path: Path, site: str) -> tuple[tuple[str, ...], Parts]:
    values = frame[site].str.strip().to_numpy(dtype=object)
    unnamed = np.flatnonzero(values == "")
    if unnamed.size:
        raise DataError(f"{path}: column {site!r} names no site in {_line(path, unnamed[0])}")
    sites = sorted(set(values), key=natural)
    return tuple(sites), [np.flatnonzero(values == name) for name in sites]


def numbers(path: Path, names: Sequence[str]) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns of a file, each of finite numbers, by name.

    Raises
    ------
    DataError
        A column is missing, or a cell is no finite number: it is named by its line, and not quoted.
    """
    return dict(zip(names, _matrix(_frame(path, None), path, names).T, strict=True))


def _frame(path: Path, site: str | None) -> pd.DataFrame:
    """Return a file as pandas reads it, the site column as text.

    Errors of pandas are not chained to those raised here: what they say may quote cells.
    """
    import pandas as pd

    try:
        _refuse_duplicates(path)
        with warnings.catch_warnings():
            # Rows of more fields than the header: pandas would drop the last ones.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                keep_default_na=False,  # a site may be called NA
                dtype=None if site is None else {site: str},  # site 007 is not site 7
            )
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty") from None
    except (OSError, UnicodeError, csv.Error, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = next(iter(read_sheet(path).problems), type(error).__name__)
        raise DataError(f"{path} cannot be read as CSV: {reason}") from None
    if frame.empty:
        raise DataError(f"{path} has a header but no rows")
    return frame


def _refuse_duplicates(path: Path) -> None:
    """Raise `DataError` if a name is twice in the header: pandas would give the second one a name of its own."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        header = [name.strip() for name in next(csv.reader(stream, skipinitialspace=True), [])]
    twice = twice_named(header)
    if twice:
        raise DataError(f"{path}: {twice[0]}")


def _covariates(
    frames: list[pd.DataFrame],
    paths: list[Path],
    target: str,
    site: str | None,
    columns: Sequence[str] | None,
    intercept: bool,
) -> list[str]:
    """Return the names of the covariates, once every file is known to have all that is asked for."""
    headers = [[str(name) for name in frame.columns] for frame in frames]
    if columns is None:
        for path, header in zip(paths, headers, strict=True):
            _require_same_columns(paths[0], headers[0], path, header)
        names = [name for name in headers[0] if name not in (target, site)]
        unnamed = [name for name in names if name.startswith("Unnamed: ")]  # pandas' word for an empty name
        if unnamed:
            number = headers[0].index(unnamed[0]) + 1
            raise DataError(f"{paths[0]}: column {number} has no name; name it, or choose with columns")
    else:
        names = list(columns)
        _check_chosen(names, target)
    for path, header in zip(paths, headers, strict=True):
        for name in [target, *([] if site is None else [site]), *names]:
            if name not in header:
                raise _missing_column(path, name, header)
    _check_intercept(paths[0], names, target, intercept)
    return names


def _check_chosen(columns: Sequence[str], target: str) -> None:
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ValueError(f"columns lists {twice[0]!r} more than once")
    if target in columns:
        raise ValueError(f"columns lists the target {target!r}")


def _check_intercept(where: str | Path, names: Sequence[str], target: str, intercept: bool) -> None:
    if intercept and "intercept" in names:
        raise ValueError(f"{where} has a column 'intercept' already; pass intercept=False or leave it out")
    if not names and not intercept:
        raise ValueError(f"{where} has no covariate beside the target {target!r}, and intercept is False")


def _missing_column(path: Path, name: str, header: Sequence[str]) -> DataError:
    missing = missing_header(header)
    return DataError(
        f"{path}: {f'no column {name!r}; {missing}' if missing else unknown_name_error('column', name, header)}"
    )


def _require_same_columns(first: Path, expected: Sequence[str], path: Path, header: Sequence[str]) -> None:
    only = [
        f"only {owner} has {', '.join(map(repr, names))}"
        for owner, names in [
            (first, [name for name in expected if name not in header]),
            (path, [name for name in header if name not in expected]),
        ]
        if names
    ]
    if only:
        missing = [
            f"{owner}: {said}"
            for owner, names in ((first, expected), (path, header))
            if (said := missing_header(names))
        ]
        raise DataError(f"{first} and {path} have different columns: {'; '.join(missing or only)}")


def _matrix(frame: pd.DataFrame, path: Path, names: Sequence[str]) -> Float[np.ndarray, "row dim"]:
    """Return the named columns as finite float64 numbers."""
    import pandas as pd

    matrix = np.empty((len(frame), len(names)))
    for j, name in enumerate(names):
        if name not in frame:
            raise _missing_column(path, name, list(frame.columns))
        values = frame[name]
        matrix[:, j] = pd.to_numeric(values, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        bad = np.flatnonzero(~np.isfinite(matrix[:, j]))
        if bad.size:
            value = values.iloc[bad[0]]
            # numbers of pandas are NaN where a row is too short
            blank = not value.strip() if isinstance(value, str) else np.isnan(value)
            found = "no value" if blank else "no finite number"
            raise DataError(f"{path}: column {name!r} has {found} in {_line(path, bad[0])}")
    return matrix


def _line(path: Path, row: int) -> str:
    """Where a row of data is, counted from 0, as an editor shows it; by its number where pandas counted otherwise."""
    sheet = read_sheet(path)
    if sheet.problems or row >= len(sheet.lines):
        return f"row {row + 1} below the header"
    return f"line {sheet.lines[row]}"


def _with_ones(X: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    return np.column_stack([np.ones(len(X)), X])


def _standardised(
    X: Float[np.ndarray, "row dim"], names: Sequence[str]
) -> tuple[Float[np.ndarray, "row dim"], Float[np.ndarray, " dim"]]:
    """The columns less their means and over their standard deviations, and these."""
    constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
    if constant.size:
        raise DataError(f"column {names[constant[0]]!r} is the same in every row; leave it out of columns")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = X.mean(axis=0), X.std(axis=0)
    beyond = np.flatnonzero(~np.isfinite(sd))
    if beyond.size:
        raise DataError(f"column {names[beyond[0]]!r}: the sum of its squares is beyond float64; change its unit")
    return (X - mean) / sd, sd
