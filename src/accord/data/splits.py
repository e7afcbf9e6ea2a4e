"""Rules that split rows over agents: at random, by label, by a column, or by Dirichlet proportions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..base.errors import unknown_name_error

_QUANTILE_BINS = 10  # classes of a real-valued target in `dirichlet`


# --- split rules: each row is in exactly one part, and no part is empty ---

Parts = list[Int[np.ndarray, " row"]]
SplitRule = Callable[[np.ndarray, np.ndarray, int, np.random.Generator, Any], Parts]


def iid(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Split the rows at random, into parts whose sizes differ by at most one."""
    _refuse_argument("iid", argument)
    return np.array_split(rng.permutation(len(y)), agents)


def by_label(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Sort the rows by the target, with ties in random order, and cut them into near-equal parts."""
    _refuse_argument("by-label", argument)
    return np.array_split(_shuffled_order(y, rng), agents)


def by_column(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Sort the rows by one column, with ties in random order, and cut them into near-equal parts."""
    if argument is None or isinstance(argument, str):
        raise ValueError("split 'by-column' needs column, the column to sort by, and no argument in brackets")
    values = np.asarray(argument)
    if values.shape != y.shape:
        raise ValueError(f"split 'by-column' needs one value per row, shape {y.shape}, found shape {values.shape}")
    return np.array_split(_shuffled_order(values, rng), agents)


def dirichlet(X: np.ndarray, y: np.ndarray, agents: int, rng: np.random.Generator, argument: Any) -> Parts:
    """Split the rows of each label by proportions drawn from Dirichlet(a, ..., a).

    With a small a each label goes to few agents, with a large a to all agents alike. A target with non-integer values
    is first cut into ten classes at its deciles. An agent without a row gets one from the largest part.
    """
    try:
        concentration = float(argument)
    except (TypeError, ValueError):
        concentration = math.nan
    if not 0 < concentration < math.inf:
        raise ValueError(f"split 'dirichlet' needs a number above 0, as in 'dirichlet(0.5)', found {argument!r}")
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
        if not part:  # the largest part has at least two rows, as there are at least as many rows as agents
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
    """Split rows over agents by a named rule.

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
        Number of parts, from 1 to the number of rows.
    seed : int
        Seed of the random generator.
    column_values : array, shape (row,), optional
        The values that ``"by-column"`` sorts by. Other rules reject them.

    Returns
    -------
    list of int array
        The row numbers of each agent, ascending. Each row is in exactly one part, and no part is empty.

    Raises
    ------
    ValueError
        The rule is unknown, its argument is wrong, or there are fewer rows than agents.

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
        raise ValueError(f"agents must be at least 1, found {agents}")
    if len(y) < agents:
        raise ValueError(f"{len(y)} rows are too few for {agents} agents: each agent needs at least one")
    argument = column_values if form[2] is None else form[2]
    parts = SPLITS[form[1]](X, y, agents, np.random.default_rng(seed), argument)
    return [np.sort(part) for part in parts]


def _refuse_argument(rule: str, argument: Any) -> None:
    if argument is not None:
        raise ValueError(f"split {rule!r} has no argument in brackets and no column")


def _shuffled_order(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    # ties in file order would inherit the order of the file
    shuffled = rng.permutation(len(values))
    return shuffled[np.argsort(values[shuffled], kind="stable")]
