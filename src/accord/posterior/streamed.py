"""Totals over rows that do not fit in memory. Each total reads them once, in chunks."""

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

# Largest share of the machine's memory for rows.
_HELD = 0.25
# Bytes per chunk of all agents together.
_CHUNK = 64_000_000


def bytes_of(shards: Shards, rows: int) -> int:
    """Size in bytes of shards padded to a number of rows, assuming the dtypes of the first shard."""
    first = next(iter(shards.values()))
    return rows * len(shards) * sum(leaf[:1].nbytes for leaf in jax.tree.leaves(first))


def is_large(shards: Shards, rows: int) -> bool:
    """Whether padded shards exceed their share of memory."""
    return bytes_of(shards, rows) > _HELD * memory_bytes()


def require_memory_for(shards: Shards, rows: int) -> None:
    """Raise `ValueError` if shards padded to a number of rows do not fit in memory twice."""
    take, there = bytes_of(shards, rows), memory_bytes()
    # the padded copy and the device's copy
    if 2 * take > there:
        raise ValueError(
            f"the rows of {len(shards):,} agents, {rows:,} each, take {human_bytes(take)}, and two copies of them do "
            f"not fit: this machine has {human_bytes(int(there))} of memory. Importance(), ChEES(), loo and leave_out "
            "read rows in chunks. For anything else, spread the agents over machines, or give them fewer rows"
        )


class TotalsInChunks(TotalsHere):
    """Totals over rows that do not fit in memory, such as arrays of `numpy.load(path, mmap_mode="r")`.

    Each total reads the rows once, in chunks of every agent's rows. A thread reads the next chunk during a computation.

    Parameters
    ----------
    potential
        A posterior's potential in the user's parameters, with a rowwise log likelihood.
    shards
        NumPy arrays by agent.
    """

    def __init__(self, potential: Potential, shards: Shards) -> None:
        self.source, self.rows = shards, row_counts(shards)
        longest = int(self.rows.max())
        rows = min(longest, max(1, _CHUNK // bytes_of(shards, 1)))
        self.parts = parts_of(rows)
        # a multiple of the number of parts
        self.size = self.parts * -(-rows // self.parts)
        self.chunks = -(-longest // self.size)
        self.potential = potential.divided(self.chunks)

    def _chunks(self, *functions: Callable[..., PyTree]) -> Iterator[Shard]:
        """The chunks of rows, each read during the computation with the one before."""
        for function in functions:
            if not sums_rows(function):
                name = getattr(function, "__name__", type(function).__name__)
                raise ValueError(
                    f"{name} is not marked as a sum over rows, and all {self.rows.sum():,} rows at once do not fit in "
                    "memory. Mark it with `of_rows` if it can be added up over chunks of rows"
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
            # an agent without rows in this chunk repeats its last row, as padding
            return leaf[min(first, len(leaf) - 1) : first + self.size]

        some = {agent: jax.tree.map(cut, shard) for agent, shard in self.source.items()}
        left = np.clip(self.rows - first, 0, self.size)
        return Shard(padded(some, self.size), left.astype(np.int32), None)
