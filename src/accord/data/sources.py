"""Where the cells of sites come from: their files, or what people have in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError
from .cells import Source
from .files import natural, paths_of, read_sheet, site_names, some_lines
from .policy import Policy, require_policy


def sources_in_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    file: str | os.PathLike[str] | None,
    site: str | None,
    policy: Policy | None,
) -> tuple[list[Source], list[str]]:
    """The sites' cells, without sites whose file cannot be read, and what is wrong with the files."""
    if (files is None) == (file is None):
        raise ValueError(f"give one of files and file; found {'neither' if files is None else 'both'}")
    if (file is None) != (site is None):
        raise ValueError("file, of all sites, goes with site, the column that names the site of a row")
    if file is not None and site is not None:
        return _by_column(Path(os.path.expanduser(file)), site, policy)
    sources, problems = [], []
    paths = paths_of(files)
    for name, path in zip(site_names(paths), paths, strict=True):
        sheet = read_sheet(path)
        where = name if name == str(path) else f"{name} ({path.name})"
        problems += [f"{where}: {problem}" for problem in sheet.problems]
        if not sheet.problems:
            cells = dict(zip(sheet.header, np.array(sheet.rows, object).T, strict=True))
            sources.append(Source(name, where, "line", _floors(path, policy), cells, sheet.lines))
    return sources, problems


def _by_column(path: Path, site: str, policy: Policy | None) -> tuple[list[Source], list[str]]:
    sheet = read_sheet(path)
    problems = [f"{path.name}: {problem}" for problem in sheet.problems]
    if problems:
        return [], problems
    cells, lines = dict(zip(sheet.header, np.array(sheet.rows, object).T, strict=True)), np.array(sheet.lines)
    if site not in cells:
        return [], [f"{path.name}: there is no column {site!r}, which is to name the sites"]
    names = cells.pop(site).astype(str)
    unnamed = np.flatnonzero(names == "")
    if unnamed.size:
        return [], [f"{path.name}: column {site!r}: {some_lines(lines[unnamed].tolist())} no site"]
    floors = _floors(path, policy)
    sources = []
    for name in sorted(set(names.tolist()), key=natural):
        own = names == name
        rows = {column: values[own] for column, values in cells.items()}
        sources.append(Source(name, f"{name} ({path.name})", "line", floors, rows, lines[own]))
    return sources, []


def _floors(path: Path, policy: Policy | None) -> Policy:
    """The floors of the site of a file: nobody else may lower those of its own policy, nor go by a link around it."""
    require_policy(policy)
    found = [policy, Policy.beside(path), Policy.beside(path.resolve())]
    return reduce(Policy.stricter, [one for one in found if one is not None] or [Policy()])


def sources_in_memory(table: Any, policy: Policy | None) -> list[Source]:
    """The sites' cells, from a sequence or mapping of tables."""
    if isinstance(table, Mapping):
        sites, tables = [str(name) for name in table], list(table.values())
    elif isinstance(table, Sequence) and not isinstance(table, str | bytes):
        sites, tables = [f"agent {i}" for i in range(len(table))], list(table)
    else:
        raise _no_study(f"a {type(table).__name__}")
    if not tables:
        raise _no_study("none")
    require_policy(policy)
    floors = policy or Policy()
    return [
        Source(site, site, "row", floors, *_columns_in_memory(site, own))
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
        f"columns a site; found {found}"
    )
