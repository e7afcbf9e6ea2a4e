"""`accord.sample`: checks and binds what is given, runs it on an engine, and returns the `Run`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from ..base.checks import whole_number
from ..base.errors import AgentLostError, unknown_name_error
from ..base.interruptions import hold, interruptions, terminations
from ..base.memory import require_memory, require_points, require_predictors
from ..base.progress import Progress, stage
from ..engines.agreement import bind
from ..engines.arrays import process_folder
from ..engines.engine import Builder, Engine
from ..engines.local import LocalEngine
from ..engines.mesh.engine import MeshEngine
from ..engines.noise import seed_words
from ..engines.silo.engine import Silo
from ..fitting.network_sums import require_hessians
from ..network import Network
from ..posterior import Posterior
from ..posterior.starts import starting_law
from ..results.findings import TOLERANCE
from ..results.run import Run
from ..samplers import ChEES, Importance, validation
from ..samplers.by_totals import ByTotals
from ..samplers.costs import random_words
from ..samplers.protocol import Bound, Monitored, Sampler, Tunable
from ..samplers.validation import check_by_sums, check_compatible, check_rows, check_step, is_complete
from ..storage.fingerprint import fingerprint
from ..storage.lock import held
from ..tuning.forecast import BURN_INS, Forecast
from ..tuning.search import choose, usual_methods
from ..tuning.warmup import Warmup, warm_up
from .by_totals import DOUBLES, sample_by_totals
from .checkpointing import Checkpointer
from .chunks import drive
from .departures import go_on_without
from .latents import agents_here, prepare_latents
from .questions import Questions
from .recorder import Recorder

# What makes the builder of a run: a Silo holds that run's processes, so that every run has one of its own.
ENGINES: dict[str, Callable[[], Builder]] = {"local": lambda: LocalEngine, "mesh": lambda: MeshEngine, "silo": Silo}

# Burn-in where there is no forecast.
_BURN_IN = 500
# Draws recorded per effective draw that the Gaussian forecast predicts, where thinning is left out: skewed posteriors
# mix about three times slower.
_DRAWS_PER_EFFECTIVE = 3


def sample(
    post: Posterior,
    network: Network,
    sampler: Sampler | ByTotals | None = None,
    *,
    draws: int = 1000,
    burn_in: int | None = None,
    thin: int | None = None,
    chains: int = 4,
    seed: int = 0,
    init: Any = None,
    engine: str | Builder = "local",
    keep: str | Sequence[int] = "agents",
    whiten: bool | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    masks: bool = False,
    consensus: float | None = None,
) -> Run:
    """Draw from a posterior whose data stays with the agents of a network.

    Parameters
    ----------
    post
        The posterior, one shard an agent.
    network
        Who talks to whom; as many agents as shards.
    sampler
        The method with its numbers, from `accord.samplers`. None takes `Importance()`, and where that is not certified
        `ChEES()`; where `burn_in`, `thin`, `init` or `whiten` is given, one of the methods that walk. Numbers that such
        a method leaves out are those of a plan (`accord.plan`) whose draws cost the fewest exchanges while every
        agent's means and standard deviations are within 0.05 posterior standard deviations. `run.settings["chosen"]`
        says why.
    draws, burn_in, thin
        Draw t is the state after `burn_in + (t + 1) * thin` rounds, t = 0, ..., draws - 1. None takes 500 rounds of
        burn-in and every round after, or, with a plan, the rounds in which it expects the start to be forgotten thrice
        and at most three draws to be worth one.
    chains
        Independent chains.
    seed
        From 0 to 2**64 - 1. Draws depend on it and on nothing else: not on the engine, the number of draws or `keep`.
    init
        Where agents start: None (the posterior's init, or with `whiten` one draw from the posterior's Gaussian
        approximation for all agents of a chain), an array of shape (dim,), (agent, dim) or
        (chain, agent, dim), an `accord.Gaussian` that every agent and chain draws from on its own, or one an agent.
    engine
        "local": all agents on one device; "mesh": spread over all devices that JAX sees; or a builder of engines, see
        `accord.engines.engine`.
    keep
        "agents": the draws of every agent; "average": none, only the average; or a sequence of agent numbers. Memory
        depends on what is kept only. The average is always kept.
    whiten
        Let the method move in coordinates in which the posterior is about standard normal, which the agents find
        first, over the same network (`accord.warmup.warm_up`); its steps are then in posterior standard deviations.
        Draws are in the user's coordinates all the same. What it took is part of the run's traffic. None does so where
        numbers were left out, which are chosen there.
    progress
        Show what is being done, on standard error: a line that moves on a terminal or changes in a notebook, and a line
        every ten seconds elsewhere. False shows nothing; nor does None where the environment has ACCORD_PROGRESS=off.
    checkpoint
        A folder that the run is kept in while it runs. The same call takes a run up where it was lost, and ends with
        the draws that it would have had undisturbed, bit by bit; of a finished run it returns the draws, and with more
        `draws` it goes on from there (methods without rounds do not). The folder knows a run by everything given here,
        and keeps digests of the rows and functions; methods without rounds make two of their sums again instead. One
        run at a time uses a folder; several processes may each have their own disk.
    checkpoint_every
        Rounds between two checkpoints, at least 1; what a crash can cost. None makes one about every ten seconds, or in
        twenty times what writing one takes. Methods without rounds keep their sums.
    masks
        Mask all sums pairwise, so that nobody hears an agent's own numbers, neither hub nor relay; for methods that
        ask for nothing but sums, and at least 3 agents. See docs/masks.md for what that hides, and what not.
    consensus
        Make all sums by gossip instead of over a tree: agents average with their neighbours, Chebyshev-accelerated,
        until each has the sum to this precision, as 1e-10, of num_agents times the largest number in it. For methods
        that ask for nothing but sums, on the local engine; draws are those of the first agent.

    Returns
    -------
    Run
        Interrupted by Ctrl-C or SIGTERM, it holds what was drawn until then, and says so in
        `run.settings["interrupted"]`.

    Raises
    ------
    ValueError
        Something does not fit: numbers out of range, a disconnected network, a step above the stability bound of a
        Gaussian posterior (the bound is printed), draws that this machine's memory cannot hold, a checkpoint folder
        that belongs to another run or is in use, ...
    ArithmeticError
        `whiten` found no mode.
    DivergenceError
        A chain became non-finite; its `run` holds what was drawn before.
    RuntimeError
        This process was forked from one that had used JAX.
    """
    arguments = dict(locals())
    draws, chains = whole_number("draws", draws, 1), whole_number("chains", chains, 1)
    burn_in, thin, checkpoint_every = (
        None if value is None else whole_number(name, value, least)
        for name, value, least in (
            ("burn_in", burn_in, 0),
            ("thin", thin, 1),
            ("checkpoint_every", checkpoint_every, 1),
        )
    )
    seed_words(seed)
    kept = _kept_agents(keep, network.num_agents)
    post.require_unchanged()
    try:
        builder = _builder(engine)
        walks = {"burn_in": burn_in, "thin": thin, "init": init, "whiten": whiten}
        if isinstance(sampler, ByTotals):
            _refuse_rounds(sampler, walks)
            check_by_sums(type(sampler).__name__, network)
        nothing_given = (
            sampler is None and network.unreliable is None and all(value is None for value in walks.values())
        )
        if isinstance(sampler, ByTotals) or nothing_given:
            by_totals: list[ByTotals] = [sampler] if isinstance(sampler, ByTotals) else [Importance(), ChEES()]
            # where parameters are too many, fewer draws do not help
            require_hessians(post.dim, builder.states_here(post.num_agents))
            # all agents have the same draws, which are there once
            doubles = min(DOUBLES[type(method)](post.dim) for method in by_totals)
            require_points(draws=draws, chains=chains, dim=post.dim, doubles=doubles)
            title = " or ".join(type(method).__name__ for method in by_totals)
            with terminations(), _held(checkpoint), Progress(title, progress):
                stage("reading the data")
                return sample_by_totals(
                    post,
                    network,
                    by_totals,
                    draws=draws,
                    chains=chains,
                    seed=seed,
                    builder=builder,
                    engine=_engine_name(engine),
                    keep=kept,
                    checkpoint=checkpoint,
                    masks=masks,
                    consensus=consensus,
                )
        if masks or consensus is not None:
            given = "masks=True masks totals" if masks else "consensus makes totals by gossip"
            raise ValueError(f"{given}: it needs a method that asks for nothing else, such as Importance()")
        methods = usual_methods(post, network) if sampler is None else [sampler]
        check_compatible(post, network, methods[0])
        builder.check(post, methods[0])
        whiten = not is_complete(methods[0]) if whiten is None else whiten
        links, states = network.unreliable, builder.states_here(network.num_agents)
        # what is owed to each neighbour, and what it has not got yet
        slots = 0 if links is None else network.max_degree * (1 + links.delay[1])
        needs = methods[0].needs(post.dim)
        words = random_words(needs, post.dim, states) if methods[0].temperature > 0 else 0
        held = {"states": states, "slots": slots, "words": words}
        require_memory(draws=draws, chains=chains, positions=1 + kept.size, dim=post.dim, **held)
        _start_positions(init, post, chains, seed)  # whether it fits is known before anything long starts
        counts = {
            "chains": chains,
            "burn_in": burn_in,
            "thin": thin,
            "draws": draws,
            "checkpoint_every": checkpoint_every,
        }
        settings = {
            "engine": _engine_name(engine),
            "seed": seed,
            **counts,
            "keep": kept,
            "init": init,
            "whiten": whiten,
        }
        common = fingerprint(post, network, methods[0], named=sampler is not None, **settings)
        line = Progress(" or ".join(type(method).__name__ for method in methods), progress)
        with terminations(), _held(checkpoint), line, _reading(builder.placed(post)) as placed:
            check_rows(placed, methods[0])
            if placed.splits and not placed.quadratic and needs.batch_size is None:
                require_predictors(rows=int(placed.sizes.max()), agents=states, chains=chains)
            prepare_latents(placed, kept)
            warmup = warm_up(placed, network, builder=builder) if whiten else None
            if warmup is not None:
                placed = placed.transformed(warmup.coordinates)
            stage("choosing numbers")
            chosen, forecast, why = _chosen(methods, placed, network, warmup)
            means, factors = _start_positions(init, placed, chains, seed)
            bound = bind(placed, network, chosen, builder)
            check_step(placed, network, bound.sampler)
            burn_in, thin = _lengths(burn_in, thin, forecast, bound)
            line.title = type(bound.sampler).__name__
            stage("compiling")
            running = builder.build(placed, network, bound, chains=chains, seed=seed, keep=kept, fingerprint=common)
            lengths = (chains, draws, burn_in, thin)
            questions = Questions(post, network, builder, here=agents_here(placed))
            recorder = Recorder(placed, network, bound, kept, *lengths, seed, warmup, why, forecast, questions)
            checkpointer = None
            if checkpoint is not None:
                checkpointer = Checkpointer(running, recorder, Path(checkpoint), checkpoint_every, common)
            with closing(running):
                _run(running, (means, factors), recorder, checkpointer, line)
            stage("looking at the draws")
            recorder.measure()
            recorder.keep_latents()
            return recorder.run()
    except AgentLostError as lost:
        return go_on_without(lost, sample, arguments)


def _refuse_rounds(sampler: ByTotals, given: dict[str, Any]) -> None:
    """Raise `ValueError` where something is given that only methods that walk have."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is for methods that walk from round to round, and {type(sampler).__name__} has no rounds; "
                f"leave it out (found {value!r})"
            )


def _chosen(
    methods: list[Sampler], placed: Posterior, network: Network, warmup: Warmup | None
) -> tuple[Sampler, Forecast | None, str]:
    """The method to run, what is expected of it where that was asked, and why it is chosen."""
    if warmup is None or is_complete(methods[0]):
        return methods[0], None, ""
    first = methods[0]
    if isinstance(first, Tunable):
        # numbers that were given and fit no setting are an error of the caller's, and not of the search
        validation.bind(placed, network, next(first.candidates(network, warmup.stiffness)))
    trial, why = choose(methods, placed, network, warmup)
    assert isinstance(trial.forecast, Forecast) and isinstance(trial.sampler, Sampler)
    if not trial.forecast.meets(TOLERANCE):
        warnings.warn(why, stacklevel=3)
    return trial.sampler, trial.forecast, why


def _lengths(burn_in: int | None, thin: int | None, forecast: Forecast | None, bound: Bound) -> tuple[int, int]:
    """Rounds of burn-in and from draw to draw, by the forecast where they are left out."""
    if burn_in is None:
        burn_in = max(bound.adapting, _BURN_IN if forecast is None else BURN_INS * forecast.burn_in)
    if burn_in < bound.adapting:
        raise ValueError(
            f"burn_in must be at least {bound.adapting}, the rounds in which {type(bound.sampler).__name__} "
            f"adapts and whose states are not draws; found {burn_in}"
        )
    if thin is None:
        thin = 1 if forecast is None else ceil(forecast.rounds / _DRAWS_PER_EFFECTIVE)
    return burn_in, thin


def _run(
    engine: Engine,
    start: tuple[np.ndarray, np.ndarray | None],
    recorder: Recorder,
    checkpointer: Checkpointer | None,
    line: Progress,
) -> None:
    """Run to the end, or to Ctrl-C once there is a draw; what went wrong is said."""
    sampler = recorder.bound.sampler
    with interruptions() as stopped, _told_before(recorder):
        engine.listen(line.news)
        try:
            drive(engine, engine.start(*start), recorder, checkpointer, line, stopped)
        except KeyboardInterrupt:
            if recorder.count == 0:
                raise
            recorder.is_interrupted = True
            drawn = f"the {recorder.count} of {recorder.draws} draws made so far"
            warnings.warn(f"interrupted: the run keeps {drawn}", stacklevel=3)
        # of what was drawn nothing is lost any more
        hold()
    if isinstance(sampler, Monitored):
        warning = sampler.warning(recorder.summarised())
        if warning:
            warnings.warn(warning, stacklevel=3)


@contextmanager
def _told_before(recorder: Recorder) -> Iterator[None]:
    """Where an agent is lost, keep what was drawn before."""
    try:
        yield
    except AgentLostError as lost:
        lost.run = recorder.run() if recorder.count else None
        raise


@contextmanager
def _reading(placed: AbstractContextManager[Posterior]) -> Iterator[Posterior]:
    """A posterior that is being placed where its data lies."""
    stage("reading the data")
    with placed as post:
        yield post


def _held(checkpoint: str | Path | None) -> AbstractContextManager[None]:
    """The checkpoint folder of this process, if there is one, for this run alone."""
    return nullcontext() if checkpoint is None else held(process_folder(Path(checkpoint)))


def _builder(engine: str | Builder) -> Builder:
    if not isinstance(engine, str):
        if not callable(getattr(engine, "build", None)):
            raise TypeError(f"engine must be a name or have a method `build`, found {engine!r}")
        return engine
    if engine not in ENGINES:
        raise unknown_name_error("engine", engine, ENGINES)
    return ENGINES[engine]()


def _engine_name(engine: str | Builder) -> str:
    if isinstance(engine, str):
        return engine
    return (engine if isinstance(engine, type) else type(engine)).__name__.lower()


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


def _start_positions(init: Any, post: Posterior, chains: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    place = post.coordinates
    if init is None and place is not None:
        # the same for all agents of a chain: the average of different draws would start too close to the mode
        z = np.random.default_rng(seed).standard_normal((post.dim, chains))
        return np.broadcast_to(z, (post.num_agents, *z.shape)), None
    if init is not None and np.ndim(init) == 3:
        point = np.asarray(init, dtype=np.float64)
        expected = (chains, post.num_agents, post.dim)
        if point.shape != expected or not np.isfinite(point).all():
            raise ValueError(f"init of shape (chain, agent, dim) must be {expected} and finite, found {point.shape}")
        return np.moveaxis(point if place is None else place.inverse(point), 0, -1), None
    return starting_law(init, post)
