"""sample(): chunks of rounds on an engine, watched, thinned and kept -> Run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .checks import whole_number
from .engines.engine import Builder, Engine
from .engines.local import LocalEngine
from .engines.mesh import MeshEngine
from .errors import DivergenceError, unknown_name_error
from .fingerprint import fingerprint
from .initial import starting_law
from .network import Network
from .posterior import Posterior
from .progress import ProgressBar
from .run import Run, Traffic
from .sampler import Prepared, Sampler
from .schedules import at

ENGINES: dict[str, Builder] = {"local": LocalEngine, "mesh": MeshEngine}

# Seconds of one chunk of rounds: how often progress is shown and Ctrl-C is heard.
_CHUNK_SECONDS = 0.5
# The stability bound needs the extreme eigenvalue of an (agent * dim) matrix; above this size a run that diverges is
# stopped when it does.
_BOUND_SIZE = 20_000
_DENSE_BOUND_SIZE = 2_000


def sample(
    post: Posterior,
    net: Network,
    sampler: Sampler,
    *,
    draws: int = 1000,
    burn_in: int = 500,
    thin: int = 1,
    chains: int = 4,
    seed: int = 0,
    init: Any = None,
    engine: str | Builder = "local",
    keep: str | Sequence[int] = "agents",
    progress: bool | None = None,
) -> Run:
    """Draw from a posterior whose data stays with the agents of a network.

    Parameters
    ----------
    post
        The posterior, one shard an agent.
    net
        Who talks to whom; as many agents as shards.
    sampler
        The method with its numbers, from `accord.samplers`.
    draws, burn_in, thin
        Draw t is the state after `burn_in + (t + 1) * thin` rounds, t = 0, ..., draws - 1.
    chains
        Independent chains.
    seed
        From 0 to 2**64 - 1. Draws depend on it and on nothing else: not on the engine, the number of draws or `keep`.
    init
        Where agents start: None (the posterior's init), an array of shape (dim,), (agent, dim) or
        (chain, agent, dim), an `accord.Gaussian` that every agent and chain draws from on its own, or one an agent.
    engine
        "local": all agents on one device; "mesh": spread over all devices that JAX sees; or a builder of engines, see
        `accord.engines.engine`.
    keep
        "agents": the draws of every agent; "average": none, only the average; or a sequence of agent numbers. Memory
        depends on what is kept only. The average is always kept.
    progress
        Show a progress bar; None shows it on a terminal.

    Returns
    -------
    Run
        Interrupted by Ctrl-C, it holds what was drawn until then.

    Raises
    ------
    ValueError
        Something does not fit: numbers out of range, a disconnected network, a step above the stability bound of a
        Gaussian posterior (the bound is printed), ...
    DivergenceError
        A chain became non-finite; its `run` holds what was drawn before.
    """
    draws, burn_in = whole_number("draws", draws, 1), whole_number("burn_in", burn_in, 0)
    thin, chains = whole_number("thin", thin, 1), whole_number("chains", chains, 1)
    builder = _builder(engine)
    check_fit(post, net, sampler)
    given, sampler = sampler, sampler.resolved(post, net)
    check_step(post, net, sampler)
    if burn_in < sampler.least_burn_in():
        raise ValueError(
            f"burn_in must be at least {sampler.least_burn_in()}, the rounds in which {type(sampler).__name__} adapts "
            f"and whose states are not draws; found {burn_in}"
        )
    kept = _kept_agents(keep, net.num_agents)
    means, factors = _start_positions(init, post, chains)
    numbers = {"seed": seed, "chains": chains, "burn_in": burn_in, "thin": thin, "draws": draws}
    settings = {"engine": _engine_name(engine), **numbers, "keep": kept, "init": init}
    common = fingerprint(post, net, given, **settings)
    machine = builder.build(post, net, sampler, chains=chains, seed=seed, keep=kept, fingerprint=common)
    tape = _Tape(post, net, sampler, machine.prepared, kept, chains, draws, burn_in, thin, seed)
    with closing(machine), ProgressBar(type(sampler).__name__, burn_in + draws * thin, progress) as bar:
        try:
            _drive(machine, machine.start(means, factors), tape, bar)
        except KeyboardInterrupt:
            if tape.count == 0:
                raise
            warnings.warn(f"interrupted: the run keeps the {tape.count} of {draws} draws made so far", stacklevel=2)
    run = tape.run()
    complaint = sampler.complaint(run.statistics)
    if complaint:
        warnings.warn(complaint, stacklevel=2)
    return run


def _builder(engine: str | Builder) -> Builder:
    if not isinstance(engine, str):
        if not callable(getattr(engine, "build", None)):
            raise TypeError(f"engine must be a name or have a method `build`, found {engine!r}")
        return engine
    if engine not in ENGINES:
        raise unknown_name_error("engine", engine, ENGINES)
    return ENGINES[engine]


def _engine_name(engine: str | Builder) -> str:
    return engine if isinstance(engine, str) else type(engine).__name__.lower()


def check_fit(post: Posterior, net: Network, sampler: Sampler) -> None:
    """Raise one clear `ValueError` where posterior, network and method do not fit one another."""
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler must be a method from accord.samplers, such as DESGLD(0.01), found {sampler!r}")
    if net.num_agents != post.num_agents:
        raise ValueError(f"the network has {net.num_agents} agents but the posterior has {post.num_agents} shards")
    sampler.check_network(net)
    rows = sampler.rows_per_gradient()
    if rows is not None and not post.splits:
        raise ValueError("batch_size needs a log_likelihood that returns one number a row; this one returns a scalar")
    if rows is not None and rows > post.sizes.min():
        agent = int(post.sizes.argmin())
        raise ValueError(
            f"batch_size must be at most the smallest shard, {post.sizes[agent]} rows of agent {agent}; found {rows}"
        )


def check_step(post: Posterior, net: Network, sampler: Sampler) -> None:
    """Raise `ValueError` where the step is known to be unstable: constant steps on Gaussian posteriors."""
    if not post.quadratic or not sampler.is_constant() or not _bound_is_cheap(post, sampler):
        return
    bound, step = sampler.max_step(net, post.hessians()), getattr(sampler, "step_size", None)
    if bound is not None and step is not None and not step < bound:
        raise ValueError(
            f"step_size {step:.6g} is not below {bound:.6g}, the stability bound of {type(sampler).__name__} "
            "on this posterior and network"
        )


def _bound_is_cheap(post: Posterior, sampler: Sampler) -> bool:
    # several exchanges fill the matrix that the bound factors
    limit = _BOUND_SIZE if sampler.exchanges_per_round() == 1 else _DENSE_BOUND_SIZE
    return post.num_agents * post.dim <= limit


def _kept_agents(keep: str | Sequence[int], num_agents: int) -> np.ndarray:
    if isinstance(keep, str):
        choices = {"agents": np.arange(num_agents), "average": np.array([], dtype=np.int64)}
        if keep not in choices:
            raise unknown_name_error("keep", keep, choices)
        return choices[keep]
    kept = np.asarray(keep)
    if kept.ndim != 1 or kept.size == 0 or kept.dtype.kind not in "iu":
        raise ValueError(f'keep must be "agents", "average" or a list of agent numbers, found {keep!r}')
    if kept.min() < 0 or kept.max() >= num_agents or np.unique(kept).size != kept.size:
        raise ValueError(f"keep must hold different agent numbers from 0 to {num_agents - 1}, found {keep!r}")
    return kept


def _start_positions(init: Any, post: Posterior, chains: int) -> tuple[np.ndarray, np.ndarray | None]:
    if init is not None and np.ndim(init) == 3:
        point = np.asarray(init, dtype=np.float64)
        expected = (chains, post.num_agents, post.dim)
        if point.shape != expected or not np.isfinite(point).all():
            raise ValueError(f"init of shape (chain, agent, dim) must be {expected} and finite, found {point.shape}")
        return np.moveaxis(point, 0, -1), None
    return starting_law(init, post)


@dataclass
class _Tape:
    """What has been recorded so far."""

    post: Posterior
    net: Network
    sampler: Sampler
    prepared: Prepared
    kept: np.ndarray
    chains: int
    draws: int
    burn_in: int
    thin: int
    seed: int
    count: int = 0
    rounds: int = 0
    message_bytes: int = 0
    began: float = field(default_factory=time.perf_counter)
    agents: np.ndarray | None = None
    average: np.ndarray | None = None
    statistics: dict[str, np.ndarray] = field(default_factory=dict)

    def append(self, records: Any, count: int) -> None:
        """Take the first `count` draws of an engine's records."""
        if self.average is None or self.agents is None:
            dtype, dim = records.average.dtype, self.post.dim
            self.average = np.empty((self.chains, self.draws, dim), dtype)
            self.agents = np.empty((self.chains, self.draws, self.kept.size, dim), dtype)
            self.statistics = {n: np.empty((self.chains, self.draws), v.dtype) for n, v in records.statistics.items()}
        span = slice(self.count, self.count + count)
        # engines record (draw, agent, dim, chain)
        self.average[:, span] = np.moveaxis(records.average[:count], -1, 0)
        self.agents[:, span] = np.moveaxis(records.draws[:count], -1, 0)
        for name, values in records.statistics.items():
            self.statistics[name][:, span] = values[:count].T
        self.count += count

    def run(self) -> Run:
        """The run so far."""
        assert self.average is not None and self.agents is not None
        watched = {name: values[:, : self.count] for name, values in self.statistics.items()}
        rounds = self.burn_in + (np.arange(self.count) + 1) * self.thin
        statistics = self.sampler.report(watched, rounds)
        return Run(
            average=self.average[:, : self.count],
            agents=self.kept,
            kept=self.agents[:, : self.count],
            statistics=statistics,
            names=self.post.names,
            variables=self.post.variables,
            traffic=self._traffic(watched),
            seconds=time.perf_counter() - self.began,
            settings={
                "method": repr(self.sampler),
                "network": repr(self.net),
                "burn_in": self.burn_in,
                "thin": self.thin,
                "seed": self.seed,
            },
        )

    def _traffic(self, watched: dict[str, np.ndarray]) -> Traffic:
        def count(name: str, otherwise: Any) -> Any:
            return watched[name][:, -1].mean(dtype=np.float64) if name in watched else otherwise

        exchanges, messages = self.sampler.traffic_per_round(self.net)
        times = count("asks", self.rounds)
        gradients = count("gradients", self.rounds * self.sampler.gradients_per_round())
        rows = self.sampler.rows_per_gradient()
        read = self.post.sizes if rows is None else np.full_like(self.post.sizes, rows)
        return Traffic(
            rounds=self.rounds,
            exchanges=round(times * exchanges) + self.prepared.exchanges,
            bytes_sent=np.round(times * messages * self.message_bytes + self.prepared.bytes_sent).astype(np.int64),
            gradient_rows=np.round(gradients * read),
        )


def _drive(machine: Engine, carry: Any, tape: _Tape, bar: ProgressBar) -> None:
    """Run burn-in and draws in chunks of about equal time, recording to the tape."""
    tape.message_bytes = machine.message_bytes(carry)
    _require_finite(machine, carry, carry, 0, tape)
    chunk = _Chunk(machine)
    while tape.rounds < tape.burn_in:
        rounds = chunk.size(tape.burn_in - tape.rounds)
        before, carry = carry, chunk.timed(partial(machine.advance, carry, rounds), rounds)
        _require_finite(machine, before, carry, rounds, tape)
        tape.rounds += rounds
        bar.update(tape.rounds, None)
    while tape.count < tape.draws:
        count = min(chunk.size((tape.draws - tape.count) * tape.thin, tape.thin) // tape.thin, machine.capacity)
        before = carry
        carry, records = chunk.timed(partial(machine.record, carry, count, tape.thin), count * tape.thin, tape.thin)
        _require_finite(machine, before, carry, count * tape.thin, tape, records)
        tape.append(records, count)
        tape.rounds += count * tape.thin
        bar.update(tape.rounds, float(records.statistics["consensus_error"][-1].mean()))


class _Chunk:
    """How many rounds to run between two looks at the clock."""

    def __init__(self, machine: Engine) -> None:
        self.machine, self.rounds = machine, 32

    def size(self, left: int, least: int = 1) -> int:
        return min(max(self.rounds, least), left)

    def timed(self, work: Callable[[], Any], rounds: int, grain: int = 1) -> Any:
        import jax

        start = time.perf_counter()
        result = jax.block_until_ready(work())
        elapsed = self.machine.agreed(time.perf_counter() - start)
        if elapsed < _CHUNK_SECONDS / 2 and rounds + grain > self.rounds:
            self.rounds *= 2
        elif elapsed > 2 * _CHUNK_SECONDS:
            self.rounds = max(1, self.rounds // 2)
        return result


def _require_finite(machine: Engine, before: Any, after: Any, rounds: int, tape: _Tape, records: Any = None) -> None:
    """Stop at the first round of a chunk whose positions are not finite, keeping the draws before it."""
    trouble = machine.trouble(before, after, rounds)
    if trouble is None:
        return
    if rounds == 0:
        raise ValueError("init is too large for the float width of the run: it became infinite")
    agent, bad = trouble
    if records is not None:
        tape.append(records, (bad - 1) // tape.thin)
    last = tape.rounds + bad - 1
    tape.rounds += bad
    why = tape.sampler.failure(tape.prepared, agent)
    kept = f"; {tape.count} draws before it are in this error's `run`" if tape.count else ""
    what = (
        f"agent {agent} stopped in round {last}: {why}" if why else f"agent {agent} became non-finite in round {last}"
    )
    message = what + ("" if why else _remedy(tape, last)) + kept
    raise DivergenceError(message, agent=agent, round=last, run=tape.run() if tape.count else None)


def _remedy(tape: _Tape, last: int) -> str:
    """What to say of a diverged run: the step's bound where one is known."""
    sampler, step = tape.sampler, getattr(tape.sampler, "step_size", None)
    bound = None
    if _bound_is_cheap(tape.post, sampler):
        try:
            bound = sampler.max_step(tape.net, tape.post.hessians())
        except (ArithmeticError, ValueError):
            # a bound is a help, not worth losing the draws over
            bound = None
    if bound is None or step is None or not np.isfinite(bound):
        return ""
    return (
        f"; {type(sampler).__name__} is stable for step_size below {bound:.6g}, by the curvature at the posterior's "
        f"init, and it was {float(at(step, last)):.6g} in that round"
    )
