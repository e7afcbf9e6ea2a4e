"""Base of the engines that run compiled programs on arrays of agents and chains."""

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
    """The functions of `loop`, compiled for one engine."""

    start: Any
    record: Any
    finite: Any


class ArrayEngine(abc.ABC):
    """Base of the engines with agents and chains as axes of arrays.

    Parameters
    ----------
    post, network, bound
        The validated problem and method.
    chains
        Number of independent chains, the last axis of every array.
    seed
        Seed from 0 to 2**64 - 1.
    keep
        Indices of the agents whose draws are recorded, shape (kept,).
    fingerprint
        The run's `fingerprint`, needed for checkpoints only.
    """

    # options of `ArrayBuilder`, fixed if the class itself is the builder
    masks: ClassVar[bool] = False
    consensus: ClassVar[float | None] = None
    # Bytes of recorded draws on the device before they are copied to the host.
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

    @classmethod  # noqa: B027 - every method runs on arrays
    def check(cls, post: Posterior, sampler: Sampler) -> None:
        """Accept every method."""

    @classmethod
    def states_here(cls, num_agents: int) -> int:
        """The number of all agents."""
        return num_agents

    @classmethod
    def placed(cls, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior unchanged, as this process reads its data."""
        return nullcontext(post)

    @classmethod
    def build(cls, post: Posterior, network: Network, bound: Bound, **options: Any) -> ArrayEngine:
        """See `samplers.engine.Builder.build`."""
        return cls(post, network, bound, **options)

    @classmethod
    def preliminary(cls, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> ArrayEngine:
        """See `samplers.engine.Builder.preliminary`."""
        return cls(post, network, bound, chains=chains, seed=0, keep=np.arange(network.num_agents))

    @abc.abstractmethod
    def _problem(self, post: Posterior, network: Network, seed: int) -> Problem:
        """The problem on the engine's devices."""

    @abc.abstractmethod
    def _programs(self) -> Programs:
        """The compiled programs of the problem."""

    @abc.abstractmethod
    def _rows(self, rows: np.ndarray) -> Array:
        """An array (agent, ...) on the engine's devices."""

    def agreed(self, number: float) -> float:
        """The minimum over all processes, on which all of them base decisions."""
        return number

    def _held(self) -> Posterior | None:
        """The posterior with the data in this process, None without data here."""
        return None if self.post.is_held_elsewhere else self.post

    def _everyones(self, text: str) -> list[str]:
        """The texts of all processes."""
        return [text]

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Carry:
        """Carry before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` None or (agent, dim, dim)."""
        dtype = self.problem.degree.dtype
        factor = None if factors is None else self._rows(np.asarray(factors, dtype))
        with np.errstate(over="ignore"):  # overflow becomes infinite, which is reported later
            mean = self._rows(np.asarray(means, dtype))
        return self.programs.start(self.problem, mean, factor, chains=self.chains)

    def advance(self, carry: Carry, rounds: int) -> Carry:
        """Run rounds without records."""
        # reuses the recording program, as another program takes as long to compile
        return self._recorded(carry, 1, rounds)[0]

    def record(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        """Run `draws * thin` rounds and return every `thin`-th as host arrays, at most `capacity` draws per call."""
        carry, records = self._recorded(carry, draws, thin)
        return carry, jax.tree.map(lambda leaf: np.asarray(leaf)[:draws], records)

    def _recorded(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        numbers = np.int32(draws), np.int32(thin), self.keep
        return self.programs.record(self.problem, carry, *numbers, chains=self.chains, capacity=self.capacity)

    def first_non_finite(self, before: Carry, after: Carry, rounds: int) -> FirstNonFinite | None:
        """The first non-finite position in the rounds between two carries, or None."""
        if self._finite(after).all():
            return None
        # rounds are deterministic, so bisection over re-runs finds the first non-finite one
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
        """Bytes of the message of one agent and chain in one exchange."""
        leaves = jax.tree.leaves(jax.eval_shape(messages_of, self.problem, carry.state))
        return sum(math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in leaves)

    def save(self, carry: Carry, folder: Path) -> None:
        """Write this process' part of a carry into a checkpoint folder."""
        arrays = {}
        for path, leaf in jax.tree.leaves_with_path(carry):
            for shard in leaf.addressable_shards:
                arrays[_part_name(path, shard.index)] = np.asarray(shard.data)
        self._store(folder).write(int(carry.round), arrays)

    def saved(self, folder: Path) -> list[int]:
        """Claim a checkpoint folder. Returns the rounds that all processes have saved there, ascending."""
        rounds, failure = [], ""
        own = process_folder(folder)
        try:
            claim(own, {**self.fingerprint, "processes": self._layout()})
            held = self._held()
            if held is not None:
                require_same_posterior(own, held)
            rounds = self._store(folder).rounds()
        except (ValueError, OSError) as error:
            failure = str(error)
        everyones = [json.loads(text) for text in self._everyones(json.dumps([failure, rounds]))]
        for found, _ in everyones:
            if found:
                raise ValueError(found)
        return sorted(set.intersection(*(set(rounds) for _, rounds in everyones)))

    def load(self, carry: Carry, folder: Path, round: int) -> Carry:
        """The carry of a saved round, with the structure of `carry`."""
        arrays = self._store(folder).read(round)
        wanted = {
            _part_name(path, shard.index): shard.data.shape
            for path, leaf in jax.tree.leaves_with_path(carry)
            for shard in leaf.addressable_shards
        }
        other = wanted.items() ^ {(name, array.shape) for name, array in arrays.items()}
        if other:
            raise ValueError(
                f"cannot resume from {process_folder(folder)}: another version of accord wrote the state of round "
                f"{round:,} with other arrays ({min(other)[0]}). Finish the run with that version, or use a new "
                "checkpoint folder."
            )

        def restored(path: Any, leaf: Array) -> Array:
            parts = [
                jax.device_put(arrays[_part_name(path, shard.index)], shard.device) for shard in leaf.addressable_shards
            ]
            return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)

        return jax.tree.map_with_path(restored, carry)

    def listen(self, show: Callable[[list[str]], None]) -> None:  # noqa: B027 - agents have no status
        """Show nothing."""

    def close(self) -> None:  # noqa: B027 - the engine has nothing to release
        """Release nothing."""

    def _store(self, folder: Path) -> CheckpointStore:
        return CheckpointStore(process_folder(folder) / "states", combined(self.fingerprint))

    def _layout(self) -> str:
        """The number of processes and devices of the carry, as text."""
        return "1 with 1 device"


def _require_states(problem: Problem, name: str, agents: int, chains: int) -> None:
    """Raise `ValueError` unless `COPIES` of all states fit into memory."""
    each = state_bytes(problem)
    require_room(
        f"{COPIES} copies of the states of {name} ({agents:,} agents, {chains:,} chains, {human_bytes(each)} each)",
        float(COPIES) * each * agents * chains,
        "use fewer chains or a method with smaller states",
    )


@dataclass(frozen=True)
class ArrayBuilder:
    """Base of the `samplers.engine.Builder` of array engines.

    Parameters
    ----------
    masks
        Mask all sums pairwise, so that neither the hub nor a relay sees an agent's own numbers, default False. Needs a
        sum-based method and at least 3 agents. See docs/masks.md for what masks hide.
    consensus
        Compute all sums by Chebyshev-accelerated gossip instead of over a tree, to this precision relative to
        num_agents times the largest number in a sum, such as 1e-10. None, the default, sums over the tree. Needs a
        sum-based method. The draws are the first agent's.
    """

    masks: bool = False
    consensus: float | None = None
    _kind: ClassVar[type[ArrayEngine]]

    def __post_init__(self) -> None:
        require_bool("masks", self.masks)
        if self.consensus is not None and not isinstance(self.consensus, int | float):
            raise ValueError(f"consensus must be a precision such as 1e-10, or None, found {self.consensus!r}")

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Raise `ValueError` if masks or gossip are set, as this method is not by sums."""
        require_no_masks(self.masks, self.consensus)
        self._kind.check(post, sampler)

    def states_here(self, num_agents: int) -> int:
        """The number of agents whose states this process stores."""
        return self._kind.states_here(num_agents)

    def placed(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """The posterior with its data on the engine."""
        return self._kind.placed(post)

    def build(self, post: Posterior, network: Network, bound: Bound, **options: Any) -> ArrayEngine:
        """An engine for one run."""
        return self._kind.build(post, network, bound, **options)

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> ArrayEngine:
        """An engine for computations before round 0."""
        return self._kind.preliminary(post, network, bound, chains=chains)


def require_no_masks(masks: bool, consensus: float | None) -> None:
    """Raise `ValueError` if masks or gossip are set for a method that is not by sums."""
    if masks or consensus is not None:
        option = "masks=True" if masks else "consensus"
        raise ValueError(f"{option} needs a method that uses sums over the agents only, such as Importance()")


def process_folder(folder: Path) -> Path:
    """The folder of this process in a checkpoint folder, as processes may have separate disks."""
    return Path(folder) / f"process-{jax.process_index()}"


def _part_name(path: Any, index: tuple[slice, ...]) -> str:
    """A name for a device's part of an array, shared by devices with the same part."""
    return f"{jax.tree_util.keystr(path)}@{','.join(str(part.start or 0) for part in index)}"
