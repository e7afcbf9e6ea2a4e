"""The protocols of an engine and of its builder: all that `sample` asks of them."""

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
    """The agent and round at which a position first was not finite."""

    agent: int
    # rounds of the chunk until then, the bad one included
    rounds: int


@runtime_checkable
class Engine(Protocol):
    """One run: its agents, wherever they are, and the rounds they make together.

    A carry is what goes from round to round; only the engine looks into it, except that `carry` before any round may
    be used again. Where several processes run together, each calls every method, in the same order.
    """

    # The method on its problem.
    bound: Bound
    num_agents: int
    # The most draws that `record` takes in one call.
    capacity: int

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Any:
        """The carry before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` (agent, dim, dim)."""

    def advance(self, carry: Any, rounds: int) -> Any:
        """The carry after some rounds of which nothing is kept."""

    def record(self, carry: Any, draws: int, thin: int) -> tuple[Any, Any]:
        """The carry after `draws * thin` rounds, and `engines.loop.Records` of every `thin`-th as host arrays."""

    def first_non_finite(self, before: Any, after: Any, rounds: int) -> FirstNonFinite | None:
        """The first position that is not finite in the `rounds` from one carry to the other, or None.

        With no rounds between them it is the carry itself that is looked at.
        """

    def states(self, carry: Any) -> Any:
        """The method's states of all agents and chains, a pytree of host arrays (agent, ..., chain)."""

    def message_bytes(self, carry: Any) -> int:
        """Bytes of the message that one agent of one chain sends in one exchange."""

    def agreed(self, number: float) -> float:
        """The smallest of all processes' numbers, so that all of them decide alike."""

    def save(self, carry: Any, folder: Path) -> None:
        """Write this process' part of a carry below a checkpoint folder."""

    def saved(self, folder: Path) -> list[int]:
        """The rounds, ascending, whose carry every process or agent has whole below the folder; the folder is claimed.

        Raises
        ------
        ValueError
            In all processes, if what one of them finds belongs to another run, as `fingerprint.claim` tells it.
        """

    def load(self, carry: Any, folder: Path, round: int) -> Any:
        """The carry of a saved round, given any carry of the same run."""

    def listen(self, tell: Callable[[list[str]], None]) -> None:
        """Tell what the agents are doing, a line each, while they work, if there is anything to tell."""

    def close(self) -> None:
        """Give back what the engine holds: processes, sockets; whether the run went well or not."""


@runtime_checkable
class Builder(Protocol):
    """Makes engines of one kind, and sums over the agents where their data lies."""

    @property
    def masks(self) -> bool:
        """Whether sums are masked."""

    @property
    def consensus(self) -> float | None:
        """The precision to which sums are made by gossip; None: they go over a tree."""

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Raise `TypeError` where engines of this kind cannot run a method; asked before anything starts."""

    def states_here(self, num_agents: int) -> int:
        """How many agents' states this process holds, or those on its machine."""

    def placed(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior as this process knows it, once its data is where the agents are."""

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> Engine:
        """An engine for what the agents find out together before round 0, with the seed 0; it is not saved."""

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
        """An engine for one run; see `engines.arrays.ArrayEngine` for the arguments."""


def engine_name(engine: Builder) -> str:
    """The name of an engine's kind, in which runs are resumed."""
    kind = engine if isinstance(engine, type) else type(engine)
    return kind.__name__.lower().removesuffix("engine")
