"""Base of the engines that hold agents and chains in arrays and run compiled programs on them."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ..base.checks import require_bool
from ..base.memory import COPIES, require_room
from ..base.text import human_bytes
from ..network import Network
from ..posterior import Posterior
from ..samplers.engine import FirstNonFinite
from ..samplers.protocol import Bound, Sampler
from .behaviour import require_same_posterior
from .checkpoint import CheckpointStore
from .fingerprint import claim, combined
from .loop import Carry, Records, state_bytes
from .round import Problem, messages_of, own_state


class Programs(NamedTuple):
    """The compiled functions of `loop`, as a kind of engine runs them."""

    start: Any
    record: Any
    finite: Any


class ArrayEngine(abc.ABC):
    """Base of the engines whose agents and chains are rows and columns of arrays.

    Parameters
    ----------
    post, network, bound
        What to run; already checked.
    chains
        Independent chains, the last axis of every array.
    seed
        From 0 to 2**64 - 1.
    keep
        Indices of the agents whose draws are recorded, shape (kept,).
    fingerprint
        What all processes of the run have in common; only a run that is saved needs one.
    """

    # A kind of engine builds itself too, with sums over a tree and no masks; `ArrayBuilder` has these as options.
    masks: ClassVar[bool] = False
    consensus: ClassVar[float | None] = None
    # Recorded draws held on the device before they are copied out, in bytes.
    buffer_bytes = 64 * 2**20

    def __init__(
        self,
        post: Posterior,
        network: Network,
        bound: Bound,
        *,
        chains: int,
        seed: int,
        keep: np.ndarray,
        fingerprint: dict[str, str] | None = None,
    ) -> None:
        self.post, self.fingerprint = post, fingerprint or {}
        self.bound = bound
        self.num_agents = network.num_agents
        self.chains = chains
        self.problem = self._problem(post, network, seed)
        self.programs = self._programs()
        states = 1 if self.problem.needs.at_hub else self.states_here(network.num_agents)
        _require_states(self.problem, type(bound.sampler).__name__, states, chains)
        self.keep = np.asarray(keep, np.int32)
        dtype = self.problem.degree.dtype
        per_draw = chains * post.dim * (keep.size + 1) * dtype.itemsize
        self.capacity = int(np.clip(self.buffer_bytes // per_draw, 1, 1024))

    @classmethod  # noqa: B027 - arrays of all agents have every inbox
    def check(cls, post: Posterior, sampler: Sampler) -> None:
        """Any method."""

    @classmethod
    def states_here(cls, num_agents: int) -> int:
        """All of them."""
        return num_agents

    @classmethod
    def placed(cls, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior as it is: its data is read in this process."""
        return nullcontext(post)

    @classmethod
    def build(cls, post: Posterior, network: Network, bound: Bound, **options: Any) -> ArrayEngine:
        """The engine, as `engine.Builder` has it."""
        return cls(post, network, bound, **options)

    @classmethod
    def preliminary(cls, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> ArrayEngine:
        """An engine for what the agents find out together, as `engine.Builder` has it."""
        return cls(post, network, bound, chains=chains, seed=0, keep=np.arange(network.num_agents))

    @abc.abstractmethod
    def _problem(self, post: Posterior, network: Network, seed: int) -> Problem:
        """The problem on the engine's devices."""

    @abc.abstractmethod
    def _programs(self) -> Programs:
        """The programs that run it."""

    @abc.abstractmethod
    def _rows(self, rows: np.ndarray) -> Array:
        """An array with a row an agent, on the engine's devices."""

    def agreed(self, number: float) -> float:
        """The smallest of all processes' numbers, so that all of them decide alike."""
        return number

    def _held(self) -> Posterior | None:
        """The posterior with the data that lies in this process; None where there is none."""
        return None if self.post.is_held_elsewhere else self.post

    def _everyones(self, text: str) -> list[str]:
        """The texts of all processes."""
        return [text]

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Carry:
        """Before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` (agent, dim, dim) or None."""
        dtype = self.problem.degree.dtype
        factor = None if factors is None else self._rows(np.asarray(factors, dtype))
        with np.errstate(over="ignore"):  # what the run's float width cannot hold becomes infinite, and is then named
            mean = self._rows(np.asarray(means, dtype))
        return self.programs.start(self.problem, mean, factor, chains=self.chains)

    def advance(self, carry: Carry, rounds: int) -> Carry:
        """Run rounds and keep nothing of them."""
        # a program of its own would take as long to compile as the one that records
        return self._recorded(carry, 1, rounds)[0]

    def record(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        """Run `draws * thin` rounds and record every `thin`-th; at most `capacity` draws a call.

        The records are host arrays, cut to the number of draws.
        """
        carry, records = self._recorded(carry, draws, thin)
        return carry, jax.tree.map(lambda leaf: np.asarray(leaf)[:draws], records)

    def _recorded(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        numbers = np.int32(draws), np.int32(thin), self.keep
        return self.programs.record(self.problem, carry, *numbers, chains=self.chains, capacity=self.capacity)

    def first_non_finite(self, before: Carry, after: Carry, rounds: int) -> FirstNonFinite | None:
        """The first position that is not finite in the rounds from one carry to the other, or None."""
        if self._finite(after).all():
            return None
        # the rounds are deterministic, so bisection over re-runs finds the first bad one
        good, bad = 0, rounds
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._finite(self.advance(before, middle)).all():
                good = middle
            else:
                bad = middle
        return FirstNonFinite(int(np.argmin(self._finite(self.advance(before, bad)))), bad)

    def _finite(self, carry: Carry) -> np.ndarray:
        """Whether each agent's position is finite in all chains, shape (agent,)."""
        return np.asarray(self.programs.finite(self.problem, carry))[: self.num_agents]

    def states(self, carry: Carry) -> Any:
        """The method's states of all agents and chains, host arrays (agent, ..., chain)."""
        return jax.tree.map(np.asarray, own_state(self.problem, carry.state))

    def message_bytes(self, carry: Carry) -> int:
        """Bytes of the message that one agent of one chain sends in one exchange."""
        leaves = jax.tree.leaves(jax.eval_shape(messages_of, self.problem, carry.state))
        return sum(math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in leaves)

    def save(self, carry: Carry, folder: Path) -> None:
        """Write this process' part of a carry below a checkpoint folder."""
        arrays = {}
        for path, leaf in jax.tree.leaves_with_path(carry):
            for shard in leaf.addressable_shards:
                arrays[_part_name(path, shard.index)] = np.asarray(shard.data)
        self._store(folder).write(int(carry.round), arrays)

    def saved(self, folder: Path) -> list[int]:
        """The rounds, ascending, whose carry every process has whole below the folder, which is claimed."""
        rounds, complaint = [], ""
        own = process_folder(folder)
        try:
            claim(own, {**self.fingerprint, "processes": self._layout()})
            held = self._held()
            if held is not None:
                require_same_posterior(own, held)
            rounds = self._store(folder).rounds()
        except (ValueError, OSError) as error:
            complaint = str(error)
        everyones = [json.loads(text) for text in self._everyones(json.dumps([complaint, rounds]))]
        for found, _ in everyones:
            if found:
                raise ValueError(found)
        return sorted(set.intersection(*(set(rounds) for _, rounds in everyones)))

    def load(self, carry: Carry, folder: Path, round: int) -> Carry:
        """The carry of a saved round, given any carry of the same run."""
        arrays = self._store(folder).read(round)
        wanted = {
            _part_name(path, shard.index): shard.data.shape
            for path, leaf in jax.tree.leaves_with_path(carry)
            for shard in leaf.addressable_shards
        }
        other = wanted.items() ^ {(name, array.shape) for name, array in arrays.items()}
        if other:
            raise ValueError(
                f"the state of round {round:,} in {process_folder(folder)} is that of another version of accord, which "
                f"keeps other arrays ({min(other)[0]}): finish the run with that version, or begin in an empty folder"
            )

        def restored(path: Any, leaf: Array) -> Array:
            parts = [
                jax.device_put(arrays[_part_name(path, shard.index)], shard.device) for shard in leaf.addressable_shards
            ]
            return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)

        return jax.tree.map_with_path(restored, carry)

    def listen(self, tell: Callable[[list[str]], None]) -> None:  # noqa: B027 - its agents are rows of arrays
        """Say nothing."""

    def close(self) -> None:  # noqa: B027 - nothing is held beyond the engine's own life
        """Give back what the engine holds."""

    def _store(self, folder: Path) -> CheckpointStore:
        return CheckpointStore(process_folder(folder) / "states", combined(self.fingerprint))

    def _layout(self) -> str:
        """How many processes and devices the rows of the carry are spread over."""
        return "1 with 1 device"


def _require_states(problem: Problem, name: str, agents: int, chains: int) -> None:
    """Raise `ValueError` unless memory holds the states before a round, in it and after it."""
    each = state_bytes(problem)
    require_room(
        f"the states of {name}, {human_bytes(each)} of each of {agents:,} agents in {chains:,} chains, before, in and "
        "after a round",
        float(COPIES) * each * agents * chains,
        "take fewer chains, or a method that keeps less from round to round",
    )


@dataclass(frozen=True)
class ArrayBuilder:
    """Base of what builds engines of one kind of arrays, as `samplers.engine.Builder` has it.

    Parameters
    ----------
    masks
        Mask all sums pairwise, so that neither the hub nor a relay sees an agent's own numbers; for methods by sums,
        and at least 3 agents. See docs/masks.md for what that hides, and what not.
    consensus
        Make all sums by gossip instead of over a tree: agents average with their neighbours, Chebyshev-accelerated,
        until each has the sum to this precision, as 1e-10, of num_agents times the largest number in it. For methods
        by sums; draws are those of the first agent.
    """

    masks: bool = False
    consensus: float | None = None
    _kind: ClassVar[type[ArrayEngine]]

    def __post_init__(self) -> None:
        require_bool("masks", self.masks)
        if self.consensus is not None and not isinstance(self.consensus, int | float):
            raise ValueError(f"consensus must be a precision such as 1e-10, or None, found {self.consensus!r}")

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Any method, but under masks or by gossip only methods by sums."""
        require_no_masks(self.masks, self.consensus)
        self._kind.check(post, sampler)

    def states_here(self, num_agents: int) -> int:
        """Those of this process."""
        return self._kind.states_here(num_agents)

    def placed(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior where its data lies."""
        return self._kind.placed(post)

    def build(self, post: Posterior, network: Network, bound: Bound, **options: Any) -> ArrayEngine:
        """An engine for one run."""
        return self._kind.build(post, network, bound, **options)

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> ArrayEngine:
        """An engine for what the agents find out together before round 0."""
        return self._kind.preliminary(post, network, bound, chains=chains)


def require_no_masks(masks: bool, consensus: float | None) -> None:
    """Raise `ValueError` where a method that walks would need masks or gossip."""
    if masks or consensus is not None:
        given = "masks=True masks totals" if masks else "consensus makes totals by gossip"
        raise ValueError(f"{given}: it needs a method that asks for nothing else, such as Importance()")


def process_folder(folder: Path) -> Path:
    """The folder of one process below a checkpoint folder: processes need not share a disk."""
    return Path(folder) / f"process-{jax.process_index()}"


def _part_name(path: Any, index: tuple[slice, ...]) -> str:
    """A name for a device's part of an array; devices that hold the same part share it."""
    return f"{jax.tree_util.keystr(path)}@{','.join(str(part.start or 0) for part in index)}"
