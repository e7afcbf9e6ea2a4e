"""The process of one agent, which reads its shard, runs its rounds and writes its checkpoints."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ...base.compiler import Program, compiled
from ...data.collectives import Pending, ReplayCollectives
from ...data.remote import Work
from ...network import Network
from ...posterior import Posterior
from ...posterior.coordinates import Coordinates
from ...posterior.masks import Masks, Words, added
from ...posterior.masks import fingerprint as keys_fingerprint
from ...posterior.totals import MaskedTotals, Totals
from ...samplers.protocol import Bound
from ..behaviour import require_same_posterior
from ..build import build_problem
from ..checkpoint import CheckpointStore
from ..fingerprint import combined, fingerprint, versions
from ..loop import Carry, finite, observed, start
from ..round import AGENT_AXES, Problem, messages_of, monitored, own_state, positions
from .collectives import SiloCollectives, row
from .connections import Channels
from .latents import keep, prepare
from .messages import Communicator
from .tls import Peer

# An agent's activity in error messages, by called method.
_DOING = {
    "load": "reading its data",
    "answer": "reading its data",
    "work": "running its rounds",
    "save": "saving its state",
    "restore": "reading its state",
    "total": "computing its part of a sum",
    "each": "evaluating a function of its data",
    "connect": "connecting to its neighbours",
    "keep_latents": "drawing its latents",
}
# Number of an agent's checkpoints, of the start and the end of a chunk and one before.
_KEPT = 3


class RestartedError(RuntimeError):
    """A call was meant for the process before a restart."""


class Assignment(NamedTuple):
    """The task of an agent.

    Parameters
    ----------
    network, seed, chains
        As in `accord.sample`.
    bound
        The method bound to the run's posterior, its `own` with a leading axis of one agent.
    coordinates
        Coordinates of the method, or None.
    parts
        Fingerprint of the run in the driver.
    limit
        Timeout in seconds for a neighbour.
    """

    network: Network
    bound: Bound
    seed: int
    chains: int
    coordinates: Coordinates | None
    parts: dict[str, str]
    limit: float


class Goal(NamedTuple):
    """Rounds to run from `start` on, the last of which give `draws`, one every `thin` rounds."""

    start: int
    rounds: int
    draws: int
    thin: int
    capacity: int


class Report(NamedTuple):
    """An agent's result of its rounds.

    Parameters
    ----------
    finite
        Whether its position is finite in all chains.
    draws
        Its positions, (draw, dim, chain), None without requested draws or without an own position.
    watched
        The method's infos by name, (draw, chain).
    """

    finite: bool
    draws: np.ndarray | None
    watched: dict[str, np.ndarray]


class Status(NamedTuple):
    """An agent's present activity.

    Parameters
    ----------
    round
        Its round.
    waiting_for, waited
        Neighbours that it waits for, and the total seconds of waiting for each neighbour.
    doing
        Its activity as text.
    progress
        Numbers of its calls and of its operations with other agents, which change with any progress.
    """

    round: int
    waiting_for: tuple[int, ...]
    waited: dict[int, float]
    doing: str
    progress: tuple[int, int]


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)


class Worker:
    """One agent, called by the driver of a run.

    Parameters
    ----------
    index
        Number of the agent.
    host
        Listening address.
    settings
        Values of JAX's configuration by name.
    """

    def __init__(self, index: int, host: str, settings: dict[str, Any]) -> None:
        _configure(settings)
        # the caller reports errors of a round
        logging.getLogger("jax").setLevel(logging.CRITICAL)
        self.index = index
        self.channels, self._holds = Channels(index, host), Holds()
        clear_forgotten()
        # changes with every restart
        self.incarnation = os.urandom(8).hex()
        self.post: Posterior | None = None
        self.carry: Carry | None = None
        self.totals: Totals | None = None
        self._doing, self._begun = "starting", 0

    def call_if_current(self, incarnation: str | None, method: str, *arguments: Any) -> Any:
        """Call a method if this is the given incarnation, or any for None.

        After a crash Ray sends calls to the restarted process, which has no state of the run.
        """
        if incarnation not in (None, self.incarnation):
            raise RestartedError(f"the process of agent {self.index} has restarted")
        self._turn_to(_DOING.get(method, f"calling {method!r}"))
        return getattr(self, method)(*arguments)

    def _turn_to(self, doing: str) -> None:
        self._doing, self._begun = doing, self._begun + 1

    def greet(self) -> tuple[str, str, dict[str, str]]:
        """The agent's incarnation, its address, and its versions by package."""
        return self.incarnation, self.channels.own.host, versions()

    def load(self, post: Posterior, settings: dict[str, Any], folder: Path, key: bytes) -> None:
        """Read and check the agent's shard, under the driver's settings.

        The folder has values of the potential, with which a restarted process detects changed data.
        """
        _configure(settings)
        self.post, self.carry, self.totals = post, None, None
        # compiled programs keep the communicator and the functions of the previous run alive
        jax.clear_caches()
        _ = post.potential
        self._require_same_posterior(folder, key)

    def _require_same_posterior(self, folder: Path, key: bytes) -> None:
        assert self.post is not None
        require_same_posterior(self._own(folder), self.post, key)
        self._holds.hold(self._own(folder).parent)

    def _own(self, folder: Path) -> Path:
        """The agent's subfolder of a folder at its site. A relative folder is below the temporary folder."""
        return Path(tempfile.gettempdir()) / folder / f"agent-{self.index}"

    def answer(self, work: Work, sites: tuple[str, ...], answers: list[Any]) -> Any:
        """The agent's next answer in preprocessing of its own file."""
        try:
            work(ReplayCollectives(sites, (self.index,), answers))
        except Pending as question:
            (own,) = question.question.own
            return own
        raise RuntimeError(f"agent {self.index} and the driver are out of step. Are their versions of accord equal?")

    def each(self, function: Callable[..., Any], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        """The agent's result of `Posterior.each`, with a leading axis of one agent."""
        assert self.post is not None
        return self.post.each(function, *arguments, own=own)

    def prepare_latents(self, folder: str) -> None:
        """Raise `OSError` unless the agent can write to the folder of latents."""
        try:
            prepare(folder)
        except OSError as error:
            raise OSError(f"agent {self.index} cannot write its latents: {error}") from None

    def keep_latents(self, positions: np.ndarray, seed: int, folder: str, run: str) -> str:
        """Draw the agent's latents and write them to its file. Returns an error message without data, else ""."""
        assert self.post is not None
        try:
            keep(self.post, positions, seed, folder, run)
        except Exception as error:
            # an error here must not lose the draws of the driver
            return str(error) if isinstance(error, OSError) else type(error).__name__
        return ""

    def begin(self, task: Assignment) -> None:
        """Replace the assignment."""
        assert self.post is not None
        self.task, network = task, task.network
        post = self.post if task.coordinates is None else self.post.transformed(task.coordinates)
        sampler = task.bound.sampler
        self.parts = {**task.parts, **fingerprint(post, network, sampler)}
        self.communicator = Communicator(
            network, self.index, self.channels, bytes.fromhex(combined(self.parts)[:32]), task.limit
        )
        root = not network.is_connected or self.communicator.parent is None
        self.at_hub = sampler.needs(post.dim).at_hub
        self.acting = root or not self.at_hub
        self.problem = build_problem(
            post,
            network,
            task.bound,
            task.seed,
            place=partial(row, agent=self.index, neighbours=self.communicator.neighbours),
            collectives=SiloCollectives(communicator=self.communicator),
            agents=[self.index],
        )
        if self.at_hub:
            # the hub uses the random numbers of agent 0
            self.problem = replace(self.problem, index=jnp.zeros(1, jnp.uint32))

    def start(self, mean: np.ndarray, factor: np.ndarray | None) -> Report:
        """Set the state before round 0."""
        dtype = self.problem.degree.dtype
        with np.errstate(over="ignore"):
            own = jnp.asarray(np.asarray(mean, dtype)[None])
        spread = None if factor is None else jnp.asarray(np.asarray(factor, dtype)[None])
        self.carry = _start(self.problem, own, spread, chains=self.task.chains)
        return self._report(None)

    def message_bytes(self) -> int:
        """Bytes of a message of one chain."""
        assert self.carry is not None
        messages = jax.eval_shape(messages_of, self.problem, self.carry.state)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(messages)) // self.task.chains

    def state(self) -> Any:
        """The method's state of this agent, with a leading axis of one agent."""
        assert self.carry is not None
        return jax.tree.map(np.asarray, own_state(self.problem, self.carry.state))

    def place(self) -> Peer:
        """The address and the certificate of this agent."""
        return self.channels.own

    def meet(self, network: Network, limit: float, masks: bool = False) -> bytes | None:
        """Prepare sums over a network and drop the assignment. Returns the public key of new masks, or None.

        Every call makes new keys.
        """
        assert self.post is not None
        self.carry, self.parts = None, fingerprint(self.post, network, None)
        self.communicator = Communicator(
            network, self.index, self.channels, bytes.fromhex(combined(self.parts)[:32]), limit
        )
        if not masks:
            self.totals = self.post.totals(network)
            return None
        own = Masks(self.index, self.post.num_agents)
        here = self.post.totals_here()
        self.totals = MaskedTotals(here, [own], self._added)
        return own.public

    def agree(self, publics: list[bytes]) -> None:
        """Derive the keys of the masks from all agents' public keys, in order of the agents."""
        assert isinstance(self.totals, MaskedTotals)
        self.totals.masks[0].agree(publics, combined(self.parts).encode())
        # in Ray's log, for comparison between sites
        print(f"agent {self.index} masks its sums with the keys {keys_fingerprint(publics)}", flush=True)

    def _added(self, count: int, words: Words) -> Words:
        (found,) = self.communicator.total(count, words, add=lambda parts: added(*parts))
        return found

    def total(self, count: int, function: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> Any:
        """The sum over all agents of a function of their data. `count` numbers the sums since `meet`."""
        if isinstance(self.totals, MaskedTotals):
            return self.totals.numbered(count, function, *arguments, **options)
        assert self.totals is not None
        found = self.totals(function, *arguments, **options)
        leaves: list[np.ndarray]
        treedef: Any
        leaves, treedef = jax.tree.flatten(found)
        return treedef.unflatten(self.communicator.total(count, *leaves))

    def connect(self, places: dict[int, Peer], attempt: int, limit: float) -> None:
        """Close earlier connections and connect to the neighbours."""
        peers = {j: places[j] for j in self.communicator.neighbours}
        self.channels.connect(peers, attempt, self.parts, limit)
        self.communicator.begin(attempt, 0 if self.carry is None else int(self.carry.round))

    def work(self, goal: Goal, folder: Path | None, key: bytes) -> Report:
        """Run rounds and save the last state in a folder, unless it is None."""
        try:
            report = self._lead(goal) if self.acting else self._follow(goal)
        except Exception as error:
            # end the waiting of neighbours
            self.channels.disconnect()
            # a compiled program raises a JaxRuntimeError in its first call and a ValueError later
            raise (self.communicator.failure or error) from None
        except BaseException:
            self.channels.disconnect()
            raise
        if folder is not None:
            self._turn_to(_DOING["save"])
            self.save(folder, key)
        return report

    def _lead(self, goal: Goal) -> Report:
        assert self.carry is not None
        seen = None
        before = goal.start + goal.rounds - goal.draws * goal.thin - int(self.carry.round)
        # reuses the recording program, as another program takes as long to compile
        carry, _ = self._recorded(self.carry, 1, before, goal.capacity)
        if goal.draws:
            carry, seen = self._recorded(carry, goal.draws, goal.thin, goal.capacity)
            seen = jax.tree.map(lambda leaf: np.asarray(leaf)[: goal.draws], seen)
        self.carry = jax.block_until_ready(carry)
        if self.at_hub:
            self.communicator.dismiss()
        return self._report(seen)

    def _recorded(self, carry: Carry, draws: int, thin: int, capacity: int) -> tuple[Carry, Any]:
        numbers, chains = (np.int32(draws), np.int32(thin)), self.task.chains
        return _record.of(chains)(self.problem, carry, *numbers, chains=chains, capacity=capacity)

    def _follow(self, goal: Goal) -> Report:
        """Answer the queries of the hub until its rounds end."""
        assert self.carry is not None
        # a query is a state of the hub
        size = sum(leaf[0, ..., 0].size for leaf in jax.tree.leaves(self.carry.state))
        self.communicator.answer(self._reply, self.task.chains * size * self.problem.degree.dtype.itemsize)
        self.carry = self.carry._replace(round=jnp.int32(goal.start + goal.rounds))
        return Report(True, None, {})

    def _reply(self, content: bytes) -> bytes:
        assert self.carry is not None
        dtype = self.problem.degree.dtype
        questions = np.frombuffer(content, dtype).reshape(self.task.chains, -1)
        return np.asarray(_answers(self.problem, self.carry.state, jnp.asarray(questions))).tobytes()

    def _report(self, seen: Any) -> Report:
        whole = bool(np.all(_finite(self.problem, self.carry)))
        return Report(whole, None, {}) if seen is None else Report(whole, seen[0][:, 0], seen[1])

    def save(self, folder: Path, key: bytes) -> None:
        """Write the agent's checkpoint into a folder."""
        assert self.carry is not None
        leaves = jax.tree.leaves(self.carry)
        arrays = {str(place): np.asarray(leaf) for place, leaf in enumerate(leaves)}
        self._store(folder, key).write(int(self.carry.round), arrays)

    def saved(self, folder: Path, key: bytes) -> tuple[list[int], list[str]]:
        """The rounds of valid checkpoints in a folder, and warnings about others. Checks that the data is unchanged."""
        self._require_same_posterior(folder, key)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rounds = self._store(folder, key).rounds()
        return rounds, [str(one.message) for one in caught]

    def restore(self, folder: Path, key: bytes, round: int) -> None:
        """Set the state from a checkpoint."""
        assert self.carry is not None
        arrays = self._store(folder, key).read(round)
        treedef: Any = jax.tree.structure(self.carry)
        self.carry = treedef.unflatten([jnp.asarray(arrays[str(place)]) for place in range(treedef.num_leaves)])

    def _store(self, folder: Path, key: bytes) -> CheckpointStore:
        return CheckpointStore(self._own(folder), combined(self.parts), keep=_KEPT, key=key)

    def status(self) -> Status:
        """The agent's activity. Another thread may call this while the agent works."""
        round, operations = 0, 0
        if hasattr(self, "communicator"):
            round, operations = self.communicator.round, self.communicator.operations
        waited = dict(self.channels.waited)
        return Status(round, self.channels.waiting_for, waited, self._doing, (self._begun, operations))

    def bytes_sent(self) -> int:
        """Bytes of all chains' messages since the assignment, without labels."""
        return self.communicator.bytes_sent

    def forget(self, folder: Path) -> None:
        """Remove the agent's subfolder, and the folder if it is empty."""
        own = self._own(folder)
        shutil.rmtree(own, ignore_errors=True)
        self._holds.let_go(own.parent)
        # succeeds for the last agent on this machine
        with suppress(OSError):
            own.parent.rmdir()


@compiled(static_argnames="chains")
def _start(problem: Problem, mean: Array, factor: Array | None, chains: int) -> Carry:
    return start(problem, mean, factor, chains)


@partial(Program, static=("chains", "capacity"))
def _record(
    problem: Problem, carry: Carry, draws: Array, thin: Array, chains: int, capacity: int
) -> tuple[Carry, tuple[Array, dict[str, Array]]]:
    def observe(carry: Carry) -> tuple[Array, dict[str, Array]]:
        return positions(problem, carry.state), monitored(problem, carry.infos)

    return observed(problem, carry, draws, thin, observe, chains, capacity)


_finite = compiled(finite)


@compiled
def _answers(problem: Problem, state: Any, questions: Array) -> Array:
    """The agent's answers (chain, answer) to the hub's queries (chain, question).

    A query is a flattened state of one chain with the structure of `state`.
    """
    agents = problem.agents(0)
    _, read = ravel_pytree(jax.tree.map(lambda leaf: leaf[0, ..., 0], state))

    def one(question: Array) -> Array:
        answers = jax.vmap(problem.sampler.message, in_axes=(AGENT_AXES, None))(agents, read(question))
        return ravel_pytree(jax.tree.map(lambda leaf: leaf[0], answers))[0]

    return jax.vmap(one)(questions)


_NAME = re.compile("accord-[0-9a-f]{16}")
# Seconds after which an unlocked folder belongs to a killed driver. Restarting agents lock theirs earlier.
_FORGOTTEN = 86_400.0


class Holds:
    """Locks of folders in use, which the operating system releases when the process ends or crashes."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def hold(self, folder: Path) -> None:
        """Lock an existing folder against `clear_forgotten`."""
        if folder not in self._open:
            descriptor = os.open(folder, os.O_RDONLY)
            # without locks of the file system only the age decides
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._open[folder] = descriptor

    def let_go(self, folder: Path) -> None:
        """Release the lock of a folder."""
        if folder in self._open:
            os.close(self._open.pop(folder))


def clear_forgotten() -> None:
    """Remove this user's folders that are not locked and have not changed for a day."""
    for folder in Path(tempfile.gettempdir()).glob("accord-*"):
        # skip folders that disappear or belong to another user
        with suppress(OSError):
            own = _NAME.fullmatch(folder.name) and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if own and time.time() - _changed(folder) > _FORGOTTEN:
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _changed(folder: Path) -> float:
    """Time of the last change in a folder."""
    return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])
