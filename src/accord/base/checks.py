"""Checks of arguments that several packages share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np


def whole_number(name: str, value: Any, low: int, high: float = np.inf) -> int:
    """The value as an int, or a `ValueError` if it is not a whole number in [low, high]."""
    try:
        number = low - 1 if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        limits = f">= {low}" if high == np.inf else f"in {low}..{high}"
        raise ValueError(f"{name} must be a whole number {limits}, found {value!r}")
    return number


def whole_numbers(name: str, values: Any, low: int) -> int | tuple[int, ...]:
    """One value or several as ints, or a `ValueError` if one is not a whole number >= low."""
    if isinstance(values, Sequence) or np.ndim(values) > 0:
        return tuple(whole_number(name, value, low) for value in values)
    return whole_number(name, values, low)


def one_an_agent(name: str, value: Any, num_agents: int) -> np.ndarray:
    """One number, or one per agent, as an array of shape (agent,), or a `ValueError` for another shape."""
    array = np.asarray(value)
    if array.shape not in ((), (num_agents,)):
        raise ValueError(f"{name} must be one number, or one per agent ({num_agents}), found shape {array.shape}")
    return np.broadcast_to(array, (num_agents,))


def positive(name: str, value: Any) -> None:
    """Raise `ValueError` unless a value is a finite number > 0."""
    if isinstance(value, str | None) or not 0 < value < float("inf"):
        found = repr(value) if isinstance(value, str) else value
        raise ValueError(f"{name} must be a finite number > 0, found {found}")


def require_bool(name: str, value: Any) -> None:
    """Raise `ValueError` unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, found {value!r}")
