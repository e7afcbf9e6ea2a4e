"""`Rounds`: runs of a method that walks, with burn-in, thinning and coordinates that whiten the posterior."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from ..base.checks import whole_number
from ..base.errors import AgentLostError
from ..base.interruptions import hold, interruptions
from ..base.memory import require_memory, require_predictors
from ..base.progress import Progress, current
from ..engines.arrays import process_folder
from ..engines.consensus_mode import bind
from ..engines.fingerprint import fingerprint, refuse_another
from ..network import Network
from ..posterior import Posterior
from ..posterior.starts import starting_law
from ..results.findings import TOLERANCE
from ..results.run import Run
from ..samplers import validation
from ..samplers.by_sums.method import BySums
from ..samplers.costs import random_words
from ..samplers.engine import Builder, Engine, engine_name
from ..samplers.protocol import Bound, Monitored, Sampler, Tunable
from ..samplers.session import Job, Session
from ..samplers.validation import check_compatible, check_rows, check_step, is_complete
from ..tuning.forecast import BURN_INS, Forecast
from ..tuning.search import choose, usual_methods
from ..tuning.warmup import Warmup, warm_up
from .checkpointing import Checkpointer
from .chunks import drive
from .recorder import Recorder

# Burn-in where there is no forecast.
_BURN_IN = 500
# Draws recorded per effective draw that the Gaussian forecast predicts, where thinning is left out: skewed posteriors
# mix about three times slower.
_DRAWS_PER_EFFECTIVE = 3


@dataclass(frozen=True, eq=False)
class Rounds:
    """A method that walks from round to round, and what its run needs; `accord.sample` makes it of a bare method.

    Parameters
    ----------
    method
        The method with its numbers, from `accord.samplers`. Numbers that it leaves out are those of a plan
        (`accord.plan`) whose draws cost the fewest exchanges while every agent's means and standard deviations are
        within 0.05 posterior standard deviations. None: the plan chooses the method too. `run.settings["chosen"]` says
        why.
    burn_in, thin
        Draw t is the state after `burn_in + (t + 1) * thin` rounds, t = 0, ..., draws - 1. None takes 500 rounds of
        burn-in and every round after, or, with a plan, the rounds in which it expects the start to be forgotten thrice
        and at most three draws to be worth one.
    init
        Where agents start: None (the posterior's init, or with `whiten` one draw from the posterior's Gaussian
        approximation for all agents of a chain), an array of shape (dim,), (agent, dim) or
        (chain, agent, dim), an `accord.Gaussian` that every agent and chain draws from on its own, or one an agent.
    whiten
        Let the method move in coordinates in which the posterior is about standard normal, which the agents find
        first, over the same network (`accord.tuning.warm_up`); its steps are then in posterior standard deviations.
        Draws are in the user's coordinates all the same. What it took is part of the run's traffic. None does so where
        numbers were left out, which are chosen there.
    checkpoint_every
        Rounds between two checkpoints, at least 1; what a crash can cost. None makes one about every ten seconds, or in
        twenty times what writing one takes.

    Raises
    ------
    ValueError
        A number out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.Rounds(accord.samplers.DESGLD(0.1), burn_in=100, thin=2)
    >>> accord.sample(post, accord.Network.ring(3), method, draws=250).draws.shape
    (4, 250, 3, 1)
    """

    method: Sampler | None = None
    burn_in: int | None = None
    thin: int | None = None
    init: Any = None
    whiten: bool | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.method, BySums):
            raise ValueError(
                f"Rounds is for methods that walk from round to round, and {type(self.method).__name__} has no rounds; "
                "leave Rounds out"
            )
        if not isinstance(self.method, Sampler | None):
            raise TypeError(f"method must be one from accord.samplers, such as DESGLD(0.01), found {self.method!r}")
        for name, least in (("burn_in", 0), ("thin", 1), ("checkpoint_every", 1)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value, least))

    def _methods(self, post: Posterior, network: Network) -> list[Sampler]:
        """The methods to choose from."""
        return usual_methods(post, network) if self.method is None else [self.method]

    def title(self, job: Job) -> str:
        """What progress is shown of, before the method is chosen."""
        return " or ".join(type(method).__name__ for method in self._methods(job.post, job.network))

    @property
    def _whitens(self) -> bool:
        if self.whiten is not None:
            return self.whiten
        return self.method is None or not is_complete(self.method)

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` or `TypeError` where a run cannot be; no data is read."""
        post, network = job.post, job.network
        method = self._methods(post, network)[0]
        check_compatible(post, network, method)
        engine.check(post, method)
        links, states = network.unreliable, engine.states_here(network.num_agents)
        # what is owed to each neighbour, and what it has not got yet
        slots = 0 if links is None else network.max_degree * (1 + links.delay[1])
        words = random_words(method.needs(post.dim), post.dim, states) if method.temperature > 0 else 0
        sizes = {"draws": job.draws, "chains": job.chains, "positions": 1 + job.keep.size, "dim": post.dim}
        require_memory(**sizes, states=states, slots=slots, words=words)
        # whether it fits is known before anything long starts
        _start_positions(self.init, post, job.chains, job.seed)

    def run(self, session: Session) -> Run:
        """The run of a session."""
        post, network, engine = session.job.post, session.job.network, session.engine
        assert engine is not None
        methods, job = self._methods(post, network), session.job
        common = self._fingerprint(job, engine, methods[0])
        check_rows(post, methods[0])
        if session.checkpoint is not None:
            refuse_another(process_folder(session.checkpoint), common)
        if post.splits and not post.quadratic and methods[0].needs(post.dim).batch_size is None:
            states = engine.states_here(network.num_agents)
            require_predictors(rows=int(post.sizes.max()), agents=states, chains=job.chains)
        warmup = warm_up(post, network, builder=engine) if self._whitens else None
        if warmup is not None:
            post = post.transformed(warmup.coordinates)
        session.stage("choosing numbers")
        chosen, forecast, why = _chosen(methods, post, network, warmup)
        start = _start_positions(self.init, post, job.chains, job.seed)
        bound = bind(post, network, chosen, engine)
        check_step(post, network, bound.sampler)
        burn_in, thin = _lengths(self.burn_in, self.thin, forecast, bound)
        line = current() or Progress("", False)
        line.title = type(bound.sampler).__name__
        session.stage("compiling")
        running = engine.build(
            post, network, bound, chains=job.chains, seed=job.seed, keep=job.keep, fingerprint=common
        )
        recorder = Recorder(
            post,
            network,
            bound,
            job.keep,
            job.chains,
            job.draws,
            burn_in,
            thin,
            job.seed,
            warmup,
            why,
            forecast,
        )
        checkpointer = None
        if session.checkpoint is not None:
            checkpointer = Checkpointer(running, recorder, session.checkpoint, self.checkpoint_every, common)
        with closing(running):
            _run(running, start, recorder, checkpointer, line)
        session.stage("looking at the draws")
        recorder.measure()
        recorder.keep_latents()
        return recorder.run()

    def _fingerprint(self, job: Job, engine: Builder, first: Sampler) -> dict[str, str]:
        """What all processes of the run have in common, and what a resumed run must share with the run before it."""
        return fingerprint(
            job.post,
            job.network,
            first,
            named=self.method is not None,
            engine=engine_name(engine),
            seed=job.seed,
            chains=job.chains,
            burn_in=self.burn_in,
            thin=self.thin,
            draws=job.draws,
            checkpoint_every=self.checkpoint_every,
            keep=job.keep,
            init=self.init,
            whiten=self._whitens,
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
