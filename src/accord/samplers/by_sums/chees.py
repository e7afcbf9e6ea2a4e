"""ChEES-HMC by sums: an exact Markov chain for posteriors that importance sampling does not fit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from ... import models
from ...base.checks import whole_number
from ...network import Network
from ...posterior.coordinates import Coordinates
from ...results.certificate import Certificate, Check, interrupted
from ...results.diagnostics import diagnostics
from ...results.traffic import Cost, Traffic
from ..costs import total_traffic
from ..session import Job, Session
from .evaluations import NOWHERE, slopes
from .lockstep import Ask, LockstepState, begin, nested_rhat, transition
from .method import BySums, Result, SumsForecast, fastest
from .start import Start, start_without_points

# Chains that begin at one place: what is between such groups and not within them is not forgotten yet.
_GROUP = 8
# Parts of their distance from the origin at which chains begin where none of them has a density.
_NEARER = (0.3, 0.1, 0.03, 0.01)
# Parameters that are shown of a position without density.
_SHOWN = 6
# Transitions at least, and between two looks at what there is.
_FEWEST = 16
# Largest nested R-hat, and the smallest share of the effective draws asked for.
_RHAT, _ENOUGH = 1.01, 0.9
# Share of trajectories that may diverge: those of posteriors that are right have none, and a few hide a tail.
_DIVERGED = 1e-4
# Smallest fraction of energy that a transition's momentum must bring in.
_ENERGY = 0.3
# Share of the weight of earlier points that may be where no chain came.
_UNVISITED = 0.002
# Share of the variance of earlier points that may be there, which makes an sd a twentieth too small, and times the
# chains' sd that the points' may be: their weights are what was not certified.
_UNSEEN, _WIDER = 0.1, 2.0
# Chance that true draws are refused by the test of Stein's identity.
_FALSE_ALARM = 1e-4
# Errors of the identity that do not matter.
_MATTERS = 0.05


@dataclass(frozen=True, kw_only=True)
class ChEES(BySums):
    """Hamiltonian Monte Carlo of many chains in lockstep, whose every leapfrog step is one sum of all chains.

    From agent i: f_i and grad f_i at the positions of all chains, summed over a tree of the network. All agents hold
    the same chains. Step size, trajectory length (by the ChEES criterion) and scale are found by all chains together in
    warm-up; after it every transition is an exact Metropolis transition, so that draws have no bias whatever the step.

    Not from the papers: Hoffman, Radul & Sountsov (2021), "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in
    Hamiltonian Monte Carlo"; convergence by nested R-hat (Margossian et al. 2024, arXiv 2110.13017).

    Parameters
    ----------
    lockstep
        Chains that move together, >= 16; rounded up to a multiple of the run's chains, each of which is made of as many
        of them, one after another.
    warmup
        Transitions that adapt, >= 0.
    max_transitions
        Transitions after warm-up, >= 1. It ends with what there is as soon as more would be needed for the draws that
        are asked for.

    Raises
    ------
    ValueError
        A number out of its range.
    """

    lockstep: int = 128
    warmup: int = 100
    max_transitions: int = 1000

    def __post_init__(self) -> None:
        whole_number("lockstep", self.lockstep, 16)
        whole_number("warmup", self.warmup, 0)
        whole_number("max_transitions", self.max_transitions, 1)

    def doubles(self, dim: int) -> int:
        """Positions and gradients, one by one and stacked, positions and their squares side by side, and F."""
        return 6 * dim + 1

    def lockstep_chains(self, chains: int) -> int:
        """Chains that move together, for a run of so many: a multiple of these, in whole groups."""
        return -(-self.lockstep // (chains * _GROUP)) * chains * _GROUP

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Move chains from a start, or from the mode, and certify them."""
        session.stage("start")
        start = start_without_points(session) if start is None else start
        found, job = self.walk(session, start), session.job
        # a chain of the run is several in lockstep, one after another, each thinned to its part
        count, length = found.positions.shape[:2]
        own = -(-job.draws // (count // job.chains))
        taken = np.unique(np.linspace(0, length - 1, own).round().astype(int))
        z = found.positions[:, taken].reshape(job.chains, -1, job.post.dim)[:, : job.draws]
        acceptance = np.broadcast_to(found.acceptance[taken], (count, taken.size))
        acceptance = acceptance.reshape(job.chains, -1)[:, : job.draws]
        x = start.place.origin + z @ start.place.factor.T
        log_density = -found.values[:, taken].reshape(job.chains, -1)[:, : job.draws]
        statistics = {"acceptance_rate": acceptance, "lp": log_density}
        return Result(self, x, statistics, found.certificate, start=start)

    def forecast(self, session: Session) -> SumsForecast:
        """Look for the start as a run does, and move as many chains on a standard normal posterior, over no network.

        Its sums are counted. A posterior that is not Gaussian takes more.
        """
        job, count = session.job, self.lockstep_chains(session.job.chains)
        start_without_points(session.fresh())
        began = time.perf_counter()
        looked = session.fresh()
        start = start_without_points(looked)
        seconds, spent = time.perf_counter() - began, looked.traffic
        self._on_a_normal(job)
        began = time.perf_counter()
        normal, doubt = self._on_a_normal(job)
        # what all agents do alike, and sums that take next to nothing
        seconds += time.perf_counter() - began
        z = start.positions(count, job.seed)
        seconds += normal * fastest(lambda: slopes(session, start.place, z))
        spent += total_traffic(job.network, count * (1 + job.post.dim), normal)
        spent += Traffic(gradient_rows=normal * count * job.post.sizes)
        basis = f"{count} chains on the nearest Gaussian; what is not Gaussian takes more"
        return SumsForecast(self, Cost.of(spent, seconds), basis, doubt)

    def _on_a_normal(self, job: Job) -> tuple[int, str]:
        """Sums that the chains take on a standard normal posterior, and why they are not certified there."""
        dim = job.post.dim
        post = models.quadratic(np.eye(dim)[None], np.zeros((1, dim)))
        session = Session(Job(post, Network.empty(1), job.draws, job.chains, job.seed))
        start = Start(Coordinates(np.zeros(dim), np.eye(dim)), np.zeros((0, dim)))
        certificate = self.walk(session, start).certificate
        return session.traffic.sums, "" if certificate.holds else f"on a Gaussian already, {certificate.why}"

    def walk(self, session: Session, start: Start) -> Chains:
        """Move chains until they are worth the draws that are asked for, or the transitions are over.

        A `KeyboardInterrupt` once there are draws ends the chains.
        """
        seed, target = session.job.seed, session.job.target
        names, count = session.job.post.unconstrained_names, self.lockstep_chains(session.job.chains)

        def ask(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return slopes(session, start.place, z)

        state = _begun(ask, start, count, seed)
        while state.transition < self.warmup:
            session.stage(
                f"warm-up of {count} chains, {state.transition} of {self.warmup} transitions "
                f"in {session.traffic.sums} sums"
            )
            state = transition(ask, state, seed=seed, warmup=self.warmup)
        taken: list[LockstepState] = []
        due = max(_FEWEST, -(-target // count))
        while True:
            try:
                while len(taken) < min(due, self.max_transitions):
                    session.stage(f"{count} chains, {len(taken)} of {due} transitions in {session.traffic.sums} sums")
                    state = transition(ask, state, seed=seed, warmup=self.warmup)
                    taken.append(state)
            except KeyboardInterrupt:
                if not taken:
                    raise
                return _stacked(taken)._replace(certificate=interrupted("chains"))
            drawn = _stacked(taken)
            # widths need more draws than places do where tails are slow
            features = np.concatenate(
                [drawn.positions, np.square(drawn.positions - drawn.positions.mean((0, 1)))], axis=2
            )
            effective = float(np.nan_to_num(diagnostics(features)[0]).min())
            lost = state.divergences - state.warmup_divergences
            diverged = lost / (count * len(taken))
            # the largest errors come first: other draws than the posterior's, then slow chains, then too few draws
            checks = (
                _supported(drawn, start, names),
                _stein(drawn, names),
                _everywhere(drawn, start),
                _calm(diverged),
                _energetic(drawn),
                _enough(effective, target),
                _forgotten(features, count // _GROUP, names),
            )
            certificate = Certificate(checks)
            hopeless = len(taken) * target > max(effective, 1.0) * self.max_transitions
            # more have diverged than all transitions together may
            hopeless = hopeless or lost > _DIVERGED * count * self.max_transitions
            if certificate.holds or hopeless or len(taken) >= self.max_transitions:
                return drawn._replace(certificate=certificate)
            # as many more as are missing, but no more than there are: what little is known is uncertain
            due = min(2 * due, max(due + _FEWEST, int(1.1 * due * target / max(effective, 1.0))))


class Chains(NamedTuple):
    """Chains in lockstep after warm-up.

    Parameters
    ----------
    positions
        In the coordinates of the start, shape (chain, draw, dim).
    values, gradients
        F there, (chain, draw), and its gradients, like the positions.
    acceptance
        Of each transition, (draw,).
    certificate
        What was checked.
    """

    positions: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    acceptance: np.ndarray
    certificate: Certificate


def _begun(ask: Ask, start: Start, count: int, seed: int) -> LockstepState:
    """The state of the chains at positions where the posterior has a density, as far as a start has some."""
    positions = np.repeat(start.positions(count // _GROUP, seed), _GROUP, axis=0)
    state = begin(ask, positions, seed)
    astray = state.values >= NOWHERE
    for share in _NEARER:
        if not astray.all():
            break
        # the posterior may be cut off near its mode
        positions = share * positions
        state = begin(ask, positions, seed)
        astray = state.values >= NOWHERE
    if astray.any() and not astray.all():
        # a chain that begins where there is no mass would stay there: it begins where another one does
        positions = positions[np.resize(np.flatnonzero(~astray), count)]
        state = begin(ask, positions, seed)
    return state


def _stacked(taken: list[LockstepState]) -> Chains:
    positions = np.stack([state.positions for state in taken], axis=1)
    gradients = np.stack([state.gradients for state in taken], axis=1)
    values = np.stack([state.values for state in taken], axis=1)
    return Chains(positions, values, gradients, np.array([state.acceptance for state in taken]), Certificate(()))


def _enough(effective: float, target: int) -> Check:
    holds = effective >= _ENOUGH * target
    text = f"{effective:.0f} effective draws of the slowest coordinate or square of one, {_ENOUGH * target:.0f} are due"
    remedy = "" if holds else ": another parametrisation, or many more max_transitions"
    return Check("effective draws", effective, _ENOUGH * target, holds, text + remedy)


def _forgotten(features: np.ndarray, groups: int, names: tuple[str, ...]) -> Check:
    found = nested_rhat(features, groups)
    worst = int(np.nanargmax(found))
    of, worst = ("the square of " if worst >= len(names) else ""), worst % len(names)
    most = float(np.nanmax(found))
    holds = most <= _RHAT
    text = f"nested R-hat is {most:.3f} at most, in {of}whitened coordinate {worst} ({names[worst]} and others)"
    remedy = "" if holds else f" (above {_RHAT}): chains have not forgotten where they began; more warmup"
    return Check("nested R-hat", most, _RHAT, holds, text + remedy)


def _supported(drawn: Chains, start: Start, names: tuple[str, ...]) -> Check:
    """Whether all draws have a density."""
    outside = drawn.values >= NOWHERE
    share = float(outside.mean())
    text = f"{share:.1%} of the draws are where the posterior has no density"
    if share == 0:
        return Check("support", share, 0.0, True, text)
    first = start.place.origin + drawn.positions[outside][0] @ start.place.factor.T
    shown = ", ".join(f"{name} = {number:.3g}" for name, number in list(zip(names, first, strict=True))[:_SHOWN])
    remedy = (
        f", as at {shown} (unconstrained): give bounds of parameters as constraints, and write a density that is "
        "finite everywhere (log_ndtr in place of the log of a cdf)"
    )
    return Check("support", share, 0.0, False, text + remedy)


def _calm(diverged: float) -> Check:
    holds = diverged <= _DIVERGED
    text = f"{diverged:.2%} of the trajectories diverged"
    remedy = (
        ""
        if holds
        else f" (above {_DIVERGED:.2%}): a part of the posterior is too narrow for the step, as a funnel's neck is"
    )
    return Check("divergences", diverged, _DIVERGED, holds, text + remedy)


def _energetic(drawn: Chains) -> Check:
    """Whether momenta move the chains through all energies (Betancourt 2016): where F varies much more, they do not."""
    dim = drawn.positions.shape[2]
    found = dim / (float(drawn.values.var()) + dim / 2.0)
    holds = found >= _ENERGY
    text = f"the energy fraction (E-BFMI) is {found:.2f}"
    remedy = (
        ""
        if holds
        else f" (below {_ENERGY}): chains move too slowly from narrow parts to wide ones; a parametrisation "
        "in which scales do not multiply parameters (non-centred, or centred where data is plenty) mends it"
    )
    return Check("energies", found, _ENERGY, holds, text + remedy)


def _everywhere(drawn: Chains, start: Start) -> Check:
    """Whether chains came to where weighted points hold mass, or what a variance is made of."""
    name = "places without chains"
    if start.points is None or start.weight is None:
        return Check(name, 0.0, 1.0, True, "no points are known that chains should have come to")
    low, high = drawn.positions.min(axis=(0, 1)), drawn.positions.max(axis=(0, 1))
    margin = (high - low) / 4.0
    outside = ((start.points < low - margin) | (start.points > high + margin)).any(axis=1)
    w = start.weight / start.weight.sum()
    share = float(w[outside].sum())
    # a far place of little weight shows in the width that the points have
    squares = np.square(start.points - w @ start.points)
    spread = float(((w * outside) @ squares / (w @ squares)).max())
    wider = float(np.sqrt((w @ squares) / drawn.positions.var(axis=(0, 1))).max())
    most = max(share / _UNVISITED, spread / _UNSEEN, wider / _WIDER)
    holds = most <= 1.0
    text = (
        f"{share:.2%} of the weight of points found before, and {spread:.0%} of their variance, is where no chain "
        f"came; they are {wider:.2g} times as wide"
    )
    remedy = f" (above {_UNVISITED:.1%}, {_UNSEEN:.0%} or {_WIDER:g}): chains miss a part of the posterior"
    return Check(name, most, 1.0, holds, text + ("" if holds else remedy))


def _stein(drawn: Chains, names: tuple[str, ...]) -> Check:
    """Stein's identity, E[(z - m) dF/dz] = 1, for each coordinate: it needs no other draws to compare with."""
    from arviz_stats.base.array import array_stats

    apart = (drawn.positions - drawn.positions.mean(axis=(0, 1))) * drawn.gradients
    error = apart.std(axis=(0, 1)) / np.sqrt(array_stats.ess(apart, chain_axis=0, draw_axis=1, method="mean"))
    off = np.abs(apart.mean(axis=(0, 1)) - 1.0)
    z = off / np.maximum(error, 1e-12)
    allowed = float(scipy.stats.norm.isf(_FALSE_ALARM / (2 * z.size)))
    bad = (z > allowed) & (off > _MATTERS)
    worst = int(np.argmax(np.where(bad, z, 0.0))) if bad.any() else int(np.argmax(z))
    text = f"Stein's identity is off by {off[worst]:.2g}, {z[worst]:.1f} Monte Carlo errors, in coordinate {worst}"
    remedy = (
        f" (above {allowed:.1f}): chains miss a part of the posterior, or its density is cut off at a bound that "
        "constraints do not declare"
        if bad.any()
        else ""
    )
    return Check("Stein's identity", float(z[worst]), allowed, not bad.any(), text + remedy)
