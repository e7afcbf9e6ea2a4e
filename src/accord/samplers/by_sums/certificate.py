"""The certificate of weighted points: checks of the weights, the tails and the search for other modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from ...base.counters import generator
from ...models.regression import Regression
from ...posterior.coarse import Noise
from ...posterior.coordinates import Coordinates
from ...results.certificate import UNSEEN, Certificate, Check
from ...results.diagnostics import SQUARES_K, pareto
from ..session import Session
from .evaluations import slopes
from .lockstep import Evaluate
from .mode_search import LANDINGS, Lines, Search, Skeleton
from .proposal import Mixture
from .weighing import Batch, Weighing

# Largest Pareto k of the weights: their variance is finite below it.
_K_WEIGHTS = 0.5
# Least share of the requested effective draws.
ENOUGH = 0.9
# Probability that a test, over all its parameters, refuses correct weights.
_FALSE_ALARM = 1e-4
# Share of effective draws from which on Stein's identities replace the test moves, and points for them.
STEADY, CHECKED = 0.5, 256
# Number of test moves.
MOVED = LANDINGS
# Leapfrog steps of a test move.
_STEPS = 3
# Test moves and their steps with coarse answers, whose gradients take most of the bytes.
_MOVED_COARSELY, _STEPS_COARSELY = 128, 2
# Length of a leapfrog step in one dimension, in standard deviations.
_LENGTH = 0.8
# Least acceptance rate of the test moves.
_ACCEPTED = 0.2
# Factor by which steps are shortened if fewer moves are accepted.
_SHORTER = 0.25
# Most attempts with shorter steps: steps for the wide parts of a posterior are too long for its narrow ones.
_TRIES = 7
# Sums of the test moves at the first step length.
MOVES = _STEPS + 1
# Largest shift of a mean, in standard deviations, or relative change of a standard deviation that is negligible.
_MATTERS = 0.1
# Effective draws of a batch below which it is not compared.
_FEWEST_EFFECTIVE = 100.0
# Distances at which the probability of noticing another mode is stated, in standard deviations.
_SEARCHED = (4.0, 6.0, 8.0, 12.0, 20.0)
# Width of a narrow mode for which the probability is stated, relative to the main mode.
_NARROW = 0.1
# Largest ratio of the weight of a moved point to the largest weight of a proposed one.
_MISSED_RATIO = 10.0
# Variance of the noise in F above which a point counts as hidden, with coarse answers.
_HIDING = 0.5
# Largest weight of hidden points.
MOST_HIDDEN = 0.01
# Name of the check with this limit.
MISSED = "missed regions"


class Moved(NamedTuple):
    """Points resampled by their weights, moved by an exact Metropolis step.

    Parameters
    ----------
    start, end
        Points before and after the move, in coordinates in which they are about standard normal, (point, dim).
    rate
        Acceptance rate.
    points, log_weight
        The ends in the coordinates of `Weighing`, (point, dim), and their log weights, (point,).
    """

    start: np.ndarray
    end: np.ndarray
    rate: float
    points: np.ndarray
    log_weight: np.ndarray


def certify(
    session: Session,
    place: Coordinates,
    found: Weighing,
    lines: Lines,
    search: Search,
    skeleton: Skeleton,
    fitted: Sequence[Batch] = (),
) -> tuple[Certificate, Moved | None]:
    """The certificate, and the test moves (`MOVES` sums) if all other checks pass, else None.

    Parameters
    ----------
    session, place
        Sums over the network, and the coordinates of the points.
    found
        The weighted points.
    lines, search, skeleton
        F along half-lines, the search for other modes, and the components along slow half-lines.
    fitted
        Batches that do not count, with which the moments of `found` are compared.
    """
    names = session.job.post.unconstrained_names
    checks = [
        _enough(found, session.job.target),
        *tails(found, place, names),
        _batches(found, place, names, fitted),
        followed(skeleton),
        _mode_search(lines, search, session.job.post.quadratic or isinstance(session.job.post, Regression)),
    ]
    if session.noise is not None:
        checks.append(_hidden(session.noise, place, found))
    # test moves of refused weights would waste sums
    if not all(check.holds for check in checks):
        return Certificate(tuple(checks)), None
    # other modes and long tails deserve moves
    identities = [] if search.modes or skeleton.mixture is not None else _stein(found)
    if identities:
        return Certificate((*checks, *identities)), None
    moved = _move(session, place, found, lines.at_origin)
    return Certificate((*checks, *_unchanged(moved), _missed(moved, found))), moved


def _stein(found: Weighing) -> list[Check]:
    """Stein's identities at the points with gradients, if nearly all points are effective; else nothing.

    With g = grad F of standardised parameters z, integration by parts gives E[g] = 0 and E[z g] = 1 under the
    posterior. A proposal that leaves out mass next to its points breaks them, whatever its weights are.
    """
    sloped = [batch for batch in found.batches if batch.gradient is not None and not batch.local]
    if not sloped or found.effective < STEADY * found.weight.size:
        return []
    own = Weighing.of(sloped)
    if own.effective < STEADY * CHECKED:
        return []
    mean, cov = found.moments()
    root = np.linalg.cholesky(cov)
    z = np.linalg.solve(root, (own.points - mean).T).T
    gradient = np.concatenate([batch.gradient for batch in sloped if batch.gradient is not None]) @ root
    weight = own.weight / own.weight.sum()
    made = []
    for name, feature, variance in (("means", gradient, 1.0), ("sds", (1.0 - z * gradient) / 2.0, 0.5)):
        shift = weight @ feature
        error = _error(weight, feature, np.full(shift.size, variance))
        score = np.abs(shift) / error
        allowed = float(scipy.stats.norm.isf(_FALSE_ALARM / (2 * 2 * shift.size)))
        bad = (score > allowed) & (np.abs(shift) > _MATTERS)
        worst = int(np.argmax(np.where(bad, score, 0.0))) if bad.any() else int(np.argmax(score))
        text = (
            f"Stein's identities at {len(weight)} points move {name} by {shift[worst]:+.2g} sds, {score[worst]:.1f} "
            f"Monte Carlo errors (fails above both {allowed:.1f} errors and {_MATTERS:g} sds)"
        )
        remedy = ": the weights are not the posterior's" if bad.any() else ""
        made.append(Check(f"{name} by Stein", float(score[worst]), allowed, not bad.any(), text + remedy))
    return made


def tails(found: Weighing, place: Coordinates, names: Sequence[str]) -> tuple[Check, Check]:
    """Checks of the tail of the weights and of second moments."""
    return _weights(found), _squares(found, place, names)


def _enough(found: Weighing, target: float) -> Check:
    allowed = ENOUGH * target
    text = f"{found.effective:,.0f} effective draws from {found.weight.size:,} points (at least {allowed:,.0f} needed)"
    holds = bool(found.effective >= allowed)
    remedy = "" if holds else ": the proposals do not fit the posterior, try another parametrisation or ChEES()"
    return Check("effective draws", found.effective, allowed, holds, text + remedy)


def _weights(found: Weighing) -> Check:
    k = pareto(found.log_weight)
    holds = bool(k <= _K_WEIGHTS)
    tail = "weights without a tail" if k == -np.inf else f"Pareto k of the weights is {k:.2f} (at most {_K_WEIGHTS})"
    text = f"{tail}, the largest weight is {found.weight.max():.3g} times the mean weight"
    remedy = "" if holds else ": the weights have infinite variance, the proposals miss a tail of the posterior"
    return Check("weights", k, _K_WEIGHTS, holds, text + remedy)


def _squares(found: Weighing, place: Coordinates, names: Sequence[str]) -> Check:
    """Whether second moments have a finite mean: Pareto k of their terms, for each parameter of the user."""
    apart = (found.points - found.moments()[0]) @ place.factor.T
    with np.errstate(divide="ignore"):
        ks = np.array([pareto(terms) for terms in found.log_weight + 2.0 * np.log(np.abs(apart.T))])
    worst = int(np.argmax(ks))
    holds = bool(ks[worst] <= SQUARES_K)
    text = f"largest Pareto k of the second moments is {ks[worst]:.2f} (at most {SQUARES_K}), for {names[worst]}"
    remedy = "" if holds else ": its standard deviation depends on a few points"
    return Check("second moments", float(ks[worst]), SQUARES_K, holds, text + remedy)


def _batches(found: Weighing, place: Coordinates, names: Sequence[str], fitted: Sequence[Batch] = ()) -> Check:
    """Whether moments of each batch, weighted by its own proposal alone, agree with the moments of all points."""
    mean, cov = found.moments()
    sd = np.sqrt(np.diagonal(place.factor @ cov @ place.factor.T))
    worst, where, compared = 0.0, 0, 0
    for batch in (*fitted, *found.batches):
        if batch.local:
            continue
        points = batch.points
        log_w = -batch.rise - batch.proposal.log_density(points)
        w = np.exp(log_w - log_w.max())
        w = w / w.sum()
        # the moments of this batch have no usable standard error
        if 1.0 / np.square(w).sum() < _FEWEST_EFFECTIVE or pareto(log_w) > _K_WEIGHTS:
            continue
        compared += 1
        x = ((points - mean) @ place.factor.T) / sd
        features = np.concatenate([x, np.square(x) - 1.0], axis=1)
        apart = w @ features
        z = np.abs(apart) / _error(w, features, np.repeat([1.0, 2.0], len(names)))
        if z.max() > worst:
            worst, where = float(z.max()), int(z.argmax()) % len(names)
    # conservative: the batch is among the points with which it is compared
    allowed = float(scipy.stats.norm.isf(_FALSE_ALARM / (4 * len(names) * max(1, compared)))) + 1.0
    holds = worst <= allowed
    text = (
        f"moments of {compared} batches differ from the moments of all points by at most {worst:.1f} Monte Carlo "
        f"errors (limit {allowed:.1f}), in {names[where]}"
    )
    if compared < 2:
        text = "fewer than two batches have enough effective points to be compared"
    return Check("batches", worst, allowed, holds, text + ("" if holds else ": the batches contradict one another"))


def _error(
    weight: np.ndarray, features: Float[np.ndarray, "point feature"], variance: np.ndarray
) -> Float[np.ndarray, " feature"]:
    """The Monte Carlo error of weighted means of features, at least that of features with this variance, (feature,).

    Points that happen to lack large squares have too small an error of their own.
    """
    own = np.square(weight) @ np.square(features - weight @ features)
    return np.sqrt(np.maximum(own, variance * np.square(weight).sum()))


def _hidden(noise: Noise, place: Coordinates, found: Weighing) -> Check:
    """Whether points whose values have much noise may have weight."""
    share = hidden_share(noise, place, found.points, found.log_weight)
    holds = share <= MOST_HIDDEN
    text = f"points with noise above {_HIDING**0.5:.1g} in F have {share:.2g} of the weight (at most {MOST_HIDDEN})"
    remedy = "" if holds else ": noise hides tails or modes of the posterior, sample without coarse=True"
    return Check("noise", share, MOST_HIDDEN, holds, text + remedy)


def hidden_share(noise: Noise, place: Coordinates, points: np.ndarray, log_weight: np.ndarray) -> float:
    """The share of points whose values have much noise in all weights, without the correction of these weights.

    The noise of a far point is so large that its weight is nearly always far below its mean. Without the correction a
    weight has the right median, so that a region hidden by noise is visible in these weights.
    """
    noisy = np.square(noise.value(noise.radius(place, points)))
    far = noisy > _HIDING
    if not far.any():
        return 0.0
    raw = np.exp(np.clip(log_weight + noisy / 2.0 - log_weight.max(), -700.0, 700.0))
    return float(raw[far].sum() / raw.sum())


def followed(skeleton: Skeleton) -> Check:
    """Whether the searches along slow half-lines reached negligible density."""
    text = f"a tail search ended where F had risen by only {skeleton.reached:.3g}"
    if skeleton.reached == np.inf:
        text = "all tail searches reached negligible density"
    remedy = "" if skeleton.whole else ": the posterior has a tail too heavy to follow"
    return Check("tail searches", skeleton.reached, np.inf, skeleton.whole, text + remedy)


def _mode_search(lines: Lines, search: Search, is_regular: bool) -> Check:
    """Whether the search for modes is complete, with its number of searches and its probability of noticing a mode.

    If `is_regular`, values and tangents that agree with a convex F show that F is convex.
    """
    chances = [min(lines.chance(distance, width) for distance in _SEARCHED) for width in (1.0, 0.5, _NARROW)]
    where = f"{_SEARCHED[0]:.0f} to {_SEARCHED[-1]:.0f} sds away"
    text = (
        f"{len(lines.directions)} half-lines and {lines.scattered} scattered points notice another mode of the same "
        f"shape and mass, {where}, with probability at least {_floored(chances[0])}, and a mode half as wide "
        f"with probability at least {_floored(chances[1])}"
    )
    if not lines.convex:
        count = len(lines.starts)
        text += f"; {count} searches from points where F is not convex found {len(search.modes)} more modes"
        if count == lines.most_starts:
            text += " (a larger Importance(search=...) allows more searches)"
    remedy = "" if search.whole else ": more modes remain, and the draws miss them. Use ChEES()"
    if not (is_regular and lines.convex):
        remedy += (
            f". {UNSEEN}: no search sees every mode or bent arm, and this one notices a mode of the same mass that is "
            f"{_NARROW:g} times as wide, {where}, with probability at least {_floored(chances[2])}"
        )
    return Check("other modes", float(len(search.modes)), np.inf, search.whole, text + remedy)


def _floored(chance: float) -> str:
    """A probability to two digits, rounded down, at most 0.99."""
    return f"{min(np.floor(chance * 100.0) / 100.0, 0.99):.2f}"


def _move(session: Session, place: Coordinates, found: Weighing, at_origin: float) -> Moved:
    """Resample points by their weights and move them by a Metropolis step that leaves the posterior invariant."""
    numbers = generator(session.job.seed, "moves", len(found.batches))
    mean, cov = found.moments()
    inner = Coordinates(mean, np.linalg.cholesky(cov))
    # systematic resampling
    moves, steps = (MOVED, _STEPS) if session.noise is None else (_MOVED_COARSELY, _STEPS_COARSELY)
    edges = (np.arange(moves) + numbers.random()) / moves
    chosen = np.searchsorted(np.cumsum(found.weight) / found.weight.sum(), edges).clip(0, found.weight.size - 1)
    start = inner.inverse(found.points[chosen])
    whole = place.after(inner)

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if session.noise is None:
            return slopes(session, whole, z)
        # in the coordinates of the weights, whose origin is known
        value, gradient = slopes(session, place, inner.origin + z @ inner.factor.T)
        return value, gradient @ inner.factor

    here = evaluate(start)
    if session.noise is not None:
        # a Metropolis step with noise is exact if the value at its start is the one in the weight (Andrieu & Roberts
        # 2009). The noise of gradients is the same for the reverse of a trajectory.
        here = found.rise[chosen] + at_origin, here[1]
    velocity, uniform = numbers.standard_normal(start.shape), numbers.random(moves)
    step = _LENGTH * mean.size**-0.25
    for _ in range(_TRIES):
        z, v, there = _leapfrog(evaluate, start, velocity, here, step, steps)
        with np.errstate(all="ignore"):
            energy = (there[0] - here[0]) + np.square(v).sum(axis=1) / 2.0 - np.square(velocity).sum(axis=1) / 2.0
        accepted = np.log(uniform) < -np.where(np.isfinite(energy), energy, np.inf)
        if accepted.mean() >= _ACCEPTED:
            break
        step *= _SHORTER
    end = np.where(accepted[:, None], z, start)
    rise = np.where(accepted, there[0], here[0]) - at_origin
    points = inner.origin + end @ inner.factor.T
    proposals = Mixture.of(*((float(len(batch.rise)), batch.proposal) for batch in found.batches))
    return Moved(start, end, float(accepted.mean()), points, -rise - proposals.log_density(points))


def _leapfrog(
    evaluate: Evaluate,
    z: np.ndarray,
    v: np.ndarray,
    there: tuple[np.ndarray, np.ndarray],
    step: float,
    steps: int,
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Positions and velocities after some steps, (point, dim), and F and its gradients there; one sum per step."""
    with np.errstate(all="ignore"):
        for _ in range(steps):
            v = v - step / 2.0 * there[1]
            z = z + step * v
            there = evaluate(z)
            v = v - step / 2.0 * there[1]
    return z, v, there


def _unchanged(moved: Moved) -> list[Check]:
    """Whether the test moves left means, standard deviations and tails unchanged, up to Monte Carlo error."""
    features = {
        "means after moves": lambda z: z,
        "sds after moves": lambda z: np.square(z) / 2.0,
        "tails after moves": lambda z: (np.abs(z) > 2.0) / 0.0455 / 4.0,
    }
    made = []
    for name, feature in features.items():
        change = feature(moved.end) - feature(moved.start)
        error = np.maximum(change.std(axis=0, ddof=1) / len(change) ** 0.5, 1e-12)
        shift, z = change.mean(axis=0), np.abs(change.mean(axis=0)) / error
        allowed = float(scipy.stats.norm.isf(_FALSE_ALARM / (2 * z.size)))
        bad = (z > allowed) & (np.abs(shift) > _MATTERS)
        worst = int(np.argmax(np.where(bad, z, 0.0))) if bad.any() else int(np.argmax(z))
        text = (
            f"{len(change)} Metropolis test moves ({moved.rate:.0%} accepted) shift {name.split()[0]} by "
            f"{shift[worst]:+.2g} sds, {z[worst]:.1f} Monte Carlo errors (fails above both {allowed:.1f} errors and "
            f"{_MATTERS:g} sds)"
        )
        remedy = ": the weights are not the posterior's" if bad.any() else ""
        tried = moved.rate >= _ACCEPTED
        if not tried:
            remedy = f": no test, as fewer than {_ACCEPTED:.0%} of the moves were accepted at any step length"
        made.append(Check(name, float(z[worst]), allowed, tried and not bad.any(), text + remedy))
    return made


def _missed(moved: Moved, found: Weighing) -> Check:
    """Whether the test moves reached regions that the proposals miss."""
    most = float(np.exp(np.clip(moved.log_weight.max() - found.log_weight.max(), -700, 700)))
    holds = most <= _MISSED_RATIO
    text = f"test moves found {'no' if holds else 'a'} region that the proposals missed"
    ratio = f"largest weight ratio {most:.2g}, limit {_MISSED_RATIO:.0f}"
    return Check(MISSED, most, _MISSED_RATIO, holds, f"{text} ({ratio})")
