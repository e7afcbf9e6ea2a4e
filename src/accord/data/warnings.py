"""Warnings about likely mistakes in tables. They quote agreed levels only, and no cell."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .cells import MISSING_WORDS, WHOLE, SiteTable, Source
from .files import Dialect
from .summaries import Agreed

# Common codes for missing values, as numbers.
_CODES = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
# Ratio of interquartile ranges of two sites above which a description warns that their units may differ.
_OTHER_UNIT = 8.0
# Ratio of numbers at two sites above which a study warns of other units or misread thousands separators.
_OTHER_SIZE = 100.0


def warn_of(
    sources: Sequence[Source],
    tables: Sequence[SiteTable],
    kinds: Mapping[str, str],
    agreed: Agreed,
    *,
    stacklevel: int,
    described: bool = False,
) -> None:
    """Warn about likely mistakes in the tables of a study.

    Parameters
    ----------
    sources, tables
        The cells of the sites in this process, before and after parsing.
    kinds
        Kind of each column.
    agreed
        Summaries of the columns, with the levels that a warning may name.
    stacklevel
        The `stacklevel` of `warnings.warn`, as seen from this function.
    described
        Whether the tables are only described. Then less certain warnings are included.
    """
    found = [*_sites([table.name for table in tables]), *spellings(agreed.levels)]
    for name, kind in kinds.items():
        if kind in ("factor", "group"):
            found += _words(name, tables, agreed.levels.get(name, ()))
        if kind == "factor" and described:
            found += apart(name, {table.name: set(table.present(name).tolist()) for table in tables})
        if kind == "yes-no":
            found += _zeros(name, tables)
        if kind == "number":
            grouped = _grouped(name, sources, tables, described)
            found += [*_codes(name, tables), *grouped]
            if described:
                found += _units(name, tables, _OTHER_UNIT)
            elif not grouped:
                # misread separators would explain other sizes
                found += _units(name, tables, _OTHER_SIZE)
                found += _unit_here(name, tables, agreed)
    for text in found:
        warnings.warn(text, stacklevel=stacklevel)


def spellings(levels: Mapping[str, Sequence[str]]) -> list[str]:
    """Messages about columns with levels that look alike."""
    found = []
    for name, own in levels.items():
        if groups := look_alike(own):
            several = ", and ".join(" and ".join(map(repr, group)) for group in groups)
            remedy = ", ".join(f'"{first}" = {others}' for first, *others in groups).replace("'", '"')
            found.append(
                f"column {name!r} has levels that look alike, {several}, each with its own effect: if they mean the "
                f"same, give them one spelling in the files, or write strings = {{{name} = {{{remedy}}}}}"
            )
    return found


def look_alike(levels: Iterable[str]) -> list[list[str]]:
    """Groups of levels that are the same number, or the same text apart from case and spaces."""
    alike: dict[Any, list[str]] = {}
    for level in levels:
        alike.setdefault(_seen(level), []).append(level)
    return [group for group in alike.values() if len(group) > 1]


def _seen(level: str) -> Any:
    """A level as a number, or as a text without invisible differences."""
    number = Dialect().number(level)
    return number if number is not None and abs(number) < WHOLE else _look(level)


def _look(text: str) -> str:
    """A text without invisible differences: case, spaces, format characters and equivalent code points."""
    seen = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(sign for sign in seen if unicodedata.category(sign) != "Cf").split())


def _sites(names: Sequence[str]) -> list[str]:
    """Warnings about sites with similar names, and with names that often mean a missing value."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_look(name), []).append(name)
    several = [" and ".join(map(repr, own)) for own in alike.values() if len(own) > 1]
    found = [f"the sites {', '.join(several)} have similar names: are they one site?"] if several else []
    words = [repr(name) for name in names if name in MISSING_WORDS and Dialect().number(name) is None]
    return [*found, *(f"a site has the name {word}: if it means a missing value, name it in blanks" for word in words)]


def _zeros(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """A warning about sites with another text for 0 than elsewhere, which may be a spelling of 1."""
    own = {table.name: table.zeros[name] for table in tables if table.zeros.get(name)}
    usual = max(own.values(), key=list(own.values()).count, default="")
    others = [site for site, text in own.items() if text != usual]
    remedy = "name all spellings of 1 in positive, and all of 0 in strings"
    if others:
        return [f"column {name!r}: the text for 0 at {', '.join(others)} differs from other sites: {remedy}"]
    if len(tables) == 1 and own and not tables[0].present(name).any():
        return [f"column {name!r}: {tables[0].where} has only one text, which is not in positive: {remedy}"]
    return []


def _words(name: str, tables: Sequence[SiteTable], known: Collection[str]) -> list[str]:
    """A warning about levels that often mean a missing value. It quotes the `known` ones."""
    words = sorted(MISSING_WORDS.intersection(*[set().union(*(table.present(name).tolist() for table in tables))]))
    if not words:
        return []
    listed = ", ".join(repr(word) for word in words if word in known)
    level = f"the level {listed}" if listed else "a level such as '?' or '999'"
    return [f"column {name!r} has {level}: if it means a missing value, name it in blanks"]


def apart(name: str, levels: Mapping[str, Collection[str]]) -> list[str]:
    """A warning about sites with several levels and none like a level of other sites. `levels` is by site."""
    levels = {site: set(map(_seen, own)) for site, own in levels.items()}
    others = {site: set().union(*(own for other, own in levels.items() if other != site)) for site in levels}
    found = [site for site, own in levels.items() if len(own) > 1 and others[site] and others[site].isdisjoint(own)]
    if not found:
        return []
    return [
        f"column {name!r}: no level of {', '.join(found)} occurs at another site. If these are other spellings of the "
        f'levels, name them, as in strings = {{{name} = {{F = ["female", "2"]}}}}'
    ]


def _codes(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """Warnings about numbers that often mean a missing value, if they are far from all others."""
    return [
        about_codes(table.where, name, table.policy.disclosed(count), "name it in blanks")
        for table in tables
        if (count := far_codes(table.present(name)))
    ]


def about_codes(where: str, name: str, rows: object, remedy: str) -> str:
    """A warning about such numbers in some rows of a column."""
    return (
        f"{where}: column {name!r} has a number such as -999 or 99, far from all others, in {rows} rows: if it means a "
        f"missing value, {remedy}"
    )


def far_codes(cells: np.ndarray) -> int:
    """How many numbers often mean a missing value and are far from all others."""
    rest = cells[~np.isin(cells, _CODES)]
    if not rest.size:
        return 0
    low, high = float(rest.min()), float(rest.max())
    far = [code for code in _CODES if code < low - (high - low) or code > high + (high - low)]
    return int(np.isin(cells, far).sum())


def _units(name: str, tables: Sequence[SiteTable], ratio: float) -> list[str]:
    """A warning if the numbers of one site vary at least `ratio` times as much as at another site."""
    wide = {
        table.name: float(np.subtract(*np.quantile(cells, [0.75, 0.25])))
        for table in tables
        if (cells := table.present(name)).size
    }
    varied = {site: width for site, width in wide.items() if width > 0.0}
    if not varied:
        return []
    most, least = max(varied, key=lambda site: varied[site]), min(varied, key=lambda site: varied[site])
    if varied[most] < ratio * varied[least]:
        return []
    return [
        f"column {name!r} varies {varied[most] / varied[least]:.0f} times as much at {most} as at {least}: do both "
        "use the same unit?"
    ]


def _unit_here(name: str, tables: Sequence[SiteTable], agreed: Agreed) -> list[str]:
    """A warning if the numbers of the only site in this process vary much less than at all sites together."""
    pooled = agreed.columns[name].sd
    if len(tables) != 1 or len(agreed.sites) == 1 or pooled is None:
        return []
    own = float(tables[0].present(name).std()) if tables[0].present(name).size else 0.0
    if own == 0.0 or pooled < _OTHER_SIZE * own:
        return []
    return [
        f"column {name!r} varies {pooled / own:.0f} times as much at all sites together as at {tables[0].name}: do all "
        "use the same unit?"
    ]


def _grouped(name: str, sources: Sequence[Source], tables: Sequence[SiteTable], described: bool) -> list[str]:
    """A warning about sites whose decimal separators may all be thousands separators."""
    sizes = [float(np.median(np.abs(cells))) if (cells := table.present(name)).size else np.nan for table in tables]
    known = [size for size in sizes if np.isfinite(size)]
    if not described and not (known and max(known) > _OTHER_SIZE * min(known)):
        return []
    own = [n for n, source in enumerate(sources) if _looks_grouped(source, name)]
    if not described:
        others = [size for n, size in enumerate(sizes) if n not in own]
        own = [n for n in own if any(size > _OTHER_SIZE * sizes[n] for size in others)]
    if not own:
        return []
    sites, sign = ", ".join(sources[n].name for n in own), sources[own[0]].dialect.decimal
    other = "," if sign == "." else "."
    return [
        f"column {name!r}: all non-integer numbers of {sites} have three digits after {sign!r}. If 1{sign}234 "
        f'means 1234 there, write thousands = "{sign}" and decimal = "{other}"'
    ]


def _looks_grouped(source: Source, name: str) -> bool:
    sign = source.dialect.decimal
    parted = {text for text in source.columns[name].tolist() if isinstance(text, str) and sign in text}
    return bool(parted) and all(re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}{re.escape(sign)}\d{{3}}", text) for text in parted)
