"""The silo engine, which runs each agent in its own process and rolls a run back after a crash."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...base.checks import positive, require_bool
from ...base.errors import unknown_name_error
from ...data.remote import Ask
from ...network import Network
from ...posterior import Posterior
from ...samplers.engine import FirstNonFinite
from ...samplers.protocol import Bound, Sampler
from ..arrays import require_no_masks
from ..fingerprint import claim, own_key
from ..loop import Records
from .latents import LATENTS
from .worker import Assignment, Goal, Report
from .workers import MOST_SETBACKS, Limits, SetbackError, WorkerPool

# Policies for late agents.
_LATE = ("raise", "restart", "leave")
# Bytes of recorded draws of all agents per chunk.
_BUFFER_BYTES = 64 * 2**20


@dataclass
class Silo:
    """Options of `engine="silo"`, which runs each agent in its own process, a Ray actor.

    As a context manager it keeps the processes between runs. Runs of several threads on one `Silo` are sequential.

    Parameters
    ----------
    address
        Address of a Ray cluster, as in `ray.init`. None, the default, uses the cluster that this process has joined,
        else the cluster in RAY_ADDRESS, else a new one on this machine that other machines cannot reach.
    resources
        Custom resources of Ray for each agent's process, one dict per agent, such as `{"site_a": 1}` for the node of
        one site. None, the default, lets Ray place the processes.
    timeout
        Seconds that an agent waits for a neighbour's message, > 0, default 300. This includes compilation of the first
        round. For other work, such as reading data, the driver waits half a minute longer.
    late
        Policy for an agent that exceeds the timeout. "raise", the default, ends the run with a `TimeoutError` that
        names the agent and its activity. "restart" restarts the agent's process at the last checkpoint. "leave" drops
        the agent, also if its process does not restart within `start_timeout`. The run then continues with the other
        agents on the posterior of their data and warns about it.
    start_timeout
        Seconds until all processes must run, > 0, default 120.
    latents
        Folder at each site for draws of the agent's own latents, for a posterior with `local`. The path is absolute or
        starts with "~". Each run creates a subfolder per agent that only the agent's user can read.
    masks
        Mask all sums pairwise, so that neither the hub nor a relay sees an agent's own numbers, default False. Needs a
        sum-based method and at least 3 agents. See docs/masks.md for what masks hide.
    """

    address: str | None = None
    resources: Sequence[Mapping[str, float | int]] | None = None
    timeout: float = 300.0
    late: str = "raise"
    start_timeout: float = 120.0
    latents: str = LATENTS
    masks: bool = False
    # sums over the tree only
    consensus: ClassVar[None] = None

    def __post_init__(self) -> None:
        for name in ("timeout", "start_timeout"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise ValueError(f"{name} must be a number of seconds, found {seconds!r}")
            positive(name, seconds)
        require_bool("masks", self.masks)
        if self.late not in _LATE:
            raise unknown_name_error("late", self.late, _LATE)
        if not self.latents.startswith(("/", "~")):
            raise ValueError(f"latents must be a folder that starts with / or ~, found {self.latents!r}")
        self._pool: WorkerPool | None = None
        self._keeps = False
        # held by the thread that uses the processes, reentrant within a run
        self._used = threading.RLock()

    def __reduce__(self) -> Any:
        # pickles the options without processes
        return Silo, tuple(getattr(self, one.name) for one in fields(self))

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Raise `ValueError` if masks are set, as this method is not by sums."""
        require_no_masks(self.masks, None)

    def states_here(self, num_agents: int) -> int:
        """One, because each agent may have its own machine."""
        return 1

    def resources_of(self, agent: int) -> dict[str, float | int]:
        """The custom resources of an agent's process."""
        return {} if self.resources is None else dict(self.resources[agent])

    @property
    def restarts(self) -> np.ndarray:
        """Restarts of each agent's process in the present run, (agent,)."""
        return np.zeros(0, int) if self._pool is None else self._pool.restarts.copy()

    def __enter__(self) -> Silo:
        self._keeps = True
        return self

    def __exit__(self, *reason: object) -> None:
        self._keeps = False
        self._dismiss()

    @contextmanager
    def placed(self, post: Posterior) -> Iterator[Posterior]:
        """A context with the posterior without data, evaluated by the agents' processes."""
        with self._running(post.num_agents) as pool:
            yield pool.hold(post)
            pool.warn_of_restarts()

    @contextmanager
    def asking(self, agents: int) -> Iterator[Ask]:
        """A context with a function that asks each agent for its next answer, see `accord.data.remote`."""
        with self._running(agents) as pool:
            yield pool.ask

    @contextmanager
    def _running(self, agents: int) -> Iterator[WorkerPool]:
        """A context with a pool of processes, existing or new."""
        if self.resources is not None and len(self.resources) != agents:
            raise ValueError(
                f"resources must hold one entry for each of the {agents} agents, found {len(self.resources)}"
            )
        with self._used:
            try:
                if self._pool is not None and self._pool.size != agents:
                    self._dismiss()
                if self._pool is None:
                    resources = [self.resources_of(i) for i in range(agents)]
                    limits = Limits(self.timeout, self.late, self.start_timeout)
                    self._pool = WorkerPool(resources, self.address, limits, self.latents)
                yield self._pool
            finally:
                if not self._keeps:
                    self._dismiss()

    def dismiss(self, agent: int) -> None:
        """Drop a lost agent. The other agents get new processes and numbers."""
        self._dismiss()
        if self.resources is not None:
            self.resources = [own for i, own in enumerate(self.resources) if i != agent]

    def _dismiss(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def preliminary(self, post: Posterior, network: Network, bound: Bound, *, chains: int = 1) -> SiloEngine:
        """See `samplers.engine.Builder.preliminary`."""
        every = np.arange(network.num_agents)
        return self.build(post, network, bound, chains=chains, seed=0, keep=every, fingerprint={})

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
    ) -> SiloEngine:
        """An engine on the processes with the posterior's data."""
        pool = post.owners
        assert isinstance(pool, WorkerPool)
        return SiloEngine(pool, post, network, bound, chains=chains, seed=seed, keep=keep, parts=fingerprint)


class SiloCarry(NamedTuple):
    """A round that all agents have reached, and whether their positions are finite."""

    round: int
    finite: tuple[bool, ...]


class SiloEngine:
    """Runs a method in the processes of a pool. Parameters as in `ArrayEngine`."""

    def __init__(
        self,
        pool: WorkerPool,
        post: Posterior,
        network: Network,
        bound: Bound,
        *,
        chains: int,
        seed: int,
        keep: np.ndarray,
        parts: dict[str, str],
    ) -> None:
        self.pool, self.num_agents, self._parts = pool, network.num_agents, parts
        self.bound, self.keep = bound, np.asarray(keep)
        self.at_hub = bound.sampler.needs(post.dim).at_hub
        self.root = network.aggregation.root if self.at_hub else 0
        width = np.dtype(jnp.result_type(float)).itemsize
        self.capacity = int(np.clip(_BUFFER_BYTES // (chains * post.dim * self.num_agents * width), 1, 1024))
        self._folder = pool.new_folder()
        own = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i : i + 1], bound.own) for i in self._agents]
        rest = (seed, chains, post.coordinates, parts, pool.limits.timeout)
        self._tasks = [Assignment(network, bound._replace(own=own[i]), *rest) for i in self._agents]
        self._starts: list[tuple[np.ndarray, np.ndarray | None]] = []
        # round of all agents, -1 if some have no state
        self._at = -1
        # folders with states of this run, and the keys that sign them
        self._keys = {self._folder: pool.key}
        # incarnations of the agents' processes that have their assignment
        self._assigned: list[str | None] = [None] * self.num_agents
        self._attempt(self._assign)

    @property
    def _agents(self) -> range:
        return range(self.num_agents)

    def listen(self, show: Callable[[list[str]], None]) -> None:
        """Call `show` with lines on each agent's round, restarts and waiting times while they work."""
        self.pool.listener = show

    def agreed(self, number: float) -> float:
        """The number itself, as there is one driver."""
        return number

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> SiloCarry:
        """Carry before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` None or (agent, dim, dim)."""
        places = [0 if self.at_hub else i for i in self._agents]
        self._starts = [(means[i], None if factors is None else factors[i]) for i in places]

        def begin() -> list[Report]:
            self.pool.call("forget", self._everywhere(self._folder))
            reports = self.pool.call("start", self._starts)
            self.pool.connect()
            return reports

        reports = self._attempt(begin)
        self._at = 0
        return self._carry(0, reports)

    def advance(self, carry: SiloCarry, rounds: int) -> SiloCarry:
        """Run rounds without records."""
        return self._carry(
            carry.round + rounds, self._reach(Goal(carry.round, rounds, 0, 1, self.capacity), self._folder)
        )

    def record(self, carry: SiloCarry, draws: int, thin: int) -> tuple[SiloCarry, Records]:
        """Run `draws * thin` rounds and return every `thin`-th draw, at most `capacity` draws per call."""
        reports = self._reach(Goal(carry.round, draws * thin, draws, thin, self.capacity), self._folder)
        found: Any = [report.draws for report in reports]
        if self.at_hub:
            found = [found[self.root]] * self.num_agents
        x: Any = np.stack([part for part in found if part is not None], axis=1)
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported elsewhere
            average = x.mean(axis=1, dtype=x.dtype)
            distance = ((x - average[:, None]) ** 2).sum(axis=2).mean(axis=1, dtype=x.dtype)
        acting = [report.watched for report in reports if report.draws is not None]
        watched: dict[str, Any] = {name: np.max([one[name] for one in acting], axis=0) for name in acting[0]}
        records = Records(x[:, self.keep], average, {"consensus_error": np.sqrt(distance), **watched})
        return self._carry(carry.round + draws * thin, reports), records

    def first_non_finite(self, before: SiloCarry, after: SiloCarry, rounds: int) -> FirstNonFinite | None:
        """The first non-finite position in the rounds between two carries, or None."""
        good, bad = 0, rounds
        while bad - good > 1 and not all(after.finite):
            middle = (good + bad) // 2
            # without saving, so that the checkpoint of the start stays
            then = self._carry(
                before.round + middle, self._reach(Goal(before.round, middle, 0, 1, self.capacity), None)
            )
            if all(then.finite):
                good = middle
            else:
                bad, after = middle, then
        return None if all(after.finite) else FirstNonFinite(after.finite.index(False), bad)

    def message_bytes(self, carry: SiloCarry) -> int:
        """Bytes of the message of one agent and chain in one exchange."""
        return int(self._attempt(lambda: self.pool.call("message_bytes"), carry.round)[self.root])

    def states(self, carry: SiloCarry) -> Any:
        """The method's states of all agents and chains, host arrays (agent, ..., chain)."""
        if self._at != carry.round:
            self._recover(carry.round)
        states = self._attempt(lambda: self.pool.call("state"), carry.round)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)

    def bytes_sent(self) -> np.ndarray:
        """Bytes that each agent sent in all chains since the last crash or start, without labels, (agent,)."""
        return np.array(self.pool.call("bytes_sent"))

    def save(self, carry: SiloCarry, folder: Path) -> None:
        """Let every agent write its state into a folder at its site."""
        folder = Path(folder).resolve()
        rows = self._everywhere(folder, self._key(folder))
        self._attempt(lambda: self.pool.call("save", rows), carry.round)

    def saved(self, folder: Path) -> list[int]:
        """Claim a checkpoint folder. Returns the rounds that all agents have saved there, ascending."""
        claim(Path(folder), self._parts)
        folder = Path(folder).resolve()
        return self._attempt(lambda: self._common(folder))

    def load(self, carry: SiloCarry, folder: Path, round: int) -> SiloCarry:
        """The carry of a saved round."""
        self._key(Path(folder).resolve())
        self._recover(round)
        return SiloCarry(round, (True,) * self.num_agents)

    def _key(self, folder: Path) -> bytes:
        """The key of a folder of states, stored by the driver. Adds the folder to the run."""
        if folder not in self._keys:
            self._keys[folder] = own_key(folder)
        return self._keys[folder]

    def close(self) -> None:
        """Remove the agents' temporary files."""
        self.pool.listener = None
        self.pool.forget(self._folder)

    # --- rounds and recovery ---

    def _reach(self, goal: Goal, folder: Path | None) -> list[Report]:
        """Let all agents run the rounds of a goal and save the last state in a folder, with retries."""
        if self._at != goal.start:
            self._recover(goal.start)
        rows = self._everywhere(goal, folder, self.pool.key)
        reports = self._attempt(lambda: self.pool.call("work", rows), goal.start)
        self._at = goal.start + goal.rounds
        return reports

    def _attempt(self, work: Callable[[], Any], round: int | None = None) -> Any:
        """Run `work`. After a crash recover the given round and retry."""
        for _ in range(MOST_SETBACKS):
            if list(self.pool.incarnations) != self._assigned:
                self._recover(round)
            try:
                return work()
            except SetbackError as error:
                setback = error
            self._recover(round)
        raise self.pool.gave_up(setback)

    def _recover(self, round: int | None) -> None:
        """Bring all agents to a round, by running it again from their newest common checkpoint."""
        for _ in range(MOST_SETBACKS):
            try:
                self.pool.revive()
                self._assign()
                if round is None:
                    self._at = -1
                else:
                    self._go_back(round)
                return
            except SetbackError as error:
                setback = error
        raise self.pool.gave_up(setback)

    def _assign(self) -> None:
        """Send assignments to restarted agents. The others keep their compiled programs."""
        names = self.pool.incarnations
        fresh = [i for i in self._agents if names[i] != self._assigned[i]]
        self.pool.call("begin", [(self._tasks[i],) for i in fresh], agents=fresh)
        self._assigned = list(names)

    def _go_back(self, round: int) -> None:
        self.pool.call("start", self._starts)
        places = {r: folder for folder in self._keys for r in self._common(folder)}
        newest = max((r for r in places if r <= round), default=0)
        if newest > 0:
            self.pool.call("restore", self._everywhere(places[newest], self._keys[places[newest]], newest))
        self.pool.connect()
        self._at = newest
        if newest < round:
            rows = self._everywhere(Goal(newest, round - newest, 0, 1, 1), self._folder, self.pool.key)
            self.pool.call("work", rows)
        self._at = round

    def _common(self, folder: Path) -> list[int]:
        found = self.pool.call("saved", self._everywhere(folder, self._key(folder)))
        for text in {text for _, texts in found for text in texts}:
            warnings.warn(text, stacklevel=2)
        return sorted(set.intersection(*(set(rounds) for rounds, _ in found)))

    def _everywhere(self, *arguments: Any) -> list[tuple[Any, ...]]:
        return [arguments] * self.num_agents

    def _carry(self, round: int, reports: list[Report]) -> SiloCarry:
        return SiloCarry(round, tuple(report.finite for report in reports))
