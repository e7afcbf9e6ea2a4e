"""Summaries of the tables of all sites: counts, sums, moments and quantiles, computed from sums over sites.

Each step maps a site's table to arrays by name, and `SiteCollectives.total` adds them. Summaries of single sites follow
their policies. Minima and maxima are never computed, as each is the cell of one person.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from ..base.counters import Normals
from ..base.errors import DataError
from .cells import SiteTable
from .collectives import LocalCollectives, Numbers, SiteCollectives, is_far, mean_and_sd, sums_of
from .files import natural
from .policy import Policy

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Bins of one round of a quantile search.
_BINS = 64
# Rounds of a quantile search, which resolve 0.001 standard deviations. More rounds would reveal single cells.
_ROUNDS = 2
# Most rows of a site.
_MOST_ROWS = 10**12
# Key of the number of rows among the sums.
_ROWS = "(rows)"
# Suffix of the keys of missing cells among the sums.
_MISSING = "(missing)"
# Kinds of columns with a mean.
NUMERIC = ("number", "yes-no")
# A count, or a text in its place: "< 3", ">= 40" or "hidden".
Count = int | str


@dataclass(frozen=True)
class Column:
    """Summary of a column, at one site or pooled.

    Parameters
    ----------
    kind : {"number", "yes-no", "factor", "group"}
        Kind of the cells. A yes counts as 1. A group is the variable behind the bar in a formula, and has only a count
        of missing cells.
    missing : int or str
        Number of missing cells, or a text such as "< 3" if a floor hides the number.
    mean, sd : float or None
        Mean and standard deviation (n in the denominator) of the cells with a value. None for texts, or if a floor
        hides them.
    quantiles : tuple of (float, float or None)
        For numbers, pairs of a probability and the quantile, accurate to 0.001 standard deviations.
    levels : tuple of (str, int or str)
        For factors, pairs of a level and its count, in natural order.
    unnamed : int
        Number of levels that are left out because they are rare at every site.
    """

    kind: str
    missing: Count
    mean: float | None = None
    sd: float | None = None
    quantiles: tuple[tuple[float, float | None], ...] = ()
    levels: tuple[tuple[str, Count], ...] = ()
    unnamed: int = 0

    def without(self, levels: Collection[str]) -> Column:
        """The column with these levels counted in `unnamed`."""
        named = tuple((level, count) for level, count in self.levels if level not in levels)
        return replace(self, levels=named, unnamed=len(self.levels) - len(named))


@dataclass(frozen=True)
class Agreed:
    """Summaries that the sites of a study share. They contain no single row.

    Parameters
    ----------
    sites : tuple of str
        Names of the sites.
    rows : tuple of int
        Number of rows of each site, after dropping.
    dropped : tuple of (int or str)
        Number of rows of each site that were dropped because of missing cells.
    columns : dict of Column
        Pooled summaries by column.
    by_site : tuple of dict of Column
        Summaries by column for each site. For models of remote sites, they have only the counts of missing cells.

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
        """The kind of each column."""
        return {name: column.kind for name, column in self.columns.items()}

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The levels of each factor over all sites."""
        return {
            name: tuple(level for level, _ in column.levels)
            for name, column in self.columns.items()
            if column.kind == "factor"
        }

    @property
    def means(self) -> dict[str, float]:
        """The mean of each numeric column over the rows of all sites."""
        return {name: column.mean for name, column in self.columns.items() if column.mean is not None}

    @property
    def sds(self) -> dict[str, float]:
        """The standard deviation of each numeric column over the rows of all sites, with n in the denominator."""
        return {name: column.sd for name, column in self.columns.items() if column.sd is not None}

    def to_json(self) -> str:
        """The summaries as JSON. Floats round-trip exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Agreed:
        """The summaries from the output of `to_json`."""
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


# --- what a site computes from its table ---


def _missing(table: SiteTable) -> Numbers:
    return {f"{name} {_MISSING}": int(table.absent[name].sum()) for name in table.kinds}


def _sums(table: SiteTable, centres: Mapping[str, float], normals: Normals | None = None) -> Numbers:
    """Number of cells, sum of their differences from a centre and of the squares, with noise if there are `normals`."""
    return {
        name: np.array([(x := table.present(name)).size, *sums_of(x, centre, normals)])
        for name, centre in centres.items()
    }


def _level_counts(table: SiteTable, name: str) -> dict[str, int]:
    """Counts of the levels at a site."""
    levels, counts = np.unique(table.present(name).astype(str), return_counts=True)
    return dict(zip(levels.tolist(), counts.tolist(), strict=True))


def _counts(table: SiteTable, levels: Mapping[str, Sequence[str]]) -> Numbers:
    """Counts of the levels of all sites."""
    found = {}
    for name, known in levels.items():
        own = _level_counts(table, name)
        found[name] = np.array([own.get(level, 0) for level in known])
    return found


def _below(table: SiteTable, edges: Mapping[str, np.ndarray]) -> Numbers:
    """Counts of cells at or below each edge."""
    return {name: np.searchsorted(np.sort(table.present(name)), at, side="right") for name, at in edges.items()}


# --- pooled summaries ---


@dataclass(frozen=True, eq=False, repr=False)
class _Totals:
    """Summaries before floors: rows, and by column missing cells, moments, quantiles and level counts."""

    rows: int
    missing: dict[str, int]
    mean: dict[str, float]
    sd: dict[str, float]
    quantiles: dict[str, np.ndarray]
    counts: dict[str, dict[str, int]]

    def present(self, name: str) -> int:
        """Number of cells of a column with a value."""
        return self.rows - self.missing[name]


def agree(
    meeting: SiteCollectives,
    kinds: Mapping[str, str],
    tables: Sequence[SiteTable],
    dropped: Sequence[int],
    *,
    floors: bool,
) -> Agreed:
    """The summaries of all columns, under the floors of each site.

    Parameters
    ----------
    meeting
        The collectives between the sites.
    kinds
        Kind of each column.
    tables
        Tables of the sites in this process.
    dropped
        Number of dropped rows of each of these tables.
    floors
        Whether to hide pooled means from which the hidden mean of a site follows, and names of rare levels. A model
        needs both, and passes False.
    """
    factors = [name for name, kind in kinds.items() if kind == "factor"]
    own_levels = [{name: list(_level_counts(table, name)) for name in factors} for table in tables]
    each = [
        _totals(LocalCollectives((table.name,)), kinds, [table], own)
        for table, own in zip(tables, own_levels, strict=True)
    ]
    numeric = [name for name, kind in kinds.items() if kind in NUMERIC]
    few = [[name for name in numeric if _is_few(table.present(name), table.policy, floors)] for table in tables]
    # a model needs pooled summaries only, so that remote sites send no means of their own for it
    column_of = _site_column if floors or meeting.is_whole else _site_column_for_model
    received = meeting.gathered(
        [
            {
                "rows": table.rows,
                "dropped": table.policy.disclosed(count),
                "policy": asdict(table.policy),
                "columns": {
                    name: asdict(column_of(name, kind, own, table.policy, name in hidden))
                    for name, kind in kinds.items()
                },
                "few": hidden if floors or table.policy.rare == "refuse" else [],
                "levels": levels,
            }
            for table, count, own, hidden, levels in zip(tables, dropped, each, few, own_levels, strict=True)
        ]
    )
    policies = []
    for site, own in zip(meeting.sites, received, strict=True):
        if type(own["rows"]) is not int or not 0 <= own["rows"] <= _MOST_ROWS:
            raise DataError(f"{site}: no site has {own['rows']} rows")
        try:
            policies.append(Policy(**own["policy"]))
        except ValueError as error:
            raise DataError(f"{site}: {error}") from error
    strictest = reduce(Policy.stricter, policies)
    by_site = tuple(_columns(own["columns"]) for own in received)
    seen = {name: {level for own in received for level in own["levels"][name]} for name in factors}
    levels = {name: sorted(own, key=natural) for name, own in seen.items()}
    together = _totals(meeting, kinds, tables, levels, {name for own in received for name in own["few"]})
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
        tuple(own["rows"] for own in received),
        tuple(own["dropped"] for own in received),
        columns,
        by_site,
    )


def _totals(
    meeting: SiteCollectives,
    kinds: Mapping[str, str],
    tables: Sequence[SiteTable],
    levels: Mapping[str, Sequence[str]],
    hidden: Collection[str] = (),
) -> _Totals:
    """Summaries over all sites, before floors. Hidden numeric columns have only a count of missing cells."""
    numeric = [name for name, kind in kinds.items() if kind in NUMERIC and name not in hidden]
    # one sum for everything, with distinct keys
    zeros = dict.fromkeys(numeric, 0.0)

    def of_site(table: SiteTable, normals: Normals | None = None) -> Numbers:
        counts = {_ROWS: table.rows, **_missing(table), **_counts(table, levels)}
        return {**counts, **_sums(table, zeros, normals)}

    # overflow is reported later, when a model is built
    with np.errstate(over="ignore", invalid="ignore"):
        found = meeting.total([of_site(table) for table in tables], [partial(of_site, table) for table in tables])
        missing = {name: int(found[f"{name} {_MISSING}"]) for name in kinds}
        sizes = {name: found[name][0] for name in numeric}
        of = {name: mean_and_sd(max(found[name][0], 1.0), *found[name][1:]) for name in numeric}
        again = {name: float(mean) for name, (mean, sd) in of.items() if np.isfinite(mean) and is_far(mean, sd)}
        if again:
            noisy = [partial(_sums, table, again) for table in tables]
            for name, sums in meeting.total([_sums(table, again) for table in tables], noisy).items():
                shift, spread = mean_and_sd(max(sums[0], 1.0), *sums[1:])
                of[name] = (again[name] + shift, spread)
    mean = {name: float(own) for name, (own, _) in of.items()}
    sd = {name: float(own) for name, (_, own) in of.items()}
    # sites do not search quantiles together, as models do not need them
    shown = numeric if meeting.is_whole else []
    numbers = [name for name in shown if kinds[name] == "number" and sizes[name] and np.isfinite(sd[name])]
    counts = {name: dict(zip(own, map(int, found[name]), strict=True)) for name, own in levels.items()}
    for name in numeric:
        if kinds[name] == "yes-no":
            ones = round(sizes[name] * mean[name])
            counts[name] = {"no": int(sizes[name]) - ones, "yes": ones}
    quantiles = _quantiles(meeting, tables, numbers, sizes, mean, sd)
    return _Totals(int(found[_ROWS]), missing, mean, sd, quantiles, counts)


def _quantiles(
    meeting: SiteCollectives,
    tables: Sequence[SiteTable],
    names: Sequence[str],
    sizes: Mapping[str, float],
    mean: Mapping[str, float],
    sd: Mapping[str, float],
) -> dict[str, np.ndarray]:
    """Quantiles by bisection: the midpoint of the first bin with enough cells at or below its end.

    The search interval follows from mean and standard deviation (Cantelli's inequality), without the extremes.
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


def _site_column(name: str, kind: str, found: _Totals, policy: Policy, hidden: bool) -> Column:
    """The summary of a column that a site reports. `hidden`: few rows differ from the most frequent value."""
    missing = found.missing[name]
    present = found.present(name)
    counts = found.counts.get(name, {})
    # the number of rows is known, so that a single hidden count would follow from the others
    shown = _hidden([missing, *(counts.values() or [present])], policy)
    if kind == "factor":
        levels = tuple(zip(counts, shown[1:], strict=True))
        return Column(kind, shown[0], levels=levels)
    is_small = present < policy.rows or any(isinstance(count, str) for count in shown[1:])
    if kind == "group" or hidden or is_small:
        return Column(kind, shown[0])
    return Column(kind, shown[0], found.mean[name], found.sd[name], _disclosed_quantiles(name, found, present, policy))


def _is_few(cells: np.ndarray, policy: Policy, floors: bool) -> bool:
    """Whether a mean at a site singles out few rows, or is a mean of fewer cells than the floor and must be hidden."""
    # with floors, _without_what_follows hides the second kind
    return policy.singles_out(cells) or (not floors and 0 < len(cells) < policy.rows)


def _rare_everywhere(sites: Sequence[Column]) -> set[str]:
    """The levels that are rare at every site."""
    named = {level for site in sites for level, count in site.levels if not str(count).startswith("<")}
    return {level for site in sites for level, _ in site.levels} - named


def rare_levels(table: SiteTable, name: str) -> tuple[list[str], list[str]]:
    """The rare levels of a factor at a site, and all its levels."""
    counts = _level_counts(table, name)
    return [level for level, count in counts.items() if isinstance(table.policy.disclosed(count), str)], list(counts)


def _hidden(counts: Sequence[int], policy: Policy) -> list[Count]:
    """Counts as a site reports them. If small counts follow from the others, the smallest other is hidden too."""
    reported = [policy.disclosed(count) for count in counts]
    under = [n for n, count in enumerate(reported) if isinstance(count, str)]
    others = [n for n, count in enumerate(counts) if count and not isinstance(reported[n], str)]
    # the sum of the small counts is known: it determines a single count, and several that are all minimal or maximal
    follows = sum(counts[n] for n in under) in (len(under), len(under) * (policy.cells - 1))
    if under and others and (len(under) == 1 or follows):
        reported[min(others, key=lambda n: counts[n])] = "hidden"
    return reported


def _disclosed_quantiles(
    name: str, found: _Totals, present: int, policy: Policy
) -> tuple[tuple[float, float | None], ...]:
    """The quantiles of a column, None if fewer than `policy.cells` cells are expected on one side."""
    return tuple(
        (share, float(value) if min(share, 1 - share) * present >= policy.cells else None)
        for share, value in zip(QUANTILES, found.quantiles.get(name, ()), strict=False)
    )


def _site_column_for_model(name: str, kind: str, found: _Totals, policy: Policy, hidden: bool) -> Column:
    """The summary of a column that a remote site reports for a model: the count of missing cells."""
    return Column(kind, _hidden([found.missing[name], found.present(name)], policy)[0])


def _together(name: str, kind: str, found: _Totals, sites: Sequence[Column], policy: Policy) -> Column:
    """The pooled summary of a column, given the reported summaries of the sites."""
    missing = _sum_counts([site.missing for site in sites])
    if kind == "factor":
        if not any(site.levels for site in sites):
            return Column(kind, missing, levels=tuple(found.counts[name].items()))
        # a site reports only the levels that it has
        by_site = [dict(site.levels) for site in sites]
        parts = {level: [own.get(level, 0) for own in by_site] for level in found.counts[name]}
        return Column(kind, missing, levels=tuple((level, _sum_counts(counts)) for level, counts in parts.items()))
    if kind == "group" or name not in found.mean or found.present(name) == 0:
        return Column(kind, missing)
    quantiles = _disclosed_quantiles(name, found, found.present(name), policy)
    return Column(kind, missing, found.mean[name], found.sd[name], quantiles)


def _without_what_follows(column: Column, sites: Sequence[Column], present: Sequence[int], policy: Policy) -> Column:
    """The pooled column, without its mean if a hidden mean of a site would follow from it and the other means.

    `present` has the number of cells with a value of each site.
    """
    silent = sum(count for site, count in zip(sites, present, strict=True) if site.mean is None)
    follows = silent > 0 if column.kind == "yes-no" else 0 < silent < policy.rows
    return Column(column.kind, column.missing) if column.mean is not None and follows else column


def _sum_counts(parts: Sequence[Count]) -> Count:
    """The sum of counts, or a lower bound if some are hidden."""
    known = sum(part for part in parts if isinstance(part, int))
    if all(isinstance(part, int) for part in parts):
        return known
    return f">= {known}" if known else "hidden"
