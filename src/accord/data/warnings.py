"""What may be wrong with tables that can be read: warnings, which quote no cell but common codes and agreed levels."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .cells import WHOLE, SiteTable, Source
from .files import Dialect
from .summaries import Agreed

# Texts and numbers that stand for a missing value in many files.
_WORDS = frozenset({"#N/A", "#NA", "#NV", ".", "?", "-", "--", "na", "n/a", "n.a.", "-9", "-99", "-999", "999", "9999"})
_CODES = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
# Quartiles of one site that are so many times as far apart as those of another may be in another unit.
_OTHER_UNIT = 8.0
# Numbers that may have groups of three digits are so many times smaller than those of the other sites.
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
    """Warn of what a reader of the files would ask about.

    Parameters
    ----------
    sources, tables
        The cells of the sites that are here, as they were found and as they were read.
    kinds
        What the columns hold.
    agreed
        The summaries of the columns, with the levels that a warning may name.
    stacklevel
        The `stacklevel` of `warnings.warn`, as seen from this function.
    described
        Whether the tables are only described. Warnings that are more often false than right appear then too.
    """
    found = [*_sites([table.name for table in tables]), *_spellings(agreed.levels)]
    for name, kind in kinds.items():
        if kind in ("factor", "group"):
            found += _words(name, tables)
        if kind == "factor" and described:
            found += apart(name, {table.name: set(table.present(name).tolist()) for table in tables})
        if kind == "yes-no":
            found += _zeros(name, tables)
        if kind == "number":
            found += [*_codes(name, tables), *_grouped(name, sources, tables, described)]
            found += _units(name, tables) if described else []
    for text in found:
        warnings.warn(text, stacklevel=stacklevel)


def _spellings(levels: Mapping[str, Sequence[str]]) -> list[str]:
    """Levels that are one number, or one text but for case and spaces."""
    found = []
    for name, own in levels.items():
        alike: dict[Any, list[str]] = {}
        for level in own:
            number = Dialect().number(level)
            is_exact = number is not None and abs(number) < WHOLE
            alike.setdefault(number if is_exact else _look(level), []).append(level)
        for first, *others in alike.values():
            if others:
                several = " and ".join(map(repr, [first, *others]))
                remedy = f'strings = {{{name} = {{"{first}" = {list(others)}}}}}'.replace("'", '"')
                found.append(
                    f"column {name!r} has the levels {several}, each with an effect of its own: if they mean the same, "
                    f"write {remedy}"
                )
    return found


def _look(text: str) -> str:
    """A text without what the eye does not see: case, spaces, and letters that one or two signs may make."""
    seen = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(sign for sign in seen if unicodedata.category(sign) != "Cf").split())


def _sites(names: Sequence[str]) -> list[str]:
    """Sites whose names look alike."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_look(name), []).append(name)
    several = [" and ".join(map(repr, own)) for own in alike.values() if len(own) > 1]
    return [f"the sites {', '.join(several)} have names that look alike: are they one site?"] if several else []


def _zeros(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """Sites where another text is 0 than elsewhere, as a spelling of 1 is that nobody named."""
    own = {table.name: table.zeros[name] for table in tables if table.zeros.get(name)}
    usual = max(own.values(), key=list(own.values()).count, default="")
    others = [site for site, text in own.items() if text != usual]
    remedy = "name all spellings of 1 in positive, and all of 0 in strings"
    if others:
        return [f"column {name!r}: the text that is 0 at {', '.join(others)} is not that of the other sites: {remedy}"]
    if len(tables) == 1 and own and not tables[0].present(name).any():
        return [f"column {name!r}: {tables[0].where} has one text, and positive does not name it: {remedy}"]
    return []


def _words(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """Levels that mean a missing value in many files."""
    words = sorted(_WORDS.intersection(*[set().union(*(table.present(name).tolist() for table in tables))]))
    if not words:
        return []
    listed = ", ".join(map(repr, words))
    return [f"column {name!r} has the level {listed}: if it means that there is no value, name it in blanks"]


def apart(name: str, levels: Mapping[str, Collection[str]]) -> list[str]:
    """Sites of several levels that share none with any other, by the levels of each site."""
    others = {site: set().union(*(own for other, own in levels.items() if other != site)) for site in levels}
    found = [site for site, own in levels.items() if len(own) > 1 and others[site] and others[site].isdisjoint(own)]
    if not found:
        return []
    return [
        f"column {name!r}: no level of {', '.join(found)} is at another site. If these are the same levels in another "
        f'spelling, say so, as in strings = {{{name} = {{F = ["female", "2"]}}}}'
    ]


def _codes(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """Numbers that mean a missing value in many files, and are far from all others."""
    found = []
    for table in tables:
        cells = table.present(name)
        rest = cells[~np.isin(cells, _CODES)]
        if not rest.size:
            continue
        low, high = float(rest.min()), float(rest.max())
        far = [
            f"{code:g}"
            for code in _CODES
            if (code < low - (high - low) or code > high + (high - low)) and np.isin(code, cells)
        ]
        if far:
            found.append(
                f"{table.where}: column {name!r} has the number {', '.join(far)}, far from all others: if it means "
                "that there is no value, name it in blanks"
            )
    return found


def _units(name: str, tables: Sequence[SiteTable]) -> list[str]:
    """Sites whose numbers vary many times as much as those of another site."""
    wide = {
        table.name: float(np.subtract(*np.quantile(cells, [0.75, 0.25])))
        for table in tables
        if (cells := table.present(name)).size
    }
    varied = {site: width for site, width in wide.items() if width > 0.0}
    if not varied:
        return []
    most, least = max(varied, key=lambda site: varied[site]), min(varied, key=lambda site: varied[site])
    if varied[most] < _OTHER_UNIT * varied[least]:
        return []
    return [
        f"column {name!r} varies {varied[most] / varied[least]:.0f} times as much at {most} as at {least}: is it in "
        "the same unit at both?"
    ]


def _grouped(name: str, sources: Sequence[Source], tables: Sequence[SiteTable], described: bool) -> list[str]:
    """Sites whose numbers that are not whole all look like groups of three digits."""
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
        f"column {name!r}: all numbers of {sites} that are not whole have three digits behind {sign!r}. If 1{sign}234 "
        f'means 1234 there, write thousands = "{sign}" and decimal = "{other}"'
    ]


def _looks_grouped(source: Source, name: str) -> bool:
    sign = source.dialect.decimal
    parted = {text for text in source.columns[name].tolist() if isinstance(text, str) and sign in text}
    return bool(parted) and all(re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}{re.escape(sign)}\d{{3}}", text) for text in parted)
