"""Totals that are written down as they come, so that a run that was lost is told them again and goes on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..posterior.totals import Totals
from .checkpoint import CheckpointStore

# Seconds of sums that a crash can cost.
_SECONDS = 2.0
# What a sum that is made again may differ by, relative to its largest number: the order of additions.
_SAME = 1e-9


class RecordedTotals:
    """Totals of which all are kept on disk, in the order in which they were asked for.

    A method that is a function of its totals and nothing else is resumed by being told them again: but for the first
    and the last, which are made anew to see that they are still the same, the agents are asked for those only that are
    not there. The first ends early what is of something else, but is about one position; the last is about many.

    Parameters
    ----------
    totals
        Who makes those that are not there yet.
    folder, tag
        Where they are kept, by this process alone, and which run they belong to.
    """

    def __init__(self, totals: Totals, folder: Path, tag: str) -> None:
        self.totals, self.store = totals, CheckpointStore(folder, tag, keep=None)
        self.count, self.recalled = 0, 0
        self._known: dict[int, tuple[str, np.ndarray]] = {}
        self._unwritten: dict[str, np.ndarray] = {}
        self._wrote = time.perf_counter()
        for first in self.store.rounds():
            self._take(self.store.read(first))

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum, from disk where it is there.

        Raises
        ------
        ValueError
            The sum on disk was of something else: the data, or the program, is another one.
        """
        self.count += 1
        asked = _digest(function, arguments, options)
        if self.count in self._known:
            digest, leaf = self._known.pop(self.count)
            if digest != asked:
                raise ValueError(
                    f"sum {self.count} in {self.store.folder} was of something else than is asked for now: the folder "
                    "belongs to a run of another posterior or method"
                )
            self.recalled += 1
            if self.recalled == 1 or not self._known:
                self._require_same(leaf, function, *arguments, **options)
            return leaf
        found = self.totals(function, *arguments, **options)
        # every sum of these methods is one array
        (leaf,) = jax.tree.leaves(found)
        self._unwritten[f"{self.count} {asked}"] = np.asarray(leaf)
        if time.perf_counter() - self._wrote > _SECONDS:
            self.write()
        return found

    def _require_same(
        self, before: np.ndarray, function: Callable[..., PyTree], *arguments: Any, **options: Any
    ) -> None:
        """Make a sum again: it tells whether the data and the model are still what they were."""
        (now,) = jax.tree.leaves(self.totals(function, *arguments, **options))
        off = np.inf
        if now.shape == before.shape:
            off = float(np.abs(now - before).max() / (np.abs(before).max() + np.finfo(float).tiny))
        if not off <= _SAME:
            raise ValueError(
                f"the sums in {self.store.folder} are of other data or another model: sum {self.count}, made again, is "
                f"off by {off:.2g} of itself; take another checkpoint folder"
            )

    def write(self) -> None:
        """Write what is not on disk yet."""
        if self._unwritten:
            self.store.write(self.count, self._unwritten)
        self._unwritten, self._wrote = {}, time.perf_counter()

    def _take(self, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            count, digest = name.split(" ")
            self._known[int(count)] = (digest, array)


def _digest(function: Callable[..., PyTree], arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    found = hashlib.sha256(f"{function.__module__}.{function.__qualname__}".encode())
    for leaf in jax.tree.leaves((arguments, options)):
        # to nine digits: the sums of another machine differ in the last ones
        found.update(np.asarray([f"{x:.9e}" for x in np.asarray(leaf, np.float64).ravel()[:64]]).tobytes())
    return found.hexdigest()[:16]
