"""What fits into this machine's memory, asked before a run begins."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .text import counted, human_bytes

# Times that a round has a state: before it, in it and after it.
COPIES = 3
# Bytes of a number; runs are in single precision, unless asked otherwise.
_SINGLE, _DOUBLE = 4, 8
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


def require_room(what: str, take: float, remedy: str) -> None:
    """Raise `ValueError` unless memory holds so many bytes; `what` takes them, in the plural."""
    there = memory_bytes()
    if take > there:
        raise ValueError(
            f"{what} take {human_bytes(take)} at least; this machine has {human_bytes(int(there))} of memory: {remedy}"
        )


def require_matrices(what: str, size: int, count: int, remedy: str) -> None:
    """Raise `ValueError` unless memory holds so many dense square matrices at a time, in double precision."""
    shape = f"{count:,} at a time of {size:,} x {size:,} numbers each"
    require_room(f"{what}, {shape},", float(count) * size * size * _DOUBLE, remedy)


def require_points(*, draws: int, chains: int, dim: int, doubles: int) -> None:
    """Raise `ValueError` unless points that are worth so many draws fit, `doubles` numbers of double precision each."""
    require_room(
        f"draws = {draws:,} in {chains:,} chains, of {dim:,} numbers, and the points that are worth as many",
        float(draws) * chains * doubles * _DOUBLE,
        "draw fewer",
    )


def require_predictors(*, rows: int, agents: int, chains: int) -> None:
    """Raise `ValueError` unless gradients of all rows fit, which hold a number for each agent, row and chain."""
    require_room(
        f"gradients of {rows:,} rows at {agents:,} agents in {chains:,} chains, which hold a number for each,",
        float(rows) * agents * chains * _SINGLE,
        "take fewer chains, or a batch_size where the method has one",
    )


def require_memory(
    *, draws: int, chains: int, positions: int, dim: int, states: int = 0, slots: int = 0, words: int = 0
) -> None:
    """Raise `ValueError` unless draws fit: so many in each chain, of so many positions of `dim` numbers each.

    `states` agents' states have to fit beside them, of each chain a position three times: as it is, as it was, and what
    moves it. Each of the agents' links that may fail holds a position for each of so many `slots` beside that. Where
    the random `words` of a round of all agents are more than their positions, they are there three times too: those of
    this round, as they were drawn and as they are used, and the next one's.
    """
    position, there = chains * dim * _SINGLE, memory_bytes()
    more = max(0, words - states * dim) * chains * _SINGLE
    kept, moving = draws * positions * position, states * (COPIES + slots) * position + COPIES * more
    if kept + moving <= there:
        return
    also = " and their links" if slots else ""
    also += " with a round's random words" if more else ""
    beside = f", and the states of {states:,} agents{also} {human_bytes(moving)}" if moving else ""
    remedy = "draw fewer, or keep fewer agents" if kept > moving else "take fewer chains, or spread the agents"
    if kept <= moving < 2 * COPIES * more:
        remedy = "take fewer chains, fewer local steps or a smaller batch_size"
    raise ValueError(
        f"draws = {draws:,} in {chains:,} chains, of {counted(positions, 'position')} of {dim:,} numbers, take "
        f"{human_bytes(kept)} at least{beside}; this machine has {human_bytes(int(there))} of memory: {remedy}"
    )
