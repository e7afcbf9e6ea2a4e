"""The floors under which a site tells nothing."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from ..base.checks import whole_number
from ..base.errors import unknown_name_error

# What a site does with a level that too few of its rows have.
RARE = ("refuse", "tell")


@dataclass(frozen=True)
class Policy:
    """What a site tells of its rows, and what it refuses.

    Parameters
    ----------
    rows : int, default 10
        A site of fewer rows takes no part, and a mean of fewer cells is not told.
    cells : int, default 3
        Counts above 0 and below this are told as "< 3".
    parameters : float, default 0.1
        Parameters of a model, at most, as a share of the rows of the site.
    rare : {"refuse", "tell"}, default "refuse"
        What becomes of a model with a level that fewer than `cells` rows have, here or together: a model has a
        parameter for each level, and its posterior would tell of those rows. "tell" lets it pass with a warning.

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

    def refusals(self, site: str, parameters: int, rows: int) -> list[str]:
        """Why a site of so many rows takes no part in a model of so many parameters; empty where it does."""
        if parameters <= self.parameters * rows:
            return []
        return [
            f"{site}: {parameters} parameters are more than {self.parameters:g} of the rows, the floor of the site "
            "(`parameters` in its policy): take fewer columns"
        ]

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
