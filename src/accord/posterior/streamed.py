"""Totals over rows that memory does not hold: they are read in chunks, once for each total."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..base.interruptions import let_through
from ..base.memory import memory_bytes
from ..base.progress import step
from ..base.text import human_bytes
from .potential import Potential, Shard
from .shards import Shards, padded
from .totals import TotalsHere, rows_at_once, sums_rows

# Share of the machine's memory up to which rows are held.
_HELD = 0.25
# Bytes of a chunk, of all agents together.
_CHUNK = 64_000_000


def bytes_of(shards: Shards, rows: int) -> int:
    """Bytes of shards that are filled up to so many rows each; of numbers as wide as the first one's."""
    first = next(iter(shards.values()))
    return rows * len(shards) * sum(leaf[:1].nbytes for leaf in jax.tree.leaves(first))


def is_large(shards: Shards, rows: int) -> bool:
    """Whether shards, filled up to so many rows, take more memory than can be spared."""
    return bytes_of(shards, rows) > _HELD * memory_bytes()


def require_memory_for(shards: Shards, rows: int) -> None:
    """Raise `ValueError` where memory cannot hold shards that are filled up to so many rows."""
    take, there = bytes_of(shards, rows), memory_bytes()
    # what is filled up, and what is on the device
    if 2 * take > there:
        raise ValueError(
            f"the rows of {len(shards):,} agents, {rows:,} each, take {human_bytes(take)}, and what works on them has "
            f"them twice; this machine has {human_bytes(int(there))} of memory. Importance() and ChEES() read them in "
            "chunks; for other methods spread the agents, or give them fewer rows"
        )


class TotalsInChunks(TotalsHere):
    """Totals over agents whose rows are too many to be held, such as arrays of `numpy.load(path, mmap_mode="r")`.

    Each total reads them once, a chunk of every agent's at a time, the next one while this one is worked on.

    Parameters
    ----------
    potential
        A posterior's, in the user's parameters; its log likelihood has one number a row.
    shards
        Arrays of NumPy by agent.
    """

    def __init__(self, potential: Potential, shards: Shards) -> None:
        self.rows = {agent: jax.tree.leaves(shard)[0].shape[0] for agent, shard in shards.items()}
        self.source, longest = shards, max(self.rows.values())
        block = rows_at_once(len(shards))
        each = bytes_of(shards, 1)
        # of as many blocks as a chunk has, all chunks alike
        blocks = max(1, min(_CHUNK // (each * block), -(-longest // block)))
        self.size, self.chunks = block * blocks, -(-longest // (block * blocks))
        super().__init__(potential.divided(self.chunks), self._chunk(0), blocks)

    def _made(
        self,
        program: Callable[..., PyTree],
        function: Callable[..., PyTree],
        arguments: tuple[Any, ...],
        axis: int,
        **options: Any,
    ) -> PyTree:
        if not sums_rows(function):
            name = getattr(function, "__name__", type(function).__name__)
            raise ValueError(
                f"{name} is no sum over rows that may be taken some at a time (mark it with `of_rows` if it is), and "
                f"memory does not hold all {sum(self.rows.values()):,} rows at once"
            )
        found: PyTree = None
        for done, chunk in enumerate(self._ahead()):
            step(done, self.chunks)
            let_through()
            part = self._made_of(chunk, program, function, arguments, axis, **options)
            found = part if found is None else jax.tree.map(np.add, found, part)
        return found

    def _ahead(self) -> Iterator[Shard]:
        """All chunks, each read while the one before is worked on."""
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(self._chunk, 0)
            for number in range(self.chunks):
                chunk = following.result()
                if number + 1 < self.chunks:
                    following = reader.submit(self._chunk, number + 1)
                yield jax.device_put(chunk)

    def _chunk(self, number: int) -> Shard:
        first = number * self.size

        def cut(leaf: np.ndarray, rows: int) -> np.ndarray:
            # of an agent that has no row left its last one, which does not count
            start = min(first, rows - 1)
            return np.array(leaf[start : start + self.size])

        some = {agent: jax.tree.map(partial(cut, rows=self.rows[agent]), shard) for agent, shard in self.source.items()}
        left = np.clip(np.array(list(self.rows.values())) - first, 0, self.size)
        return Shard(padded(some, self.size), left.astype(np.int32), None)
