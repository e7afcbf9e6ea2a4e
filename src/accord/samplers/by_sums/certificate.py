"""The certificate of weighted points: whether what they say of the posterior may be believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...results.certificate import Certificate, Check
from ...results.diagnostics import SQUARES_K, pareto
from ..session import Session
from .evaluations import slopes
from .mode_search import LANDINGS, Lines, Search, Skeleton
from .proposal import Mixture
from .weighing import Weighing

# Largest Pareto k of weights: their variance is finite below it.
_K_WEIGHTS = 0.5
# Share of the effective draws asked for that is enough.
ENOUGH = 0.9
# Chance that a true set of weights is refused by all tests of a kind together.
_FALSE_ALARM = 1e-4
# Points that are moved, the leapfrog steps, and their length in standard deviations for one dimension.
MOVED, _STEPS, _LENGTH = LANDINGS, 3, 0.8
# The share of moves to be accepted, how much shorter they become where fewer are, and how often: a posterior's widest
# parts say nothing of its narrow ones.
_ACCEPTED, _SHORTER, _TRIES = 0.2, 0.25, 5
# Sums that the moves take where most are accepted.
MOVES = _STEPS + 1
# A shift of a mean in standard deviations, or of a standard deviation relative to itself, that matters.
_MATTERS = 0.1
# Effective draws of a batch below which it is not compared.
_FEWEST_EFFECTIVE = 100.0
# Distances at which the probability of noticing another mode is stated, in standard deviations.
_SEARCHED = (4.0, 6.0, 8.0, 12.0, 20.0)
# Times the largest weight of a point that a moved point may have, and the name of the check.
_NOVEL, PLACES = 10.0, "places not proposed"


class Moved(NamedTuple):
    """Points drawn by their weights, moved by an exact Metropolis step.

    Parameters
    ----------
    start, end
        Before and after, where the points are about standard normal; shape (point, dim).
    rate
        The share that was accepted.
    points, log_weight
        The ends in the coordinates of the weighing, (point, dim), and their log weights there, (point,).
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
) -> tuple[Certificate, Moved | None]:
    """All checks of some weighted points, and the points that were moved for them, which takes `MOVES` sums.

    Parameters
    ----------
    session, place
        Sums over the network, and the coordinates of the points.
    found
        The points.
    lines, search, skeleton
        F along half-lines, what was found of other modes, and what followed slow half-lines.
    """
    names = session.job.post.unconstrained_names
    checks = [
        _enough(found, session.job.target),
        *tails(found, place, names),
        _batches(found, place, names),
        followed(skeleton),
        _looked(lines, search),
    ]
    # what the weights do not pass is not worth sums
    if not all(check.holds for check in checks):
        return Certificate(tuple(checks)), None
    moved = _move(session, place, found, lines.at_origin)
    return Certificate((*checks, *_stayed(moved), _novel(moved, found))), moved


def tails(found: Weighing, place: Coordinates, names: Sequence[str]) -> tuple[Check, Check]:
    """Whether the weights have error bars, and whether second moments by them have."""
    return _weights(found), _squares(found, place, names)


def _enough(found: Weighing, target: float) -> Check:
    allowed = ENOUGH * target
    text = f"{found.effective:.0f} effective draws of {found.weight.size} points, {allowed:.0f} are due"
    holds = bool(found.effective >= allowed)
    remedy = "" if holds else ": the proposals do not fit the posterior; another parametrisation, or a chain, does"
    return Check("effective draws", found.effective, allowed, holds, text + remedy)


def _weights(found: Weighing) -> Check:
    k = pareto(found.log_weight)
    holds = bool(k <= _K_WEIGHTS)
    tail = "the weights have no tail" if k == -np.inf else f"Pareto k of the weights is {k:.2f}"
    text = f"{tail}, the largest is {found.weight.max():.3g} times their mean"
    remedy = "" if holds else f" (k above {_K_WEIGHTS} is too heavy a tail for error bars): draws miss a tail"
    return Check("weights", k, _K_WEIGHTS, holds, text + remedy)


def _squares(found: Weighing, place: Coordinates, names: Sequence[str]) -> Check:
    """The Pareto k of what a second moment adds up, for each parameter of the user."""
    apart = (found.points - found.moments()[0]) @ place.factor.T
    with np.errstate(divide="ignore"):
        ks = np.array([pareto(found.log_weight + 2.0 * np.log(np.abs(column))) for column in apart.T])
    worst = int(np.argmax(ks))
    holds = bool(ks[worst] <= SQUARES_K)
    text = f"Pareto k of the second moments is {ks[worst]:.2f} at most, for {names[worst]}"
    remedy = "" if holds else f" (above {SQUARES_K}): its standard deviation rests on a few points"
    return Check("second moments", float(ks[worst]), SQUARES_K, holds, text + remedy)


def _batches(found: Weighing, place: Coordinates, names: Sequence[str]) -> Check:
    """How far batches, each weighed by its own proposal alone, are from all points, in Monte Carlo errors."""
    mean, cov = found.moments()
    sd = np.sqrt(np.diagonal(place.factor @ cov @ place.factor.T))
    worst, where, compared = 0.0, 0, 0
    for batch in found.batches:
        if batch.local:
            continue
        points = batch.points
        log_w = -batch.rise - batch.proposal.log_density(points)
        w = np.exp(log_w - log_w.max())
        w = w / w.sum()
        # where a batch has no error bars it cannot be compared
        if 1.0 / np.square(w).sum() < _FEWEST_EFFECTIVE or pareto(log_w) > _K_WEIGHTS:
            continue
        compared += 1
        x = ((points - mean) @ place.factor.T) / sd
        features = np.concatenate([x, np.square(x) - 1.0], axis=1)
        apart = w @ features
        z = np.abs(apart) / np.sqrt(np.square(w) @ np.square(features - apart))
        if z.max() > worst:
            worst, where = float(z.max()), int(z.argmax()) % len(names)
    # a batch is a part of what it is compared with, which only brings them closer
    allowed = float(scipy.stats.norm.isf(_FALSE_ALARM / (4 * len(names) * max(1, compared)))) + 1.0
    holds = worst <= allowed
    text = (
        f"moments of {compared} batches are {worst:.1f} Monte Carlo errors from all points', at most in {names[where]}"
    )
    return Check("batches", worst, allowed, holds, text + ("" if holds else f" (above {allowed:.1f})"))


def followed(skeleton: Skeleton) -> Check:
    """Whether the skeleton came to where no mass is left."""
    text = f"slow half-lines were followed until F had risen by {skeleton.reached:.3g}"
    if skeleton.reached == np.inf:
        text = "all slow half-lines were followed to where no mass is left"
    remedy = "" if skeleton.whole else ", which leaves mass beyond: the posterior's tail there is too heavy"
    return Check("slow tails", skeleton.reached, np.inf, skeleton.whole, text + remedy)


def _looked(lines: Lines, search: Search) -> Check:
    """How likely the look notices another mode, how many searches it began, and whether the last found no new mode."""
    chances = [min(lines.chance(distance, width) for distance in _SEARCHED) for width in (1.0, 0.5)]
    where = f"between {_SEARCHED[0]:.0f} and {_SEARCHED[-1]:.0f} sds away"
    text = (
        f"{len(lines.directions)} half-lines and {lines.scattered} scattered points notice a mode of the same shape "
        f"and mass {where} with probability {_floored(chances[0])} or more, and a mode half as wide with "
        f"{_floored(chances[1])} or more"
    )
    if not lines.convex:
        count = len(lines.starts)
        text += f"; {count} searches from where F is not convex found {len(search.modes)} more modes"
        if count == lines.most_starts:
            text += " (a larger Importance(search=...) begins more searches)"
    remedy = "" if search.whole else ": there are still more modes, and no draws of them; use ChEES()"
    return Check("other modes", float(len(search.modes)), np.inf, search.whole, text + remedy)


def _floored(chance: float) -> str:
    """A probability to two digits, never above the probability itself."""
    return f"{np.floor(chance * 100.0) / 100.0:.2f}"


def _move(session: Session, place: Coordinates, found: Weighing, at_origin: float) -> Moved:
    """Points drawn by their weights, moved by an exact Metropolis step: they must stay what they are."""
    numbers = generator(session.job.seed, "moves", len(found.batches))
    mean, cov = found.moments()
    inner = Coordinates(mean, np.linalg.cholesky(cov))
    # systematic: each point as often as its weight says, up to less than one
    edges = (np.arange(MOVED) + numbers.random()) / MOVED
    chosen = np.searchsorted(np.cumsum(found.weight) / found.weight.sum(), edges).clip(0, found.weight.size - 1)
    start = inner.inverse(found.points[chosen])
    whole = place.after(inner)
    here = slopes(session, whole, start)
    velocity, uniform = numbers.standard_normal(start.shape), numbers.random(MOVED)
    step = _LENGTH * mean.size**-0.25
    for _ in range(_TRIES):
        z, v, there = _leapfrog(session, whole, start, velocity, here, step)
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
    session: Session,
    place: Coordinates,
    z: np.ndarray,
    v: np.ndarray,
    there: tuple[np.ndarray, np.ndarray],
    step: float,
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Positions and velocities some steps on, (point, dim), and F's values and gradients there; one sum a step."""
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            v = v - step / 2.0 * there[1]
            z = z + step * v
            there = slopes(session, place, z)
            v = v - step / 2.0 * there[1]
    return z, v, there


def _stayed(moved: Moved) -> list[Check]:
    """Whether means, sds and tails are where they were, each in Monte Carlo errors of its change."""
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
            f"{len(change)} points moved by Metropolised steps (accepted {moved.rate:.0%}) are {shift[worst]:+.2g} sds "
            f"away, {z[worst]:.1f} Monte Carlo errors, at most"
        )
        remedy = f" (above {allowed:.1f}): the weights are not the posterior's" if bad.any() else ""
        tried = moved.rate >= _ACCEPTED
        if not tried:
            remedy = f" (fewer than {_ACCEPTED:.0%} were accepted, however short): nothing was tried"
        made.append(Check(name, float(z[worst]), allowed, tried and not bad.any(), text + remedy))
    return made


def _novel(moved: Moved, found: Weighing) -> Check:
    """Whether moved points came to where the proposals are thin."""
    most = float(np.exp(np.clip(moved.log_weight.max() - found.log_weight.max(), -700, 700)))
    holds = most <= _NOVEL
    text = f"moved points would weigh at most {most:.2g} times the heaviest proposed point, {_NOVEL:.0f} is allowed"
    return Check(PLACES, most, _NOVEL, holds, text + ("" if holds else ": they came to where the proposals are thin"))
