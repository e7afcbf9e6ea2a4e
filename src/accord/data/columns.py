"""Column specifications of a study, and the tables and column kinds that sites agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import nearest
from .cells import Dates, Rules, SiteTable, Source
from .collectives import SiteCollectives
from .files import Dialect
from .formula_names import FormulaNames, misspelled

# What a site sends of a factor whose levels are all numbers, or of which none is.
_LEVELS = ("levels in numbers", "levels in texts")
# Largest number of columns of a study.
_MOST_COLUMNS = 5_000


@dataclass(frozen=True)
class ColumnSpec:
    """The columns to read, and their parsing rules."""

    columns: tuple[str, ...] | None
    mentions: FormulaNames | None
    rules: Rules

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None,
        formula: str | Sequence[str] | None,
        dates: Mapping[str, str | Mapping[str, Any] | Dates] | None,
        positive: Mapping[str, str | Sequence[str]] | None,
        strings: Sequence[str] | Mapping[str, Mapping[str, str | Sequence[str]]],
        blanks: Sequence[str],
    ) -> ColumnSpec:
        """The specification from the arguments of `study`."""
        if isinstance(columns, str):
            raise ValueError(f"columns must be a list of names, found {columns!r}")
        mentions = None if formula is None else FormulaNames.of(formula)
        factors, groups = ((), ()) if mentions is None else (mentions.factors, mentions.groups)
        rules = Rules.of(dates, positive, strings, blanks, sorted(factors), sorted(groups))
        return cls(None if columns is None else tuple(dict.fromkeys(columns)), mentions, rules)

    def among(self, known: Sequence[str]) -> list[str]:
        """The columns to read, given the known columns. Unknown ones are included if they were requested."""
        if self.columns is not None:
            return list(self.columns)
        if self.mentions is not None:
            return [name for name in known if name in self.mentions.names]
        return [*known, *(name for name in self.rules.named if name not in known)]

    @property
    def steady(self) -> frozenset[str]:
        """Columns that may be constant."""
        return frozenset() if self.mentions is None else self.mentions.steady

    @property
    def responses(self) -> frozenset[str]:
        """Response columns, which are never filled."""
        return frozenset() if self.mentions is None else self.mentions.responses


@dataclass
class Problems:
    """Problems that each site here found in its own file, and problems that all sites see."""

    own: list[list[str]]
    shared: list[str] = field(default_factory=list)


def tables_of(
    meeting: SiteCollectives, sources: Sequence[Source], wanted: ColumnSpec, problems: Problems
) -> tuple[dict[str, str], list[SiteTable]]:
    """The kinds of all columns without problems, and tables of these columns for each site here."""
    tables, headers = [], []
    for source, own in zip(sources, problems.own, strict=True):
        header = list(source.columns)
        chosen = [name for name in wanted.among(header) if name in source.columns]
        if len(chosen) > _MOST_COLUMNS:
            own.append(
                f"{source.where}: {len(chosen):,} columns would be read, the limit is {_MOST_COLUMNS:,}: name the "
                "columns that you need in columns or in a formula"
            )
            header = chosen = []
        table, found = source.table(chosen, wanted.rules)
        tables.append(table)
        # sites share only the names of requested columns: without a header, the first row of data is in their place
        headers.append(header if meeting.is_whole else chosen)
        own += found
    received = meeting.gathered(
        [
            {"header": header, "kinds": {name: _sent(name, table, wanted) for name in table.kinds}}
            for header, table in zip(headers, tables, strict=True)
        ]
    )
    kinds_by_site = [own["kinds"] for own in received]
    names = _chosen(meeting, sources, [own["header"] for own in received], wanted, problems)
    kinds = {}
    for name in names:
        by_site = {site: own.get(name, "unclear") for site, own in zip(meeting.sites, kinds_by_site, strict=True)}
        kind = _one_kind(set(by_site.values()))
        if kind == "conflict":
            problems.shared.append(_conflict(name, by_site))
        elif kind == "empty":
            problems.shared.append(f"column {name!r}: no cell of any site has a value")
        elif kind != "unclear":
            kinds[name] = kind
    return kinds, [table.as_agreed(kinds) for table in tables]


def _chosen(
    meeting: SiteCollectives,
    sources: Sequence[Source],
    headers: Sequence[list[str]],
    wanted: ColumnSpec,
    problems: Problems,
) -> list[str]:
    """The names of the columns to read. Problems with headers are added to `problems`."""
    known = list(dict.fromkeys(name for header in headers for name in header))
    names: list[str] = []
    absent: list[str] = []
    by_site = [set(header) for header in headers]
    for name in wanted.among(known):
        if any(name in header for header in by_site):
            names.append(name)
            for source, own in zip(sources, problems.own, strict=True):
                if name not in source.columns:
                    owner = next(site for site, header in zip(meeting.sites, by_site, strict=True) if name in header)
                    own.append(
                        f"{source.where}: there is no column {name!r}, which {owner} has (names must match exactly)"
                    )
        elif headers:
            absent.append(name)
    if wanted.mentions is not None and wanted.columns is None and meeting.is_whole:
        absent += misspelled(wanted.mentions, known)
    problems.shared += [absent_column(name, known) for name in absent]
    return names


def absent_column(name: str, known: Sequence[str]) -> str:
    """The message about a column that no site has, with the nearest of the known columns."""
    near = nearest(name, known)
    return f"no site has a column {name!r}" + ("" if near is None else f", did you mean {near!r}?")


def _sent(name: str, table: SiteTable, wanted: ColumnSpec) -> str:
    """The kind that a site sends: for `C(...)` of a column outside `strings`, whether all or no levels are numbers."""
    levels = set(table.present(name).tolist()) if name in wanted.rules.coded else set()
    numbers = sum(Dialect().number(level) is not None for level in levels)
    if table.kinds[name] != "factor" or len(levels) < 2 or 0 < numbers < len(levels):
        return table.kinds[name]
    return _LEVELS[not numbers]


def _one_kind(kinds: set[str]) -> str:
    """The kind of a column, from the kinds that sites found, or "conflict"."""
    if "unclear" in kinds:
        return "unclear"
    kinds = kinds - {"empty"} or {"empty"}
    if kinds == {"number", "yes-no"}:
        return "number"
    if "factor" in kinds or len(kinds) == 1:
        kinds = {"factor" if kind in _LEVELS else kind for kind in kinds}
    return kinds.pop() if len(kinds) == 1 else "conflict"


def _conflict(name: str, kinds: Mapping[str, str]) -> str:
    words = {"number": "numbers", "yes-no": "0 and 1", "factor": "texts", _LEVELS[0]: "numbers", _LEVELS[1]: "texts"}
    sides = [
        f"{word} at {', '.join(site for site, found in kinds.items() if found == kind)}"
        for kind, word in words.items()
        if kind in kinds.values()
    ]
    return f"column {name!r} holds {' and '.join(sides)}: name it in strings or positive, or correct the files"
