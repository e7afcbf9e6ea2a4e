"""Which columns formulas name, and what as; what a formula means is for `accord.models`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Largest number of characters of a formula: its parser calls itself for each part, and deep calls end a process.
_MOST_CHARACTERS = 20_000
# a name, or anything in backquotes
_NAME = r"`[^`]+`|[^\W\d][\w.]*"


@dataclass(frozen=True)
class FormulaNames:
    """Names in formulas.

    Parameters
    ----------
    names : frozenset of str
        All that could be columns; names of functions are among them.
    responses : frozenset of str
        Those on the left.
    factors : frozenset of str
        Those in `C(...)`, whose levels may look like numbers.
    steady : frozenset of str
        Those that may well be the same in every row: named beside formulas, as weights are, or by a call of several on
        the left, as numbers of trials.
    groups : frozenset of str
        Those that only say which group a row is in, as in ``(1 | ward)``: nobody but the site hears of its groups.

    Examples
    --------
    >>> found = FormulaNames.of("died ~ age + C(stage) + (1 | ward)")
    >>> sorted(found.names), sorted(found.groups)
    (['C', 'age', 'died', 'stage', 'ward'], ['ward'])
    """

    names: frozenset[str]
    responses: frozenset[str]
    factors: frozenset[str]
    steady: frozenset[str]
    groups: frozenset[str]

    @classmethod
    def of(cls, formula: str | Sequence[str]) -> FormulaNames:
        """The names in a formula, or in several texts: formulas and names of columns beside them."""
        formulas = [formula] if isinstance(formula, str) else list(formula)
        for one in formulas:
            require_short(one)
        text = "\n".join(formulas)
        groups = re.findall(r"\|([^()|]+)\)", text)
        rest = re.sub(r"\|([^()|]+)\)", ")", text)
        left = "\n".join(one.partition("~")[0] for one in formulas if "~" in one)
        beside = [one for one in formulas if "~" not in one]
        return cls(
            _names(text),
            _names(left),
            _names("\n".join(re.findall(rf"\bC\(\s*({_NAME})", text))),
            _names("\n".join([*beside, *re.findall(r"\(([^()]*,[^()]*)\)", left)])),
            _names("\n".join(groups)) - _names(rest),
        )


def require_short(formula: str) -> None:
    """Raise `ValueError` where a formula is too long to be parsed."""
    if len(formula) > _MOST_CHARACTERS:
        raise ValueError(f"the formula has {len(formula):,} characters; at most {_MOST_CHARACTERS:,} are read")


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip("`") for name in re.findall(_NAME, text))
