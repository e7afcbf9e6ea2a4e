"""The cells of sites before parsing, from files or from memory."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError, unknown_name_error
from .cells import Rules, Source
from .files import Dialect, Dialects, natural, paths_of, read_sheet, site_names, some_lines
from .policy import IN_MEMORY, Policy, require_policy
from .splits import split


def sources_in_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    policy: Policy | None,
    dialects: Dialects,
) -> tuple[list[Source], list[str]]:
    """The cells of sites with one file each, and the problems of unreadable files."""
    sources, problems = [], []
    paths = paths_of(files)
    names = site_names(paths)
    dialects.require_sites(names)
    for name, path in zip(names, paths, strict=True):
        where = name if name == str(path) else f"{name} ({path.name})"
        source, wrong = _source(name, where, path, policy, dialects.at(name))
        sources += source
        problems += wrong
    return sources, problems


def source_at(name: str, path: Path, policy: Policy | None, dialects: Dialects) -> tuple[list[Source], list[str]]:
    """The cells of the file of one site, or its problems."""
    return _source(name, f"{name} ({path.name})", path, policy, dialects.at(name))


def sources_in_file(
    file: str | os.PathLike[str],
    site: str,
    policy: Policy | None,
    dialects: Dialects,
    blanks: Sequence[str],
    *,
    drop: bool,
) -> tuple[list[Source], list[str]]:
    """The cells of sites in a single file, whose column `site` names them, and the problems of the file.

    With `drop`, rows without a site are left out with a warning. Otherwise they are a problem.
    """
    path = Path(os.path.expanduser(file))
    found, problems = _source(path.name, path.name, path, policy, dialects.of_one_file)
    if problems:
        return [], problems
    (whole,) = found
    if site not in whole.columns:
        return [], [f"{path.name}: there is no column {site!r} with the names of the sites"]
    names = np.array([whole.dialect.level(name) for name in whole.columns.pop(site).tolist()])
    unnamed = np.isin(names, blanks)
    if unnamed.any() and not drop:
        lines = some_lines(np.asarray(whole.lines)[unnamed].tolist())
        return [], [f'{path.name}: column {site!r}: {lines} no site: missing = "drop" leaves such rows out']
    if unnamed.any():
        count = whole.policy.disclosed(int(unnamed.sum()))
        warnings.warn(f"rows without a site in column {site!r} are left out: {count} in {path.name}", stacklevel=4)
    return [
        whole.part(name, names == name, whole.policy) for name in sorted(set(names[~unnamed].tolist()), key=natural)
    ], []


def sources_shared_out(
    file: str | os.PathLike[str],
    rule: str,
    agents: int,
    column: str | None,
    seed: int,
    policy: Policy | None,
    dialects: Dialects,
    rules: Rules,
) -> tuple[list[Source], list[str]]:
    """The rows of one file, split over simulated agents without floors, and the problems of the file.

    The floor for rows applies to the whole file. `column` has the values that the rule sorts by, or the labels.
    """
    path = Path(os.path.expanduser(file))
    found, problems = _source(path.stem, path.name, path, policy, dialects.of_one_file)
    if problems:
        return [], problems
    (whole,) = found
    rows = len(whole.lines)
    if refused := whole.policy.too_few(whole.where, rows):
        return [], refused
    values = None
    if column is not None:
        if column not in whole.columns:
            return [], [f"{path.name}: {unknown_name_error('column', column, list(whole.columns))}"]
        table, problems = whole.table([column], rules)
        if problems or table.absent[column].any():
            return [], problems or [f"{path.name}: column {column!r}, by which rows are split, has missing cells"]
        # codes of texts in sorted order
        values = (
            np.unique(table.values[column], return_inverse=True)[1]
            if table.kinds[column] == "factor"
            else table.values[column]
        )
    labels = np.zeros(rows) if values is None else values
    by = values if rule.partition("(")[0] == "by-column" else None
    parts = split(rule, np.empty((rows, 0)), labels, agents, seed, by)
    own = [np.isin(np.arange(rows), part) for part in parts]
    return [whole.part(f"agent {i}", one, Policy.none()) for i, one in enumerate(own)], []


def _source(
    name: str, where: str, path: Path, policy: Policy | None, dialect: Dialect
) -> tuple[list[Source], list[str]]:
    """The cells of a file, or its problems."""
    sheet = read_sheet(path, dialect)
    if sheet.problems:
        return [], [f"{where}: {problem}" for problem in sheet.problems]
    return [Source(name, where, "line", _floors(path, policy), sheet.columns, sheet.lines, dialect)], []


def _floors(path: Path, policy: Policy | None) -> Policy:
    """The policy for a file: the strictest of the argument and the files beside it, before and after links."""
    require_policy(policy)
    found = [policy, Policy.beside(path), Policy.beside(path.resolve())]
    return reduce(Policy.stricter, [one for one in found if one is not None] or [Policy()])


def sources_in_memory(
    table: Any, policy: Policy | None, dialects: Dialects, *, cell_by_cell: bool = False
) -> list[Source]:
    """The cells of sites, from a sequence or mapping of tables in memory.

    With `cell_by_cell`, no cell has a say in the type of the other cells of its column.
    """
    if isinstance(table, Mapping):
        sites, tables = [str(name) for name in table], list(table.values())
    elif isinstance(table, Sequence) and not isinstance(table, str | bytes):
        sites, tables = [f"agent {i}" for i in range(len(table))], list(table)
    else:
        raise _no_study(f"a {type(table).__name__}")
    if not tables:
        raise _no_study("none")
    twice = [name for name, times in Counter(sites).items() if times > 1]
    if twice:
        raise ValueError(f"two tables have the site name {twice[0]!r} (names are converted to text)")
    require_policy(policy)
    floors = policy or IN_MEMORY
    dialects.require_sites(sites)
    return [
        Source(site, site, "row", floors, *_columns_in_memory(site, own, cell_by_cell), dialects.at(site))
        for site, own in zip(sites, tables, strict=True)
    ]


def _columns_in_memory(site: str, table: Any, cell_by_cell: bool) -> tuple[dict[str, np.ndarray], range]:
    if not (isinstance(table, Mapping) or (hasattr(table, "columns") and hasattr(table, "to_dict"))):
        raise _no_study(f"a {type(table).__name__} for {site}")
    arrays = {str(name): (_each if cell_by_cell else _array)(table[name]) for name in table}
    if not arrays:
        raise DataError(f"{site}: the table has no columns")
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        raise DataError(f"{site}: columns must have one shape (row,), found {', '.join(map(str, sorted(shapes)))}")
    return arrays, range(next(iter(shapes))[0])


def _array(column: Any) -> np.ndarray:
    """A column as an array, with None for pandas' own missing values."""
    values = np.asarray(column)
    if values.dtype == object and hasattr(column, "isna"):
        values = values.copy()
        values[np.asarray(column.isna())] = None
    return values


def _each(column: Any) -> np.ndarray:
    """A column as an array in which no cell changes another one, as nan in a list would make 1.0 of True."""
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return np.fromiter(column, object)
    # pandas makes floats of the integers of some columns with missing values. An array has the type of its owner
    return np.asarray(column.astype(object) if hasattr(column, "isna") else column)


def _no_study(found: str) -> TypeError:
    return TypeError(
        "a table must be an accord.data.Study, or a sequence or mapping with one pandas DataFrame or mapping of "
        f'columns per site, found {found}. To split a DataFrame by site: dict(list(frame.groupby("site")))'
    )
