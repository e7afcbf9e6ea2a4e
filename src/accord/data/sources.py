"""Where the cells of sites come from: their files, or what people have in memory."""

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
from .policy import Policy, require_policy
from .splits import split


def sources_in_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    policy: Policy | None,
    dialects: Dialects,
) -> tuple[list[Source], list[str]]:
    """The cells of sites with a file each, and what is wrong with the files that cannot be read."""
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
    """The cells of the file of a site of this name, or what is wrong with it."""
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
    """The cells of sites that share a file, whose column `site` names them, and what is wrong with the file.

    Rows whose site has no value are a problem, or left out with a warning.
    """
    path = Path(os.path.expanduser(file))
    found, problems = _source(path.name, path.name, path, policy, dialects.of_one_file)
    if problems:
        return [], problems
    (whole,) = found
    if site not in whole.columns:
        return [], [f"{path.name}: there is no column {site!r}, which is to name the sites"]
    names = np.array([whole.dialect.level(name) for name in whole.columns.pop(site).tolist()])
    unnamed = np.isin(names, blanks)
    if unnamed.any() and not drop:
        lines = some_lines(np.asarray(whole.lines)[unnamed].tolist())
        return [], [f'{path.name}: column {site!r}: {lines} no site; missing = "drop" leaves such rows out']
    if unnamed.any():
        count = whole.policy.told(int(unnamed.sum()))
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
    """The rows of one file by agents that a rule makes, which have no floors, and what is wrong with the file.

    `column` is what the rule looks at. The floor of rows holds for the file.
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
            return [], problems or [f"{path.name}: column {column!r}, by which rows are split, has cells of no value"]
        # texts by their order
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
    """The cells of a file, or what is wrong with it."""
    sheet = read_sheet(path, dialect)
    if sheet.problems:
        return [], [f"{where}: {problem}" for problem in sheet.problems]
    return [Source(name, where, "line", _floors(path, policy), sheet.columns, sheet.lines, dialect)], []


def _floors(path: Path, policy: Policy | None) -> Policy:
    """The floors of the site of a file: nobody else may lower those of its own policy, nor go by a link around it."""
    require_policy(policy)
    found = [policy, Policy.beside(path), Policy.beside(path.resolve())]
    return reduce(Policy.stricter, [one for one in found if one is not None] or [Policy()])


def sources_in_memory(table: Any, policy: Policy | None, dialects: Dialects) -> list[Source]:
    """The sites' cells, from a sequence or mapping of tables."""
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
        raise ValueError(f"two tables have the site name {twice[0]!r}, as 1 and '1' are one name")
    require_policy(policy)
    floors = policy or Policy()
    dialects.require_sites(sites)
    return [
        Source(site, site, "row", floors, *_columns_in_memory(site, own), dialects.at(site))
        for site, own in zip(sites, tables, strict=True)
    ]


def _columns_in_memory(site: str, table: Any) -> tuple[dict[str, np.ndarray], range]:
    if not (isinstance(table, Mapping) or (hasattr(table, "columns") and hasattr(table, "to_dict"))):
        raise _no_study(f"a {type(table).__name__} for {site}")
    arrays = {str(name): _array(table[name]) for name in table}
    if not arrays:
        raise DataError(f"{site}: the table has no columns")
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        raise DataError(f"{site}: columns must have one shape (row,), found {', '.join(map(str, sorted(shapes)))}")
    return arrays, range(next(iter(shapes))[0])


def _array(column: Any) -> np.ndarray:
    """A column as an array, with None where pandas has a word of its own for a missing cell."""
    values = np.asarray(column)
    if values.dtype == object and hasattr(column, "isna"):
        values = values.copy()
        values[np.asarray(column.isna())] = None
    return values


def _no_study(found: str) -> TypeError:
    return TypeError(
        "a table must be an accord.data.Study, or a sequence or mapping with one pandas DataFrame or mapping of "
        f'columns a site; found {found}. Split a DataFrame of all sites: dict(list(frame.groupby("site")))'
    )
