"""Protocols of an engine and its builder, the interface that `sample` uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..network import Network
from ..posterior import Posterior
from .protocol import Bound, Sampler


class FirstNonFinite(NamedTuple):
    """The agent and round of the first position that is not finite."""

    agent: int
    # rounds of the chunk up to and including the one that produced it
    rounds: int


@runtime_checkable
class Engine(Protocol):
    """One run: its agents, local or remote, and their rounds.

    A carry is the state between rounds and is opaque to callers. Only the carry before round 0 may be used more than
    once. If several processes share a run, each of them calls every method in the same order.
    """

    # The method bound to its problem.
    bound: Bound
    num_agents: int
    # Upper bound of `draws` in one call of `record`.
    capacity: int

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Any:
        """The carry before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` (agent, dim, dim)."""

    def advance(self, carry: Any, rounds: int) -> Any:
        """The carry after `rounds` rounds, without recording draws."""

    def record(self, carry: Any, draws: int, thin: int) -> tuple[Any, Any]:
        """The carry after `draws * thin` rounds, and `engines.loop.Records` of every `thin`-th round as host arrays."""

    def first_non_finite(self, before: Any, after: Any, rounds: int) -> FirstNonFinite | None:
        """The first position that is not finite in the `rounds` between two carries, or None.

        With `rounds=0` the carry itself is checked.
        """

    def states(self, carry: Any) -> Any:
        """The method's states of all agents and chains, a pytree of host arrays (agent, ..., chain)."""

    def message_bytes(self, carry: Any) -> int:
        """Bytes of one agent's message in one chain and exchange."""

    def agreed(self, number: float) -> float:
        """The minimum of `number` over all processes, so that all take the same decision."""

    def save(self, carry: Any, folder: Path) -> None:
        """Write this process' part of a carry to a checkpoint folder."""

    def saved(self, folder: Path) -> list[int]:
        """Rounds, ascending, for which every process or agent has a complete carry in the folder. Claims the folder.

        Raises
        ------
        ValueError
            In all processes, if one of them finds files of another run. `fingerprint.claim` describes the error.
        """

    def load(self, carry: Any, folder: Path, round: int) -> Any:
        """The carry of a saved round, given any carry of the same run."""

    def listen(self, show: Callable[[list[str]], None]) -> None:
        """Call `show` with status lines of the agents while they work, if the engine has any."""

    def close(self) -> None:
        """Release processes and sockets, after success or failure."""


@runtime_checkable
class Builder(Protocol):
    """Builds engines of one kind, and runs computations that sum over remote agents."""

    @property
    def masks(self) -> bool:
        """Whether sums are masked."""

    @property
    def consensus(self) -> float | None:
        """Precision of sums computed by gossip. None: sums use a spanning tree."""

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Raise `TypeError` if engines of this kind cannot run the method, before anything starts."""

    def states_here(self, num_agents: int) -> int:
        """Number of agents whose states are in the memory of this process or its machine."""

    def placed(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior as this process sees it after the agents have received their data."""

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> Engine:
        """An engine for computations before round 0, with seed 0 and without checkpoints."""

    def build(
        self,
        post: Posterior,
        network: Network,
        bound: Bound,
        *,
        chains: int,
        seed: int,
        keep: np.ndarray,
        fingerprint: dict[str, str],
    ) -> Engine:
        """An engine for one run. `engines.arrays.ArrayEngine` describes the arguments."""


def is_coarse(engine: Builder) -> bool:
    """Whether agents add noise to their numbers and round them; only some engines can."""
    return bool(getattr(engine, "coarse", False))


def is_whole(engine: Builder) -> bool:
    """Whether an interrupted run keeps no draws, because several processes must all have the same run."""
    return bool(getattr(engine, "whole", False))


def engine_name(engine: Builder) -> str:
    """The name of an engine's kind, which a checkpoint records."""
    kind = engine if isinstance(engine, type) else type(engine)
    return kind.__name__.lower().removesuffix("engine")
