"""The driver's pool of the agents' processes, Ray actors that restart after a crash."""

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
from .worker import RestartedError, Status

# JAX settings that agents copy from the driver.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_compilation_cache_dir")
# Seconds between two polls of the agents' status.
_LOOK_SECONDS = 1.0
# Seconds that agents have to detect a lost neighbour before the driver restarts them.
_SETTLE_SECONDS = 30.0
# Setbacks without progress after which a run gives up.
MOST_SETBACKS = 50
# Setbacks while agents read their data after which a run gives up.
_MOST_READS = 5
# Timeout in seconds for removing the agents' folders.
_PARTING_SECONDS = 10.0
# Seconds between two attempts to reach a restarting process.
_PAUSE_SECONDS = 0.2


class SetbackError(RuntimeError):
    """Processes of agents ended or lost a neighbour, so that the run must return to its last checkpoint.

    `agent` is the number of one of these agents.
    """

    def __init__(self, message: str, agent: int) -> None:
        super().__init__(message)
        self.agent = agent


class Limits(NamedTuple):
    """Timeouts in seconds, and the policy for late agents. See `Silo`."""

    timeout: float
    late: str
    start_timeout: float


class WorkerPool:
    """A pool with one process per agent, each with the agent's shard. Implements `DataOwners`.

    Parameters
    ----------
    resources
        Custom resources of Ray for each agent's process, one dict per agent.
    address
        Address of the Ray cluster, as in `Silo`.
    limits
        Timeouts and the policy for late agents.
    latents
        Folder of latents at each site, as in `Silo`.
    """

    # the driver has no data
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
        # folders below each site's temporary folder, with state that agents need after a crash
        self._folders: set[Path] = set()
        self._rows_folder = self.new_folder()
        self.listener: Callable[[list[str]], None] | None = None
        self._parts: list[Posterior] = []
        # incarnation of each agent's process that has read its shard
        self._loaded: list[str | None] = [None] * size
        self._settings = _settings_here()
        from .actor import WorkerProcess

        process = self._ray.remote(concurrency_groups={"look": 1})(WorkerProcess)
        self._actors: list[Any] = []
        # agents' sites (names of resources) and addresses for error messages
        self._sites = [", ".join(own) for own in resources]
        self._hosts = [""] * size
        try:
            for i, own in enumerate(resources):
                self._actors.append(process.options(resources=own, **_LIFE).remote(i, self._settings))
        except BaseException:
            self.close()
            raise

    def hold(self, post: Posterior) -> Posterior:
        """Let every agent read its shard. Returns the posterior without data."""
        self._parts, self._settings = [post.alone(i) for i in range(self.size)], _settings_here()
        self.forget(self._rows_folder)
        self._rows_folder = self.new_folder()
        self._loaded = [None] * self.size
        self.revive()
        self.restarts[:], self.waited[:] = 0, 0.0
        return post.with_data_at(self)

    # --- folders of the agents ---

    def new_folder(self) -> Path:
        """A new folder name below each site's temporary folder, valid until `forget`."""
        folder = Path(f"accord-{secrets.token_hex(8)}")
        self._folders.add(folder)
        return folder

    def forget(self, folder: Path) -> None:
        """Let every agent, also after a restart, remove its part of a `new_folder`."""
        if folder not in self._folders or not self._actors or self._loaded == [None] * self.size:
            return
        self._folders.discard(folder)
        rows: Sequence[tuple[Any, ...]] = [(folder,)] * self.size
        # lost and busy agents cannot
        with suppress(SetbackError, TimeoutError):
            self._call("forget", range(self.size), rows, _PARTING_SECONDS, [None] * self.size)

    # --- `DataOwners` ---

    def each(self, function: Callable[..., Any], arguments: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        """Each agent's result, stacked."""
        rows = [(function, arguments, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], own)) for i in range(self.size)]
        answers = self.call_with_retry("each", rows)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *answers)

    def totals(self, network: Network, masks: bool = False) -> Totals:
        """Sums over all agents, over the network's spanning tree."""
        return SiloTotals(self, network, masks)

    # --- latents, see `posterior.latent_keepers` ---

    def prepare_latents(self) -> None:
        """Raise `OSError` with the agent's number if an agent cannot write to its folder of latents."""
        self.call_with_retry("prepare_latents", [(self._latents,)] * self.size)

    def keep_latents(self, run: str, agents: Sequence[int], positions: Sequence[np.ndarray], seed: int) -> list[str]:
        """Let agents write latents at their positions to their files. Returns an error message per agent, or ""."""
        rows = [(own, seed, self._latents, run) for own in positions]
        return self.call_with_retry("keep_latents", rows, agents)

    def latents_place(self, run: str) -> str:
        """The path pattern of a run's files at all sites."""
        return place(self._latents, run, "*")

    # --- calls ---

    def call_with_retry(
        self, method: str, rows: Sequence[tuple[Any, ...]], agents: Sequence[int] | None = None
    ) -> list[Any]:
        """Call a method that needs only the agents' data, as `call`, and retry after a crash."""
        for _ in range(MOST_SETBACKS):
            try:
                return self.call(method, rows, agents=agents)
            except SetbackError as error:
                setback = error
            self.revive()
        raise self.gave_up(setback)

    def gave_up(self, setback: SetbackError) -> RuntimeError:
        """The error of a run without progress."""
        return RuntimeError(f"gave up after {MOST_SETBACKS} setbacks without progress, the last one: {setback}")

    def call(
        self,
        method: str,
        rows: Sequence[tuple[Any, ...]] | None = None,
        *,
        agents: Sequence[int] | None = None,
        limit: float | None = None,
    ) -> list[Any]:
        """Call a method of the given agents, by default all, with a row of arguments each. Returns results in order.

        After an error the call waits for the other agents to fail too. Without `limit` an agent times out after
        `limits.timeout` and a margin without progress.

        Raises
        ------
        SetbackError
            A process ended or lost a neighbour.
        TimeoutError
            An agent is late. The message names it.
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
        # longer than the timeout of agents for one another, whose errors come first
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
                # after an error late agents do not end the run, so that the first error is raised
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
        """Kill the processes of late agents, which restart. Raises an error if the policy ends the run."""
        for i in late:
            self._ray.kill(self._actors[i], no_restart=False)
        if late and self.limits.late != "restart":
            first = late[0]
            what = f"{self.name(first)} made no progress for {patience.seconds:g} s: {patience.doing(first)}"
            raise self._gone(what, first)

    def _gone(self, what: str, agent: int) -> Exception:
        """The error for a late agent, by policy."""
        return AgentLostError(what, agent=agent) if self.limits.late == "leave" else TimeoutError(what)

    def name(self, agent: int) -> str:
        """An agent's number, with its site and its address if they are known."""
        where = ", ".join(filter(None, (self._sites[agent], self._hosts[agent])))
        return f"agent {agent} ({where})" if where else f"agent {agent}"

    def _raise_for(self, errors: dict[int, Exception]) -> None:
        """Raise one error for the errors by agent."""
        if not errors:
            return
        known = self._ray.exceptions
        crash = (known.RayActorError, known.ObjectLostError, known.NodeDiedError, RestartedError, LostNeighbourError)
        for i, error in errors.items():
            if getattr(error, "actor_init_failed", False):
                reason = str(error).strip().rpartition("\n")[2]
                raise RuntimeError(f"the process of {self.name(i)} cannot start: {reason}")
            if not isinstance(error, (*crash, LateNeighbourError)):
                raise error
        gone = [i for i, error in errors.items() if isinstance(error, self._ray.exceptions.RayActorError)]
        late = [error for error in errors.values() if isinstance(error, LateNeighbourError)]
        if late and not gone:
            # the late agent does not wait for another one itself
            waiting = {error.agent for error in late}
            worst = min(late, key=lambda error: (error.neighbour in waiting, error.round))
            if self.limits.late != "restart":
                raise self._gone(str(worst), worst.neighbour)
            self._ray.kill(self._actors[worst.neighbour], no_restart=False)
        first = gone[0] if gone else min(errors)
        raise SetbackError(f"{self.name(first)}: {errors[first]}", first)

    # --- lifetime of the processes ---

    def ask(self, work: Work, sites: Sequence[str], answers: Sequence[Any]) -> list[Any]:
        """Every agent's next answer in preprocessing of its own file."""
        if None in self._loaded:
            self._parts = []
            self.revive()
        return self.call_with_retry("answer", [(work, tuple(sites), list(answers))] * self.size)

    def revive(self) -> None:
        """Wait until all processes run and have read their shards, if there are any."""
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
        raise RuntimeError(
            f"processes of agents ended {_MOST_READS} times while they read their data, the last time {setback}"
        )

    def _greeted(self) -> list[str]:
        """The incarnations of all agents' processes, once they run."""
        ends = time.monotonic() + self.limits.start_timeout
        while True:
            try:
                return self._greet(max(1.0, ends - time.monotonic()))
            except SetbackError as error:
                if time.monotonic() > ends:
                    what = f"the agents' processes did not start within {self.limits.start_timeout:g} s: {error}"
                    raise self._gone(what, error.agent) from error
                time.sleep(_PAUSE_SECONDS)

    def _greet(self, limit: float) -> list[str]:
        try:
            greetings = self._call("greet", range(self.size), None, limit, [None] * self.size)
        except TimeoutError as error:
            raise TimeoutError(
                f"not all of the {self.size} agents' processes started within {self.limits.start_timeout:g} s. Does "
                "the cluster have nodes with the custom resources in `resources`?"
            ) from error
        for i, (_, host, own) in enumerate(greetings):
            difference = first_difference(versions(), own)
            if difference is not None:
                raise ValueError(f"the driver and agent {i} have different versions: {difference}")
            self._hosts[i] = host
        return [name for name, *_ in greetings]

    def connect(self) -> None:
        """Let all agents close their connections and connect to their neighbours."""
        self.attempt += 1
        places = dict(enumerate(self.call("place")))
        self.call("connect", [(places, self.attempt, self.limits.timeout)] * self.size)

    def warn_of_restarts(self) -> None:
        """Warn about agents that restarted since they read their shards."""
        if self.restarts.any():
            which = ", ".join(f"{self.name(i)} {count}" for i, count in enumerate(self.restarts) if count)
            warnings.warn(f"processes of agents restarted, which changes no draw. Restarts: {which}", stacklevel=4)

    @property
    def incarnations(self) -> tuple[str | None, ...]:
        """Identifiers of the agents' processes, which change with every restart."""
        return tuple(self._loaded)

    def _poll_status(self) -> dict[int, Status]:
        """The status of responding agents. Calls the listener with a line per agent."""
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
        """End the processes, and shut down Ray if accord started it and no other pool uses it."""
        for folder in tuple(self._folders):
            self.forget(folder)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._shares_ray:
            self._shares_ray = False
            leave_ray(self._ray)


def _settings_here() -> dict[str, Any]:
    """The present values of the JAX settings that agents copy."""
    settings = {name: getattr(jax.config, name) for name in _SETTINGS}
    # the precision in this context
    return {**settings, "jax_enable_x64": jnp.result_type(float) == jnp.float64}


class SiloTotals:
    """Sums over the agents along their spanning tree, repeated after a crash.

    With `masks` each agent's process masks its numbers. The agents make new keys whenever they connect, and each
    attempt of a sum has its own number, so that a repeated sum has other masks.

    Attributes
    ----------
    keys
        `masks.fingerprint` of the public keys for the newest sum, which this process forwarded to the agents. ""
        without masks.
    """

    def __init__(self, pool: WorkerPool, network: Network, masks: bool = False) -> None:
        self.pool, self.network, self.masks = pool, network, masks
        self.keys = ""
        self.root = network.aggregation.root
        # incarnations and attempt of the present connections, and the number of sums since then
        self._joined: tuple[Any, ...] = ()
        self._count = 0

    def __call__(self, function: Callable[..., PyTree], *arguments: Any, **options: Any) -> PyTree:
        """The sum over all agents."""
        # points may be an object with `__array__` that is smaller to send than the array
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
        """Let the agents connect, unless their connections still exist."""
        if self._joined == (*self.pool.incarnations, self.pool.attempt):
            return
        publics = self.pool.call("meet", [(self.network, self.pool.limits.timeout, self.masks)] * self.pool.size)
        if self.masks:
            self.pool.call("agree", [(publics,)] * self.pool.size)
            self.keys = fingerprint(publics)
        self.pool.connect()
        self._count, self._joined = 0, (*self.pool.incarnations, self.pool.attempt)


# Ray options of an agent, which mostly waits, restarts without limit, and whose lost calls the driver repeats.
_LIFE = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}


class Patience:
    """Times since the last progress of each agent in a call.

    Parameters
    ----------
    seconds
        Seconds without progress after which an agent is late.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._since: dict[int, float] = {}
        self._last: dict[int, Status] = {}
        self._silent: set[int] = set()

    def overdue(self, agents: Sequence[int], answers: Mapping[int, Status]) -> list[int]:
        """The late agents, given the present status of the responding ones.

        An agent that waits for a neighbour is not late, as it has its own timeout. An agent without a response makes
        no progress.
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
        # ending a late process takes a moment
        self._since.update(dict.fromkeys(late, now))
        return late

    def doing(self, agent: int) -> str:
        """An agent's last known activity."""
        if agent in self._silent or agent not in self._last:
            return "no response"
        return self._last[agent].doing
