"""Sums over the agents, stored on disk so that an interrupted run can resume."""

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

# Seconds between two writes.
_SECONDS = 2.0
# Tolerance of a recomputed sum relative to its largest number, for the order of additions.
_SAME = 1e-9


class RecordedTotals:
    """Totals that store every sum on disk, numbered in the order of the calls.

    A method that depends on data through sums only is resumed by replaying the stored sums. The agents recompute the
    first and the last stored sum, to detect changed data or a changed model. The first detects a change early, but
    evaluates one position. The last evaluates many.

    Parameters
    ----------
    totals
        Computes sums that are not stored.
    folder
        Folder of the sums, written by this process only.
    tag
        Identifies the run.
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
        """The sum over all agents, read from disk if it is stored.

        Raises
        ------
        ValueError
            The stored sum has another function, other arguments or another value.
        """
        self.count += 1
        requested = _digest(function, arguments, options)
        if self.count in self._known:
            digest, leaf = self._known.pop(self.count)
            if digest != requested:
                raise ValueError(
                    f"cannot resume from {self.store.folder}: sum {self.count} was recorded for another posterior or "
                    "method. Use a new checkpoint folder."
                )
            self.recalled += 1
            if self.recalled == 1 or not self._known:
                self._require_same(leaf, function, *arguments, **options)
            return leaf
        found = self.totals(function, *arguments, **options)
        # all sums of these methods are one array
        (leaf,) = jax.tree.leaves(found)
        self._unwritten[f"{self.count} {requested}"] = np.asarray(leaf)
        if time.perf_counter() - self._wrote > _SECONDS:
            self.write()
        return found

    def _require_same(
        self, before: np.ndarray, function: Callable[..., PyTree], *arguments: Any, **options: Any
    ) -> None:
        """Recompute a sum and raise `ValueError` if it changed."""
        (now,) = jax.tree.leaves(self.totals(function, *arguments, **options))
        off = np.inf
        if now.shape == before.shape:
            off = float(np.abs(now - before).max() / (np.abs(before).max() + np.finfo(float).tiny))
        if not off <= _SAME:
            raise ValueError(
                f"cannot resume from {self.store.folder}: the data or the model changed, as sum {self.count}, "
                f"recomputed, differs by {off:.2g} of itself. Use a new checkpoint folder."
            )

    def write(self) -> None:
        """Write all new sums to disk."""
        if self._unwritten:
            self.store.write(self.count, self._unwritten)
        self._unwritten, self._wrote = {}, time.perf_counter()

    def _take(self, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            count, digest = name.split(" ")
            self._known[int(count)] = (digest, array)


def _digest(function: Callable[..., PyTree], arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    found = hashlib.sha256(f"{function.__module__}.{getattr(function, '__qualname__', function.__name__)}".encode())
    for leaf in jax.tree.leaves((arguments, options)):
        # to nine digits, as machines differ in the last ones
        found.update(np.asarray([f"{x:.9e}" for x in np.asarray(leaf, np.float64).ravel()[:64]]).tobytes())
    return found.hexdigest()[:16]
