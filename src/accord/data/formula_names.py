"""The names of columns in formulas, by the part of the formula that they are in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..base.errors import nearest

# Largest number of characters of a formula. The parser is recursive, and deep recursion can crash a process.
_MOST_CHARACTERS = 20_000
# Names in formulas that are no columns of a file.
_NO_COLUMNS = {"site", "np", "Sum", "Treatment"}
# a name, or anything in backquotes
_NAME = r"`[^`]+`|[^\W\d][\w.]*"


@dataclass(frozen=True)
class FormulaNames:
    """Names of possible columns in formulas.

    Parameters
    ----------
    names : frozenset of str
        All names. Names of functions are included.
    responses : frozenset of str
        Names on the left-hand side.
    factors : frozenset of str
        Names in `C(...)`, whose levels may look like numbers.
    steady : frozenset of str
        Names that may be the same in every row: those given beside formulas, such as weights, and those in a call with
        several arguments on the left-hand side, such as numbers of trials.
    groups : frozenset of str
        Names that only define groups of rows, as in ``(1 | ward)``. Their levels never leave a site.
    columns : frozenset of str
        Names that are neither functions nor part of a quoted text.

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
    columns: frozenset[str]

    @classmethod
    def of(cls, formula: str | Sequence[str]) -> FormulaNames:
        """The names in a formula, or in a list of formulas and column names."""
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
            _names(re.sub(rf"'[^']*'|\"[^\"]*\"|(?:{_NAME})\s*\(", " ", text)),
        )


def misspelled(formula: FormulaNames, known: Sequence[str]) -> list[str]:
    """Names in a formula that are near to a known column by spelling, if the formula does not name that column too."""
    unknown = sorted(formula.columns - {*known, *_NO_COLUMNS})
    return [name for name in unknown if nearest(name, known, 0.75) not in {None, *formula.names}]


def require_short(formula: str) -> None:
    """Raise `ValueError` if a formula is too long to be parsed."""
    if len(formula) > _MOST_CHARACTERS:
        raise ValueError(f"the formula has {len(formula):,} characters, the limit is {_MOST_CHARACTERS:,}")


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip("`") for name in re.findall(_NAME, text))
