"""Ways to split rows over agents: at random, by label, by a column, by Dirichlet shares."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..base.errors import unknown_name_error

_QUANTILE_BINS = 10  # classes that `dirichlet` makes of a target that is not an integer


# --- split rules: each covers all rows exactly once, none of the parts empty ---

Parts = list[Int[np.ndarray, " row"]]
SplitRule = Callable[[np.ndarray, np.ndarray, int, np.random.Generator, Any], Parts]


def iid(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Share the rows out at random, in parts that differ by one row at most."""
    _refuse_argument("iid", argument)
    return np.array_split(rng.permutation(len(y)), agents)


def by_label(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Sort the rows by the target, equal ones at random, and cut them into near-equal parts."""
    _refuse_argument("by-label", argument)
    return np.array_split(_shuffled_order(y, rng), agents)


def by_column(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Sort the rows by one column, equal ones at random, and cut them into near-equal parts."""
    if argument is None or isinstance(argument, str):
        raise ValueError("split 'by-column' needs column, the column to sort by, and nothing in brackets")
    values = np.asarray(argument)
    if values.shape != y.shape:
        raise ValueError(f"split 'by-column' needs one value a row, shape {y.shape}; found shape {values.shape}")
    return np.array_split(_shuffled_order(values, rng), agents)


def dirichlet(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Share out the rows of each label by proportions drawn from Dirichlet(a, ..., a).

    Small a gives each label to few agents, large a to all alike. A target that is not an integer is cut into
    ten classes at its deciles first. An agent left with no row gets one of the largest part.
    """
    try:
        concentration = float(argument)
    except (TypeError, ValueError):
        concentration = math.nan
    if not 0 < concentration < math.inf:
        raise ValueError(f"split 'dirichlet' needs a number above 0, as in 'dirichlet(0.5)'; found {argument!r}")
    whole = bool(np.all(y == np.round(y)))
    inner = np.linspace(0, 1, _QUANTILE_BINS + 1)[1:-1]
    classes = y if whole else np.searchsorted(np.quantile(y, inner), y, side="right")

    parts: list[list[int]] = [[] for _ in range(agents)]
    for label in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == label))
        proportions = rng.dirichlet(np.full(agents, concentration))
        cuts = np.round(np.cumsum(proportions)[:-1] * len(rows)).astype(int)
        for part, share in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(share)
    for part in parts:
        if not part:  # with at least as many rows as agents, the largest then has two
            part.append(max(parts, key=len).pop())
    return [np.array(part, dtype=int) for part in parts]


SPLITS: Mapping[str, SplitRule] = MappingProxyType(
    {"iid": iid, "by-label": by_label, "by-column": by_column, "dirichlet": dirichlet}
)


def split(
    rule: str,
    X: Float[np.ndarray, "row dim"],
    y: Float[np.ndarray, " row"],
    agents: int,
    seed: int,
    column_values: Float[np.ndarray, " row"] | None = None,
) -> Parts:
    """Share rows out over agents by a named rule.

    Parameters
    ----------
    rule : str
        ``"iid"`` (at random), ``"by-label"`` (sorted by `y`), ``"by-column"`` (sorted by `column_values`), or
        ``"dirichlet(a)"`` (each label's rows by Dirichlet proportions, a > 0).
    X : array, shape (row, dim)
        The covariates.
    y : array, shape (row,)
        The responses.
    agents : int
        How many parts, from 1 to the number of rows.
    seed : int
        Seed of the shuffles and draws.
    column_values : array, shape (row,), optional
        What ``"by-column"`` sorts by; no other rule takes it.

    Returns
    -------
    list of int array
        The rows of each agent, ascending. Every row is in exactly one, none is empty.

    Raises
    ------
    ValueError
        If the rule is unknown or its argument does not fit, or there are fewer rows than agents.

    Examples
    --------
    >>> X, y = np.arange(12.0).reshape(6, 2), np.array([1.0, 0, 1, 0, 1, 0])
    >>> split("by-label", X, y, agents=2, seed=0)
    [array([1, 3, 5]), array([0, 2, 4])]
    """
    form = re.fullmatch(r"\s*([^()]*?)\s*(?:\((.*)\))?\s*", rule)
    if form is None or form[1] not in SPLITS:
        raise unknown_name_error("split rule", rule if form is None else form[1], SPLITS)
    if agents < 1:
        raise ValueError(f"agents must be at least 1; found {agents}")
    if len(y) < agents:
        raise ValueError(f"{len(y)} rows are too few for {agents} agents; each needs at least one")
    argument = column_values if form[2] is None else form[2]
    parts = SPLITS[form[1]](X, y, agents, np.random.default_rng(seed), argument)
    return [np.sort(part) for part in parts]


def _refuse_argument(rule: str, argument: Any) -> None:
    if argument is not None:
        raise ValueError(f"split {rule!r} takes neither a number in brackets nor a column")


def _shuffled_order(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    # Ties in the order of the file would carry over whatever the file is sorted by.
    shuffled = rng.permutation(len(values))
    return shuffled[np.argsort(values[shuffled], kind="stable")]
