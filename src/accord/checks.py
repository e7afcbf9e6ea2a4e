"""Checks of numbers that several rooms share; each raises one clear error."""

from __future__ import annotations

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


def positive(name: str, value: float) -> None:
    """Raise `ValueError` unless a number is finite and > 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number > 0, found {value}")
