"""The agents' processes as their driver sees them: a pool of Ray actors, which come back after a crash."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ...base.errors import AgentLostError
from ...data.remote import Work
from ...network import Network
from ...posterior import Posterior
from ...posterior.masks import fingerprint
from ...posterior.totals import Totals
from ..fingerprint import first_difference, versions
from .cluster import leave_ray, require_ray, share_ray
from .connections import LateNeighbourError, LostNeighbourError
from .latents import LATENTS, place
from .worker import NewcomerError, Status

# Values of JAX's configuration that agents share with the driver.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_compilation_cache_dir")
# Seconds between two looks at what agents are doing.
_LOOK_SECONDS = 1.0
# Seconds that agents have to notice that a neighbour is gone, before they are started anew themselves.
_SETTLE_SECONDS = 30.0
# Setbacks in a row, without anything done between them, after which a run gives up; fewer where agents read their data,
# which may take long.
MOST_SETBACKS = 50
_MOST_READS = 5
# Seconds that agents have at the end to clear away what they kept.
_PARTING_SECONDS = 10.0
# Seconds between two tries to reach a process that begins anew.
_PAUSE_SECONDS = 0.2


class SetbackError(RuntimeError):
    """Some agents' processes ended, or lost their neighbours: the run has to go back to its last checkpoint.

    `agent` is one of them.
    """

    def __init__(self, message: str, agent: int) -> None:
        super().__init__(message)
        self.agent = agent


class Limits(NamedTuple):
    """How long the processes are waited for, and what happens to one that is late; see `Silo`."""

    timeout: float
    late: str
    start_timeout: float


class WorkerPool:
    """One process an agent, each with the agent's own shard; the `DataOwners` of a posterior.

    Parameters
    ----------
    resources
        The custom resources of Ray that each agent's process needs, one dict an agent.
    address
        The Ray cluster's, as `Silo` has it.
    limits
        How long the processes are waited for.
    latents
        The folder at each site for latents, as `Silo` has it.
    """

    # no agent's data lies with the driver
    mine = range(0)

    def __init__(
        self,
        resources: Sequence[dict[str, float | int]],
        address: str | None,
        limits: Limits,
        latents: str = LATENTS,
    ) -> None:
        self.limits, self.size, self._latents = limits, len(resources), latents
        size = self.size
        self._ray = require_ray()
        self._shares_ray = share_ray(self._ray, address)
        self.restarts, self.waited = np.zeros(size, int), np.zeros(size)
        self.key = secrets.token_bytes(32)
        self.attempt = 0
        # at each site, below its own folder for temporary files: what agents must still know after a crash
        self._folders: set[Path] = set()
        self._rows_folder = self.new_folder()
        self.listener: Callable[[list[str]], None] | None = None
        self._parts: list[Posterior] = []
        # which incarnation of each agent's process has read its shard
        self._loaded: list[str | None] = [None] * size
        self._settings = _settings_here()
        from .actor import WorkerProcess

        process = self._ray.remote(concurrency_groups={"look": 1})(WorkerProcess)
        self._actors: list[Any] = []
        # what an agent is called in errors: the resources that name its site, and once it runs its address
        self._sites = [", ".join(own) for own in resources]
        self._hosts = [""] * size
        try:
            for i, own in enumerate(resources):
                self._actors.append(process.options(resources=own, **_LIFE).remote(i, self._settings))
        except BaseException:
            self.close()
            raise

    def hold(self, post: Posterior) -> Posterior:
        """Let every agent read its shard; the posterior as it is known where none of its data lies."""
        self._parts, self._settings = [post.alone(i) for i in range(self.size)], _settings_here()
        self.forget(self._rows_folder)
        self._rows_folder = self.new_folder()
        self._loaded = [None] * self.size
        self.revive()
        self.restarts[:], self.waited[:] = 0, 0.0
        return post.with_data_at(self)

    # --- folders of the agents ---

    def new_folder(self) -> Path:
        """The name of a folder that every agent may make among its site's temporary files, until it is to forget it."""
        folder = Path(f"accord-{secrets.token_hex(8)}")
        self._folders.add(folder)
        return folder

    def forget(self, folder: Path) -> None:
        """Let every agent remove its part of a new folder, also one that has begun anew meanwhile."""
        if folder not in self._folders or not self._actors or self._loaded == [None] * self.size:
            return
        self._folders.discard(folder)
        rows: Sequence[tuple[Any, ...]] = [(folder,)] * self.size
        # who is gone or busy cannot
        with suppress(SetbackError, TimeoutError):
            self._call("forget", range(self.size), rows, _PARTING_SECONDS, [None] * self.size)

    # --- what a posterior asks of those who hold its data ---

    def each(self, function: Callable[..., Any], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        """Each agent's answer, stacked."""
        rows = [(function, arguments, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], own)) for i in range(self.size)]
        answers = self.call_with_retry("each", rows)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *answers)

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """Sums over all agents of functions of their data, over a network's tree."""
        return SiloTotals(self, network, masks)

    # --- latents, see `posterior.latent_keepers` ---

    def prepare_latents(self) -> None:
        """Raise `OSError`, which names the agent, where one cannot write to the folder for latents."""
        self.call_with_retry("prepare_latents", [(self._latents,)] * self.size)

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Let some agents write latents at their own positions to their files; what kept each from it, or ""."""
        rows = [(own, seed, self._latents, run) for own in positions]
        return self.call_with_retry("keep_latents", rows, agents)

    def latents_place(self, run: str) -> str:
        """The files of a run, at all sites."""
        return place(self._latents, run, "*")

    # --- calls ---

    def call_with_retry(
        self, method: str, rows: Sequence[tuple[Any, ...]], agents: Sequence[int] | None = None
    ) -> list[Any]:
        """Call a method that needs nothing but agents' data at some agents, or all, again where one crashed."""
        for _ in range(MOST_SETBACKS):
            try:
                return self.call(method, rows, agents=agents)
            except SetbackError as error:
                setback = error
            self.revive()
        raise self.gave_up(setback)

    def gave_up(self, setback: SetbackError) -> RuntimeError:
        """The error of a run that comes no further."""
        return RuntimeError(f"gave up after {MOST_SETBACKS} setbacks without progress, the last one: {setback}")

    def call(
        self,
        method: str,
        rows: Sequence[tuple[Any, ...]] | None = None,
        *,
        agents: Sequence[int] | None = None,
        limit: float | None = None,
    ) -> list[Any]:
        """Call a method at some agents, or all, each with its own arguments; the answers in their order.

        Where one fails, the others are waited for until they have failed too. With no limit given each has the seconds
        that agents wait for one another, anew whenever it comes further.

        Raises
        ------
        SetbackError
            A process ended or lost a neighbour.
        TimeoutError
            An agent is late; it is named.
        """
        agents = range(self.size) if agents is None else agents
        return self._call(method, agents, rows, limit, [self._loaded[i] for i in agents])

    def _call(
        self,
        method: str,
        agents: Sequence[int],
        rows: Sequence[tuple[Any, ...]] | None,
        limit: float | None,
        names: Sequence[str | None],
    ) -> list[Any]:
        rows = [()] * len(agents) if rows is None else rows
        calls = {
            self._actors[i].call_if_current.remote(name, method, *row): i
            for i, name, row in zip(agents, names, rows, strict=True)
        }
        left, answers, errors = list(calls), {}, {}
        looked = time.monotonic()
        ends = np.inf if limit is None else looked + limit
        # an agent that waits for another says so itself, and first
        patience = Patience(self.limits.timeout + _SETTLE_SECONDS if limit is None else np.inf)
        while left:
            done, left = self._ray.wait(left, timeout=_LOOK_SECONDS)
            now = time.monotonic()
            for one in done:
                try:
                    answers[one] = self._ray.get(one)
                except self._ray.exceptions.RayError as error:
                    ends = min(ends, now + _SETTLE_SECONDS)
                    errors[calls[one]] = getattr(error, "cause", None) or error
            if left and now > ends:
                break
            if left and now - looked > _LOOK_SECONDS:
                late = patience.overdue([calls[one] for one in left], self._poll_status())
                # where one has failed, the others are waited for in any case, and what it said is told
                self._end_late(() if errors else late, patience)
                looked = time.monotonic()
        if errors:
            for one in left:
                self._ray.kill(self._actors[calls[one]], no_restart=False)
        self._raise_for(errors)
        if left:
            raise TimeoutError(f"{self.name(calls[left[0]])} did not finish {method!r} in {limit:g} s")
        return [answers[one] for one in calls]

    def _end_late(self, late: Sequence[int], patience: Patience) -> None:
        """End the processes of late agents, which begin anew; raise `TimeoutError` if that ends the run."""
        for i in late:
            self._ray.kill(self._actors[i], no_restart=False)
        if late and self.limits.late != "restart":
            first = late[0]
            what = f"{self.name(first)} came no further for {patience.seconds:g} s: {patience.doing(first)}"
            raise self._gone(what, first)

    def _gone(self, what: str, agent: int) -> Exception:
        """The error of an agent that is not waited for any longer."""
        return AgentLostError(what, agent=agent) if self.limits.late == "leave" else TimeoutError(what)

    def name(self, agent: int) -> str:
        """An agent's number, its site and its address, as far as they are known."""
        where = ", ".join(filter(None, (self._sites[agent], self._hosts[agent])))
        return f"agent {agent} ({where})" if where else f"agent {agent}"

    def _raise_for(self, errors: dict[int, Exception]) -> None:
        """Raise what the errors of some agents come to."""
        if not errors:
            return
        known = self._ray.exceptions
        crash = (known.RayActorError, known.ObjectLostError, known.NodeDiedError, NewcomerError, LostNeighbourError)
        for i, error in errors.items():
            if getattr(error, "actor_init_failed", False):
                reason = str(error).strip().rpartition("\n")[2]
                raise RuntimeError(f"the process of {self.name(i)} cannot begin: {reason}")
            if not isinstance(error, (*crash, LateNeighbourError)):
                raise error
        gone = [i for i, error in errors.items() if isinstance(error, self._ray.exceptions.RayActorError)]
        late = [error for error in errors.values() if isinstance(error, LateNeighbourError)]
        if late and not gone:
            # who is waited for, but waits for nobody, is who is late
            waiting = {error.agent for error in late}
            worst = min(late, key=lambda error: (error.neighbour in waiting, error.round))
            if self.limits.late != "restart":
                raise self._gone(str(worst), worst.neighbour)
            self._ray.kill(self._actors[worst.neighbour], no_restart=False)
        first = gone[0] if gone else min(errors)
        raise SetbackError(f"{self.name(first)}: {errors[first]}", first)

    # --- life ---

    def ask(self, work: Work, sites: Sequence[str], answers: Sequence[Any]) -> list[Any]:
        """What every agent answers next in work on its own file."""
        if None in self._loaded:
            self._parts = []
            self.revive()
        return self.call_with_retry("answer", [(work, tuple(sites), list(answers))] * self.size)

    def revive(self) -> None:
        """Wait until every agent's process runs and has read its shard, if there are some."""
        for _ in range(_MOST_READS):
            names = self._greeted()
            fresh = [i for i, name in enumerate(names) if name != self._loaded[i]]
            try:
                if self._parts:
                    rows = [(self._parts[i], self._settings, self._rows_folder, self.key) for i in fresh]
                    self._call("load", fresh, rows, None, [names[i] for i in fresh])
            except SetbackError as error:
                setback = error
                continue
            for i in fresh:
                self.restarts[i] += self._loaded[i] is not None
                self._loaded[i] = names[i]
            return
        raise RuntimeError(f"agents ended {_MOST_READS} times while they read their data, the last time {setback}")

    def _greeted(self) -> list[str]:
        """The names of all agents' processes, once they run."""
        ends = time.monotonic() + self.limits.start_timeout
        while True:
            try:
                return self._greet(max(1.0, ends - time.monotonic()))
            except SetbackError as error:
                if time.monotonic() > ends:
                    what = f"the agents' processes do not run after {self.limits.start_timeout:g} s: {error}"
                    raise self._gone(what, error.agent) from error
                time.sleep(_PAUSE_SECONDS)

    def _greet(self, limit: float) -> list[str]:
        try:
            greetings = self._call("greet", range(self.size), None, limit, [None] * self.size)
        except TimeoutError as error:
            raise TimeoutError(
                f"not all of the {self.size} agents' processes run after {self.limits.start_timeout:g} s; has the "
                "cluster the nodes that `resources` names?"
            ) from error
        for i, (_, host, own) in enumerate(greetings):
            difference = first_difference(versions(), own)
            if difference is not None:
                raise ValueError(f"agent {i} does not run what the driver runs: {difference}")
            self._hosts[i] = host
        return [name for name, *_ in greetings]

    def connect(self) -> None:
        """Let all agents join with their neighbours, in place of the connections there were."""
        self.attempt += 1
        places = dict(enumerate(self.call("place")))
        self.call("connect", [(places, self.attempt, self.limits.timeout)] * self.size)

    def warn_of_restarts(self) -> None:
        """Say which agents began anew since they were given their shards: it changes no draw, and has a cause."""
        if self.restarts.any():
            which = ", ".join(f"{self.name(i)} {count}" for i, count in enumerate(self.restarts) if count)
            warnings.warn(f"agents began anew, which changes no draw; how often: {which}", stacklevel=4)

    @property
    def incarnations(self) -> tuple[str | None, ...]:
        """Names of the agents' processes, another one after every restart."""
        return tuple(self._loaded)

    def _poll_status(self) -> dict[int, Status]:
        """What agents are doing, of those that answer; whoever listens is told."""
        references = [actor.status.remote() for actor in self._actors]
        self._ray.wait(references, num_returns=self.size, timeout=_LOOK_SECONDS)
        lines, found = [], {}
        for i, reference in enumerate(references):
            try:
                found[i] = status = self._ray.get(reference, timeout=0)
            except self._ray.exceptions.GetTimeoutError:
                lines.append(f"agent {i}: no answer")
                continue
            except self._ray.exceptions.RayError:
                lines.append(f"agent {i}: restarting")
                continue
            self.waited[i] = sum(status.waited.values())
            whom = f", waits for {', '.join(map(str, status.waiting_for))}" if status.waiting_for else ""
            lines.append(
                f"agent {i}: round {status.round}, {self.restarts[i]} restarts, waited {self.waited[i]:.1f} s{whom}"
            )
        if self.listener is not None:
            self.listener(lines)
        return found

    def close(self) -> None:
        """End the processes, and Ray if it was begun here and no other pool uses it."""
        for folder in tuple(self._folders):
            self.forget(folder)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._shares_ray:
            self._shares_ray = False
            leave_ray(self._ray)


def _settings_here() -> dict[str, Any]:
    """What agents take over of JAX's configuration, as it is now."""
    settings = {name: getattr(jax.config, name) for name in _SETTINGS}
    # the width at this place, which a context may have changed
    return {**settings, "jax_enable_x64": jnp.result_type(float) == jnp.float64}


class SiloTotals:
    """Sums over the agents, up and down their spanning tree; a sum that a crash interrupts is made again.

    With `masks` each agent's process masks its numbers. The agents make new keys whenever they join, and each try of a
    sum has a number of its own, so that a sum that is made again is under other masks.

    Attributes
    ----------
    keys
        `masks.fingerprint` of the public keys that this process passed on to the agents for the newest sum; "" without.
    """

    def __init__(self, pool: WorkerPool, network: Network, masks: bool = False) -> None:
        self.pool, self.network, self.masks = pool, network, masks
        self.keys = ""
        self.root = network.aggregation.root
        # whom the agents' connections join, and the sums since then
        self._joined: tuple[Any, ...] = ()
        self._count = 0

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over all agents."""
        # points may be less to send as what they are made from
        points = {"points": options.pop("points")} if "points" in options else {}
        arguments, options = jax.tree.map(np.asarray, (arguments, options))
        host = arguments, options | points
        while True:
            try:
                self._join()
                self._count += 1
                rows = [(self._count, function, *host)] * self.pool.size
                return self.pool.call("total", rows)[self.root]
            except SetbackError:
                self.pool.revive()

    def _join(self) -> None:
        """Let the agents connect, unless they still are as they were."""
        if self._joined == (*self.pool.incarnations, self.pool.attempt):
            return
        publics = self.pool.call("meet", [(self.network, self.pool.limits.timeout, self.masks)] * self.pool.size)
        if self.masks:
            self.pool.call("agree", [(publics,)] * self.pool.size)
            self.keys = fingerprint(publics)
        self.pool.connect()
        self._count, self._joined = 0, (*self.pool.incarnations, self.pool.attempt)


# An agent waits most of the time; it comes back as often as it must, and lost calls are the driver's affair.
_LIFE = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}


class Patience:
    """Since when each agent of a call has come no further.

    Parameters
    ----------
    seconds
        After which it is late.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._since: dict[int, float] = {}
        self._last: dict[int, Status] = {}
        self._silent: set[int] = set()

    def overdue(self, agents: Sequence[int], answers: Mapping[int, Status]) -> list[int]:
        """Those of the agents that are late, by what some of them answer now; silence is no progress.

        An agent that waits for a neighbour is not late: it says itself when that takes too long.
        """
        now = time.monotonic()
        self._silent = {i for i in agents if i not in answers}
        for i in agents:
            if i in self._silent:
                continue
            before, status = self._last.get(i), answers[i]
            if status.waiting_for or (before is not None and status.progress != before.progress):
                self._since[i] = now
            self._last[i] = status
        late = [i for i in agents if now - self._since.get(i, self._began) > self.seconds]
        # who is late is ended, which takes a moment
        self._since.update(dict.fromkeys(late, now))
        return late

    def doing(self, agent: int) -> str:
        """What an agent said last that it is at."""
        if agent in self._silent or agent not in self._last:
            return "it does not answer"
        return self._last[agent].doing
