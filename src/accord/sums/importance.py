"""Adaptive multiple importance sampling by totals: mode, lines, batches, certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from ..base.counters import generator
from ..fitting.adaptation import Main, Proposals, adapted, fitted_to_draws
from ..fitting.evaluations import slopes, values
from ..fitting.network_sums import NetworkSums
from ..fitting.proposal import Drawn, Mixture
from ..fitting.weighing import Batch, Weighing
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..results.certificate import Certificate, interrupted
from ..results.points import Points
from ..samplers.importance import Importance
from .certificate import PLACES, certify, tails
from .exploration import Search, Skeleton, follow, look, other_modes
from .laplace import laplace
from .lockstep import begin, transition
from .mending import around_heaviest
from .start import Start

# Degrees of freedom of the first main component, at least.
_LEAST_FREEDOM = 5
# Points of a batch that the proposal is fitted to, for each dimension, and the fewest.
_PILOT, _FEWEST = 16, 256
# Efficiency at which fitting ends, and the growth below which another batch for it is not worth its gradients.
_FITTED, _WORTH = 0.6, 1.2
# Effective points for each dimension from which on the efficiency that is expected can be relied on.
_JUDGED = 6.0
# Batches for fitting: how many at most, how many of one size, and how often it doubles after that.
_FITTING, _SAME_SIZE, _DOUBLINGS = 12, 2, 2
# Batches after which few effective points, for each dimension, or a poor efficiency call for a pilot run: its chains,
# its transitions, of which the last half is fitted to, and the degrees of freedom after it.
_LOST, _LOST_BELOW, _POOR, _CHAINS, _TRANSITIONS, _WALKED_FREEDOM = 3, 2.0, 0.15, 128, 8, 20.0
# Effective draws from which on chains may begin at the points.
_SHARED_BY = 500.0
# Points of the largest weights at which they begin too.
_HEAVIEST = 6
# Batches at most that mend tails of the weights, and the efficiency from which on they may.
_MENDED, _GOOD = 3, 0.1
# Points for an effective draw at which it is given up, and how many more than expected are drawn.
_MOST_A_DRAW, _MARGIN = 20.0, 1.05


class Found(NamedTuple):
    """The result of importance sampling: weighted points in coordinates, and whether they may be believed.

    Parameters
    ----------
    place
        Coordinates whose origin is the mode.
    weighing
        The points.
    main
        The main component that the last proposal had.
    ends
        Where searches for other modes ended, shape (position, dim).
    at_origin
        F at the mode.
    certificate
        Whether they may be believed.
    """

    place: Coordinates
    weighing: Weighing
    main: Main
    ends: np.ndarray
    at_origin: float
    certificate: Certificate

    @property
    def start(self) -> Start:
        """Where chains may begin: at the points where enough share the weight, else at draws of the main component.

        In any case also at other modes, and at the points of the largest weights, which say where proposals are thin.
        """
        heaviest = self.weighing.points[np.argsort(-self.weighing.log_weight, kind="stable")[:_HEAVIEST]]
        others = np.concatenate([self.ends, heaviest])
        if self.weighing.effective > _SHARED_BY:
            return Start(self.place, others, self.weighing.points, self.weighing.weight)
        inner = Coordinates(self.main.mean, np.linalg.cholesky(self.main.scale))
        return Start(self.place.after(inner), inner.inverse(others))

    def points(self, post: Posterior) -> Points:
        """The points in the posterior's parameters."""
        found, volume = self.weighing, float(np.linalg.slogdet(self.place.factor)[1])
        positions = self.place.origin + found.points @ self.place.factor.T
        log_density, log_proposal = -found.rise - self.at_origin, found.log_proposal - volume
        return Points(positions, log_density, log_proposal, post.parameters.reported(positions))


def importance(
    sums: NetworkSums,
    post: Posterior,
    method: Importance,
    *,
    target: int,
    seed: int,
    tell: Callable[[str], None],
) -> Found:
    """Find the posterior's mode and shape, weigh batches of points until they are worth `target` draws, and certify.

    Parameters
    ----------
    sums
        Sums over the network, in double precision.
    post
        The posterior in the user's parameters.
    method
        Its numbers.
    target
        Effective draws to end at.
    seed
        Of the points.
    tell
        Called with what is being done; a `KeyboardInterrupt` that it raises once there are points ends the batches.

    Raises
    ------
    ArithmeticError
        The posterior has no mode.
    """
    batches = looked(sums, post, method, seed=seed, tell=tell)
    try:
        batches.fit()
        batches.weigh(target)
        batches.mend(post.unconstrained_names)
        # points where proposals were thin can show that the others are worth less
        batches.weigh(target)
        tell("certificate")
        certificate = batches.certificate(target, post.unconstrained_names)
    except KeyboardInterrupt:
        if batches.found is None:
            raise
        certificate = interrupted("weights")
    assert batches.found is not None
    return Found(batches.place, batches.found, batches.main, batches.search.ends, batches.lines.at_origin, certificate)


def looked(
    sums: NetworkSums, post: Posterior, method: Importance, *, seed: int, tell: Callable[[str], None]
) -> Batches:
    """What there is before the first batch: the mode, lines from it, and what these show; arguments as above."""
    tell("the mode")
    place = laplace(sums, post)
    tell("lines from the mode")
    lines = look(sums, place, seed, method.search)
    search = other_modes(sums, place, lines, seed)
    return Batches(sums, place, method, search, follow(sums, place, search), seed, tell)


class Batches:
    """The batches of a run, and the proposal that the next one is drawn from.

    Attributes
    ----------
    place
        Coordinates whose origin is the mode.
    size
        Points of a batch for fitting, at first.
    found
        The points so far, None before the first batch.
    efficiency
        Effective draws that a point of the next batch is expected to be worth; 0 where that is unknown.
    """

    def __init__(
        self,
        sums: NetworkSums,
        place: Coordinates,
        method: Importance,
        search: Search,
        skeleton: Skeleton,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        self.sums, self.place, self.seed, self.tell = sums, place, seed, tell
        self.lines, self.search, self.skeleton = search.around[0], search, skeleton
        dim, proposals = place.origin.size, Proposals(search.modes, skeleton.mixture)
        self.dim, self.max_batches = dim, method.max_batches
        self.size = method.batch or max(_FEWEST, _PILOT * dim)
        self.main, self.proposals = Main(np.zeros(dim), np.eye(dim), float(max(_LEAST_FREEDOM, dim))), proposals
        self.found: Weighing | None = None
        self.efficiency = 0.0

    def fit(self) -> None:
        """Batches with gradients, until another one is not expected to make the proposal better."""
        before, walked = 0.0, False
        for batch in range(min(_FITTING, self.max_batches)):
            proposal = self.proposals.around(self.main)
            # what some batches did not settle wants larger ones
            drawn = Drawn(proposal, self.size << min(_DOUBLINGS, batch // _SAME_SIZE), self.seed, batch)
            value, gradient = slopes(self.sums, self.place, drawn)
            found = self._with(Batch(proposal, drawn.points, value - self.lines.at_origin, gradient))
            self.tell(f"fitting proposals, {found.effective:.0f} effective draws in {self.sums.count} sums")
            self.proposals = self.proposals.shared(found, self.main)
            main, expected = adapted(found, self.main, self.proposals)
            # what chains have found is not given up for a guess
            self.main = self.main if walked and expected == 0.0 else main
            self.efficiency = max(expected, before)
            # with few effective points nobody can tell
            lost = found.effective < _LOST_BELOW * self.dim or self.efficiency < _POOR
            if not walked and batch + 1 >= _LOST and lost:
                self._walk()
                walked, before = True, 0.0
            elif found.effective >= _JUDGED * self.dim:
                if expected > _FITTED or expected < _WORTH * before:
                    return
                before = expected

    def _walk(self) -> None:
        """Fit the main component to a few transitions of chains from the mode: they go where the weights do not."""
        start = generator(self.seed, "pilot").standard_normal((_CHAINS, self.dim))

        def ask(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return slopes(self.sums, self.place, z)

        states = [begin(ask, start, self.seed)]
        for _ in range(_TRANSITIONS):
            states.append(transition(ask, states[-1], seed=self.seed, warmup=_TRANSITIONS))
            self.tell(f"a pilot run, {self.sums.count} sums")
        last = states[1 + _TRANSITIONS // 2 :]
        positions, gradients = (np.concatenate([getattr(s, k) for s in last]) for k in ("positions", "gradients"))
        self.main = fitted_to_draws(positions, gradients, _WALKED_FREEDOM)

    def weigh(self, target: int) -> None:
        """Batches of values, until there are as many effective draws as asked for or there is no hope of it."""
        assert self.found is not None
        found, proposal = self.found, self.proposals.around(self.main)
        while len(found.batches) < self.max_batches:
            count, before = self.due(target), found.effective
            if count == 0:
                return
            found = self._draw(proposal, count)
            self.tell(f"weighing points, {found.effective:.0f} of {target} effective draws in {self.sums.count} sums")
            # one heavy point can make a batch worth nothing, and all points are still worth something
            self.efficiency = max((found.effective - before) / count, found.effective / found.weight.size)

    def due(self, target: int) -> int:
        """Points that the next batch needs for so many effective draws; 0 where these are there, or hopeless."""
        assert self.found is not None
        missing = max(target - self.found.effective, target - self.found.weight.size)
        if missing <= 0 or missing > _MOST_A_DRAW * self.efficiency * target:
            return 0
        return ceil(_MARGIN * missing / self.efficiency)

    def mend(self, names: Sequence[str]) -> None:
        """Batches around the heaviest points, where otherwise good weights have a tail that is too heavy."""
        for _ in range(_MENDED):
            assert self.found is not None
            found = self.found
            poor = found.effective < _GOOD * found.weight.size or len(found.batches) >= self.max_batches
            weights, squares = tails(found, self.place, names)
            if poor or (weights.holds and squares.holds):
                return
            # what a second moment rests on are far points, whose weights need not be large
            share = np.zeros(found.weight.size) if not weights.holds else found.log_squares(self.place)
            self._draw_around(found.points, found.log_weight + share)

    def certificate(self, target: int, names: Sequence[str]) -> Certificate:
        """The certificate; where points that it moved came to where proposals are thin, one more after mending that."""
        for mended in range(_MENDED):
            assert self.found is not None
            certificate, moved = certify(
                self.sums, self.place, self.found, self.lines, self.search, self.skeleton, target, self.seed, names
            )
            failed = [check.name for check in certificate.checks if not check.holds]
            if moved is None or failed != [PLACES] or mended + 1 == _MENDED:
                break
            self._draw_around(moved.points, moved.log_weight)
        return certificate

    def _draw_around(self, points: np.ndarray, log_weight: np.ndarray) -> None:
        """A batch around the heaviest of some points."""
        assert self.found is not None
        self._draw(around_heaviest(points, log_weight, self.found, self.main), 2 * self.size, local=True)
        self.tell(f"points where proposals are thin, {self.sums.count} sums")

    def _draw(self, proposal: Mixture, count: int, *, local: bool = False) -> Weighing:
        """A batch of values."""
        assert self.found is not None
        drawn = Drawn(proposal, count, self.seed, len(self.found.batches))
        rise = values(self.sums, self.place, drawn) - self.lines.at_origin
        return self._with(Batch(proposal, drawn.points, rise, local=local))

    def _with(self, batch: Batch) -> Weighing:
        self.found = Weighing(batch) if self.found is None else self.found.with_batch(batch)
        return self.found
