"""The process of one agent: it reads its own shard, runs its own rounds, and keeps its own checkpoints."""

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

# What an agent is at, by the method that is called, as errors say it.
_DOING = {
    "load": "it reads its data",
    "answer": "it reads its data",
    "work": "it runs its rounds",
    "save": "it saves its state",
    "restore": "it reads its state",
    "total": "it makes its part of a sum",
    "each": "it evaluates a function of its data",
    "connect": "it joins with its neighbours",
    "keep_latents": "it draws its latents",
}
# Checkpoints that an agent keeps for itself: of the start and the end of a chunk, and one before.
_KEPT = 3


class NewcomerError(RuntimeError):
    """A call was meant for the process before this one."""


class Assignment(NamedTuple):
    """The task of an agent: its method, network and chains.

    Parameters
    ----------
    network, seed, chains
        As in `accord.sample`.
    bound
        The method on the run's posterior, its `own` on a leading axis of one agent.
    coordinates
        What the method moves in, or None.
    parts
        The driver's fingerprint of the run.
    limit
        Seconds to wait for a neighbour.
    """

    network: Network
    bound: Bound
    seed: int
    chains: int
    coordinates: Coordinates | None
    parts: dict[str, str]
    limit: float


class Goal(NamedTuple):
    """Rounds to run: from `start` on, and of the last ones `draws`, one after every `thin`."""

    start: int
    rounds: int
    draws: int
    thin: int
    capacity: int


class Report(NamedTuple):
    """An agent's report of the rounds that it ran.

    Parameters
    ----------
    finite
        Whether its position is, in all chains.
    draws
        Its positions, (draw, dim, chain), or None where it has none of its own, or none was asked for.
    watched
        What the method watches, by name, (draw, chain).
    """

    finite: bool
    draws: np.ndarray | None
    watched: dict[str, np.ndarray]


class Status(NamedTuple):
    """An agent's activity now.

    Parameters
    ----------
    round
        Its round.
    waiting_for, waited
        Whom it waits for, and the seconds it has waited for each neighbour.
    doing
        What it was asked for.
    progress
        Others than before once it has come further: calls that it has begun, and talks with others since it met them.
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
    """One agent, as the driver of a run calls it.

    Parameters
    ----------
    index
        Its number.
    host
        The address that it listens at.
    settings
        Values of JAX's configuration by name.
    """

    def __init__(self, index: int, host: str, settings: dict[str, Any]) -> None:
        _configure(settings)
        # what fails in a round is told once, by the one who asked for it
        logging.getLogger("jax").setLevel(logging.CRITICAL)
        self.index = index
        self.channels, self._holds = Channels(index, host), Holds()
        clear_forgotten()
        # another one after every restart
        self.incarnation = os.urandom(8).hex()
        self.post: Posterior | None = None
        self.carry: Carry | None = None
        self.totals: Totals | None = None
        self._doing, self._begun = "it begins", 0

    def call_if_current(self, incarnation: str | None, method: str, *arguments: Any) -> Any:
        """Call a method, if this is the incarnation that the caller knows; None is any.

        Ray gives a call that follows a crash to the process that follows, which knows nothing of the run.
        """
        if incarnation not in (None, self.incarnation):
            raise NewcomerError(f"the process of agent {self.index} has begun anew")
        self._turn_to(_DOING.get(method, f"it is at {method!r}"))
        return getattr(self, method)(*arguments)

    def _turn_to(self, doing: str) -> None:
        self._doing, self._begun = doing, self._begun + 1

    def greet(self) -> tuple[str, str, dict[str, str]]:
        """Which incarnation of the agent this is, its address, and the versions that it runs with, by name."""
        return self.incarnation, self.channels.own.host, versions()

    def load(self, post: Posterior, settings: dict[str, Any], folder: Path, key: bytes) -> None:
        """Read the agent's shard and check it, under the driver's settings of this run.

        The folder has values of the potential, by which a process that begins anew checks that they are as before.
        """
        _configure(settings)
        self.post, self.carry, self.totals = post, None, None
        # programs of the run before call its communicator and its functions, and would stay as long as this process
        jax.clear_caches()
        _ = post.potential
        self._require_same_posterior(folder, key)

    def _require_same_posterior(self, folder: Path, key: bytes) -> None:
        assert self.post is not None
        require_same_posterior(self._own(folder), self.post, key)
        self._holds.hold(self._own(folder).parent)

    def _own(self, folder: Path) -> Path:
        """The agent's part of a folder at its site; one that is not absolute is for temporary files."""
        return Path(tempfile.gettempdir()) / folder / f"agent-{self.index}"

    def answer(self, work: Work, sites: tuple[str, ...], answers: list[Any]) -> Any:
        """The agent's next answer in work on its own file."""
        try:
            work(ReplayCollectives(sites, (self.index,), answers))
        except Pending as question:
            (own,) = question.question.own
            return own
        raise RuntimeError(f"agent {self.index} has no question left: it does not work as the driver does")

    def each(self, function: Callable[..., Any], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        """The agent's answer to `Posterior.each`, on a leading axis of one agent."""
        assert self.post is not None
        return self.post.each(function, *arguments, own=own)

    def prepare_latents(self, folder: str) -> None:
        """Look whether the agent can write to the folder for latents."""
        try:
            prepare(folder)
        except OSError as error:
            raise OSError(f"agent {self.index} cannot keep its latents: {error}") from None

    def keep_latents(self, positions: np.ndarray, seed: int, folder: str, run: str) -> str:
        """Draw the agent's own latents and write them to its file; what came in between, in words without numbers."""
        assert self.post is not None
        try:
            keep(self.post, positions, seed, folder, run)
        except Exception as error:
            # the driver has the draws of a run, which are not lost over this
            return str(error) if isinstance(error, OSError) else type(error).__name__
        return ""

    def begin(self, task: Assignment) -> None:
        """Take an assignment in place of the one before."""
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
            # the hub starts where agent 0 would, wherever it is
            self.problem = replace(self.problem, index=jnp.zeros(1, jnp.uint32))

    def start(self, mean: np.ndarray, factor: np.ndarray | None) -> Report:
        """Be before round 0."""
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
        """The method's state of this agent, on a leading axis of one agent."""
        assert self.carry is not None
        return jax.tree.map(np.asarray, own_state(self.problem, self.carry.state))

    def place(self) -> Peer:
        """The address and the certificate of this agent."""
        return self.channels.own

    def meet(self, network: Network, limit: float, masks: bool = False) -> bytes | None:
        """Be ready for sums over a network, in place of what there was to run; with masks, the public key of new ones.

        What was agreed on before is forgotten: every meeting has keys of its own.
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
        """Make the keys of the masks from all agents' public keys, in their order."""
        assert isinstance(self.totals, MaskedTotals)
        self.totals.masks[0].agree(publics, combined(self.parts).encode())
        # for the site's people to compare, in Ray's log on their machine
        print(f"agent {self.index} masks its sums with the keys {keys_fingerprint(publics)}", flush=True)

    def _added(self, count: int, words: Words) -> Words:
        (found,) = self.communicator.total(count, words, add=lambda parts: added(*parts))
        return found

    def total(self, count: int, function: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> Any:
        """The sum over all agents of a function of their data; `count` numbers the sums since the agents met."""
        if isinstance(self.totals, MaskedTotals):
            return self.totals.numbered(count, function, *arguments, **options)
        assert self.totals is not None
        found = self.totals(function, *arguments, **options)
        leaves: list[np.ndarray]
        treedef: Any
        leaves, treedef = jax.tree.flatten(found)
        return treedef.unflatten(self.communicator.total(count, *leaves))

    def connect(self, places: dict[int, Peer], attempt: int, limit: float) -> None:
        """Connect to the neighbours, in place of earlier connections."""
        peers = {j: places[j] for j in self.communicator.neighbours}
        self.channels.connect(peers, attempt, self.parts, limit)
        self.communicator.begin(attempt, 0 if self.carry is None else int(self.carry.round))

    def work(self, goal: Goal, folder: Path | None, key: bytes) -> Report:
        """Run rounds, and save where they end below a folder, if one is given."""
        try:
            report = self._lead(goal) if self.acting else self._follow(goal)
        except Exception as error:
            # the neighbours must not wait for what will not come
            self.channels.disconnect()
            # what a compiled program makes of it depends: a JaxRuntimeError at its first call, a ValueError later
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
        # a program that records nothing would take as long to compile
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
        """Answer what the hub asks, until it has run its rounds."""
        assert self.carry is not None
        # a question is a state of the hub, whose own is like any other
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
        """Write the agent's checkpoint below a folder."""
        assert self.carry is not None
        leaves = jax.tree.leaves(self.carry)
        arrays = {str(place): np.asarray(leaf) for place, leaf in enumerate(leaves)}
        self._store(folder, key).write(int(self.carry.round), arrays)

    def saved(self, folder: Path, key: bytes) -> tuple[list[int], list[str]]:
        """The rounds of whole checkpoints below a folder, of the same data, and what is to be said of others."""
        self._require_same_posterior(folder, key)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rounds = self._store(folder, key).rounds()
        return rounds, [str(one.message) for one in caught]

    def restore(self, folder: Path, key: bytes, round: int) -> None:
        """Be as a checkpoint says."""
        assert self.carry is not None
        arrays = self._store(folder, key).read(round)
        treedef: Any = jax.tree.structure(self.carry)
        self.carry = treedef.unflatten([jnp.asarray(arrays[str(place)]) for place in range(treedef.num_leaves)])

    def _store(self, folder: Path, key: bytes) -> CheckpointStore:
        return CheckpointStore(self._own(folder), combined(self.parts), keep=_KEPT, key=key)

    def status(self) -> Status:
        """The agent's activity; may be asked while it works."""
        round, talks = 0, 0
        if hasattr(self, "communicator"):
            round, talks = self.communicator.round, self.communicator.talks
        waited = dict(self.channels.waited)
        return Status(round, self.channels.waiting_for, waited, self._doing, (self._begun, talks))

    def bytes_sent(self) -> int:
        """Bytes of all chains' messages since the assignment, without their labels."""
        return self.communicator.bytes_sent

    def forget(self, folder: Path) -> None:
        """Remove the agent's part of a folder, and the folder where it is empty."""
        own = self._own(folder)
        shutil.rmtree(own, ignore_errors=True)
        self._holds.let_go(own.parent)
        # the last agent on this machine finds it empty
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
    """The agent's answers to the hub's questions, (chain, question) to (chain, answer).

    A question is a state of the method for one chain; `state`, which it may be any of, says how to read it.
    """
    agents = problem.agents(0)
    _, read = ravel_pytree(jax.tree.map(lambda leaf: leaf[0, ..., 0], state))

    def one(question: Array) -> Array:
        answers = jax.vmap(problem.sampler.message, in_axes=(AGENT_AXES, None))(agents, read(question))
        return ravel_pytree(jax.tree.map(lambda leaf: leaf[0], answers))[0]

    return jax.vmap(one)(questions)


_NAME = re.compile("accord-[0-9a-f]{16}")
# Seconds after which a folder without a lock belongs to a driver that was killed: agents that begin anew hold theirs.
_FORGOTTEN = 86_400.0


class Holds:
    """The folders that a process works with; the system lets go of them when it ends, however it ends."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def hold(self, folder: Path) -> None:
        """Keep others from clearing a folder away, which is there."""
        if folder not in self._open:
            descriptor = os.open(folder, os.O_RDONLY)
            # where a file system has no locks, folders are cleared away by their age alone
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._open[folder] = descriptor

    def let_go(self, folder: Path) -> None:
        """Hold it no longer."""
        if folder in self._open:
            os.close(self._open.pop(folder))


def clear_forgotten() -> None:
    """Remove this user's folders that are not locked and have not changed for a day."""
    for folder in Path(tempfile.gettempdir()).glob("accord-*"):
        # what goes away meanwhile, or is somebody else's, is no concern
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
    """When something in a folder changed last."""
    return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])
