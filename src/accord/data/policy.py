"""Disclosure floors: the smallest counts that a site reports."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ..base.checks import whole_number
from ..base.errors import unknown_name_error

# What a site does with rare levels.
RARE = ("refuse", "warn")
# Two values of a column count as equal if they differ by less than this share of its range.
_ALIKE = 1e-3
# Leverage above which one row decides a combination of columns by itself.
_LEVERAGE = 0.9
# Largest eigenvalue of a 2 x 2 block of the hat matrix above which two rows do.
_PAIR = 0.99
# Smallest singular value of a direction that counts, relative to the largest one.
_COLLINEAR = 1e-12


def require_policy(policy: Policy | None) -> None:
    """Raise `TypeError` if a policy is not a `Policy`."""
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f'policy must be a Policy, such as accord.data.Policy(rare="warn"), found {policy!r}')


@dataclass(frozen=True)
class Policy:
    """Disclosure floors of a site.

    Parameters
    ----------
    rows : int, default 10
        A site with fewer rows takes no part. A mean of fewer cells is not reported. In a federation, a site refuses a
        study without differential privacy if fewer rows were added to its file, or taken away, since an earlier one.
    cells : int, default 3
        Counts from 1 to `cells` - 1 are reported as "< 3" (for the default). In each column of a model, no row or at
        least `cells` rows must differ from the most frequent value. All columns together must not single out one row
        (`cells` of 2 or more) or two rows (3 or more).
    parameters : float, default 0.1
        Largest number of parameters of a model, as a share of the rows of the site.
    rare : {"refuse", "warn"}, default "refuse"
        "refuse" refuses models with a level that fewer than `cells` rows have, at the site or pooled, and models whose
        columns, one by one or together, single out fewer than `cells` rows. Such levels and columns have parameters of
        their own, whose posterior would reveal the few rows. "warn" warns instead.

    Examples
    --------
    >>> Policy(rows=20).stricter(Policy(cells=5))
    Policy(rows=20, cells=5, parameters=0.1, rare='refuse')
    """

    rows: int = 10
    cells: int = 3
    parameters: float = 0.1
    rare: str = "refuse"

    def __post_init__(self) -> None:
        for name in ("rows", "cells"):
            object.__setattr__(self, name, whole_number(f"{name} of a policy", getattr(self, name), 1))
        share = self.parameters
        if isinstance(share, bool) or not isinstance(share, int | float) or not share > 0:
            raise ValueError(f"parameters of a policy must be a share of the rows > 0, found {share!r}")
        if self.rare not in RARE:
            raise unknown_name_error("rare of a policy", self.rare, RARE)

    @classmethod
    def none(cls) -> Policy:
        """A policy without floors, for data that never leaves the process."""
        return cls(1, 1, np.inf, "warn")

    def too_few(self, where: str, rows: int) -> list[str]:
        """The refusal of a site, named `where`, with fewer rows than its floor, else an empty list."""
        if rows >= self.rows:
            return []
        return [
            f"{where}: refused, there are fewer than {self.rows} rows, the floor of the site (`rows` in its policy)"
        ]

    def refusals(self, site: str, parameters: int, rows: int) -> list[str]:
        """The refusal of a site with too few rows for a number of parameters, else an empty list."""
        # compare quotients, which round like the written share
        if parameters / max(rows, 1) <= self.parameters:
            return []
        share = -(-100 * parameters // max(rows, 1)) / 100
        return [
            f"{site}: {parameters} parameters are more than {self.parameters:g} of the rows, the floor of the "
            f"site: use fewer columns. Its administrator may allow it by the line `parameters = {share:g}` in the "
            f"site's policy file (in a Flower study the file with `studies`, else {site}.policy.toml or policy.toml "
            "beside the data). For your own data without a policy file, pass "
            f"policy=accord.data.Policy(parameters={share:g}) to accord.data.study or as_study"
        ]

    def singles_out(self, values: np.ndarray) -> bool:
        """Whether at least one row, but fewer than `cells`, differ from the most frequent value of a column.

        `values` has shape (row,). Values closer than 0.001 of the column's range count as equal, so that a column of
        one large value among negligible ones singles out its row.
        """
        rows = np.nan_to_num(np.sort(np.asarray(values, np.float64)))
        # scaled, as the range of numbers near the float64 limit overflows
        rows = rows / max(np.abs(rows).max(initial=0.0), np.finfo(np.float64).tiny)
        alike = _ALIKE * np.ptp(rows) if len(rows) else 0.0
        commonest = (np.searchsorted(rows, rows + alike, side="right") - np.arange(len(rows))).max(initial=0)
        return bool(0 < len(rows) - commonest < self.cells)

    def singles_out_together(self, design: np.ndarray) -> bool:
        """Whether a combination of columns and the intercept belongs to one row, or to two, and `cells` is larger.

        `design` has shape (row, column). One row has a leverage above 0.9, or the block of two rows in the hat matrix
        has an eigenvalue above 0.99.
        """
        if self.cells < 2:
            return False
        columns = np.column_stack([np.ones(len(design)), design])
        # scaled twice, as squares of large numbers overflow
        for length in (np.max, np.linalg.norm):
            columns = columns / np.maximum(length(np.abs(columns), axis=0), np.finfo(np.float64).tiny)
        # faster for many rows than the vectors of all of them
        _, sizes, right = np.linalg.svd(np.linalg.qr(columns, "r"))
        kept = sizes > _COLLINEAR * sizes[0]
        left = columns @ (right[: len(sizes)][kept].T / sizes[kept])
        leverage = (left**2).sum(axis=1)
        if self.cells == 2 or leverage.max() > _LEVERAGE:
            return bool(leverage.max() > _LEVERAGE)
        # an eigenvalue is at most the sum of two leverages
        rows = np.argsort(-leverage)[: np.count_nonzero(leverage > _PAIR - _LEVERAGE)]
        first = np.count_nonzero(leverage > _PAIR / 2)
        between = left[rows[:first]] @ left[rows].T
        np.fill_diagonal(between, 0.0)
        rest = _PAIR - leverage[rows]
        return bool((between**2 > np.outer(rest[:first], rest)).any())

    @classmethod
    def read(cls, path: Path) -> Policy:
        """A policy from a TOML file with the parameters of `Policy` as keys.

        Raises
        ------
        ValueError
            The file is not TOML, or a key or value is wrong. The message names the file.
        """
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            known = [f.name for f in fields(cls)]
            for name in found:
                if name not in known:
                    raise unknown_name_error("key", name, known)
            return cls(**found)
        except (ValueError, OSError) as error:  # TOML and UTF-8 errors are ValueErrors
            raise ValueError(f"policy {path}: {error}") from error

    @classmethod
    def beside(cls, path: Path) -> Policy | None:
        """The policy file of a site beside its data: `north.policy.toml` for `north.csv`, or `policy.toml`."""
        for name in (f"{path.stem}.policy.toml", "policy.toml"):
            own = path.with_name(name)
            if own.is_file():
                return cls.read(own)
        return None

    def stricter(self, other: Policy) -> Policy:
        """The stricter value of each floor of two policies."""
        return Policy(
            max(self.rows, other.rows),
            max(self.cells, other.cells),
            min(self.parameters, other.parameters),
            RARE[min(RARE.index(self.rare), RARE.index(other.rare))],
        )

    def disclosed(self, count: int) -> int | str:
        """A count as the site reports it: "< 3" for a small one."""
        return f"< {self.cells}" if 0 < count < self.cells else count


# The floors of tables in memory without a policy, which only warn of columns that single out rows together.
IN_MEMORY = Policy()
