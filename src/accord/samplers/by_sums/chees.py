"""`ChEES`: Hamiltonian Monte Carlo by sums, the fallback for posteriors that importance sampling does not fit."""

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
from ...results.certificate import UNSEEN, Certificate, Check, interrupted
from ...results.diagnostics import effective_draws
from ...results.traffic import Cost, Traffic
from ..costs import total_traffic
from ..engine import Builder
from ..session import Job, Session
from .centring import Centring
from .evaluations import NOWHERE
from .lockstep import WARMUP, Evaluate, LockstepState, begin, grouped, nested_rhat, relocated, settled, transition
from .method import BySums, Result, SumsForecast, fastest
from .start import Start, start_without_points

# Chains per group. The chains of a group start at one point, for nested R-hat.
_GROUP = 8
# Factors by which starts are moved towards the origin if none of them has a density.
_NEARER = (0.3, 0.1, 0.03, 0.01)
# Most parameters in messages about a position without density.
_SHOWN = 6
# Fewest transitions after warm-up, and between two evaluations of the checks.
_FEWEST = 16
# Fewest transitions after which chains end because the certificate will not hold.
_HOPELESS = 64
# Shares of warm-up at which effects are centred anew.
_CENTRED_AT = (4 / 16, 7 / 16, 10 / 16)
# One of this number of groups may start at other positions than the chains of warm-up.
_OTHERS = 8
# Largest nested R-hat, and least one of chains that have not met.
_RHAT, _NEVER_MET = 1.01, 2.0
# Features whose effective draws are counted, those with the largest nested R-hat.
_SLOWEST = 8
# Least share of the requested effective draws.
_ENOUGH = 0.9
# Largest share of divergent trajectories.
_DIVERGED = 1e-3
# Least energy fraction (E-BFMI).
_ENERGY = 0.3
# Share of the draws in a tail, and least rate of moves from there relative to all draws.
_TAIL, _MOVING = 0.01, 0.33
# Least degrees of freedom of tails. Below 4, standard deviations of draws have no Monte Carlo error.
_FREEDOM = 3.75
# Degrees of freedom below which chains end early.
_HEAVIEST = 3.0
# Share of the draws in the tail beyond that tail.
_FURTHER = 0.003
# Probability that the heaviest of all tails seems too heavy by chance alone.
_HEAVY = 0.1
# Largest weight of earlier points in regions that no chain visited.
_UNVISITED = 0.002
# Largest share of the variance of earlier points in these regions, which makes an sd 5% too small.
_UNSEEN = 0.1
# Largest ratio of the sd of earlier points to the chains' sd. Large, as the weights of these points are not certified.
_WIDER = 2.0
# Probability that the test of Stein's identity refuses correct draws.
_FALSE_ALARM = 1e-4
# Largest error of Stein's identity that is negligible.
_MATTERS = 0.05


@dataclass(frozen=True, kw_only=True)
class ChEES(BySums):
    """Hamiltonian Monte Carlo of many chains in lockstep, with one sum per leapfrog step of all chains.

    From agent i: f_i and grad f_i at the positions of all chains, summed over a spanning tree of the network. All
    agents have the same chains. They start around the posterior's init. Warm-up adapts step size, trajectory length (by
    the ChEES criterion) and scale from all chains together, and for a posterior with a `hierarchy` also how far effects
    are centred. After it every transition is an exact Metropolis transition, so draws have no bias at any step. The
    certificate refuses draws of chains that seldom leave a tail, for example the neck of a funnel.

    Not from the papers: Hoffman, Radul & Sountsov (2021), "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in
    Hamiltonian Monte Carlo". The scale is of least Fisher divergence (Seyboldt, Carlson & Carpenter 2026, arXiv
    2603.18845). Convergence by nested R-hat (Margossian et al. 2024, arXiv 2110.13017).

    Parameters
    ----------
    lockstep
        Chains in lockstep, >= 16, rounded up to a multiple of 8 times the run's chains. A chain of the run is the
        concatenation of equally many of them.
    warmup
        Adapting transitions, >= 0.
    max_transitions
        Most transitions after warm-up, >= 1. Sampling ends early if the draws would need more.

    Raises
    ------
    ValueError
        A number is out of its range.
    """

    lockstep: int = 512
    warmup: int = WARMUP
    max_transitions: int = 1000

    def __post_init__(self) -> None:
        whole_number("lockstep", self.lockstep, 16)
        whole_number("warmup", self.warmup, 0)
        whole_number("max_transitions", self.max_transitions, 1)

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` if the run is impossible, without reading data."""
        if job.coarse:
            raise ValueError("ChEES() needs hundreds of sums, too many for coarse answers: use Importance()")
        super().check(job, engine)

    def doubles(self, dim: int) -> int:
        """Numbers per draw: positions and gradients, each twice, positions and squares for diagnostics, and F."""
        return 6 * dim + 1

    def lockstep_chains(self, chains: int) -> int:
        """Number of chains in lockstep for a run of `chains` chains: a multiple of 8 times this number."""
        return -(-self.lockstep // (chains * _GROUP)) * chains * _GROUP

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Run chains from `start`, or from the mode, and check them."""
        session.stage("finding starts")
        start = _first(session) if start is None else start
        start = start.around_init(session)
        found, job = self.walk(session, start), session.job
        # a chain of the run is the concatenation of several thinned chains in lockstep
        count, length = found.positions.shape[:2]
        own = -(-job.draws // (count // job.chains))
        chosen = np.unique(np.linspace(0, length - 1, own).round().astype(int))
        z = found.positions[:, chosen].reshape(job.chains, -1, job.post.dim)[:, : job.draws]
        acceptance = np.broadcast_to(found.acceptance[chosen], (count, chosen.size))
        acceptance = acceptance.reshape(job.chains, -1)[:, : job.draws]
        x = found.coordinates.x(z)
        log_density = -found.values[:, chosen].reshape(job.chains, -1)[:, : job.draws]
        statistics = {"acceptance_rate": acceptance, "lp": log_density}
        return Result(self, x, statistics, found.certificate, start=start)

    def forecast(self, session: Session) -> SumsForecast:
        """Find the start, and count the sums of as many chains on a standard normal posterior in this process.

        Other posteriors need more sums.
        """
        job, count = session.job, self.lockstep_chains(session.job.chains)
        _first(session.fresh())
        began = time.perf_counter()
        fresh = session.fresh()
        start = _first(fresh)
        seconds, spent = time.perf_counter() - began, fresh.traffic
        self._on_a_normal(job)
        began = time.perf_counter()
        normal, doubt = self._on_a_normal(job)
        # the computations of the chains, with sums that take no time
        seconds += time.perf_counter() - began
        z = start.positions(count, job.seed)
        seconds += normal * fastest(lambda: start.coordinates.slopes(session, z))
        spent += total_traffic(job.network, count * (1 + job.post.dim), normal)
        spent += Traffic(gradient_rows=normal * count * job.post.sizes)
        basis = f"{count} chains on the nearest Gaussian, other posteriors need more sums"
        return SumsForecast(self, Cost.of(spent, seconds), basis, doubt)

    def _on_a_normal(self, job: Job) -> tuple[int, str]:
        """Sums of the chains on a standard normal posterior, and why their certificate fails (empty if it holds)."""
        dim = job.post.dim
        post = models.quadratic(np.eye(dim)[None], np.zeros((1, dim)))
        session = Session(Job(post, Network.empty(1), job.draws, job.chains, job.seed))
        start = Start(Centring.none(post, Coordinates(np.zeros(dim), np.eye(dim))), np.zeros((0, dim)))
        certificate = self.walk(session, start).certificate
        return session.traffic.sums, "" if certificate.holds else f"even on a Gaussian, {certificate.why}"

    def walk(self, session: Session, start: Start) -> Chains:
        """Run chains until their certificate holds, or cannot hold within `max_transitions`.

        A `KeyboardInterrupt` after the first draw ends the chains.
        """
        seed, target = session.job.seed, session.job.target
        names, count = session.job.post.unconstrained_names, self.lockstep_chains(session.job.chains)
        centred_at = [] if session.job.post.hierarchy is None else [round(k * self.warmup) for k in _CENTRED_AT]

        coordinates = start.coordinates

        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return coordinates.slopes(session, z)

        def warmed(state: LockstepState, end: int) -> LockstepState:
            while state.transition < end:
                session.stage(
                    f"warm-up of {count} chains, {state.transition} of {self.warmup} transitions, "
                    f"{session.traffic.sums} sums"
                )
                state = transition(evaluate, state, seed=seed, warmup=self.warmup)
            return state

        state = _begun(evaluate, start.positions(count, seed), seed)
        for end in centred_at:
            state = warmed(state, end)
            coordinates, moved = coordinates.fitted(session, state.positions)
            state = relocated(state, *moved)
        state = warmed(state, settled(self.warmup))
        others = coordinates.z(start.coordinates.x(start.others))
        state = warmed(_with_others(evaluate, grouped(state, _GROUP, seed), others), self.warmup)
        states: list[LockstepState] = []
        due = max(_FEWEST, -(-target // count))
        while True:
            try:
                while len(states) < min(due, self.max_transitions):
                    session.stage(f"{count} chains, {len(states)} of {due} transitions, {session.traffic.sums} sums")
                    state = transition(evaluate, state, seed=seed, warmup=self.warmup)
                    states.append(state)
            except KeyboardInterrupt:
                if not states:
                    raise
                return _stacked(states, coordinates)._replace(certificate=interrupted("chains"))
            drawn = _stacked(states, coordinates)
            # squares too, as standard deviations need more draws than means if tails mix slowly; F changes most
            # between narrow and wide regions
            squares = np.square(drawn.positions - drawn.positions.mean((0, 1)))
            features = np.concatenate([drawn.positions, squares, drawn.values[:, :, None]], axis=2)
            rhat = nested_rhat(features, count // _GROUP)
            effective = _effective(features, rhat)
            lost = state.divergences - state.warmup_divergences
            diverged = lost / (count * len(states))
            # gravest errors first: draws of another distribution, then slow chains, then too few draws
            tails, freedom = _moves_in_tails(drawn, names), _freedom(drawn, count // _GROUP, names)
            checks = (
                _support(drawn, names),
                _stein(drawn, count // _GROUP, names),
                _unvisited(drawn, start),
                _divergences(diverged),
                _energy_fraction(drawn),
                tails,
                freedom,
                _effective_draws(effective, target),
                _rhat(rhat, names),
            )
            # other messages mislead if the chains have not met
            certificate = Certificate(checks if checks[-1].found < _NEVER_MET else (checks[-1], *checks[:-1]))
            # the step is final, so more draws do not help in a tail, nor do they make it much lighter
            stays = not tails.holds or freedom.found < _HEAVIEST
            failing = stays or len(states) * target > max(effective, 1.0) * self.max_transitions
            # failing is uncertain at first, and divergences exceed the limit for all transitions
            hopeless = (failing and len(states) >= _HOPELESS) or lost > _DIVERGED * count * self.max_transitions
            if certificate.holds or hopeless or len(states) >= self.max_transitions:
                return drawn._replace(certificate=certificate)
            # at most doubled, as a forecast from few draws is uncertain
            due = min(2 * due, max(due + _FEWEST, due * 5 // 4, int(1.1 * due * target / max(effective, 1.0))))


class Chains(NamedTuple):
    """Chains in lockstep after warm-up.

    Parameters
    ----------
    positions
        Draws, (chain, draw, dim).
    values, gradients
        F at the draws, (chain, draw), and its gradients, (chain, draw, dim).
    acceptance
        Mean acceptance probability of each transition, (draw,).
    coordinates
        The coordinates of the positions.
    certificate
        The checks.
    """

    positions: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    acceptance: np.ndarray
    coordinates: Centring
    certificate: Certificate


def _first(session: Session) -> Start:
    """A start around the mode, or at init if effects have a hierarchy, whose density may have no bound."""
    post = session.job.post
    if post.hierarchy is None:
        return start_without_points(session)
    return Start(Centring.none(post, Coordinates(post.init, np.eye(post.dim))), np.zeros((0, post.dim)))


def _begun(evaluate: Evaluate, positions: np.ndarray, seed: int) -> LockstepState:
    """The first state of the chains, at positions with a positive density if there are any."""
    state = begin(evaluate, positions, seed)
    for share in _NEARER:
        if not (state.values >= NOWHERE).all():
            break
        # the posterior may be truncated near its mode
        positions = share * positions
        state = begin(evaluate, positions, seed)
    astray = state.values >= NOWHERE
    if astray.any() and not astray.all():
        # a chain would not leave a region without mass, so it takes another chain's start
        state = begin(evaluate, positions[np.resize(np.flatnonzero(~astray), len(positions))], seed)
    return state


def _with_others(evaluate: Evaluate, state: LockstepState, others: np.ndarray) -> LockstepState:
    """The state with some of the groups at other positions that may have mass; one sum if there are any."""
    places = others[: len(state.positions) // _GROUP // _OTHERS]
    if not len(places):
        return state
    values, gradients = evaluate(places)
    supported = (values < NOWHERE) & np.isfinite(gradients).all(axis=1)

    def first(own: np.ndarray, before: np.ndarray) -> np.ndarray:
        own = np.repeat(own[supported], _GROUP, axis=0)
        return np.concatenate([own, before[len(own) :]])

    return state._replace(
        positions=first(places, state.positions),
        values=first(values, state.values),
        gradients=first(gradients, state.gradients),
        calls=int(state.calls) + 1,
    )


def _stacked(states: list[LockstepState], coordinates: Centring) -> Chains:
    positions = np.stack([state.positions for state in states], axis=1)
    gradients = np.stack([state.gradients for state in states], axis=1)
    values = np.stack([state.values for state in states], axis=1)
    acceptance = np.array([state.acceptance for state in states])
    return Chains(positions, values, gradients, acceptance, coordinates, Certificate(()))


def _effective(features: np.ndarray, rhat: np.ndarray) -> float:
    """The least number of effective draws of the features with the largest nested R-hat, 0 if a chain did not move."""
    worst = np.argsort(-np.nan_to_num(rhat))[:_SLOWEST]
    return float(np.nan_to_num(effective_draws(features[:, :, worst])).min())


def _effective_draws(effective: float, target: int) -> Check:
    holds = effective >= _ENOUGH * target
    text = (
        f"{effective:,.0f} effective draws (at least {_ENOUGH * target:,.0f} needed), the least over all coordinates, "
        "their squares and the log density"
    )
    remedy = "" if holds else ": try another parametrisation, or many more max_transitions"
    return Check("effective draws", effective, _ENOUGH * target, holds, text + remedy)


def _rhat(found: np.ndarray, names: tuple[str, ...]) -> Check:
    worst = int(np.nanargmax(found))
    # coordinates, their squares, and F
    of = [*enumerate(names)] * 2
    where = "the log density" if worst == len(of) else f"coordinate {of[worst][0]} ({of[worst][1]})"
    where = f"the square of {where}" if len(names) <= worst < len(of) else where
    most = float(np.nanmax(found))
    holds = most <= _RHAT
    text = f"largest nested R-hat is {most:.3f} (at most {_RHAT}), for {where}"
    remedy = "" if holds else ": the chains still depend on their starts, use more warmup"
    if most > _NEVER_MET:
        remedy = ": the chains have not met, give an init nearer to the posterior, or shift and scale the data"
    return Check("nested R-hat", most, _RHAT, holds, text + remedy)


def _support(drawn: Chains, names: tuple[str, ...]) -> Check:
    """Whether all draws have a positive density."""
    outside = drawn.values >= NOWHERE
    share = float(outside.mean())
    text = f"{share:.1%} of the draws have a posterior density of zero"
    if share == 0:
        return Check("support", share, 0.0, True, text)
    first = drawn.coordinates.x(drawn.positions[outside][:1])[0]
    shown = ", ".join(f"{name} = {number:.3g}" for name, number in list(zip(names, first, strict=True))[:_SHOWN])
    remedy = (
        f", for example at {shown} (unconstrained): declare bounds of parameters as constraints, and write a log "
        "density that is finite everywhere (log_ndtr instead of the log of a cdf)"
    )
    return Check("support", share, 0.0, False, text + remedy)


def _divergences(diverged: float) -> Check:
    holds = diverged <= _DIVERGED
    text = f"{diverged:.2%} of the trajectories diverged (at most {_DIVERGED:.2%})"
    remedy = "" if holds else ": a region of the posterior is too narrow for the step, such as the neck of a funnel"
    return Check("divergences", diverged, _DIVERGED, holds, text + remedy)


def _energy_fraction(drawn: Chains) -> Check:
    """Whether momenta move the chains through all energies (E-BFMI; Betancourt 2016)."""
    dim = drawn.positions.shape[2]
    found = dim / (float(drawn.values.var()) + dim / 2.0)
    holds = found >= _ENERGY
    text = f"the energy fraction (E-BFMI) is {found:.2f} (at least {_ENERGY})"
    remedy = "" if holds else f": chains move too slowly between narrow and wide regions; {_reparametrise(drawn)}"
    return Check("energy fraction", found, _ENERGY, holds, text + remedy)


def _reparametrise(drawn: Chains) -> str:
    """The remedy for funnels."""
    if drawn.coordinates.post.hierarchy is None:
        return "declare the prior of effects, as in Posterior(..., hierarchy=...), or use non-centred effects"
    return "use a parametrisation in which scales do not multiply parameters"


def _moves_in_tails(drawn: Chains, names: tuple[str, ...]) -> Check:
    """Whether chains leave the tails of each coordinate about as often as other places.

    A chain that enters a region too narrow for the step, such as the neck of a funnel, rejects its next proposals. By
    reversibility chains then hardly enter this region, and what lies beyond is missing in the draws.
    """
    if drawn.positions.shape[1] == 1:
        return Check("moves in tails", 0.0, _MOVING, False, "one draw of each chain shows no moves")
    moved = (drawn.positions[:, 1:] != drawn.positions[:, :-1]).any(axis=2).ravel()
    before = drawn.positions[:, :-1].reshape(-1, len(names))
    rates = [min(moved[tail].mean() for tail in _tails(column)) for column in before.T]
    worst = int(np.argmin(rates))
    found = float(rates[worst] / max(moved.mean(), 1e-12))
    holds = found >= _MOVING
    text = (
        f"in a tail of {_TAIL:.0%} of the draws, chains move {found:.2f} times as often as elsewhere (at least "
        f"{_MOVING}), for coordinate {worst} ({names[worst]})"
    )
    remedy = (
        ""
        if holds
        else ": a part of the posterior is too narrow for the step, so that this tail is too light in the draws; "
        f"{_reparametrise(drawn)}"
    )
    return Check("moves in tails", found, _MOVING, holds, text + remedy)


def _freedom(drawn: Chains, groups: int, names: tuple[str, ...]) -> Check:
    """Whether sds have Monte Carlo errors: the degrees of freedom of a Student's t with such tails.

    For x from Student's t with nu degrees of freedom around 0, and marginally for each of several coordinates,
    E[x dF/dx | x] = x**2 / (a + b x**2) with b = 1 / (nu + 1). So a and b follow from two means over a tail. b does not
    depend on how far the draws reached, as their variance or their tail index does. Lighter tails have a smaller b.
    """
    group = np.repeat(np.arange(groups), drawn.values.size // groups)
    middle = np.median(drawn.positions, axis=(0, 1))
    # the largest of many tails
    errors = float(scipy.stats.norm.isf(_HEAVY / (2 * len(names))))

    def heaviness(x: np.ndarray, gradient: np.ndarray, far: np.ndarray, further: np.ndarray) -> float:
        own, error = _heaviness(x[far], gradient[far], group[far], groups)
        # in the tail of a Student's t, b is the same further out
        return min(own - errors * error, _heaviness(x[further], gradient[further], group[further], groups)[0])

    columns = (drawn.positions - middle).reshape(-1, len(names)).T, drawn.gradients.reshape(-1, len(names)).T
    heaviest = np.array(
        [
            max(heaviness(x, gradient, *tails) for tails in zip(_tails(x), _tails(x, _FURTHER), strict=True))
            for x, gradient in zip(*columns, strict=True)
        ]
    )
    worst = int(np.argmax(heaviest))
    found = 1.0 / max(float(heaviest[worst]), 1e-3) - 1.0
    holds = found >= _FREEDOM
    text = (
        f"tails have at least the weight of Student's t with {found:.1f} degrees of freedom (at least {_FREEDOM} "
        f"needed), for coordinate {worst} ({names[worst]})"
    )
    if holds:
        text = f"no tail is as heavy as of Student's t with {_FREEDOM} degrees of freedom (most similar: {found:.1f})"
    remedy = "" if holds else ": its standard deviation depends on a few draws, so report quantiles"
    return Check("degrees of freedom", found, _FREEDOM, holds, text + remedy)


def _heaviness(x: np.ndarray, gradient: np.ndarray, group: np.ndarray, groups: int) -> tuple[float, float]:
    """The number b of `_freedom` from a tail's draws, and its Monte Carlo error by the jackknife over groups."""
    s, squares = x * gradient, np.square(x)
    terms = s / squares, s, np.ones(x.size), s / squares**2, 1.0 / squares
    sums = np.array([np.bincount(group, term, groups) for term in terms])

    def solved(total: np.ndarray) -> np.ndarray:
        # a E[s / x^2] + b E[s] = 1 and a E[s / x^4] + b E[s / x^2] = E[1 / x^2], with s = x dF/dx
        a, b, one, of_a, of_one = total
        return np.asarray((a * of_one - of_a * one) / (a * a - b * of_a))

    whole = sums.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        best, without = solved(whole), solved(whole[:, None] - sums)
    error = float(np.sqrt(np.square(without - best).sum()))
    return (float(best), error) if np.isfinite(error) else (0.0, 0.0)


def _tails(x: np.ndarray, share: float = _TAIL) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the draws in the lower and in the upper tail."""
    low, high = np.quantile(x, [share, 1.0 - share])
    return np.flatnonzero(x <= low), np.flatnonzero(x >= high)


def _unvisited(drawn: Chains, start: Start) -> Check:
    """Whether the chains visited the regions that hold the weight and the variance of earlier weighted points."""
    name, unseen = "unvisited regions", f". {UNSEEN}: the chains show no mode that none of them entered"
    if start.points is None or start.weight is None:
        return Check(name, 0.0, 1.0, True, "no earlier points to compare with" + unseen)
    points = drawn.coordinates.z(start.coordinates.x(start.points))
    low, high = drawn.positions.min(axis=(0, 1)), drawn.positions.max(axis=(0, 1))
    margin = (high - low) / 4.0
    outside = ((points < low - margin) | (points > high + margin)).any(axis=1)
    w = start.weight / start.weight.sum()
    share = float(w[outside].sum())
    # a far region of little weight can have a large share of the variance
    squares = np.square(points - w @ points)
    spread = float(((w * outside) @ squares / (w @ squares)).max())
    wider = float(np.sqrt((w @ squares) / drawn.positions.var(axis=(0, 1))).max())
    most = max(share / _UNVISITED, spread / _UNSEEN, wider / _WIDER)
    holds = most <= 1.0
    text = (
        f"regions that no chain visited have {share:.2%} of the weight of earlier points (at most {_UNVISITED:.1%}) "
        f"and {spread:.0%} of their variance (at most {_UNSEEN:.0%}), and the sd of the points is {wider:.2g} times "
        f"the chains' (at most {_WIDER:g})"
    )
    remedy = ": the chains miss a part of the posterior"
    return Check(name, most, 1.0, holds, text + ("" if holds else remedy) + unseen)


def _stein(drawn: Chains, groups: int, names: tuple[str, ...]) -> Check:
    """Whether the draws satisfy Stein's identity, E[(z - m) dF/dz] = 1, in each coordinate."""
    apart = (drawn.positions - drawn.positions.mean(axis=(0, 1))) * drawn.gradients
    by_group = apart.reshape(groups, -1, apart.shape[2]).mean(axis=1)
    error = by_group.std(axis=0, ddof=1) / groups**0.5
    off = np.abs(apart.mean(axis=(0, 1)) - 1.0)
    z = off / np.maximum(error, 1e-12)
    allowed = float(scipy.stats.t.isf(_FALSE_ALARM / (2 * z.size), groups - 1))
    bad = (z > allowed) & (off > _MATTERS)
    worst = int(np.argmax(np.where(bad, z, 0.0))) if bad.any() else int(np.argmax(z))
    text = f"Stein's identity is off by {off[worst]:.2g}, {z[worst]:.1f} Monte Carlo errors, in coordinate {worst}"
    text += f" ({names[worst]})"
    remedy = (
        f" (above {allowed:.1f}): the chains miss a part of the posterior, or its density is truncated at a bound that "
        "is not declared as a constraint"
        if bad.any()
        else ""
    )
    return Check("Stein's identity", float(z[worst]), allowed, not bad.any(), text + remedy)
