"""What sites agree on about their tables: sums of small summaries, of which nothing but the sum is needed.

Every question is a function of one site's table; its answer is numbers by name, and answers are added. What a site says
of its own columns it says under its floors. No smallest or largest value is asked for or told: it is the cell of one
person.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from .cells import SiteTable
from .collectives import LocalCollectives, Numbers, SiteCollectives
from .files import natural
from .policy import Policy

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# A quantile is looked for in bins of its range, then in bins of one bin, and so on: 64^2 bins of some standard
# deviations are a thousandth of one wide. Finer ones would tell the very cell of somebody.
_BINS, _ROUNDS = 64, 2
# What counts of rows and of missing cells are called among sums of columns.
_ROWS, _MISSING = "(rows)", "(missing)"
# Kinds of columns that have a mean.
NUMERIC = ("number", "yes-no")
# A count, or in words what is told of it: "< 3", ">= 40".
Count = int | str


@dataclass(frozen=True)
class Column:
    """What is told of a column, at one site or of all together.

    Parameters
    ----------
    kind : {"number", "yes-no", "factor", "group"}
        What its cells are; a yes is 1. Of a group, which a formula has behind a bar, only missing cells are counted.
    missing : int or str
        Cells without a value; a text such as "< 3" where a floor hides the number.
    mean, sd : float or None
        Of the cells that have a value, the standard deviation with n in the denominator; None for texts and where a
        floor hides them, as where all but a few cells of a site are the same.
    quantiles : tuple of (float, float or None)
        Of numbers: a share of the cells, and the value that it is not above, to a thousandth of a standard deviation.
    levels : tuple of (str, int or str)
        Of factors, in natural order, and how many cells each has.
    unnamed : int
        Levels that are not among these, as too few cells of every site have them.
    """

    kind: str
    missing: Count
    mean: float | None = None
    sd: float | None = None
    quantiles: tuple[tuple[float, float | None], ...] = ()
    levels: tuple[tuple[str, Count], ...] = ()
    unnamed: int = 0

    def without(self, levels: Collection[str]) -> Column:
        """The column with these levels counted, and not named."""
        named = tuple((level, count) for level, count in self.levels if level not in levels)
        return replace(self, levels=named, unnamed=len(self.levels) - len(named))


@dataclass(frozen=True)
class Agreed:
    """What the sites of a study agreed on: enough to tell results on the scale of the data, and nobody's row.

    Parameters
    ----------
    sites : tuple of str
        Names of the sites.
    rows : tuple of int
        Rows of each site, without those dropped.
    dropped : tuple of (int or str)
        Rows of each site that were left out since a cell had no value.
    columns : dict of Column
        Of all sites together.
    by_site : tuple of dict of Column
        Of each site; where a model was made between sites, how many cells are missing alone.

    Examples
    --------
    >>> agreed = Agreed(("n",), (12,), (0,), {"age": Column("number", 0, 51.0, 9.5)}, ({},))
    >>> agreed.means, Agreed.from_json(agreed.to_json()) == agreed
    ({'age': 51.0}, True)
    """

    sites: tuple[str, ...]
    rows: tuple[int, ...]
    dropped: tuple[Count, ...]
    columns: dict[str, Column]
    by_site: tuple[dict[str, Column], ...] = field(default=())

    def __repr__(self) -> str:
        return f"<Agreed: {len(self.columns)} columns of {len(self.sites)} sites, {sum(self.rows)} rows>"

    @property
    def kinds(self) -> dict[str, str]:
        """What each column holds."""
        return {name: column.kind for name, column in self.columns.items()}

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The levels of each factor, of all sites."""
        return {
            name: tuple(level for level, _ in column.levels)
            for name, column in self.columns.items()
            if column.kind == "factor"
        }

    @property
    def means(self) -> dict[str, float]:
        """The mean of each column but factors, over the rows of all sites."""
        return {name: column.mean for name, column in self.columns.items() if column.mean is not None}

    @property
    def sds(self) -> dict[str, float]:
        """The standard deviation of each column but factors, over the rows of all sites, n in the denominator."""
        return {name: column.sd for name, column in self.columns.items() if column.sd is not None}

    def to_json(self) -> str:
        """The same as text; floats come back exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Agreed:
        """What `to_json` wrote."""
        found = json.loads(text)
        return cls(
            tuple(found["sites"]),
            tuple(found["rows"]),
            tuple(found["dropped"]),
            _columns(found["columns"]),
            tuple(map(_columns, found["by_site"])),
        )


def _columns(found: Mapping[str, Any]) -> dict[str, Column]:
    def pairs(values: Sequence[Sequence[Any]]) -> tuple[tuple[Any, Any], ...]:
        return tuple((first, second) for first, second in values)

    return {
        name: Column(**{**column, "quantiles": pairs(column["quantiles"]), "levels": pairs(column["levels"])})
        for name, column in found.items()
    }


# --- questions: what leaves a site ---


def _missing(table: SiteTable) -> Numbers:
    return {f"{name} {_MISSING}": int(table.absent[name].sum()) for name in table.kinds}


def _sums(table: SiteTable, names: Sequence[str]) -> Numbers:
    """Cells and their sum."""
    return {name: np.array([(x := table.present(name)).size, x.sum()]) for name in names}


def _squares(table: SiteTable, centres: Mapping[str, float]) -> Numbers:
    """Sums of distances from an agreed centre and of their squares, which cancel nothing."""
    found = {}
    for name, centre in centres.items():
        distance = table.present(name) - centre
        found[name] = np.array([distance.sum(), distance @ distance])
    return found


def _level_counts(table: SiteTable, name: str) -> dict[str, int]:
    """Cells of each level that the site has."""
    levels, counts = np.unique(table.present(name).astype(str), return_counts=True)
    return dict(zip(levels.tolist(), counts.tolist(), strict=True))


def _counts(table: SiteTable, levels: Mapping[str, Sequence[str]]) -> Numbers:
    """Cells of each level of all sites."""
    found = {}
    for name, known in levels.items():
        own = _level_counts(table, name)
        found[name] = np.array([own.get(level, 0) for level in known])
    return found


def _below(table: SiteTable, edges: Mapping[str, np.ndarray]) -> Numbers:
    """Cells at or below each edge."""
    return {name: np.searchsorted(np.sort(table.present(name)), at, side="right") for name, at in edges.items()}


# --- agreement ---


@dataclass(frozen=True, eq=False, repr=False)
class _Totals:
    """The exact figures, before floors: rows, and missing cells, moments, quantiles and counts of levels by column."""

    rows: int
    missing: dict[str, int]
    mean: dict[str, float]
    sd: dict[str, float]
    quantiles: dict[str, np.ndarray]
    counts: dict[str, dict[str, int]]

    def present(self, name: str) -> int:
        """Cells of a column that have a value."""
        return self.rows - self.missing[name]


def agree(
    meeting: SiteCollectives,
    kinds: Mapping[str, str],
    tables: Sequence[SiteTable],
    dropped: Sequence[int],
    *,
    floors: bool,
) -> Agreed:
    """What sites agree on, whose columns are of the same kinds, each under its own floors.

    Parameters
    ----------
    meeting
        The sites.
    kinds
        What their columns hold.
    tables
        Those that are here.
    dropped
        How many rows each of these left out.
    floors
        Whether the mean of all together is hidden where that of a site under its floor would follow, and rare levels
        are not named. A model is built on them, and then they are told.
    """
    each = [_totals(LocalCollectives((table.name,)), kinds, [table]) for table in tables]
    numeric = [name for name, kind in kinds.items() if kind in NUMERIC]
    few = [[name for name in numeric if _is_few(table.present(name), table.policy, floors)] for table in tables]
    # a model needs the figures of all together: between sites none tells its own for it
    column_of = _told if floors or meeting.is_whole else _told_for_a_model
    said = meeting.gathered(
        [
            {
                "rows": table.rows,
                "dropped": table.policy.told(count),
                "policy": asdict(table.policy),
                "columns": {
                    name: asdict(column_of(name, kind, own, table.policy, name in hidden))
                    for name, kind in kinds.items()
                },
                "few": hidden if floors or table.policy.rare == "refuse" else [],
            }
            for table, count, own, hidden in zip(tables, dropped, each, few, strict=True)
        ]
    )
    strictest = reduce(Policy.stricter, [Policy(**own["policy"]) for own in said])
    by_site = tuple(_columns(own["columns"]) for own in said)
    together = _totals(meeting, kinds, tables, {name for own in said for name in own["few"]})
    columns = {
        name: _together(name, kind, together, [site[name] for site in by_site], strictest)
        for name, kind in kinds.items()
    }
    if floors:
        assert meeting.is_whole
        present = {name: [own.present(name) for own in each] for name in kinds}
        columns = {
            name: _without_what_follows(column, [site[name] for site in by_site], present[name], strictest)
            for name, column in columns.items()
        }
        rare = {name: _rare_everywhere([site[name] for site in by_site]) for name in kinds}
        by_site = tuple({name: column.without(rare[name]) for name, column in site.items()} for site in by_site)
        columns = {name: column.without(rare[name]) for name, column in columns.items()}
    return Agreed(
        meeting.sites,
        tuple(own["rows"] for own in said),
        tuple(own["dropped"] for own in said),
        columns,
        by_site,
    )


def _totals(
    meeting: SiteCollectives, kinds: Mapping[str, str], tables: Sequence[SiteTable], hidden: Collection[str] = ()
) -> _Totals:
    """The figures of all sites; of the hidden columns of numbers, missing cells alone."""
    numeric = [name for name, kind in kinds.items() if kind in NUMERIC and name not in hidden]
    levels = _levels(meeting, tables, [name for name, kind in kinds.items() if kind == "factor"])
    # all that one question can ask for; no name is twice among them
    # what overflows is looked for where a model is to be built on it
    with np.errstate(over="ignore"):
        own = []
        for table in tables:
            sums = {**_sums(table, numeric), **_counts(table, levels)}
            own.append({_ROWS: table.rows, **_missing(table), **sums})
        found = meeting.total(own)
    missing = {name: int(found[f"{name} {_MISSING}"]) for name in kinds}
    sizes, mean, sd = _moments(meeting, tables, {name: found[name] for name in numeric})
    numbers = [name for name in numeric if kinds[name] == "number" and sizes[name] and np.isfinite(sd[name])]
    counts = {name: dict(zip(own, map(int, found[name]), strict=True)) for name, own in levels.items()}
    for name in numeric:
        if kinds[name] == "yes-no":
            ones = round(sizes[name] * mean[name])
            counts[name] = {"no": int(sizes[name]) - ones, "yes": ones}
    quantiles = _quantiles(meeting, tables, numbers, sizes, mean, sd)
    return _Totals(int(found[_ROWS]), missing, mean, sd, quantiles, counts)


def _levels(meeting: SiteCollectives, tables: Sequence[SiteTable], names: Sequence[str]) -> dict[str, list[str]]:
    """The levels of factors of all sites, in natural order."""
    if not names:
        return {}
    said = meeting.gathered([{name: list(_level_counts(table, name)) for name in names} for table in tables])
    return {name: sorted({level for own in said for level in own[name]}, key=natural) for name in names}


def _moments(
    meeting: SiteCollectives, tables: Sequence[SiteTable], sums: Mapping[str, np.ndarray]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Cells, mean and standard deviation by column, in two passes; infinite where the squares are beyond float64."""
    sizes, mean, sd = {}, {}, {}
    # what overflows is looked for where a model is to be built on it
    with np.errstate(over="ignore", invalid="ignore"):
        centres = {name: float(s / n) if n else 0.0 for name, (n, s) in sums.items()}
        for name, (first, second) in meeting.total([_squares(table, centres) for table in tables]).items():
            sizes[name], n = sums[name][0], max(sums[name][0], 1.0)
            # the centre is a rounding away from the mean
            mean[name] = float(centres[name] + first / n)
            variance = second / n - (first / n) ** 2
            sd[name] = float(np.sqrt(max(variance, 0.0))) if np.isfinite(variance) else np.inf
    return sizes, mean, sd


def _quantiles(
    meeting: SiteCollectives,
    tables: Sequence[SiteTable],
    names: Sequence[str],
    sizes: Mapping[str, float],
    mean: Mapping[str, float],
    sd: Mapping[str, float],
) -> dict[str, np.ndarray]:
    """The middle of the last bin of each quantile: the first bin at whose end so many cells lie at or below.

    Where it can lie follows from mean and standard deviation (Cantelli's inequality), so no extremes are asked for.
    """
    if not names:
        return {}
    share = np.array(QUANTILES)
    low = {name: mean[name] - sd[name] * np.sqrt((1 - share) / share) * (1 + 1e-9) for name in names}
    high = {name: mean[name] + sd[name] * np.sqrt(share / (1 - share)) * (1 + 1e-9) for name in names}
    for _ in range(_ROUNDS):
        # shape (quantile, edge)
        edges = {name: np.linspace(low[name], high[name], _BINS + 1, axis=1) for name in names}
        inner = {name: edges[name][:, 1:-1].ravel() for name in names}
        counts = meeting.total([_below(table, inner) for table in tables])
        for name in names:
            enough = counts[name].reshape(len(share), -1) >= share[:, None] * sizes[name]
            bins = np.where(enough.any(axis=1), enough.argmax(axis=1), _BINS - 1)[:, None]
            low[name], high[name] = (np.take_along_axis(edges[name], bins + end, 1)[:, 0] for end in (0, 1))
    return {name: (low[name] + high[name]) / 2 for name in names}


# --- floors ---


def _told(name: str, kind: str, found: _Totals, policy: Policy, hidden: bool) -> Column:
    """The figures of a site's own column that leave it; `hidden`: few rows differ from its most frequent value."""
    missing = found.missing[name]
    present = found.present(name)
    counts = found.counts.get(name, {})
    # the rows are known, so that one hidden count would follow from the others
    shown = _hidden([missing, *(counts.values() or [present])], policy)
    if kind == "factor":
        levels = tuple(zip(counts, shown[1:], strict=True))
        return Column(kind, shown[0], levels=levels)
    is_small = present < policy.rows or any(isinstance(count, str) for count in shown[1:])
    if kind == "group" or hidden or is_small:
        return Column(kind, shown[0])
    return Column(kind, shown[0], found.mean[name], found.sd[name], _told_quantiles(name, found, present, policy))


def _is_few(cells: np.ndarray, policy: Policy, floors: bool) -> bool:
    """Whether the mean of a site's cells that have a value would tell of few people, or be told though they are few."""
    # under floors, a mean of several sites is hidden where that of one would follow
    return policy.singles_out(cells) or (not floors and 0 < len(cells) < policy.rows)


def _rare_everywhere(sites: Sequence[Column]) -> set[str]:
    """The levels that no site has rows enough of."""
    told = {level for site in sites for level, count in site.levels if not str(count).startswith("<")}
    return {level for site in sites for level, _ in site.levels} - told


def rare_levels(table: SiteTable, name: str) -> tuple[int, int]:
    """How many levels of a factor the site has too few rows of, and of how many."""
    counts = _level_counts(table, name).values()
    return sum(isinstance(table.policy.told(count), str) for count in counts), len(counts)


def _hidden(counts: Sequence[int], policy: Policy) -> list[Count]:
    """Counts as they are told: where those under the floor follow from the others, the smallest other is hidden too."""
    told = [policy.told(count) for count in counts]
    under = [n for n, count in enumerate(told) if isinstance(count, str)]
    others = [n for n, count in enumerate(counts) if count and not isinstance(told[n], str)]
    # the sum of all is known; of one it is the count, and the least or most that several can have is their counts
    follows = sum(counts[n] for n in under) in (len(under), len(under) * (policy.cells - 1))
    if under and others and (len(under) == 1 or follows):
        told[min(others, key=lambda n: counts[n])] = "hidden"
    return told


def _told_quantiles(name: str, found: _Totals, present: int, policy: Policy) -> tuple[tuple[float, float | None], ...]:
    """Those that have as many cells to either side as a count must have to be told."""
    return tuple(
        (share, float(value) if min(share, 1 - share) * present >= policy.cells else None)
        for share, value in zip(QUANTILES, found.quantiles.get(name, ()), strict=False)
    )


def _told_for_a_model(name: str, kind: str, found: _Totals, policy: Policy, hidden: bool) -> Column:
    """The figure of a site's own column that leaves it where a model is built: how many cells are missing."""
    return Column(kind, _hidden([found.missing[name], found.present(name)], policy)[0])


def _together(name: str, kind: str, found: _Totals, sites: Sequence[Column], policy: Policy) -> Column:
    """What is told of all sites, which tell this of their own."""
    missing = _sum_told([site.missing for site in sites])
    if kind == "factor":
        if not any(site.levels for site in sites):
            return Column(kind, missing, levels=tuple(found.counts[name].items()))
        # a site without a level does not name it
        by_site = [dict(site.levels) for site in sites]
        parts = {level: [own.get(level, 0) for own in by_site] for level in found.counts[name]}
        return Column(kind, missing, levels=tuple((level, _sum_told(counts)) for level, counts in parts.items()))
    if kind == "group" or name not in found.mean or found.present(name) == 0:
        return Column(kind, missing)
    quantiles = _told_quantiles(name, found, found.present(name), policy)
    return Column(kind, missing, found.mean[name], found.sd[name], quantiles)


def _without_what_follows(column: Column, sites: Sequence[Column], present: Sequence[int], policy: Policy) -> Column:
    """The column without a mean from which, and from those of the others, that of a silent site would follow.

    `present` has the cells with a value of each site.
    """
    silent = sum(count for site, count in zip(sites, present, strict=True) if site.mean is None)
    follows = silent > 0 if column.kind == "yes-no" else 0 < silent < policy.rows
    return Column(column.kind, column.missing) if column.mean is not None and follows else column


def _sum_told(parts: Sequence[Count]) -> Count:
    """The sum; where a part of it is hidden, that of the others, if there are any: the sum is not below it."""
    known = sum(part for part in parts if isinstance(part, int))
    if all(isinstance(part, int) for part in parts):
        return known
    return f">= {known}" if known else "hidden"
