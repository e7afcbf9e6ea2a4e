"""The base of methods by sums: what they draw, the checks that all of them share, and the run that they end in."""

from __future__ import annotations

import abc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from ...base.interruptions import hold, interruptions
from ...base.memory import require_points
from ...posterior.latent_keepers import keep_latents
from ...results.certificate import INTERRUPTED, Certificate, Check
from ...results.points import Points
from ...results.run import Run
from ...results.traffic import Cost, Traffic
from ...results.unconstrained import for_all, in_both_scales
from ...results.warnings import unreliable_sd
from ..engine import Builder
from ..session import Job, Session
from ..validation import check_by_sums
from .evaluations import require_hessians, values
from .integration import INTEGRATION, integration_check, some_of
from .start import Start

# How far agents' log densities may be apart where sums are made by gossip.
_APART = 0.01
# Draws at which that is looked at.
_LOOKED_AT = 100
# Times that a sum is timed for a forecast; the fastest counts.
_TIMES = 3


@dataclass(frozen=True, eq=False)
class Result:
    """The draws of a method by sums.

    Parameters
    ----------
    method
        The method.
    draws
        Shape (chain, draw, dim), of every agent.
    statistics
        By name, each (chain, draw).
    certificate
        What was checked of the draws.
    points
        The weighted points, where there are some.
    start
        Where another method may begin.
    chosen
        Why this method was taken; empty where it was named.
    """

    method: BySums
    draws: np.ndarray
    statistics: dict[str, np.ndarray]
    certificate: Certificate
    points: Points | None = None
    start: Start | None = None
    chosen: str = ""

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [check.name for check in self.certificate.checks if not check.holds]


@dataclass(frozen=True, kw_only=True)
class BySums(abc.ABC):
    """A method that needs sums over all agents and nothing else, by whatever makes them: a tree, a hub, devices.

    All agents know the sums, and do the same with them, so that all of them hold the same draws. Nothing of it depends
    on the network but what a sum costs. A session runs these methods in double precision.
    """

    @abc.abstractmethod
    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Draws with a certificate.

        Parameters
        ----------
        session
            Makes the sums.
        start
            Where another method says that the posterior is, if one came before.

        Raises
        ------
        ArithmeticError
            The posterior has no mode to begin at.
        """

    @abc.abstractmethod
    def doubles(self, dim: int) -> int:
        """Doubles that the method holds of a draw of so many parameters."""

    @abc.abstractmethod
    def forecast(self, session: Session) -> SumsForecast:
        """What a run would take, each draw of the job taken for an effective one.

        Raises
        ------
        ArithmeticError
            The posterior has no mode to begin at.
        """

    def title(self, job: Job) -> str:
        """What progress is shown of."""
        return type(self).__name__

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` where a run cannot be; no data is read."""
        check_by_sums(type(self).__name__, job.network)
        # where parameters are too many, fewer draws do not help
        require_hessians(job.post.dim, engine.states_here(job.post.num_agents))
        # all agents have the same draws, which are there once
        require_points(draws=job.draws, chains=job.chains, dim=job.post.dim, doubles=self.doubles(job.post.dim))
        job.network.require_connected()

    def certified(self, session: Session, start: Start | None = None) -> Result:
        """The draws with a certificate of all checks, those of the quadrature and of gossip among them."""
        try:
            found = self.draw(session, start)
            if INTERRUPTED in found.failed:
                return found
            session.stage("integrals over latents")
            more = (integration_check(session, found.draws), _agreed(session, found.draws))
        except np.linalg.LinAlgError as error:
            raise ArithmeticError(
                f"a matrix cannot be factorised ({error}), as where parameters are collinear: give them a proper "
                "prior, or centre and scale their columns"
            ) from error
        checks = (*found.certificate.checks, *(check for check in more if check is not None))
        return replace(found, certificate=Certificate(checks))

    def run(self, session: Session) -> Run:
        """The run of a session; where latents are integrated too coarsely, it is repeated with more nodes."""
        began, job = time.perf_counter(), session.job
        # what one of several processes leaves, the others would wait for
        with interruptions(anywhere=jax.process_count() == 1) as stopped:
            found = self.certified(session)
            interrupted = stopped()
            is_coarse = session.finer is not None and INTEGRATION in found.failed and not interrupted
            if not is_coarse:
                # of what was drawn nothing is lost any more
                hold()
        if is_coarse:
            assert session.finer is not None
            with session.finer() as finer:
                again = self.run(finer)
                latents = finer.job.post.latents
            # questions about the run's data need the same quadrature
            settings = {**again.settings, "nodes": 0 if latents is None else latents.nodes}
            seconds, traffic = time.perf_counter() - began, again.traffic + session.traffic
            return replace(again, settings=settings, traffic=traffic, seconds=seconds)
        kept = keep_latents(job.post, job.keep, for_all(found.draws, job.keep.size), job.seed)
        if interrupted:
            warnings.warn(f"interrupted: the run keeps {found.draws.shape[1]} draws a chain", stacklevel=4)
        elif not found.certificate.holds:
            name = type(found.method).__name__
            warnings.warn(f"the draws of {name} are not certified: {found.certificate.why}", stacklevel=4)
        scales = in_both_scales(job.post, found.draws, job.keep.size, job.network)
        if found.certificate.holds and (text := unreliable_sd(scales["average"], scales["names"])):
            warnings.warn(text, stacklevel=4)
        return Run(
            **scales,
            agents=job.keep,
            statistics={"consensus_error": np.zeros(found.draws.shape[:2]), **found.statistics},
            traffic=Traffic() + session.traffic,
            seconds=time.perf_counter() - began,
            settings={"method": repr(found.method), "network": repr(job.network), "seed": job.seed}
            | {"masks": job.masks}
            | ({} if session.gossip is None else {"consensus": session.gossip.averaging.precision})
            | ({"chosen": found.chosen} if found.chosen else {})
            | ({"interrupted": True} if interrupted else {})
            | kept,
            points=found.points,
            certificate=found.certificate,
        )


def _agreed(session: Session, draws: np.ndarray) -> Check | None:
    """Whether agents whose sums are made by gossip have the same log density at draws; None where none are.

    The sums are made anew, and not read from a disk: nobody knows what agents were apart then.
    """
    gossip = session.gossip
    if gossip is None:
        return None
    again = session.fresh()
    values(again, None, some_of(draws, _LOOKED_AT))
    session.traffic += again.traffic
    holds = gossip.apart <= _APART
    text = f"agents' log densities are {gossip.apart:.2g} apart at most, {_APART} is allowed"
    remedy = (
        "" if holds else f": consensus={gossip.averaging.precision:g} is relative to F, which is large; ask for less"
    )
    return Check("consensus", gossip.apart, _APART, holds, text + remedy)


@dataclass(frozen=True, eq=False)
class SumsForecast:
    """What a method that asks for nothing but sums will take; its draws have no bias, where its certificate holds.

    Parameters
    ----------
    sampler
        The method.
    spent
        What the effective draws that were asked about take.
    basis
        What the forecast rests on, in a few words.
    doubt
        Why the draws are not expected to be certified; empty where they are.
    """

    sampler: BySums
    spent: Cost
    basis: str
    doubt: str = ""

    @property
    def bias(self) -> float:
        """0, or NaN where nothing is known of the draws."""
        return np.nan if self.doubt else 0.0

    @property
    def average_bias(self) -> float:
        """The same: all agents hold the same draws."""
        return self.bias

    def meets(self, tolerance: float) -> bool:
        """Whether the draws are expected to be certified, whatever the tolerance."""
        return not self.doubt


def fastest(ask: Callable[[], object]) -> float:
    """The seconds of a sum without compiling: the first is not timed, and other work only adds to the others."""
    times = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return min(times[1:])
