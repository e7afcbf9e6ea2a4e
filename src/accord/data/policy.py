"""The floors under which a site tells nothing."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ..base.checks import whole_number
from ..base.errors import unknown_name_error

# What a site does with a level that too few of its rows have.
RARE = ("refuse", "tell")
# Share of a column's range by which two of its values may differ and still count as one.
_ALIKE = 1e-3


def require_policy(policy: Policy | None) -> None:
    """Raise `TypeError` where a policy is something else than a `Policy`."""
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f'policy must be a policy, such as accord.data.Policy(rare="tell"), found {policy!r}')


@dataclass(frozen=True)
class Policy:
    """What a site tells of its rows, and what it refuses.

    Parameters
    ----------
    rows : int, default 10
        A site of fewer rows takes no part, and a mean of fewer cells is not told.
    cells : int, default 3
        Counts above 0 and below this are shown as "< 3". In a column of a model, no row or at least this many differ
        from the most frequent value.
    parameters : float, default 0.1
        Parameters of a model, at most, as a share of the rows of the site.
    rare : {"refuse", "tell"}, default "refuse"
        What becomes of a model with a level that fewer than `cells` rows have, here or together, or with a column in
        which fewer rows differ from the most frequent value: a model has a parameter for each, and its posterior would
        reveal those rows. "tell" lets it pass with a warning.

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
        """A policy without floors, for what is told to nobody."""
        return cls(1, 1, np.inf, "tell")

    def too_few(self, where: str, rows: int) -> list[str]:
        """The refusal of a site, `where`, with fewer rows than its floor; empty where it has enough."""
        if rows >= self.rows:
            return []
        return [
            f"{where}: refused, there are fewer than {self.rows} rows, the floor of the site (`rows` in its policy)"
        ]

    def refusals(self, site: str, parameters: int, rows: int) -> list[str]:
        """Why a site of so many rows takes no part in a model of so many parameters; empty where it does."""
        # a quotient is rounded as the share was when it was written
        if parameters / max(rows, 1) <= self.parameters:
            return []
        share = -(-100 * parameters // max(rows, 1)) / 100
        return [
            f"{site}: {parameters} parameters are more than {self.parameters:g} of the rows, the floor of the site: "
            f"take fewer columns. Its administrator may allow it by the line `parameters = {share:g}` in the file "
            f"policy.toml beside its data; for your own data in memory pass "
            f"policy=accord.data.Policy(parameters={share:g})"
        ]

    def singles_out(self, values: np.ndarray) -> bool:
        """Whether some rows, and fewer than `cells`, differ from the most frequent value of a column, shape (row,).

        Values that differ by less than a thousandth of the column's range count as one: a column of one person's value
        and of others that are next to nothing beside it is that person's.
        """
        rows = np.nan_to_num(np.sort(np.asarray(values, np.float64)))
        # of numbers near the largest of float64 the range would be infinite
        rows = rows / max(np.abs(rows).max(initial=0.0), np.finfo(np.float64).tiny)
        alike = _ALIKE * np.ptp(rows) if len(rows) else 0.0
        commonest = (np.searchsorted(rows, rows + alike, side="right") - np.arange(len(rows))).max(initial=0)
        return bool(0 < len(rows) - commonest < self.cells)

    @classmethod
    def read(cls, path: Path) -> Policy:
        """A policy from a TOML file with these names as keys.

        Raises
        ------
        ValueError
            The file is no TOML, or a key or value is wrong; the file is named.
        """
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            known = [f.name for f in fields(cls)]
            for name in found:
                if name not in known:
                    raise unknown_name_error("key", name, known)
            return cls(**found)
        except (ValueError, OSError) as error:  # errors of TOML and of UTF-8 are among these
            raise ValueError(f"policy {path}: {error}") from error

    @classmethod
    def beside(cls, path: Path) -> Policy | None:
        """The site's own policy, beside its data: `north.policy.toml` for `north.csv`, or `policy.toml`."""
        for name in (f"{path.stem}.policy.toml", "policy.toml"):
            own = path.with_name(name)
            if own.is_file():
                return cls.read(own)
        return None

    def stricter(self, other: Policy) -> Policy:
        """The stricter of each floor of two policies."""
        return Policy(
            max(self.rows, other.rows),
            max(self.cells, other.cells),
            min(self.parameters, other.parameters),
            RARE[min(RARE.index(self.rare), RARE.index(other.rare))],
        )

    def told(self, count: int) -> int | str:
        """A count as the site tells it."""
        return f"< {self.cells}" if 0 < count < self.cells else count
