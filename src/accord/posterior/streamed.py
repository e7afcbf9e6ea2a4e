"""Totals over rows that memory does not hold: they are read in chunks, once for each total."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import PyTree

from ..base.interruptions import let_through
from ..base.memory import memory_bytes
from ..base.progress import step
from ..base.text import human_bytes
from .potential import Potential, Shard
from .shards import Shards, padded, row_counts
from .totals import TotalsHere, parts_of, sums_rows

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
            f"them twice; this machine has {human_bytes(int(there))} of memory. Importance(), ChEES(), loo and "
            "leave_out read them in chunks; for all else spread the agents over machines, or give them fewer rows"
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
        self.source, self.rows = shards, row_counts(shards)
        longest = int(self.rows.max())
        rows = min(longest, max(1, _CHUNK // bytes_of(shards, 1)))
        self.parts = parts_of(rows)
        # parts alike
        self.size = self.parts * -(-rows // self.parts)
        self.chunks = -(-longest // self.size)
        self.potential = potential.divided(self.chunks)

    def _chunks(self, function: Callable[..., PyTree]) -> Iterator[Shard]:
        """All chunks, each read while the one before is worked on."""
        if not sums_rows(function):
            name = getattr(function, "__name__", type(function).__name__)
            raise ValueError(
                f"{name} is no sum over rows that may be taken some at a time (mark it with `of_rows` if it is), and "
                f"memory does not hold all {self.rows.sum():,} rows at once"
            )
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(self._chunk, 0)
            for number in range(self.chunks):
                step(number, self.chunks)
                let_through()
                chunk = following.result()
                if number + 1 < self.chunks:
                    following = reader.submit(self._chunk, number + 1)
                yield jax.device_put(chunk)

    def _chunk(self, number: int) -> Shard:
        first = number * self.size

        def cut(leaf: np.ndarray) -> np.ndarray:
            # of an agent that has no row left its last one, which does not count
            return leaf[min(first, len(leaf) - 1) : first + self.size]

        some = {agent: jax.tree.map(cut, shard) for agent, shard in self.source.items()}
        left = np.clip(self.rows - first, 0, self.size)
        return Shard(padded(some, self.size), left.astype(np.int32), None)
