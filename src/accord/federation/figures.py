"""Encode summaries for masked sums. A scaled copy keeps small numbers precise in fixed point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.collectives import Numbers
from ..posterior.masks import largest

# Factor of the scaled copy, with a resolution of 2^-115.
_LARGER = 2.0**50


def shapes_of(numbers: Numbers) -> dict[str, list[int]]:
    """Shapes by name."""
    return {name: list(np.shape(numbers[name])) for name in sorted(numbers)}


def leaves_of(numbers: Numbers, most: float = largest(1024)) -> list[np.ndarray]:
    """Arrays for a masked sum: the numbers, scaled numbers where they fit, and marks where they do not."""
    flat = _flat([numbers[name] for name in sorted(numbers)])
    fits = np.abs(flat) * _LARGER < most
    return [flat, np.where(fits, flat * _LARGER, 0.0), (~fits).astype(np.int64)]


def numbers_of(sums: Sequence[np.ndarray], shapes: dict[str, list[int]]) -> Numbers:
    """The sum of the numbers of all sites, from the sums of their `leaves_of`."""
    plain, larger, large = sums
    flat, found, start = np.where(large > 0, plain, larger / _LARGER), {}, 0
    for name, shape in shapes.items():
        end = start + int(np.prod(shape, dtype=int))
        found[name], start = flat[start:end].reshape(shape), end
    return found


def _flat(values: Sequence[Any]) -> np.ndarray:
    parts = [np.ravel(np.asarray(value, np.float64)) for value in values]
    return np.concatenate([np.empty(0), *parts])
