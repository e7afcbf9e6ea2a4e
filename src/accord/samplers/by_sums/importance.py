"""Importance sampling with shared proposals and exact sums: the whole posterior in a dozen sums."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from ...base.checks import whole_number
from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...results.certificate import Certificate, interrupted
from ...results.points import Points
from ...results.traffic import Cost, Traffic
from ..costs import total_traffic
from ..session import Session
from .adaptation import Main, Proposals, adapted, around_heaviest, fitted_to_draws
from .certificate import ENOUGH, MOVED, MOVES, PLACES, certify, followed, tails
from .evaluations import slopes, values
from .laplace import laplace
from .lockstep import begin, transition
from .method import BySums, Result, SumsForecast, fastest
from .mode_search import Search, Skeleton, follow, look, other_modes
from .proposal import Drawn, Mixture
from .start import Start
from .weighing import Batch, Weighing

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


@dataclass(frozen=True, kw_only=True)
class Importance(BySums):
    """Adaptive multiple importance sampling whose proposals all agents draw alike and whose weights are sums.

    From agent i: its sums of derivatives on the way to the mode, and `f_i(x_b) - f_i(mode)` at the points x_b of each
    batch, summed over a tree of the network. Points are drawn from shared counters and never sent. Every agent then
    knows F at all points, has the same weights, and goes on in the same way, so that all hold the same draws, on any
    connected network, without bias as far as the certificate of the run (`run.certificate`) holds.

    Not from the papers: our own. The nearest are adaptive multiple importance sampling (Cornuet, Marin, Mira & Robert
    2012, arXiv 0907.1254), whose weights these are, Pareto smoothed importance sampling (Vehtari et al. 2024), whose k
    the certificate reads, and the exploration of hyperparameters in INLA (Rue, Martino & Chopin 2009).

    1. The mode by Newton's method, and coordinates in which the posterior is about standard normal there.
    2. F along half-lines from the mode and at points scattered around it. Where F rises slowly on a half-line, a
       skeleton of components follows it. Where F is below one of its tangents, other modes are looked for, and the
       half-lines of each are followed too.
    3. Small batches of points from a mixture of t distributions, with gradients, the first around the mode; each next
       proposal is fitted to the weighted points, as far as that is expected to be more efficient; where these are too
       few, to some transitions of Hamiltonian Monte Carlo.
    4. Large batches from the last proposal, values only, until enough effective draws are there; and where weights
       have a heavy tail, some around the heaviest points (incremental mixtures, Raftery & Bao 2010).
    5. The draws: the points of all batches in a random order, each as often as its weight says (systematic resampling).

    Parameters
    ----------
    batch
        Points of a batch that the proposal is fitted to, >= 100; None: 16 for each parameter, and at least 256. Later
        batches are as large as the effective draws that are missing ask for.
    max_batches
        Batches after which it ends with what there is, >= 1.
    search
        Number of points scattered around the mode in search of other modes, >= 0. The certificate states how likely
        these points notice another mode. Take more, such as 10,000, where narrow modes are possible.

    Raises
    ------
    ValueError
        A number out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.sample(post, accord.Network.ring(3), accord.samplers.Importance(), draws=250)
    >>> run.draws.shape, run.certificate.holds
    ((4, 250, 3, 1), True)
    """

    batch: int | None = None
    max_batches: int = 20
    search: int = 384

    def __post_init__(self) -> None:
        if self.batch is not None:
            whole_number("batch", self.batch, 100)
        whole_number("max_batches", self.max_batches, 1)
        whole_number("search", self.search, 0)

    def doubles(self, dim: int) -> int:
        """A point in both coordinates and as a draw, its density, its proposal's, its weight and its place."""
        return 3 * dim + 4

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Find the posterior's mode and shape, weigh batches until they are worth the draws, and certify the points."""
        job, batches = session.job, self.looked(session)
        names = job.post.unconstrained_names
        try:
            batches.fit()
            batches.weigh(job.target)
            batches.mend(names)
            # points where proposals were thin can show that the others are worth less
            batches.weigh(job.target)
            session.stage("certificate")
            certificate = batches.certificate(names)
        except KeyboardInterrupt:
            if batches.found is None:
                raise
            certificate = interrupted("weights")
        points = batches.points()
        # where too few points were drawn, the chains are as long as these allow
        chosen = points.chains(job.chains, min(job.draws, points.weight.size // job.chains), job.seed)
        return Result(self, points.positions[chosen], {}, certificate, points, batches.start)

    def forecast(self, session: Session) -> SumsForecast:
        """Begin as a run does, with the mode, lines and fitted proposals, and forecast the rest of the sums.

        Those are most sums and few evaluations. How many effective draws a point is then worth is known from points
        that took no part in the fit, so that what is forecast is a batch of values, and the certificate.
        """
        job = session.job
        self._begun(session.fresh())
        # the second time all programs are compiled
        began = time.perf_counter()
        batches = self._begun(session.fresh())
        seconds = time.perf_counter() - began
        spent, found, due = batches.session.traffic, batches.found, batches.due(job.target)
        assert found is not None
        points, doubt = found.points[: batches.size], batches.doubt(due)
        if due:
            spent += total_traffic(job.network, due) + Traffic(value_rows=due * job.post.sizes)
            seconds += due / len(points) * fastest(lambda: values(session, batches.place, points))
        if not doubt:
            # what is refused without them takes no moves
            moved = np.resize(points, (MOVED, job.post.dim))
            spent += total_traffic(job.network, MOVED * (1 + job.post.dim), MOVES)
            spent += Traffic(gradient_rows=MOVES * MOVED * job.post.sizes)
            seconds += MOVES * fastest(lambda: slopes(session, batches.place, moved))
        basis = f"a point of the last proposal is worth {batches.efficiency:.2g} draws"
        return SumsForecast(self, Cost.of(spent, seconds), basis, doubt)

    def _begun(self, session: Session) -> Batches:
        batches = self.looked(session)
        batches.fit()
        return batches

    def looked(self, session: Session) -> Batches:
        """What there is before the first batch: the mode, lines from it, and what these show."""
        session.stage("the mode")
        place = laplace(session)
        session.stage("lines from the mode")
        search = other_modes(session, place, look(session, place, self.search))
        return Batches(session, place, self, search, follow(session, place, search))


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
        session: Session,
        place: Coordinates,
        method: Importance,
        search: Search,
        skeleton: Skeleton,
    ) -> None:
        self.session, self.place, self.seed = session, place, session.job.seed
        self.lines, self.search, self.skeleton = search.around[0], search, skeleton
        dim, proposals = place.origin.size, Proposals(search.modes, skeleton.mixture)
        self.dim, self.max_batches = dim, method.max_batches
        self.size = method.batch or max(_FEWEST, _PILOT * dim)
        self.main, self.proposals = Main(np.zeros(dim), np.eye(dim), float(max(_LEAST_FREEDOM, dim))), proposals
        self.found: Weighing | None = None
        self.efficiency = 0.0

    @property
    def start(self) -> Start:
        """Where chains may begin: at the points where enough share the weight, else at draws of the main component.

        In any case also at other modes, and at the points of the largest weights, which say where proposals are thin.
        """
        assert self.found is not None
        heaviest = self.found.points[np.argsort(-self.found.log_weight, kind="stable")[:_HEAVIEST]]
        others = np.concatenate([self.search.ends, heaviest])
        if self.found.effective > _SHARED_BY:
            return Start(self.place, others, self.found.points, self.found.weight)
        inner = Coordinates(self.main.mean, np.linalg.cholesky(self.main.scale))
        return Start(self.place.after(inner), inner.inverse(others))

    def points(self) -> Points:
        """The points in the posterior's parameters."""
        assert self.found is not None
        found, volume = self.found, float(np.linalg.slogdet(self.place.factor)[1])
        positions = self.place.origin + found.points @ self.place.factor.T
        log_density, log_proposal = -found.rise - self.lines.at_origin, found.log_proposal - volume
        return Points(positions, log_density, log_proposal, self.session.job.post.parameters.reported(positions))

    def fit(self) -> None:
        """Batches with gradients, until another one is not expected to make the proposal better."""
        before, walked = 0.0, False
        for batch in range(min(_FITTING, self.max_batches)):
            proposal = self.proposals.around(self.main)
            # what some batches did not settle wants larger ones
            drawn = Drawn(proposal, self.size << min(_DOUBLINGS, batch // _SAME_SIZE), self.seed, batch)
            value, gradient = slopes(self.session, self.place, drawn)
            found = self._with(Batch(proposal, drawn.points, value - self.lines.at_origin, gradient))
            self.session.stage(
                f"fitting proposals, {found.effective:.0f} effective draws in {self.session.traffic.sums} sums"
            )
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
            return slopes(self.session, self.place, z)

        states = [begin(ask, start, self.seed)]
        for _ in range(_TRANSITIONS):
            states.append(transition(ask, states[-1], seed=self.seed, warmup=_TRANSITIONS))
            self.session.stage(f"a pilot run, {self.session.traffic.sums} sums")
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
            self.session.stage(
                f"weighing points, {found.effective:.0f} of {target} effective draws "
                f"in {self.session.traffic.sums} sums"
            )
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

    def doubt(self, due: int) -> str:
        """Why a certificate will not hold, as far as that is known before the points that are due are weighed."""
        tail = followed(self.skeleton)
        if not tail.holds:
            return tail.text
        assert self.found is not None
        if due == 0 and self.found.effective < ENOUGH * self.session.job.target:
            return f"a point is expected to be worth {self.efficiency:.2g} effective draws, too few to go on"
        return ""

    def certificate(self, names: Sequence[str]) -> Certificate:
        """The certificate; where points that it moved came to where proposals are thin, one more after mending that."""
        for mended in range(_MENDED):
            assert self.found is not None
            certificate, moved = certify(self.session, self.place, self.found, self.lines, self.search, self.skeleton)
            failed = [check.name for check in certificate.checks if not check.holds]
            if moved is None or failed != [PLACES] or mended + 1 == _MENDED:
                break
            self._draw_around(moved.points, moved.log_weight)
        return certificate

    def _draw_around(self, points: np.ndarray, log_weight: np.ndarray) -> None:
        """A batch around the heaviest of some points."""
        assert self.found is not None
        self._draw(around_heaviest(points, log_weight, self.found, self.main), 2 * self.size, local=True)
        self.session.stage(f"points where proposals are thin, {self.session.traffic.sums} sums")

    def _draw(self, proposal: Mixture, count: int, *, local: bool = False) -> Weighing:
        """A batch of values."""
        assert self.found is not None
        drawn = Drawn(proposal, count, self.seed, len(self.found.batches))
        rise = values(self.session, self.place, drawn) - self.lines.at_origin
        return self._with(Batch(proposal, drawn.points, rise, local=local))

    def _with(self, batch: Batch) -> Weighing:
        self.found = Weighing(batch) if self.found is None else self.found.with_batch(batch)
        return self.found
