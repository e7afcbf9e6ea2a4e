"""The base of methods that walk no rounds: they ask for sums over all agents, and for nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ByTotals:
    """A method that is told sums over all agents, by whatever makes them: a tree, a hub, devices.

    All agents know the sums, and do the same with them, so that all of them hold the same draws. Nothing of it depends
    on the network but what a sum costs. `accord.sums` runs these methods, in double precision.
    """
