"""The base class of sum-based methods, with their shared checks and the run that they return."""

from __future__ import annotations

import abc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

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

# Largest difference between agents' log densities if sums are made by gossip.
_APART = 0.01
# Draws at which these differences are checked.
_CHECKED_DRAWS = 100
# Timings of a sum for a forecast, of which the fastest counts.
_TIMES = 3


@dataclass(frozen=True, eq=False)
class Result:
    """The draws of a sum-based method.

    Parameters
    ----------
    method
        The method.
    draws
        Shape (chain, draw, dim), the same for every agent.
    statistics
        Arrays (chain, draw) by name.
    certificate
        The checks of the draws.
    points
        The weighted points, None for a Markov chain.
    start
        A start for another method.
    chosen
        The reason for this method; empty if the user named it.
    settings
        Settings of the run that only this method has.
    """

    method: BySums
    draws: np.ndarray
    statistics: dict[str, np.ndarray]
    certificate: Certificate
    points: Points | None = None
    start: Start | None = None
    chosen: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Names of the failed checks."""
        return [check.name for check in self.certificate.checks if not check.holds]


@dataclass(frozen=True, kw_only=True)
class BySums(abc.ABC):
    """A method that communicates only by sums over all agents: along a tree, at a hub or between devices.

    All agents receive the sums and do the same computations, so all have the same draws. The network determines only
    the cost of a sum. Sum-based methods run in double precision.

    Attributes
    ----------
    noisy
        Whether agents add noise to their numbers for this method, on any engine.
    """

    noisy: ClassVar[bool] = False

    @abc.abstractmethod
    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Draws with a certificate.

        Parameters
        ----------
        session
            Makes the sums.
        start
            Starts found by an earlier method. None: the method finds its own.

        Raises
        ------
        ArithmeticError
            The posterior has no mode to start from.
        """

    @abc.abstractmethod
    def doubles(self, dim: int) -> int:
        """Double-precision numbers in memory per draw of `dim` parameters."""

    @abc.abstractmethod
    def forecast(self, session: Session) -> SumsForecast:
        """The cost of as many effective draws as the job has draws.

        Raises
        ------
        ArithmeticError
            The posterior has no mode to start from.
        """

    def title(self, job: Job) -> str:
        """Title of the progress line."""
        return type(self).__name__

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` if the run is impossible, without reading data."""
        check_by_sums(type(self).__name__, job.network)
        # checked first: fewer draws do not help if there are too many parameters
        require_hessians(job.post.dim, engine.states_here(job.post.num_agents))
        # all agents share one copy of the draws
        require_points(draws=job.draws, chains=job.chains, dim=job.post.dim, doubles=self.doubles(job.post.dim))
        job.network.require_connected()

    def certified(self, session: Session, start: Start | None = None) -> Result:
        """The draws, with the checks of quadrature and gossip added to the certificate."""
        try:
            found = self.draw(session, start)
            if INTERRUPTED in found.failed:
                return found
            more = (integration_check(session, found.draws), _agreed(session, found.draws))
        except np.linalg.LinAlgError as error:
            raise ArithmeticError(
                f"a matrix cannot be factorised ({error}), for example because parameters are collinear: give them a "
                "proper prior, or centre and scale their columns"
            ) from error
        checks = (*found.certificate.checks, *(check for check in more if check is not None))
        return replace(found, certificate=Certificate(checks))

    def run(self, session: Session) -> Run:
        """The run of a session, repeated with more quadrature nodes if integrals over latents are too coarse."""
        began, job = time.perf_counter(), session.job
        # with several processes the others would wait for an interrupted one
        with interruptions(anywhere=jax.process_count() == 1) as stopped:
            found = self.certified(session)
            interrupted = stopped()
            if interrupted and job.whole:
                raise KeyboardInterrupt
            is_coarse = session.finer is not None and INTEGRATION in found.failed and not interrupted
            if not is_coarse:
                # from here on interruptions wait for the end of the run, so that no draws are lost
                hold()
        if is_coarse:
            assert session.finer is not None
            with session.finer() as finer:
                again = self.run(finer)
                latents = finer.job.post.latents
            # later queries of the run's data need the same quadrature
            settings = {**again.settings, "nodes": 0 if latents is None else latents.nodes}
            seconds, traffic = time.perf_counter() - began, again.traffic + session.traffic
            return replace(again, settings=settings, traffic=traffic, seconds=seconds)
        kept = keep_latents(job.post, job.keep, for_all(found.draws, job.keep.size), job.seed)
        if interrupted:
            warnings.warn(f"interrupted: the run keeps {found.draws.shape[1]} draws per chain", stacklevel=4)
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
            | ({"coarse": True} if job.coarse else {})
            | ({} if session.gossip is None else {"consensus": session.gossip.averaging.precision})
            | ({"chosen": found.chosen} if found.chosen else {})
            | ({"interrupted": True} if interrupted else {})
            | found.settings
            | kept,
            points=found.points,
            certificate=found.certificate,
        )


def _agreed(session: Session, draws: np.ndarray) -> Check | None:
    """Whether agents have the same log density at draws, if sums are made by gossip; else None.

    The sums are repeated even if they are on disk, as the disk does not have the differences between agents.
    """
    gossip = session.gossip
    if gossip is None:
        return None
    again = session.fresh()
    values(again, None, some_of(draws, _CHECKED_DRAWS))
    session.traffic += again.traffic
    holds = gossip.apart <= _APART
    text = f"log densities of agents differ by at most {gossip.apart:.2g} (limit {_APART})"
    remedy = "" if holds else f": use a smaller consensus than {gossip.averaging.precision:g}, which is relative to F"
    return Check("consensus", gossip.apart, _APART, holds, text + remedy)


@dataclass(frozen=True, eq=False)
class SumsForecast:
    """Forecast of a sum-based method. Certified draws have no bias, so only the cost is forecast.

    Parameters
    ----------
    sampler
        The method.
    spent
        Cost of the requested effective draws.
    basis
        The basis of the forecast, in a few words.
    doubt
        The reason why the certificate is expected to fail; empty if it is expected to hold.
    """

    sampler: BySums
    spent: Cost
    basis: str
    doubt: str = ""

    @property
    def bias(self) -> float:
        """0, or NaN if the certificate is expected to fail."""
        return np.nan if self.doubt else 0.0

    @property
    def average_bias(self) -> float:
        """The same as `bias`, as all agents have the same draws."""
        return self.bias

    def meets(self, tolerance: float) -> bool:
        """Whether the certificate is expected to hold, for any tolerance."""
        return not self.doubt


def fastest(evaluate: Callable[[], object]) -> float:
    """Seconds of a call without compiling: the minimum of several calls after the first."""
    times = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        evaluate()
        times.append(time.perf_counter() - began)
    return min(times[1:])
