"""Checks before a run that its arrays fit into memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .text import counted, human_bytes

# Copies of the state alive during a round.
COPIES = 3
# Bytes of a number in single precision, the default of runs.
_SINGLE = 4
# Bytes of a number in double precision.
_DOUBLE = 8
# Memory limit of a container.
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> float:
    """Bytes of memory of this machine or container, infinite if unknown."""
    known = getattr(os, "sysconf_names", {})
    has = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))] if "SC_PHYS_PAGES" in known else []
    if _CONTAINER.is_file():
        limit = _CONTAINER.read_text().strip()
        has += [float(limit)] if limit.isdecimal() else []
    return min(has, default=np.inf)


def require_room(what: str, take: float, remedy: str) -> None:
    """Raise `ValueError` unless `take` bytes fit into memory. `what`, in the plural, names the arrays."""
    there = memory_bytes()
    if take > there:
        raise ValueError(
            f"{what} take {human_bytes(take)} at least; this machine has {human_bytes(int(there))} of memory: {remedy}"
        )


def require_matrices(what: str, size: int, count: int, remedy: str) -> None:
    """Raise `ValueError` unless `count` dense square matrices in double precision fit into memory."""
    shape = f"{count:,} at a time of {size:,} x {size:,} numbers each"
    require_room(f"{what}, {shape},", float(count) * size * size * _DOUBLE, remedy)


def require_points(*, draws: int, chains: int, dim: int, doubles: int) -> None:
    """Raise `ValueError` unless draws and their weighted points fit, with `doubles` doubles per draw."""
    require_room(
        f"draws = {draws:,} in {chains:,} chains, of {dim:,} numbers, and their weighted points",
        float(draws) * chains * doubles * _DOUBLE,
        "draw fewer",
    )


def require_predictors(*, rows: int, agents: int, chains: int) -> None:
    """Raise `ValueError` unless gradients of all rows fit, with a number per agent, row and chain."""
    require_room(
        f"gradients of {rows:,} rows at {agents:,} agents in {chains:,} chains, with a number for each,",
        float(rows) * agents * chains * _SINGLE,
        "use fewer chains, or a batch_size if the method has one",
    )


def require_memory(
    *, draws: int, chains: int, positions: int, dim: int, states: int = 0, slots: int = 0, words: int = 0
) -> None:
    """Raise `ValueError` unless the kept draws and the agents' states fit into memory.

    Parameters
    ----------
    draws, chains, positions, dim
        Draws per chain, chains, positions per draw, and numbers per position.
    states
        Agents whose states are in memory, with `COPIES` positions per chain each.
    slots
        Positions per agent and chain on unreliable links.
    words
        Random words of all agents in a round. Words in excess of the positions count `COPIES` times.
    """
    position, there = chains * dim * _SINGLE, memory_bytes()
    more = max(0, words - states * dim) * chains * _SINGLE
    kept, moving = draws * positions * position, states * (COPIES + slots) * position + COPIES * more
    if kept + moving <= there:
        return
    also = " and their links" if slots else ""
    also += " with a round's random words" if more else ""
    beside = f", and the states of {states:,} agents{also} {human_bytes(moving)}" if moving else ""
    remedy = "draw fewer, or keep fewer agents" if kept > moving else "use fewer chains, or spread the agents"
    if kept <= moving < 2 * COPIES * more:
        remedy = "use fewer chains, fewer local steps or a smaller batch_size"
    raise ValueError(
        f"draws = {draws:,} in {chains:,} chains, of {counted(positions, 'position')} of {dim:,} numbers, take "
        f"{human_bytes(kept)} at least{beside}; this machine has {human_bytes(int(there))} of memory: {remedy}"
    )
