"""What fits into this machine's memory, asked before a run begins."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .text import human_bytes

# What a container may take, where there is such a limit.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> float:
    """Bytes of memory that this machine, or the container that it is, has; infinite where nobody says."""
    known = getattr(os, "sysconf_names", {})
    has = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))] if "SC_PHYS_PAGES" in known else []
    if _CONTAINER.is_file():
        limit = _CONTAINER.read_text().strip()
        has += [float(limit)] if limit.isdecimal() else []
    return min(has, default=np.inf)


def require_memory(*, draws: int, chains: int, positions: int, dim: int) -> None:
    """Raise `ValueError` unless draws fit: so many in each chain, of so many positions of `dim` numbers each."""
    needed, there = draws * chains * positions * dim * np.dtype(np.float32).itemsize, memory_bytes()
    if needed > there:
        raise ValueError(
            f"draws = {draws:,} in {chains:,} chains, of {positions:,} positions of {dim:,} numbers, take "
            f"{human_bytes(needed)} at least, and this machine has {human_bytes(int(there))} of memory: draw fewer, or "
            "keep fewer agents"
        )
