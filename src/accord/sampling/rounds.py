"""`Rounds`: run a round-based method, with burn-in, thinning, starts and whitened coordinates."""

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

# Rounds of burn-in without a forecast.
_BURN_IN = 500
# Draws per predicted effective draw, if `thin` is None: skewed posteriors mix about three times slower than forecast.
_DRAWS_PER_EFFECTIVE = 3


@dataclass(frozen=True, eq=False)
class Rounds:
    """A round-based method with the options of its run. `accord.sample` wraps a bare method in it.

    Parameters
    ----------
    method
        The method, from `accord.samplers`. Numbers that are None are chosen by a plan (`accord.plan`): the fewest
        exchanges per draw with every agent's means and standard deviations within 0.05 posterior standard deviations.
        None: the plan also chooses the method. `run.settings["chosen"]` has the reason.
    burn_in, thin
        Draw t is the state after `burn_in + (t + 1) * thin` rounds, t = 0, ..., draws - 1. None: 500 and 1. With a
        plan: three times the forecast mixing time as burn-in, and at most three draws per effective draw.
    init
        Start of the agents: an array of shape (dim,), (agent, dim) or (chain, agent, dim), an `accord.Gaussian` from
        which every agent and chain draws independently, or one Gaussian per agent. None: the posterior's init, or with
        `whiten` one draw per chain from the posterior's Gaussian approximation, the same for all agents.
    whiten
        Run in coordinates in which the posterior is about standard normal, found by a warm-up over the network
        (`accord.tuning.warm_up`). Step sizes are then in posterior standard deviations. Draws are in the user's
        coordinates, and the run's traffic includes the warm-up. None: True if accord chooses numbers of the method.
    checkpoint_every
        Rounds between two checkpoints, >= 1. None: at least ten seconds and twenty times the writing time apart.

    Raises
    ------
    ValueError
        A number is out of its range.

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
                f"Rounds is for round-based methods, and {type(self.method).__name__} has no rounds: pass the method "
                "without Rounds"
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
        """Title of the progress line before the method is chosen."""
        return " or ".join(type(method).__name__ for method in self._methods(job.post, job.network))

    @property
    def _whitens(self) -> bool:
        if self.whiten is not None:
            return self.whiten
        return self.method is None or not is_complete(self.method)

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` or `TypeError` if the run is impossible, without reading data."""
        post, network = job.post, job.network
        method = self._methods(post, network)[0]
        check_compatible(post, network, method)
        engine.check(post, method)
        links, states = network.unreliable, engine.states_here(network.num_agents)
        # per neighbour: the running sum, and the messages in transit
        slots = 0 if links is None else network.max_degree * (1 + links.delay[1])
        words = random_words(method.needs(post.dim), post.dim, states) if method.temperature > 0 else 0
        sizes = {"draws": job.draws, "chains": job.chains, "positions": 1 + job.keep.size, "dim": post.dim}
        require_memory(**sizes, states=states, slots=slots, words=words)
        # raises for a wrong init
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
        session.stage("choosing the method's numbers")
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
        session.stage("checking the draws")
        recorder.measure()
        recorder.keep_latents()
        return recorder.run()

    def _fingerprint(self, job: Job, engine: Builder, first: Sampler) -> dict[str, str]:
        """Fingerprint that all processes of a run share, and that a resumed run must match."""
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
    """The method to run, its forecast, and the reason for the choice. No forecast if the user gave all numbers."""
    if warmup is None or is_complete(methods[0]):
        return methods[0], None, ""
    first = methods[0]
    if isinstance(first, Tunable):
        # raises for numbers of the user that fit no setting
        validation.bind(placed, network, next(first.candidates(network, warmup.stiffness)))
    trial, why = choose(methods, placed, network, warmup)
    assert isinstance(trial.forecast, Forecast) and isinstance(trial.sampler, Sampler)
    if not trial.forecast.meets(TOLERANCE):
        warnings.warn(why, stacklevel=3)
    return trial.sampler, trial.forecast, why


def _lengths(burn_in: int | None, thin: int | None, forecast: Forecast | None, bound: Bound) -> tuple[int, int]:
    """Burn-in and thinning, by the forecast if they are None."""
    if burn_in is None:
        burn_in = max(bound.adapting, _BURN_IN if forecast is None else BURN_INS * forecast.burn_in)
    if burn_in < bound.adapting:
        raise ValueError(
            f"burn_in must be at least {bound.adapting}, the rounds in which {type(bound.sampler).__name__} adapts, "
            f"found {burn_in}"
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
    """Run to the end, or until Ctrl-C after the first draw. Warns of an interruption and of the method's warning."""
    sampler = recorder.bound.sampler
    with interruptions() as stopped, _draws_kept(recorder):
        engine.listen(line.news)
        try:
            drive(engine, engine.start(*start), recorder, checkpointer, line, stopped)
        except KeyboardInterrupt:
            if recorder.count == 0:
                raise
            recorder.is_interrupted = True
            drawn = f"the {recorder.count} of {recorder.draws} draws made so far"
            warnings.warn(f"interrupted: the run keeps {drawn}", stacklevel=3)
        # from here on interruptions wait for the end of the run, so that no draws are lost
        hold()
    if isinstance(sampler, Monitored):
        warning = sampler.warning(recorder.summarised())
        if warning:
            warnings.warn(warning, stacklevel=3)


@contextmanager
def _draws_kept(recorder: Recorder) -> Iterator[None]:
    """Attach the draws so far to an `AgentLostError`."""
    try:
        yield
    except AgentLostError as lost:
        lost.run = recorder.run() if recorder.count else None
        raise


def _start_positions(init: Any, post: Posterior, chains: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    place = post.coordinates
    if init is None and place is not None:
        # one draw for all agents of a chain: the average of independent draws would start too close to the mode
        z = np.random.default_rng(seed).standard_normal((post.dim, chains))
        return np.broadcast_to(z, (post.num_agents, *z.shape)), None
    if init is not None and np.ndim(init) == 3:
        point = np.asarray(init, dtype=np.float64)
        expected = (chains, post.num_agents, post.dim)
        if point.shape != expected or not np.isfinite(point).all():
            raise ValueError(f"init of shape (chain, agent, dim) must be {expected} and finite, found {point.shape}")
        return np.moveaxis(point if place is None else place.inverse(point), 0, -1), None
    return starting_law(init, post)
