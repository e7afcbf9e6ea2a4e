"""What fits into this machine's memory, asked before a run begins."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .text import human_bytes

# Times that a round has a position.
_COPIES = 3
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


def require_memory(*, draws: int, chains: int, positions: int, dim: int, states: int = 0, slots: int = 0) -> None:
    """Raise `ValueError` unless draws fit: so many in each chain, of so many positions of `dim` numbers each.

    `states` agents' states have to fit beside them, of each chain a position three times: as it is, as it was, and what
    moves it. Each of the agents' links that may fail holds a position for each of so many `slots` beside that.
    """
    position = chains * dim * np.dtype(np.float32).itemsize
    kept, moving, there = draws * positions * position, states * (_COPIES + slots) * position, memory_bytes()
    if kept + moving <= there:
        return
    of_links = " and their links" if slots else ""
    beside = f", and the states of {states:,} agents{of_links} {human_bytes(moving)}" if moving else ""
    remedy = "draw fewer, or keep fewer agents" if kept > moving else "take fewer chains, or spread the agents"
    raise ValueError(
        f"draws = {draws:,} in {chains:,} chains, of {positions:,} positions of {dim:,} numbers, take "
        f"{human_bytes(kept)} at least{beside}; this machine has {human_bytes(int(there))} of memory: {remedy}"
    )
