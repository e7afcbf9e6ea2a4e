"""Adaptive importance sampling with shared points and exact sums: a posterior in four sums, or some dozens."""

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
from .centring import Centring
from .certificate import (
    CHECKED,
    ENOUGH,
    MISSED,
    MOST_HIDDEN,
    MOVED,
    MOVES,
    STEADY,
    certify,
    followed,
    hidden_share,
    tails,
)
from .cubic import Beginning, beginning
from .evaluations import Answers, ask, slopes, values
from .lockstep import begin, transition
from .method import BySums, Result, SumsForecast, fastest
from .mode_search import Lines, Search, Skeleton, follow, modes_near, other_modes, probe
from .proposal import Drawn, Mixture
from .start import Start
from .weighing import Batch, Weighing

# Points of a fitting batch per dimension, and the fewest.
_PILOT, _FEWEST = 16, 256
# Points of a fitting batch per dimension with coarse answers, whose gradients take most of the bytes.
_PILOT_COARSELY = 8
# Efficiency at which fitting ends.
_FITTED = 0.6
# Least growth of the efficiency for which another fitting batch is drawn.
_GROWTH = 1.2
# Effective points per dimension from which on the expected efficiency is reliable.
_JUDGED = 6.0
# Most fitting batches.
_FITTING = 12
# Fitting batches of one size, after which the size doubles.
_SAME_SIZE = 2
# Most doublings of the size of fitting batches.
_DOUBLINGS = 2
# Fitting batches before a pilot run may begin.
_LOST = 3
# Effective points per dimension below which a pilot run begins.
_LOST_BELOW = 2.0
# Efficiency below which a pilot run begins, and the least expected one of points around the heaviest ones.
_POOR = 0.15
# Chains and transitions of a pilot run. The proposal is fitted to the last half of the transitions.
_CHAINS, _TRANSITIONS = 128, 8
# Chains of a pilot run with coarse answers.
_CHAINS_COARSELY = 64
# Degrees of freedom of the main component after a pilot run.
_PILOT_FREEDOM = 20.0
# Effective draws from which on chains of the fallback start at the points.
_SHARED_BY = 500.0
# Points of largest weight that are added to the starts of the fallback.
_HEAVIEST = 6
# Most batches that mend tails of the weights.
_MENDED = 3
# Least efficiency at which tails are mended, with exact answers.
_GOOD = 0.1
# Most points per effective draw.
_MOST_A_DRAW = 20.0
# Share of the points around the heaviest points in a proposal that is drawn again, with coarse answers.
_AROUND_SHARE = 0.2
# Batches of a run that needs no further ones.
_AT_ONCE = 3
# Oversampling factor, and the one of points that shall need no further sum.
_MARGIN, _LARGE_MARGIN = 1.05, 1.1
# Share of the requested effective draws from which on no further sum follows.
_NEARLY = 0.98


@dataclass(frozen=True, kw_only=True)
class Importance(BySums):
    """Adaptive multiple importance sampling with shared points, whose weights are sums over the agents.

    From agent i: its own mode and curvature, derivatives of f_i up to the third, and `f_i(x_b) - f_i(mode)` at the
    points x_b of each batch, summed over a spanning tree of the network. All agents draw the same points from shared
    counters, so points are never sent. Every agent then has F at all points, the same weights and the same draws, on
    any connected network. Draws are unbiased if the certificate (`run.certificate`) holds.

    Not from the papers: our own. Related: adaptive multiple importance sampling (Cornuet, Marin, Mira & Robert 2012,
    arXiv 0907.1254), from which the weights are, Pareto smoothed importance sampling (Vehtari et al. 2024), from which
    the diagnostic k is, and the exploration of hyperparameters in INLA (Rue, Martino & Chopin 2009).

    1. Mode: the agents' own modes and curvatures are combined to a position (as in Bayesian federated inference, Jonker
       et al. 2024). Derivatives up to the third there give a first approximation of the posterior. If its mode is far
       away, Newton's method finds the mode.
    2. Tails and other modes: F along half-lines from the mode and at points scattered around it. A half-line on which F
       rises slowly gets a skeleton of mixture components. If F is below one of its tangents, other modes are searched,
       and the half-lines of each mode are followed too. If the first approximation exists, its first points share the
       first of these sums. If they confirm it, all points that the run needs share the second one, and step 5 follows.
    3. Fit: small batches of points, with gradients, from a mixture of t distributions, the first around the mode. Each
       proposal is fitted to the weighted points if its expected efficiency is higher, or to a few transitions of
       Hamiltonian Monte Carlo if there are too few effective points.
    4. Weights: large batches of values from the last proposal, until there are enough effective draws. If the weights
       have a heavy tail, batches around the heaviest points follow (incremental mixtures, Raftery & Bao 2010).
    5. Draws: systematic resampling of the points of all batches, in random order.

    Parameters
    ----------
    batch
        Points of a fitting batch, >= 100. None: 16 per parameter, at least 256. The size of later batches depends on
        the number of missing effective draws.
    max_batches
        Most batches, >= 1. The run then ends with the points so far.
    search
        Number of points scattered around the mode in search of other modes, >= 0. The certificate states the
        probability that these points notice another mode. Use more, such as 10,000, if narrow modes are possible.

    Raises
    ------
    ValueError
        A number is out of its range.

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
        """Numbers per draw: position in both coordinates and as a draw, two densities, weight and index."""
        return 3 * dim + 4

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Find the mode and shape of the posterior, weight batches of points, and certify and resample them."""
        job, batches = session.job, self._near(session)
        names = job.post.unconstrained_names
        try:
            batches.explore(self.search)
            while True:
                batches.fit()
                batches.weigh(job.target)
                batches.mend(names)
                # mending can lower the number of effective draws
                batches.weigh(job.target)
                if not batches.find_mode(job.target):
                    break
            session.stage("checking the draws")
            certificate = batches.certificate(names)
        except KeyboardInterrupt:
            if batches.found is None:
                raise
            certificate = interrupted("weights")
        points = batches.points()
        # with too few points the chains are shorter
        chosen = points.chains(job.chains, min(job.draws, points.weight.size // job.chains), job.seed)
        return Result(self, points.positions[chosen], {}, certificate, points, batches.start)

    def forecast(self, session: Session) -> SumsForecast:
        """Run the search and the fit, and forecast the remaining batch of values and the certificate.

        The search and the fit take most of the sums and few of the evaluations. The efficiency, and with it the size of
        the remaining batch, is estimated from points that the proposal was not fitted to.
        """
        job = session.job
        self._begun(session.fresh())
        # all programs are compiled by now
        began = time.perf_counter()
        batches = self._begun(session.fresh())
        seconds = time.perf_counter() - began
        spent, found, due = batches.session.traffic, batches.found, batches.due(job.target)
        assert found is not None
        points, doubt = found.points[: batches.size], batches.doubt(due)
        if due:
            spent += total_traffic(job.network, due) + Traffic(value_rows=due * job.post.sizes)
            seconds += due / len(points) * fastest(lambda: values(session, batches.place, points))
        if not doubt and not batches.is_steady:
            # a run that fails earlier checks makes no moves, and Stein's identities need no further sum
            moved = np.resize(points, (MOVED, job.post.dim))
            spent += total_traffic(job.network, MOVED * (1 + job.post.dim), MOVES)
            spent += Traffic(gradient_rows=MOVES * MOVED * job.post.sizes)
            seconds += MOVES * fastest(lambda: slopes(session, batches.place, moved))
        basis = f"each point of the last proposal gives {batches.efficiency:.2g} effective draws"
        return SumsForecast(self, Cost.of(spent, seconds), basis, doubt)

    def _begun(self, session: Session) -> Batches:
        batches = self._near(session)
        batches.explore(self.search)
        batches.fit()
        return batches

    def _near(self, session: Session) -> Batches:
        """The state before the first batch, in coordinates of the mode."""
        session.stage("finding the mode")
        return Batches(session, beginning(session), self)


class Batches:
    """The batches of a run, and the proposal of the next batch.

    Attributes
    ----------
    place
        Coordinates with the mode as origin.
    size
        Points of the first fitting batches.
    found
        The points so far, None before the first batch.
    efficiency
        Expected effective draws per point of the next batch; 0 if unknown.
    fitted
        Batches that do not count, as the proposal depends on their noise. Empty if sums are exact.
    """

    lines: Lines
    search: Search
    skeleton: Skeleton

    def __init__(self, session: Session, begun: Beginning, method: Importance) -> None:
        self.session, self.place, self.seed = session, begun.place, session.job.seed
        dim = begun.place.origin.size
        self.dim, self.max_batches = dim, method.max_batches
        self.size = method.batch or max(_FEWEST, (_PILOT if session.noise is None else _PILOT_COARSELY) * dim)
        self.main = begun.main or Main.first(dim)
        self.proposals = begun.proposals or Proposals([], None)
        # whether the proposal is fitted before the first batch
        self._is_fitted = begun.main is not None
        self.found: Weighing | None = None
        self.efficiency = 0.0
        # with coarse answers: batches that the proposal was fitted to, and the components around their heaviest points
        self.fitted: list[Batch] = []
        # whether the proposal was fitted to the points so far
        self.is_spent = False
        self.around: Mixture | None = None

    @property
    def start(self) -> Start:
        """Starts for chains: the weighted points if enough are effective, else draws of the main component.

        Other modes and the heaviest points, around which the proposals may be too thin, are always included.
        """
        assert self.found is not None
        post = self.session.job.post
        others = np.concatenate([self.search.ends, self._heaviest])
        if self.found.effective > _SHARED_BY:
            return Start(Centring.none(post, self.place), others, self.found.points, self.found.weight)
        inner = Coordinates(self.main.mean, np.linalg.cholesky(self.main.scale))
        return Start(Centring.none(post, self.place.after(inner)), inner.inverse(others))

    def points(self) -> Points:
        """The points in the posterior's parameters."""
        assert self.found is not None
        found, volume = self.found, float(np.linalg.slogdet(self.place.factor)[1])
        positions = self.place.origin + found.points @ self.place.factor.T
        log_density, log_proposal = -found.rise - self.lines.at_origin, found.log_proposal - volume
        noise = self.session.noise
        shared = 0.0 if noise is None else noise.of_origin
        reported = self.session.job.post.parameters.reported(positions)
        return Points(positions, log_density, log_proposal, reported, shared)

    def explore(self, scattered: int) -> None:
        """Search tails and other modes.

        If the proposal is fitted already, its first points share the messages of the search: points with gradients,
        then nearly all points that the run needs, if the first ones confirm the proposal.
        """
        session, place = self.session, self.place
        session.stage("searching tails and modes")
        if self._is_fitted:
            self.lines = probe(session, place, scattered, self._first_points, self._further_points)
        else:
            self.lines = probe(session, place, scattered)
        self.search = other_modes(session, place, self.lines)
        self.lines = self.search.around[0]
        self.skeleton = follow(session, place, self.search)
        if self.search.modes or self.skeleton.mixture is not None:
            self.proposals = Proposals(self.search.modes, self.skeleton.mixture)
            # the points so far leave out these regions
            self.fitted = [batch._replace(local=True) for batch in self.fitted]
            if self.found is not None:
                self.found = Weighing.of([batch._replace(local=True) for batch in self.found.batches])
        self.share_regions()

    def find_mode(self, target: int) -> bool:
        """Search modes from the heaviest points if there are too few effective draws; whether there is a new one."""
        assert self.found is not None
        if self.session.noise is not None or self.found.effective >= ENOUGH * target:
            return False
        self.search = modes_near(self.session, self.place, self.lines, self.search, self._heaviest)
        if len(self.search.modes) == len(self.proposals.modes):
            return False
        # a fit to the heaviest points does not fit the main mode
        self.main, self.proposals = Main.first(self.dim), Proposals(self.search.modes, self.proposals.skeleton)
        self.found = Weighing.of([batch._replace(local=True) for batch in self.found.batches])
        return True

    @property
    def _heaviest(self) -> np.ndarray:
        """The points of largest weight, (point, dim)."""
        assert self.found is not None
        return self.found.points[np.argsort(-self.found.log_weight, kind="stable")[:_HEAVIEST]]

    def _first_points(self, sloped: np.ndarray, valued: np.ndarray) -> Answers:
        """F at points, with its gradient at `sloped` and at the first points of the proposal, in one sum."""
        # heavy tails, as no point of F has confirmed the fit
        careful = self.main._replace(freedom=Main.first(self.dim).freedom)
        drawn = Drawn(self.proposals.around(careful), self.size, self.seed, 0)
        found = ask(self.session, self.place, np.concatenate([sloped, drawn.points]), valued)
        (value, gradient), count = found.slopes, len(sloped)
        self._with(Batch(drawn.recipe[0], drawn.points, value[count:], gradient[count:]))
        return found._replace(slopes=(value[:count], gradient[:count]))

    def _further_points(self, lines: Lines, landed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F and its gradient at the landings, and F at the points that the run needs in the same sum."""
        assert self.found is not None
        (first,) = self.found.batches
        self.found = found = Weighing(first._replace(rise=first.rise - lines.at_origin))
        main, expected = adapted(found, self.main, self.proposals)
        if expected > 0.0:
            self.main, self.efficiency = main, expected
        # an interrupt keeps these points
        self.lines, self.search = lines, Search([], np.zeros((0, self.dim)), [lines], whole=False)
        self.session.stage(f"proposals, first points: {found.effective:.0f} effective draws")
        if expected < STEADY or not lines.are_usual or self.max_batches < _AT_ONCE:
            return ask(self.session, self.place, landed, landed[:0]).slopes
        if self.session.noise is not None:
            self._drop()
        known = 0 if self.found is None else len(found.rise)
        proposal = self.proposals.around(self.main)
        count = max(ceil(_LARGE_MARGIN * self.session.job.target / expected) - known, self.size)
        sloped = Drawn(proposal, CHECKED, self.seed, 1)
        drawn = Drawn(proposal, max(count - CHECKED, 1), self.seed, 2)
        (value, gradient), others = ask(self.session, self.place, np.concatenate([landed, sloped.points]), drawn)
        count = len(landed)
        self._with(Batch(proposal, sloped.points, value[count:] - lines.at_origin, gradient[count:]))
        self._with(Batch(proposal, drawn.points, others - lines.at_origin))
        return value[:count], gradient[:count]

    @property
    def is_steady(self) -> bool:
        """Whether the points so far have good weights from a proposal without further components."""
        found, usual = self.found, self.proposals.skeleton is None and not self.proposals.modes
        return found is not None and len(found.batches) > 1 and usual and found.effective > STEADY * found.weight.size

    def fit(self) -> None:
        """Draw batches with gradients and fit the proposal, until another batch is not expected to improve it."""
        before, piloted = 0.0, False
        if self.is_steady:
            return
        self.is_spent = True
        begun = len(self.fitted) + (0 if self.found is None else len(self.found.batches))
        for batch in range(begun, begun + min(_FITTING, self.max_batches - begun)):
            proposal = self.proposals.around(self.main)
            # batches grow if the first ones did not suffice
            doublings = min(_DOUBLINGS, (batch - begun) // _SAME_SIZE)
            drawn = Drawn(proposal, self.size << doublings, self.seed, batch)
            value, gradient = slopes(self.session, self.place, drawn)
            found = self._with(Batch(proposal, drawn.points, value - self.lines.at_origin, gradient))
            self.session.stage(
                f"proposals, batch {batch + 1}: {found.effective:.0f} effective draws, {self.session.traffic.sums} sums"
            )
            self.proposals = self.proposals.shared(found, self.main)
            main, expected = adapted(found, self.main, self.proposals)
            # a fit without a known efficiency does not replace the fit to a pilot run
            self.main = self.main if piloted and expected == 0.0 else main
            self.efficiency = expected or before
            # few effective points do not show which proposal is better, nor is an unknown efficiency poor
            lost = found.effective < _LOST_BELOW * self.dim or 0.0 < self.efficiency < _POOR
            if not piloted and batch - begun + 1 >= _LOST and lost:
                self._pilot()
                piloted, before = True, 0.0
            elif found.effective >= _JUDGED * self.dim:
                # a fall shows that the expectation before was wrong
                is_same = before / _GROWTH < expected < _GROWTH * before
                if expected > _FITTED or (expected > _POOR and is_same):
                    return
                before = expected

    def _pilot(self) -> None:
        """Fit the main component to a few transitions of chains that start around the mode."""
        chains = _CHAINS if self.session.noise is None else _CHAINS_COARSELY
        start = generator(self.seed, "pilot").standard_normal((chains, self.dim))

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return slopes(self.session, self.place, z)

        states = [begin(evaluate, start, self.seed)]
        for _ in range(_TRANSITIONS):
            states.append(transition(evaluate, states[-1], seed=self.seed, warmup=_TRANSITIONS))
            self.session.stage(f"pilot run of {chains} chains, {self.session.traffic.sums} sums")
        last = states[1 + _TRANSITIONS // 2 :]
        positions, gradients = (np.concatenate([getattr(s, k) for s in last]) for k in ("positions", "gradients"))
        self.main = fitted_to_draws(positions, gradients, _PILOT_FREEDOM)

    def weigh(self, target: int) -> None:
        """Draw batches of values, until there are `target` effective draws or they would need too many points."""
        if self.session.noise is not None and self.is_spent:
            # the proposals of points must not depend on their noise
            self._drop()
        proposal = self._proposal
        while self.found is None or len(self.found.batches) < self.max_batches:
            count, before = self.due(target), 0.0 if self.found is None else self.found.effective
            if count == 0:
                return
            found = self._draw(proposal, count)
            self.session.stage(
                f"weights of {found.weight.size} points: {found.effective:.0f} of {target} effective draws, "
                f"{self.session.traffic.sums} sums"
            )
            # a single heavy point can make the gain of a batch negative
            self.efficiency = max((found.effective - before) / count, found.effective / found.weight.size)

    def due(self, target: int) -> int:
        """Points that the next batch needs for `target` effective draws; 0 if none or too many."""
        if self.found is None:
            # there are no other points
            return ceil(_MARGIN * target / max(self.efficiency, 1.0 / _MOST_A_DRAW))
        missing = max(target - self.found.effective, target - self.found.weight.size)
        nearly = self.found.effective >= _NEARLY * target and self.found.weight.size >= target
        if nearly or missing > _MOST_A_DRAW * self.efficiency * target:
            return 0
        return ceil(_MARGIN * missing / self.efficiency)

    def mend(self, names: Sequence[str]) -> None:
        """Add batches around the heaviest points, if weights have a tail that is too heavy."""
        for _ in range(_MENDED):
            assert self.found is not None
            found = self.found
            # with coarse answers all points are drawn again, so that poor weights can become good
            is_poor = self.session.noise is None and found.effective < _GOOD * found.weight.size
            weights, squares = tails(found, self.place, names)
            if is_poor or len(found.batches) >= self.max_batches or (weights.holds and squares.holds):
                return
            # second moments depend on far points, whose weights may be small
            share = np.zeros(found.weight.size) if not weights.holds else found.log_squares(self.place)
            if self.session.noise is None:
                self._draw_around(found.points, found.log_weight + share)
            else:
                self._redraw_around(found.points, found.log_weight + share)

    def doubt(self, due: int) -> str:
        """The reason why the certificate is expected to fail, known before `due` points are weighted; else empty."""
        tail = followed(self.skeleton)
        if not tail.holds:
            return tail.text
        assert self.found is not None
        if due == 0 and self.found.effective < ENOUGH * self.session.job.target:
            return f"each point is expected to give {self.efficiency:.2g} effective draws, too few to continue"
        return ""

    def certificate(self, names: Sequence[str]) -> Certificate:
        """The certificate, repeated after a batch around the moved points if they reached missed regions."""
        for mended in range(_MENDED):
            assert self.found is not None
            certificate, moved = certify(
                self.session, self.place, self.found, self.lines, self.search, self.skeleton, self.fitted
            )
            failed = [check.name for check in certificate.checks if not check.holds]
            if moved is None or failed != [MISSED] or mended + 1 == _MENDED:
                break
            if self.session.noise is None:
                self._draw_around(moved.points, moved.log_weight)
            else:
                self._redraw_around(moved.points, moved.log_weight)
        return certificate

    @property
    def _proposal(self) -> Mixture:
        """The proposal of the next batch of values."""
        usual = self.proposals.around(self.main)
        return usual if self.around is None else Mixture.of((1.0 - _AROUND_SHARE, usual), (_AROUND_SHARE, self.around))

    def share_regions(self) -> None:
        """Measure the radii, from which the noise of points follows, from all components of the proposal."""
        noise = self.session.noise
        if noise is None:
            return
        regions = [(mode.mean, mode.factor) for mode in self.proposals.modes]
        for mixture in (self.main.mixture(), self.proposals.skeleton, self.around):
            if mixture is not None:
                regions += zip(mixture.mean, mixture.factor, strict=True)
        noise.know(self.place, regions)

    def _drop(self) -> None:
        """Stop counting the points so far, as the next proposal depends on their noise."""
        assert self.found is not None
        for batch in self.found.batches:
            log_weight = -batch.rise - batch.proposal.log_density(batch.points)
            # moments of a batch with hidden points are not comparable
            noise = self.session.noise
            hidden = noise is not None and hidden_share(noise, self.place, batch.points, log_weight) > MOST_HIDDEN
            self.fitted.append(batch._replace(local=batch.local or hidden))
        self.found, self.is_spent = None, False
        self.share_regions()

    def _redraw_around(self, points: np.ndarray, log_weight: np.ndarray) -> None:
        """Add components around the heaviest of these points to the proposal, and draw all points again."""
        assert self.found is not None
        own = around_heaviest(points, log_weight, self.found, self.main)
        self.around = own if self.around is None else Mixture.of((0.5, self.around), (0.5, own))
        # one heavy point can make all weights poor, and the new components cover it
        self.efficiency = max(self.found.effective / self.found.weight.size, _POOR)
        self._drop()
        self.weigh(self.session.job.target)

    def _draw_around(self, points: np.ndarray, log_weight: np.ndarray) -> None:
        """Draw a batch around the heaviest of these points."""
        assert self.found is not None
        self._draw(around_heaviest(points, log_weight, self.found, self.main), 2 * self.size, local=True)
        self.session.stage(f"points around the heaviest weights, {self.session.traffic.sums} sums")

    def _draw(self, proposal: Mixture, count: int, *, local: bool = False) -> Weighing:
        """Draw a batch and evaluate F at its points."""
        batches = 0 if self.found is None else len(self.found.batches)
        drawn = Drawn(proposal, count, self.seed, len(self.fitted) + batches)
        rise = values(self.session, self.place, drawn) - self.lines.at_origin
        return self._with(Batch(proposal, drawn.points, rise, local=local))

    def _with(self, batch: Batch) -> Weighing:
        self.found = Weighing(batch) if self.found is None else self.found.with_batch(batch)
        return self.found
