"""Figures that sites agree on, as numbers that masks can carry: also small ones, of which fixed point keeps little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.collectives import Numbers
from ..posterior.masks import Words, decoded, largest

# Numbers are carried once as they are and once enlarged by this, which keeps 2^-115 of those that fit.
_LARGER = 2.0**50


def shapes_of(said: Numbers) -> dict[str, list[int]]:
    """The shape of each number by name."""
    return {name: list(np.shape(said[name])) for name in sorted(said)}


def leaves_of(said: Numbers, most: float = largest(1024)) -> list[np.ndarray]:
    """Numbers as masks carry them: as they are, enlarged where that fits, and where it does not."""
    flat = _flat([said[name] for name in sorted(said)])
    fits = np.abs(flat) * _LARGER < most
    return [flat, np.where(fits, flat * _LARGER, 0.0), (~fits).astype(np.int64)]


def numbers_of(words: Words, shapes: dict[str, list[int]], num_agents: int) -> Numbers:
    """The sum of numbers that words hold."""
    count = sum(int(np.prod(shape, dtype=int)) for shape in shapes.values())
    like = [np.empty(count, kind) for kind in (np.float64, np.float64, np.int64)]
    plain, larger, large = decoded(words, like, num_agents)
    flat, found, start = np.where(large > 0, plain, larger / _LARGER), {}, 0
    for name, shape in shapes.items():
        end = start + int(np.prod(shape, dtype=int))
        found[name], start = flat[start:end].reshape(shape), end
    return found


def _flat(values: Sequence[Any]) -> np.ndarray:
    parts = [np.ravel(np.asarray(value, np.float64)) for value in values]
    return np.concatenate([np.empty(0), *parts])
