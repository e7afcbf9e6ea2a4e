"""The shape of a posterior around its mode: half-lines on which F rises slowly, and other modes.

An elliptical proposal never reaches a heavy tail along one direction, a plateau, or a second mode. Evaluations of F
along half-lines and at scattered points show them, in one sum. A second sum evaluates F where the gradients of the
first point to, which is near other modes. Slow half-lines and other modes are then followed, all at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...posterior.newton import newton_step
from ..session import Session
from .adaptation import Mode
from .evaluations import NOWHERE, Expansions, expansions, slopes
from .proposal import Mixture

# Distances, in standard deviations, at which F is looked at on each half-line: for slow tails, and for other modes.
_NEAR, _FAR = (2.0, 3.0, 4.5), (8.0, 15.0, 30.0, 60.0, 120.0, 250.0, 500.0, 1000.0)
DISTANCES = np.array(_NEAR + _FAR)
# Radii of the points scattered around the mode, in standard deviations. Each sixth point is far out, where a mode of
# the same shape shows; a narrow mode shows only nearby.
_NEARBY, _FAR_OUT = np.array([4.0, 5.5, 7.5, 10.0, 13.0, 17.0, 22.0]), np.array([30.0, 45.0, 70.0, 120.0])
# Each radius is multiplied by a random factor; this is the ratio of the largest factor to the smallest.
_JITTER = 1.33
# Number of scattered points, and of those around the modes found in one round, together.
SCATTERED, _MORE = 384, 2304
# Number of landings at which F is evaluated. The certificate moves as many points, so that both share a program.
LANDINGS = 256
# A tangent must exceed F by this share of the rises at both points: rounding stays below it.
_BENT = 0.1
# Dimensions up to which lines follow the principal axes too, and not the parameters alone.
_FEW_DIMENSIONS = 20
# A half-line is slow where F rises by less than this share of what a Gaussian's does.
_SLOW = 0.6
# Half-lines at most that are followed, and the cosine above which two of them are the same.
_MOST_FOLLOWED, _SAME = 8, 0.9
# Cosine above which the half-line of one parameter alone is left out: another half-line has the same places.
_NEW = 0.99
# The first step along a half-line, in standard deviations, how many, and the rise of F at which it ends.
_STEP, _MOST_STEPS, _END = 1.2, 24, 14.0
# The rise of F that a step is to bring, and how much longer or shorter than the one before it may be for that.
_RISE, _GROWTH, _SHRINKAGE = 2.0, 2.0, 0.5
# Longest correction across a half-line in one step, in standard deviations.
_LONGEST_CORRECTION = 2.0
# Widest a component is across its half-line, in standard deviations, unless it is further out than that.
_WIDEST = 5.0
# Degrees of freedom of the components found here.
_FREEDOM = 5.0
# Searches for another mode at most from one look, Newton steps of each, and the length of the last.
_MOST_SEARCHES, _MOST_NEWTON, _LAST_STEP = 8, 15, 1e-2
# Largest multiple of the usual numbers of searches and landings, for a look with more scattered points.
_MOST_TIMES = 16
# How far apart searches begin, as a share of their distance from the origin: in few dimensions many points lie alike.
_SPREAD = 0.25
# Modes at which no more are looked for, and how far from one, in its standard deviations, another search begins.
_MOST_MODES, _KNOWN = 24, 3.0
# Directions over which the probability of finding a mode is averaged.
_DIRECTIONS = 256
# Tangents that are held at a time.
_NUMBERS = 4_000_000
# Log mass below that of the main mode, by Laplace's approximation, at which another mode is no matter.
_NEGLIGIBLE = 14.0


@dataclass(frozen=True, eq=False)
class Lines:
    """F around the mode: its rise above its value there, along half-lines and at scattered points.

    Parameters
    ----------
    directions
        Unit vectors, shape (line, dim).
    points, risen, gradient
        All points at which F was evaluated, its rise there, and its gradient; shapes (point, dim), (point,),
        (point, dim). The points on the lines come first, line by line, at `DISTANCES`; then the origin, the scattered
        points, and their landings.
    at_origin
        F at the origin.
    scattered
        Number of scattered points.
    """

    directions: np.ndarray
    points: np.ndarray
    risen: np.ndarray
    gradient: np.ndarray
    at_origin: float
    scattered: int

    @property
    def rise(self) -> np.ndarray:
        """The rise on the lines, shape (line, distance)."""
        shape = len(self.directions), DISTANCES.size
        return self.risen[: np.prod(shape)].reshape(shape)

    def slow(self, known: Sequence[Mode]) -> np.ndarray:
        """How slowly F rises on each half-line, at worst, as a share of a Gaussian's rise; shape (line,).

        Points near one of the `known` modes do not count: that mode is why F is low there.
        """
        share = np.nan_to_num(self.rise / (np.square(DISTANCES) / 2.0), nan=np.inf, posinf=np.inf)
        # a plateau far out may be low and yet hold mass, as it is wide; where it is lower than that it holds none
        matters = self.rise < _end(DISTANCES, self.directions.shape[1])
        for mode in known:
            matters &= _distances(self.points[: share.size], mode).reshape(share.shape) > _NEAR[-1]
        return np.where(matters, share, np.inf).min(axis=1, initial=np.inf)

    @property
    def convex(self) -> bool:
        """Whether F is convex as far as its values and tangents show; F of a log-concave posterior is."""
        return not self._bent.any()

    @cached_property
    def starts(self) -> np.ndarray:
        """Points where F is not convex and searches for another mode begin, shape (start, dim)."""
        bent = np.flatnonzero(self._bent)
        bent = bent[np.argsort(self.risen[bent], kind="stable")]
        # Alternate between the lowest F of all points and of each octave of distances. Near points have the lowest F,
        # and would be all starts.
        octave = np.floor(np.log2(np.maximum(np.linalg.norm(self.points[bent], axis=1), 1.0)))
        rank = np.zeros(len(bent))
        for own in np.unique(octave):
            rank[octave == own] = np.arange((octave == own).sum())
        bent = np.stack([bent, bent[np.argsort(rank, kind="stable")]], axis=1).ravel()
        return _apart(self.points[bent], self.most_starts)

    @property
    def most_starts(self) -> int:
        """Most searches from this look; more scattered points allow more searches."""
        return _times(self.scattered) * _MOST_SEARCHES

    def chance(self, distance: float, width: float) -> float:
        """The probability that this look notices another mode in a random direction, with as much mass as the first.

        A scattered point notices a Gaussian mode if most of the density at the point belongs to that mode: the landing
        of the point is then on the mode.

        Parameters
        ----------
        distance
            From the mode, in standard deviations.
        width
            Standard deviation of the other mode, in those of the first.
        """
        first = self.rise.size + 1
        points = self.points[first : first + self.scattered]
        points = points[self.risen[first : first + self.scattered] < NOWHERE]
        dim, square = points.shape[1], np.square(points).sum(axis=1)[:, None]
        towards = generator(0, "chance").standard_normal((_DIRECTIONS, dim))
        towards *= distance / np.linalg.norm(towards, axis=1)[:, None]
        from_other = (square - 2.0 * points @ towards.T + distance**2) / width**2
        return float((from_other + 2.0 * dim * np.log(width) < square).any(axis=0).mean()) if len(points) else 0.0

    @cached_property
    def _bent(self) -> np.ndarray:
        """Points whose tangent exceeds F at the origin, or at which F is below another tangent, shape (point,)."""
        usual = self.risen < NOWHERE
        distance, landed = np.linalg.norm(self.points, axis=1), _landed(self.points, self.risen, self.gradient)
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.einsum("pi,pi->p", self.points, self.gradient)
            at_origin = own < (1.0 - _BENT) * self.risen - 1e-6
            # points of the mode at the origin may be below the tangents of another
            elsewhere = np.flatnonzero(usual & (distance > _KNOWN) & ~(np.linalg.norm(landed, axis=1) < _KNOWN))
            tangents = np.flatnonzero(usual & (distance <= _FAR_OUT[-1]))
            # rounding is a share of the rises at both points, on either side of the comparison
            rise = self.risen + _BENT * np.abs(self.risen) + 1e-6
            lowest = own - self.risen + _BENT * np.abs(self.risen)
            below = np.zeros(len(elsewhere), bool)
            for at in np.array_split(tangents, 1 + tangents.size * elsewhere.size // _NUMBERS):
                highest = (self.gradient[at] @ self.points[elsewhere].T - lowest[at, None]).max(axis=0, initial=-np.inf)
                below |= highest > rise[elsewhere]
        at_origin[elsewhere] |= below
        return at_origin & usual


def _main(place: Coordinates) -> Mode:
    """The mode at the origin."""
    dim = place.origin.size
    return Mode(np.zeros(dim), np.eye(dim), 0.0)


def _times(scattered: int) -> int:
    """By how much the usual numbers of searches and landings are multiplied."""
    return min(max(1, scattered // SCATTERED), _MOST_TIMES)


def _apart(points: np.ndarray, most: int) -> np.ndarray:
    """The first `most` points, (point, dim), that are not near another of them: `_SPREAD` times their distance."""
    chosen, count = np.empty((min(most, len(points)), points.shape[1])), 0
    near = np.square(_SPREAD * np.linalg.norm(points, axis=1))
    for point, square in zip(points, near, strict=True):
        if (np.square(chosen[:count] - point).sum(axis=1) > square).all():
            chosen[count] = point
            count += 1
        if count == most:
            break
    return chosen[:count]


def _distances(points: np.ndarray, mode: Mode) -> np.ndarray:
    """Distances of points (point, dim) from a mode, in its standard deviations, (point,)."""
    return np.linalg.norm(np.linalg.solve(mode.factor, (points - mode.mean).T), axis=0)


def look(session: Session, place: Coordinates, scattered: int = SCATTERED) -> Lines:
    """F along half-lines from the mode, at scattered points, and where gradients point to; two sums at most.

    Half-lines go along the principal axes and along each parameter. For each parameter there are two: the other
    parameters follow their regression on it, or stay.

    Parameters
    ----------
    session
        Makes the sums; its seed is that of the scattered points.
    place
        The coordinates whose origin is the mode.
    scattered
        Number of scattered points.
    """
    factor = place.factor
    # where a parameter goes, the others go with it as a Gaussian's do
    lines = [factor / np.linalg.norm(factor, axis=1)[:, None]]
    if 1 < len(factor) <= _FEW_DIMENSIONS:
        own = np.linalg.norm(factor, axis=1)
        vectors = np.linalg.eigh((factor @ factor.T) / np.outer(own, own))[1]
        axes = np.linalg.solve(factor, own[:, None] * vectors).T
        lines.append(axes / np.linalg.norm(axes, axis=1)[:, None])
    held = np.linalg.inv(factor).T
    held /= np.linalg.norm(held, axis=1)[:, None]
    lines.append(held[(np.abs(held @ np.concatenate(lines).T) < _NEW).all(axis=1)])
    directions = np.concatenate([sign * line for line in lines for sign in (1.0, -1.0)])
    on_lines = (DISTANCES[None, :, None] * directions[:, None, :]).reshape(-1, len(factor))
    around = generator(session.job.seed, "scatter").standard_normal((scattered, len(factor)))
    radii = np.resize(_NEARBY, scattered)
    radii[::6] = np.resize(_FAR_OUT, len(radii[::6]))
    # in few dimensions fixed radii would leave gaps
    radii *= _JITTER ** (generator(session.job.seed, "radii").random(scattered) - 0.5)
    around *= radii[:, None] / np.linalg.norm(around, axis=1)[:, None]
    points = np.concatenate([on_lines, np.zeros((1, len(factor))), around])
    value, gradient = slopes(session, place, points)
    at_origin = float(value[len(on_lines)])
    landed = _landings(points, value - at_origin, gradient, _times(scattered) * LANDINGS)
    if len(landed):
        there, slope = slopes(session, place, landed)
        points, gradient = np.concatenate([points, landed]), np.concatenate([gradient, slope])
        value = np.concatenate([value, there])
    return Lines(directions, points, value - at_origin, gradient, at_origin, scattered)


def _landed(points: np.ndarray, risen: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """The landing of each point: the minimum of a parabola along the gradient that is as low as F at the origin.

    Shape (point, dim). The landing of a point that belongs to a round Gaussian mode is that mode, at any distance.
    """
    with np.errstate(all="ignore"):
        return np.asarray(points - (2.0 * risen / np.square(gradient).sum(axis=1))[:, None] * gradient)


def _landings(points: np.ndarray, risen: np.ndarray, gradient: np.ndarray, most: int) -> np.ndarray:
    """Landings that are not around the origin, (landing, dim), repeated to fill a multiple of `LANDINGS`."""
    landed = _landed(points, risen, gradient)
    distance = np.linalg.norm(landed, axis=1)
    usual = (risen < NOWHERE) & (distance > _KNOWN) & (distance < DISTANCES[-1])
    chosen = _apart(landed[usual], most)
    return np.resize(chosen, (-(-len(chosen) // LANDINGS) * LANDINGS, points.shape[1]))


class Skeleton(NamedTuple):
    """Components along slow half-lines.

    Parameters
    ----------
    mixture
        The components; None where no half-line is slow.
    reached
        The least rise of F at which a half-line was left before its end, inf where none was.
    """

    mixture: Mixture | None
    reached: float

    @property
    def whole(self) -> bool:
        """Whether every half-line was followed to where there is no mass left."""
        return self.reached == np.inf


def follow(session: Session, place: Coordinates, search: Search) -> Skeleton:
    """A skeleton along the slow half-lines of all modes, as INLA explores hyperparameters (Rue, Martino & Chopin 2009).

    At each step along a half-line the other coordinates go where F is least, by a Newton step; each place is a
    component whose covariance is the inverse Hessian across and the step along. Steps are as long as F is flat. All
    half-lines are followed at a time, each in the coordinates of its mode.
    """
    main = _main(place)
    modes, walks = [main, *search.modes], list[_Walk]()
    for mode, around in zip(modes, search.around, strict=False):
        others = [other.seen_from(mode) for other in modes if other is not mode]
        walks += [_Walk(mode, around.at_origin, *line) for line in _slow_directions(around, others)]
    if not walks:
        return Skeleton(None, np.inf)
    means, factors, masses = list[np.ndarray](), list[np.ndarray](), list[float]()
    reached = np.inf
    for _ in range(_MOST_STEPS):
        seen = expansions(session, place, np.array([walk.next for walk in walks]))
        for walk, *here in zip(list(walks), *seen, strict=True):
            component = walk.step_to(*here)
            if component is not None:
                mean, factor, log_mass = component
                means.append(mean)
                factors.append(factor)
                masses.append(log_mass - walk.at_mode + search.around[0].at_origin)
            if walk.ended:
                walks.remove(walk)
        if not walks:
            break
    else:
        reached = min(walk.rise for walk in walks)
    if not means:
        return Skeleton(None, reached)
    # flattened: the skeleton is for what the main component leaves out
    share = np.exp((np.array(masses) - np.max(masses)) / 2.0)
    freedom = np.full(len(means), _FREEDOM)
    return Skeleton(Mixture(share / share.sum(), np.array(means), np.array(factors), freedom), reached)


class _Walk:
    """A half-line that is followed from a mode, in the coordinates of that mode.

    Parameters
    ----------
    mode, at_mode
        The mode, and F there.
    direction, step
        Unit vector, (dim,), and the length of the first step.
    """

    def __init__(self, mode: Mode, at_mode: float, direction: np.ndarray, step: float) -> None:
        self.mode, self.at_mode, self.direction, self.step = mode, at_mode, direction, step
        self.at, self.rise, self.log_mass = np.zeros_like(direction), 0.0, 0.0

    @property
    def next(self) -> np.ndarray:
        """Where F is evaluated next, in the coordinates of all modes."""
        return self.mode.mean + self.mode.factor @ (self.at + self.step * self.direction)

    @property
    def ended(self) -> bool:
        """Whether neither mass nor variance is left beyond."""
        distance = float(np.linalg.norm(self.at))
        is_far = not self.rise < _end(distance, self.at.size)
        return is_far or self.log_mass + 2.0 * np.log(max(1.0, distance)) < -_NEGLIGIBLE

    def step_to(
        self, value: float, gradient: np.ndarray, hessian: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Go on by a step, given F's expansion at `next`.

        Returns the mean and factor of a component there, in the coordinates of all modes, and its log mass relative to
        exp(-F) at the mode; None where F has risen too far.
        """
        factor, step, direction = self.mode.factor, self.step, self.direction
        following, rise = self.at + step * direction, value - self.at_mode
        component = None
        if rise - self.rise <= _END + _end(np.linalg.norm(following), direction.size):
            slope = factor.T @ gradient
            correction, across, log_det = _across(
                direction, slope, factor.T @ hessian @ factor, float(np.linalg.norm(self.at))
            )
            # F after the correction, by the expansion
            rise += slope @ correction / 2.0
            following = following + correction
            scale = factor @ np.linalg.cholesky(across + step**2 * np.outer(direction, direction))
            self.log_mass = float(-rise + log_det / 2.0 + np.log(step))
            log_mass = self.log_mass + float(np.linalg.slogdet(factor)[1])
            component = self.mode.mean + factor @ following, scale, log_mass
        gained = max(rise - self.rise, 1e-3)
        self.at, self.rise, self.step = following, rise, step * float(np.clip(_RISE / gained, _SHRINKAGE, _GROWTH))
        return component


def _end(distance: Any, dim: int) -> Any:
    """The rise of F at distances from the mode beyond which there is no mass: more where there is more room."""
    return _END + dim * np.log(np.maximum(1.0, distance / _NEAR[-1]))


def _slow_directions(lines: Lines, known: Sequence[Mode]) -> list[tuple[np.ndarray, float]]:
    """The slow half-lines, the slowest first, none of them twice: direction (dim,) and first step of each.

    Where F rises as a Gaussian's does before it is slow, the first step leads to the first slow place that holds mass.
    """
    slow, chosen = lines.slow(known), list[tuple[np.ndarray, float]]()
    most = np.minimum(_SLOW * np.square(DISTANCES) / 2.0, _end(DISTANCES, lines.directions.shape[1]))
    where = DISTANCES[(lines.rise < most).argmax(axis=1)]
    for line in np.argsort(slow):
        if slow[line] >= _SLOW or len(chosen) == _MOST_FOLLOWED:
            break
        direction = lines.directions[line]
        if all(direction @ other < _SAME for other, _ in chosen):
            chosen.append((direction, float(where[line]) if where[line] > _NEAR[-1] else _STEP))
    return chosen


def _across(
    direction: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, distance: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The Newton step across a direction, the inverse Hessian there, (dim, dim), and its log determinant."""
    dim = direction.size
    if dim == 1:
        return np.zeros(1), np.zeros((1, 1)), 0.0
    basis = np.linalg.qr(np.concatenate([direction[:, None], np.eye(dim)], axis=1))[0][:, 1:dim]
    values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
    values = np.maximum(np.abs(values), max(_WIDEST, distance) ** -2)
    axes = basis @ vectors
    step = -axes @ ((axes.T @ gradient) / values)
    step *= min(1.0, _LONGEST_CORRECTION / max(np.linalg.norm(step), np.finfo(float).tiny))
    return step, (axes / values) @ axes.T, float(-np.log(values).sum())


class Search(NamedTuple):
    """What was found of other modes.

    Parameters
    ----------
    modes
        Those that matter.
    ends
        Where searches ended that hold mass, shape (position, dim).
    around
        F around the main mode and around each of `modes`, in this order; the last modes may lack it.
    whole
        Whether the last of them were found without another one in sight.
    """

    modes: list[Mode]
    ends: np.ndarray
    around: list[Lines]
    whole: bool = True


def other_modes(session: Session, place: Coordinates, lines: Lines) -> Search:
    """Modes found by Newton's method from where F is not convex, and from these in turn, all searches at a time."""
    modes, ends = _searched(session, place, lines.at_origin, lines.starts, [])
    main = _main(place)
    # Where there is one more mode, others are more likely than elsewhere: the main mode too is looked around again.
    fresh, around = [main, *modes] if modes else [], list[Lines]()
    while fresh and len(modes) < _MOST_MODES:
        count = max(lines.scattered, min(_MORE, 2 * _MORE // len(fresh)))
        looks = [look(session, place.after(Coordinates(mode.mean, mode.factor)), count) for mode in fresh]
        around += looks
        at = np.concatenate([mode.mean + own.starts @ mode.factor.T for mode, own in zip(fresh, looks, strict=True)])
        # what is near a mode that is known leads there
        near = np.zeros(len(at), bool)
        for mode in (main, *modes):
            near |= _distances(at, mode) < _KNOWN
        fresh, more = _searched(session, place, lines.at_origin, at[~near][: 4 * _MOST_SEARCHES], modes)
        modes, ends = modes + fresh, np.concatenate([ends, more])
    return Search(modes, ends, around or [lines], not fresh)


def _searched(
    session: Session, place: Coordinates, at_origin: float, at: np.ndarray, known: list[Mode]
) -> tuple[list[Mode], np.ndarray]:
    """Modes that are not known yet, found from some positions, and where searches ended that hold mass."""
    if not len(at):
        return [], at
    here = expansions(session, place, at)
    shrink, done = np.ones(len(at)), np.zeros(len(at), bool)
    for _ in range(_MOST_NEWTON):
        steps = np.stack([newton_step(g, h)[0] for g, h in zip(here.gradient, here.hessian, strict=True)])
        length = np.array([np.sqrt(max(s @ h @ s, 0.0)) for s, h in zip(steps, here.hessian, strict=True)])
        done |= (length < _LAST_STEP) & np.array([np.linalg.eigvalsh(h)[0] > 0 for h in here.hessian])
        # searches that came to the main mode are over
        done |= np.linalg.norm(at, axis=1) < 1.0
        if done.all():
            break
        moved = at + np.where(done, 0.0, shrink)[:, None] * steps
        there = expansions(session, place, moved)
        better = np.isfinite(there.hessian).all(axis=(1, 2)) & (
            there.value <= here.value + 1e-9 * (1 + abs(here.value))
        )
        at = np.where(better[:, None], moved, at)
        here = Expansions(
            *(
                np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(there, here, strict=True)
            )
        )
        shrink = np.where(better, np.minimum(1.0, 2.0 * shrink), shrink / 4.0)
    found: list[Mode] = []
    rise = here.value - at_origin
    for k in np.argsort(rise):
        values = np.linalg.eigvalsh(here.hessian[k])
        if not done[k] or values[0] <= 1e-9 * values[-1] or np.linalg.norm(at[k]) < 1.0:
            continue
        log_mass = float(-rise[k] - np.log(values).sum() / 2.0)
        factor = Coordinates.whitening(at[k], here.hessian[k]).factor
        same = any(
            np.linalg.norm(np.linalg.solve(other.factor, at[k] - other.mean)) < 1.0 for other in [*known, *found]
        )
        if log_mass > -_NEGLIGIBLE and not same:
            found.append(Mode(at[k], np.linalg.cholesky(factor @ factor.T), log_mass))
    apart = (np.linalg.norm(at, axis=1) >= 1.0) & (rise < _end(np.linalg.norm(at, axis=1), at.shape[1]))
    return found, at[apart]
