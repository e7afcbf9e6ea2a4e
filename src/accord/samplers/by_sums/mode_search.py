"""Search for heavy tails and other modes around the mode of a posterior.

An elliptical proposal does not cover a heavy tail along one direction, a plateau, or a second mode. One sum evaluates F
along half-lines and at scattered points to find them. A second sum evaluates F at the landings of these points, the
positions to which their gradients point, which are near other modes. Slow half-lines, on which F rises slowly, are then
followed, and Newton's method searches for modes, all searches in the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, islice
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ...base.compiler import compiled
from ...base.counters import generator
from ...posterior.coarse import Noise
from ...posterior.coordinates import Coordinates
from ...posterior.newton import newton_step, oriented
from ...posterior.potential import Potential
from ..session import Session
from .adaptation import Mode
from .evaluations import NOWHERE, Answers, Expansions, ask, expansions, slopes
from .proposal import Mixture

# Distances on half-lines to find slow tails, in standard deviations.
_NEAR = (2.0, 3.0, 4.5)
# Distances on half-lines to find other modes, in standard deviations.
_FAR = (8.0, 15.0, 30.0, 60.0, 120.0, 250.0, 500.0, 1000.0)
DISTANCES = np.array(_NEAR + _FAR)
# Radii of most scattered points, in standard deviations, which find narrow modes.
_NEARBY = np.array([4.0, 5.5, 7.5, 10.0, 13.0, 17.0, 22.0])
# Radii of each sixth scattered point, which find modes of the main mode's shape.
_FAR_OUT = np.array([30.0, 45.0, 70.0, 120.0])
# One of this number of scattered points is a draw of the prior, which may be far wider than the posterior.
_OF_PRIOR = 24
# Number of mirror images and draws of the prior that follow the landings if F is not convex. Half are draws, or more.
_WIDE = 64
# Most searches that start at these points, in addition to the usual ones.
_MOST_WIDE_SEARCHES = 8
# Slope of F towards the origin at such a start, relative to the mean slope. With one mode F seldom falls outwards.
_OUTWARDS = 0.4
# Most Newton steps to the prior's mode.
_MOST_PRIOR = 20
# Ratio of the largest to the smallest random factor of a radius.
_JITTER = 1.33
# Number of scattered points around the mode.
SCATTERED = 384
# Number of scattered points around all modes found in one round.
_MORE = 2304
# Number of landings. The certificate makes as many test moves, so that both share a compiled program.
LANDINGS = 256
# The same with coarse answers, whose gradients take most of the bytes.
_LANDINGS_COARSELY = 128
# Share of the rises by which a tangent must exceed F, above rounding errors.
_BENT = 0.1
# Sds of noise in a sum by which F must be below a tangent, and a slow half-line below a Gaussian, with coarse answers.
_SURE, _SURE_SLOW = 6.0, 3.5
# Most dimensions for half-lines along the principal axes, in addition to the parameters.
_FEW_DIMENSIONS = 20
# Share of a Gaussian's rise below which a half-line is slow.
_SLOW = 0.6
# Most slow half-lines that are followed.
_MOST_FOLLOWED = 8
# Cosine above which two slow half-lines are the same.
_SAME = 0.9
# Cosine above which the half-line of a single parameter duplicates another half-line.
_NEW = 0.99
# First step along a half-line, in standard deviations.
_STEP = 1.2
# Most steps along a half-line.
_MOST_STEPS = 24
# Steps to positions without mass that are tried again, and the factor of their length.
_MOST_MISSED, _SHORTENED = 3, 0.25
# Rise of F at which a half-line ends: negligible density.
_END = 14.0
# Rise of F that a step aims at.
_RISE = 2.0
# Largest and smallest ratio of a step to the step before it.
_GROWTH, _SHRINKAGE = 2.0, 0.5
# Longest correction across a half-line per step, in standard deviations.
_LONGEST_CORRECTION = 2.0
# Largest width of a component across its half-line, in standard deviations, unless its distance is larger.
_WIDEST = 5.0
# Degrees of freedom of the skeleton's components.
_FREEDOM = 5.0
# Most searches for another mode from the usual number of scattered points.
_MOST_SEARCHES = 8
# Most Newton steps of a search.
_MOST_NEWTON = 15
# Lengths of a Newton step that a search tries in one sum.
_LENGTHS = np.array([3.0, 1.0, 0.4, 0.1, 0.01])
# Length of a Newton step below which F may rise as far as noise hides it, in standard deviations.
_SHORT = 3.0
# Length of the last Newton step, in standard deviations.
_LAST_STEP = 1e-2
# The same with coarse answers, in sds of the noise of a gradient.
_LAST_NOISY_STEP = 2.0
# Rise of F that noise may hide, in sds of the noise of one sum.
_HIDDEN = 4.0
# Largest steepness, from which noise follows, at the end of a search, relative to near points and to the curvature.
_FINE = 2.0
# Distance within which the ends of two searches are one mode, in standard deviations, and the same with coarse answers.
_ONE_MODE, _ONE_NOISY_MODE = 1.0, 2.5
# Largest factor of the numbers of searches and landings, with more scattered points.
_MOST_TIMES = 16
# Least distance between the starts of searches, relative to their distance from the origin.
_SPREAD = 0.25
# Depth of F below the main mode from which on a position near it is another mode.
_DEEPER = 1.0
# Relative difference up to which distances count as equal, as machines differ in the last digits.
_TIE = 1e-9
# Number of modes at which the search ends.
_MOST_MODES = 24
# Distance from a known mode, in its standard deviations, within which no search starts.
_KNOWN = 3.0
# The distance above, with this difference, as many points are at exactly this distance.
_BEYOND_KNOWN = (1.0 + _TIE) * _KNOWN
# Directions over which the probability of finding a mode is averaged.
_DIRECTIONS = 256
# Most elements of the array of tangents in memory at a time.
_NUMBERS = 4_000_000
# Log mass below the main mode's, by Laplace's approximation, at which another mode is negligible.
_NEGLIGIBLE = 14.0


@dataclass(frozen=True, eq=False)
class Lines:
    """F around the mode, along half-lines and at scattered points.

    Parameters
    ----------
    directions
        Unit vectors of the half-lines, shape (line, dim).
    points, risen, gradient
        All points, the rise of F above its value at the origin, and its gradient; shapes (point, dim), (point,),
        (point, dim). The order is: points on the half-lines, line by line, at `DISTANCES`, the origin, the scattered
        points, the landings, points as far as the prior allows.
    at_origin
        F at the origin.
    scattered
        Number of scattered points.
    regressed
        Number of the first half-lines. On the others, all parameters but one are held.
    noise
        Sds of the noise in `risen` and in each coordinate of `gradient`, (point,) each, with coarse answers. Else None.
    wide
        Number of points as far as the prior allows.
    """

    directions: np.ndarray
    points: np.ndarray
    risen: np.ndarray
    gradient: np.ndarray
    at_origin: float
    scattered: int
    regressed: int = 0
    noise: tuple[np.ndarray, np.ndarray] | None = None
    wide: int = 0

    @property
    def rise(self) -> np.ndarray:
        """The rise of F on the half-lines, shape (line, distance)."""
        shape = len(self.directions), DISTANCES.size
        return self.risen[: np.prod(shape)].reshape(shape)

    @property
    def most_rise(self) -> np.ndarray:
        """The rise of F on the half-lines, or its upper limit with coarse answers, shape (line, distance)."""
        if self.noise is None:
            return self.rise
        return self.rise + _SURE_SLOW * self.noise[0][: self.rise.size].reshape(self.rise.shape)

    def slow(self, known: Sequence[Mode]) -> np.ndarray:
        """The smallest rise of F on each half-line, relative to a Gaussian's; shape (line,).

        Points near one of the `known` modes do not count, as F is low near them. Half-lines with held parameters find
        plateaus, where F is not convex, so they do not count if F is convex.
        """
        share = np.nan_to_num(self.most_rise / (np.square(DISTANCES) / 2.0), nan=np.inf, posinf=np.inf)
        # a low density far out still has mass if the region is wide. Points below that limit are ignored.
        if self.convex:
            share[self.regressed :] = np.inf
        matters = self.most_rise < _end(DISTANCES, self.directions.shape[1])
        for mode in known:
            matters &= _distances(self.points[: share.size], mode).reshape(share.shape) > (1.0 + _TIE) * _NEAR[-1]
        return np.where(matters, share, np.inf).min(axis=1, initial=np.inf)

    @property
    def are_usual(self) -> bool:
        """Whether F rises on all half-lines about as fast as a Gaussian's."""
        return bool((self.slow([]) >= _SLOW).all())

    @property
    def convex(self) -> bool:
        """Whether values and tangents of F are consistent with convexity, as for a log-concave posterior."""
        return not self._bent.any()

    @property
    def starts(self) -> np.ndarray:
        """Starts of searches for other modes, at points where F is not convex, shape (start, dim)."""
        return self.points[self._starts]

    @property
    def steepness(self) -> np.ndarray:
        """The norm of the gradient at each start, shape (start,). It is the mean slope from the origin if unknown."""
        gradient, distance = self.gradient[self._starts], np.linalg.norm(self.starts, axis=1)
        mean_slope = np.abs(self.risen[self._starts]) / np.maximum(distance, 1.0)
        return np.where(np.isnan(gradient).any(axis=1), mean_slope, np.linalg.norm(gradient, axis=1))

    @cached_property
    def _starts(self) -> np.ndarray:
        """Indices of the starts, shape (start,)."""
        bent = np.flatnonzero(self._bent)
        bent = bent[np.argsort(self.risen[bent], kind="stable")]
        # Alternate between the lowest F of all points and of each octave of distances, as otherwise all starts would be
        # near points, whose F is lowest.
        # sites of a study must have the same octaves, and points on half-lines lie on their boundaries
        octave = np.floor(np.log2(np.maximum(np.linalg.norm(self.points[bent], axis=1), 1.0)) + _TIE)
        rank = np.zeros(len(bent))
        for own in np.unique(octave):
            rank[octave == own] = np.arange((octave == own).sum())
        bent = np.stack([bent, bent[np.argsort(rank, kind="stable")]], axis=1).ravel()
        far = bent[bent >= len(self.points) - self.wide]
        outwards = -np.einsum("pi,pi->p", self.points[far], self.gradient[far])
        far = far[outwards > _OUTWARDS * self.risen[far]]
        chosen = bent[_apart(self.points[bent], self.most_starts)]
        further = far[_apart(self.points[far], _MOST_WIDE_SEARCHES)]
        return np.concatenate([chosen, further[~np.isin(further, chosen)]])

    @property
    def most_starts(self) -> int:
        """Most searches, which grow with the number of scattered points."""
        return _times(self.scattered) * _MOST_SEARCHES

    def chance(self, distance: float, width: float) -> float:
        """The probability that the scattered points notice another mode of equal mass in a random direction.

        A scattered point notices a Gaussian mode if most of the density at the point belongs to that mode, because the
        landing of the point is then on the mode.

        Parameters
        ----------
        distance
            Distance of the other mode, in standard deviations.
        width
            Standard deviation of the other mode, relative to the main mode's.
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
        """Whether the tangent at a point exceeds F at the origin, or F there is below another tangent, (point,)."""
        usual = self.risen < NOWHERE
        distance, landed = np.linalg.norm(self.points, axis=1), _landed(self.points, self.risen, self.gradient)
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.einsum("pi,pi->p", self.points, self.gradient)
            at_origin = own < (1.0 - _BENT) * self.risen - 1e-6
            if self.noise is not None:
                at_origin = own < (1.0 - _BENT) * self.risen - _SURE * np.hypot(distance * self.noise[1], self.noise[0])
            # points of the main mode may be below tangents at points of another mode
            elsewhere = np.flatnonzero(usual & (distance > _BEYOND_KNOWN) & ~(np.linalg.norm(landed, axis=1) < _KNOWN))
            tangents = np.flatnonzero(usual & (distance <= (1.0 + _TIE) * _FAR_OUT[-1]) & np.isfinite(own))
            # a margin for rounding errors on either side, relative to the rises at both points
            rise = self.risen + _BENT * np.abs(self.risen) + 1e-6
            lowest = own - self.risen + _BENT * np.abs(self.risen)
            below = np.zeros(len(elsewhere), bool)
            for at in np.array_split(tangents, 1 + tangents.size * elsewhere.size // _NUMBERS):
                height = self.gradient[at] @ self.points[elsewhere].T - lowest[at, None]
                if self.noise is not None:
                    height -= _SURE * self._noise_of_tangents(at, elsewhere)
                below |= height.max(axis=0, initial=-np.inf) > rise[elsewhere]
        at_origin[elsewhere] |= below
        if self.noise is not None:
            at_origin[: self.rise.size] |= self._bent_lines.ravel()
        return at_origin & usual

    @property
    def _bent_lines(self) -> np.ndarray:
        """Whether F on a half-line is below the line through the origin and a nearer point, (line, distance)."""
        assert self.noise is not None
        share = DISTANCES[None, :] / DISTANCES[:, None]
        chord, noise = self.rise[:, :, None] * share, self.noise[0][: self.rise.size].reshape(self.rise.shape)
        blur = np.hypot(noise[:, :, None] * share, noise[:, None, :])
        bent = (self.rise[:, None, :] < (1.0 - _BENT) * chord - _SURE * blur) & (share > 1.0)
        return np.asarray((bent & (self.rise[:, :, None] < NOWHERE)).any(axis=1))

    def _noise_of_tangents(self, at: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
        """Sds of the difference between tangents at points `at` and F at points `elsewhere`, (tangent, point)."""
        assert self.noise is not None
        value, gradient = self.noise
        squares = np.square(self.points).sum(axis=1)
        apart = squares[at, None] - 2.0 * self.points[at] @ self.points[elsewhere].T + squares[elsewhere]
        own = np.square(value[at])[:, None] + np.maximum(apart, 0.0) * np.square(gradient[at])[:, None]
        return np.asarray(np.sqrt(own + np.square(value[elsewhere])))


def _main(place: Coordinates) -> Mode:
    """The main mode, at the origin."""
    dim = place.origin.size
    return Mode(np.zeros(dim), np.eye(dim), 0.0)


def _times(scattered: int) -> int:
    """Factor of the numbers of searches and landings for this number of scattered points."""
    return min(max(1, scattered // SCATTERED), _MOST_TIMES)


def _apart(points: np.ndarray, most: int) -> np.ndarray:
    """Indices of the first `most` points that are at least `_SPREAD` times their distance from the origin apart."""
    chosen = list[int]()
    near = np.square(_SPREAD * np.linalg.norm(points, axis=1)) * (1.0 + _TIE)
    for k, (point, square) in enumerate(zip(points, near, strict=True)):
        if (np.square(points[chosen] - point).sum(axis=1) > square).all():
            chosen.append(k)
        if len(chosen) == most:
            break
    return np.array(chosen, int)


def _distances(points: np.ndarray, mode: Mode) -> np.ndarray:
    """Mahalanobis distances of points (point, dim) from a mode, (point,)."""
    return np.linalg.norm(np.linalg.solve(mode.factor, (points - mode.mean).T), axis=0)


def probe(
    session: Session,
    place: Coordinates,
    scattered: int = SCATTERED,
    first: Callable[[np.ndarray, np.ndarray], Answers] | None = None,
    second: Callable[[Lines, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
) -> Lines:
    """F along half-lines from the mode, at scattered points, and at their landings; at most two sums.

    Half-lines go along the principal axes and along each parameter. Each parameter has two: the other parameters follow
    their regression on it, or stay constant.

    Parameters
    ----------
    session
        Makes the sums. Its seed determines the scattered points.
    place
        Coordinates with the mode as origin.
    scattered
        Number of scattered points.
    first, second
        Evaluate F at the points of the two sums. The first gets points with gradients and points with values. The
        second gets F at the points of the first sum, and points with gradients. None: by sums of their own.
    """
    factor = place.factor
    # along each parameter, with the other parameters at their regression on it
    lines = [factor / np.linalg.norm(factor, axis=1)[:, None]]
    if 1 < len(factor) <= _FEW_DIMENSIONS:
        own = np.linalg.norm(factor, axis=1)
        vectors = oriented(np.linalg.eigh((factor @ factor.T) / np.outer(own, own))[1])
        axes = np.linalg.solve(factor, own[:, None] * vectors).T
        lines.append(axes / np.linalg.norm(axes, axis=1)[:, None])
    regressed = 2 * sum(map(len, lines))
    held = np.linalg.inv(factor).T
    held /= np.linalg.norm(held, axis=1)[:, None]
    lines.append(held[(np.abs(held @ np.concatenate(lines).T) < _NEW).all(axis=1)])
    directions = np.concatenate([sign * line for line in lines for sign in (1.0, -1.0)])
    on_lines = (DISTANCES[None, :, None] * directions[:, None, :]).reshape(-1, len(factor))
    around = generator(session.job.seed, "scatter").standard_normal((scattered, len(factor)))
    radii = np.resize(_NEARBY, scattered)
    radii[::6] = np.resize(_FAR_OUT, len(radii[::6]))
    # jitter, as fixed radii leave gaps in few dimensions
    radii *= _JITTER ** (generator(session.job.seed, "radii").random(scattered) - 0.5)
    around *= radii[:, None] / np.linalg.norm(around, axis=1)[:, None]
    noise, count = session.noise, len(on_lines)
    # noise hides F at far points
    wide = np.zeros((0, len(factor))) if noise is not None else _wide(session, place)
    if len(wide) and scattered:
        around[1::_OF_PRIOR] = np.resize(wide[_WIDE // 2 :], around[1::_OF_PRIOR].shape)
    points = np.concatenate([on_lines, np.zeros((1, len(factor))), around])
    # gradients take most of the bytes of coarse answers, and values at several distances show the shape of F
    sloped, valued = (points, points[:0]) if noise is None else (points[count:], on_lines)
    (value, gradient), along = (partial(ask, session, place) if first is None else first)(sloped, valued)
    value = np.concatenate([along, value])
    gradient = np.concatenate([np.full((len(along), len(factor)), np.nan), gradient])
    value, blur = _unbiased(noise, place, points, value)
    at_origin = float(value[count]) if noise is None else noise.at_origin(place)
    found = Lines(directions, points, value - at_origin, gradient, at_origin, scattered, regressed, blur)
    landings = LANDINGS if noise is None else _LANDINGS_COARSELY
    landed = _landings(points, found.risen, gradient, _times(scattered) * landings)
    landed = np.resize(landed, (-(-len(landed) // landings) * landings, len(factor)))
    if scattered and not found.convex:
        landed = np.concatenate([landed, wide])
    if not len(landed) and second is None:
        return found
    there, slope = slopes(session, place, landed) if second is None else second(found, landed)
    there, more = _unbiased(noise, place, landed, there)
    return replace(
        found,
        points=np.concatenate([points, landed]),
        risen=np.concatenate([found.risen, there - at_origin]),
        gradient=np.concatenate([gradient, slope]),
        noise=None if blur is None or more is None else (np.append(blur[0], more[0]), np.append(blur[1], more[1])),
        wide=len(landed) - len(landed) // landings * landings,
    )


def _unbiased(
    noise: Noise | None, place: Coordinates, points: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """F at points, (point,), and the sds of its noise as in `Lines`.

    Coarse answers have an exponential without bias, and F must have none here.
    """
    if noise is None:
        return value, None
    radius = noise.radius(place, points)
    return np.where(value < NOWHERE, value - noise.correction(radius), value), (
        noise.value(radius),
        noise.gradient(radius),
    )


def _landed(points: np.ndarray, risen: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """The landing of each point, shape (point, dim).

    A landing is the minimum of a parabola along the gradient whose minimum equals F at the origin. The landing of a
    point of a round Gaussian mode is that mode, at any distance.
    """
    with np.errstate(all="ignore"):
        return np.asarray(points - (2.0 * risen / np.square(gradient).sum(axis=1))[:, None] * gradient)


def _landings(points: np.ndarray, risen: np.ndarray, gradient: np.ndarray, most: int) -> np.ndarray:
    """Landings away from the origin, (landing, dim)."""
    landed = _landed(points, risen, gradient)
    distance, furthest = np.linalg.norm(landed, axis=1), max(DISTANCES[-1], np.linalg.norm(points, axis=1).max())
    chosen = landed[(risen < NOWHERE) & (distance > _BEYOND_KNOWN) & (distance < (1.0 - _TIE) * furthest)]
    return chosen[_apart(chosen, most)]


def _wide(session: Session, place: Coordinates) -> np.ndarray:
    """Mirror images of the origin, then draws of a normal approximation of the prior, (point, dim). No sum is needed.

    Mirror images are near the further modes of many likelihoods with a symmetry: reflections of all parameters, of one
    and of two, at 0 and at the prior's mode, and the origin with the numbers of two parameters exchanged.
    """
    potential, dim = session.job.post.potential, place.origin.size
    centre, values, vectors = np.zeros(dim), np.ones(dim), np.eye(dim)
    for _ in range(_MOST_PRIOR):
        gradient, hessian = map(np.asarray, _prior_shape(potential, place, centre))
        if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
            break
        values, vectors = np.linalg.eigh(hessian)
        # a flat prior ends where half-lines end
        values = np.maximum(np.abs(values), DISTANCES[-1] ** -2)
        step = -vectors @ (vectors.T @ gradient / values)
        centre = centre + step * min(1.0, DISTANCES[-1] / max(np.linalg.norm(step), 1.0))
        if np.linalg.norm(step) < 1.0:
            break
    drawn = generator(session.job.seed, "wide").standard_normal((_WIDE, dim))
    drawn = centre + drawn / np.sqrt(values) @ vectors.T
    mirrored = place.inverse(np.array(list(islice(_mirrored(place.origin, place.factor @ centre), 2 * _WIDE))))
    mirrored = mirrored[np.linalg.norm(mirrored, axis=1) > _BEYOND_KNOWN]
    return np.concatenate([mirrored[: _WIDE // 2], drawn])[:_WIDE]


def _mirrored(x: np.ndarray, to_prior: np.ndarray) -> Iterator[np.ndarray]:
    """Mirror images of a position at 0 and at the prior's mode, which is `to_prior` away."""
    numbers = range(x.size)
    for centre in (0.0 * x, x + to_prior):
        for which in [list(numbers), *([k] for k in numbers)]:
            yield _with(x, which, 2.0 * centre[which] - x[which])
    for pair in map(list, combinations(numbers, 2)):
        yield _with(x, pair, x[pair[::-1]])
        yield _with(x, pair, -x[pair])
        yield _with(x, pair, x[pair] + 2.0 * to_prior[pair])


def _with(x: np.ndarray, which: list[int], new: np.ndarray) -> np.ndarray:
    """A copy of x with new numbers."""
    x = x.copy()
    x[which] = new
    return x


@compiled
def _prior_shape(potential: Potential, place: Coordinates, z: Float[Array, " dim"]) -> tuple[Array, Array]:
    """The gradient and Hessian of minus the log prior at a position."""

    def prior(one: Array) -> Array:
        return -potential.within(place).log_prior_at(one)

    return jax.grad(prior)(z), jax.hessian(prior)(z)


class Skeleton(NamedTuple):
    """Mixture components along slow half-lines.

    Parameters
    ----------
    mixture
        The components, None without slow half-lines.
    reached
        The least rise of F at which a half-line was abandoned, inf if all reached their end.
    """

    mixture: Mixture | None
    reached: float

    @property
    def whole(self) -> bool:
        """Whether every half-line reached negligible density."""
        return self.reached == np.inf


def follow(session: Session, place: Coordinates, search: Search) -> Skeleton:
    """A skeleton along the slow half-lines of all modes, as INLA explores hyperparameters (Rue, Martino & Chopin 2009).

    After each step along a half-line, a Newton step in the other coordinates minimises F. Each position is the mean of
    a component, with the inverse Hessian as covariance across the half-line and the squared step along it. Steps are
    longer if F is flatter. Each half-line is followed in the coordinates of its mode, and all of them in the same sums.
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
        positions, steepness = (np.array([getattr(walk, k) for walk in walks]) for k in ("next", "steepness"))
        seen = expansions(session, place, positions, steepness)
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
    # square roots of the masses: the skeleton covers regions that the main component misses
    share = np.exp((np.array(masses) - np.max(masses)) / 2.0)
    freedom = np.full(len(means), _FREEDOM)
    return Skeleton(Mixture(share / share.sum(), np.array(means), np.array(factors), freedom), reached)


class _Walk:
    """A walk along a half-line from a mode, in the coordinates of that mode.

    Parameters
    ----------
    mode, at_mode
        The mode, and F at the mode.
    direction, step
        Unit vector, (dim,), and length of the first step.
    """

    def __init__(self, mode: Mode, at_mode: float, direction: np.ndarray, step: float) -> None:
        self.mode, self.at_mode, self.direction, self.step = mode, at_mode, direction, step
        self.at, self.rise, self.log_mass = np.zeros_like(direction), 0.0, 0.0
        # at the last position, and how often the next one had no mass
        self.steepness, self.missed = 0.0, 0

    @property
    def next(self) -> np.ndarray:
        """The next position at which to evaluate F, in the common coordinates of all modes."""
        return self.mode.mean + self.mode.factor @ (self.at + self.step * self.direction)

    @property
    def ended(self) -> bool:
        """Whether the remaining mass and variance are negligible."""
        distance = float(np.linalg.norm(self.at))
        is_far = not self.rise < _end(distance, self.at.size)
        return is_far or self.log_mass + 2.0 * np.log(max(1.0, distance)) < -_NEGLIGIBLE

    def step_to(
        self, value: float, gradient: np.ndarray, hessian: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Make a step, given the expansion of F at `next`.

        Returns mean and factor of a component there, in the common coordinates, and its log mass relative to exp(-F) at
        the mode; None if F has risen too far. A step to a position without mass is tried again, shorter.
        """
        if value >= NOWHERE and self.missed < _MOST_MISSED:
            self.step, self.missed = _SHORTENED * self.step, self.missed + 1
            return None
        factor, step, direction = self.mode.factor, self.step, self.direction
        self.steepness = float(Expansions(np.array([value]), gradient[None], hessian[None]).steepness[0])
        following, rise = self.at + step * direction, value - self.at_mode
        component = None
        if rise - self.rise <= _END + _end(np.linalg.norm(following), direction.size):
            slope = factor.T @ gradient
            correction, across, log_det = _across(
                direction, slope, factor.T @ hessian @ factor, float(np.linalg.norm(self.at))
            )
            # F after the correction, by its expansion
            rise += slope @ correction / 2.0
            following = following + correction
            # lower triangular, even if F bends far too sharply across the half-line for a Cholesky factor
            scale = factor @ np.linalg.qr(np.column_stack([across, step * direction]).T)[1].T
            self.log_mass = float(-rise + log_det / 2.0 + np.log(step))
            log_mass = self.log_mass + float(np.linalg.slogdet(factor)[1])
            component = self.mode.mean + factor @ following, scale, log_mass
        gained = max(rise - self.rise, 1e-3)
        self.at, self.rise, self.step = following, rise, step * float(np.clip(_RISE / gained, _SHRINKAGE, _GROWTH))
        return component


def _end(distance: Any, dim: int) -> Any:
    """The rise of F above which mass is negligible at a distance from the mode. It grows with the volume."""
    return _END + dim * np.log(np.maximum(1.0, distance / _NEAR[-1]))


def _slow_directions(lines: Lines, known: Sequence[Mode]) -> list[tuple[np.ndarray, float]]:
    """Distinct slow half-lines, the slowest first: direction (dim,) and first step of each.

    If F rises like a Gaussian's before it becomes slow, the first step goes to the first slow position with mass.
    """
    slow, chosen = lines.slow(known), list[tuple[np.ndarray, float]]()
    most = np.minimum(_SLOW * np.square(DISTANCES) / 2.0, _end(DISTANCES, lines.directions.shape[1]))
    where = DISTANCES[(lines.most_rise < most).argmax(axis=1)]
    for line in np.argsort(slow, kind="stable"):
        if slow[line] >= _SLOW or len(chosen) == _MOST_FOLLOWED:
            break
        direction = lines.directions[line]
        if all(direction @ other < _SAME for other, _ in chosen):
            chosen.append((direction, float(where[line]) if where[line] > _NEAR[-1] else _STEP))
    return chosen


def _across(
    direction: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, distance: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The Newton step across a direction, a root of the inverse Hessian across it, and the latter's log determinant."""
    dim = direction.size
    if dim == 1:
        return np.zeros(1), np.zeros((1, 0)), 0.0
    basis = np.linalg.qr(np.concatenate([direction[:, None], np.eye(dim)], axis=1))[0][:, 1:dim]
    values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
    values = np.maximum(np.abs(values), max(_WIDEST, distance) ** -2)
    axes = basis @ vectors
    step = -axes @ ((axes.T @ gradient) / values)
    step *= min(1.0, _LONGEST_CORRECTION / max(np.linalg.norm(step), np.finfo(float).tiny))
    return step, axes / np.sqrt(values), float(-np.log(values).sum())


class Search(NamedTuple):
    """Result of the search for other modes.

    Parameters
    ----------
    modes
        Other modes with a mass that is not negligible.
    ends
        Ends of searches at positions with mass, shape (position, dim).
    around
        F around the main mode and around each of `modes`, in this order. The last modes may be missing.
    whole
        Whether the search ended because it found no new modes.
    """

    modes: list[Mode]
    ends: np.ndarray
    around: list[Lines]
    whole: bool = True


def other_modes(session: Session, place: Coordinates, lines: Lines) -> Search:
    """Search for modes by Newton's method from points where F is not convex, then again around each new mode."""
    modes, ends = _searched(session, place, lines.at_origin, lines.starts, lines.steepness, [])
    main = _main(place)
    # A second mode makes further ones likely, so the main mode is probed again too, with more points.
    fresh, around = [main, *modes] if modes else [], list[Lines]()
    while fresh and len(modes) < _MOST_MODES:
        count = max(lines.scattered, min(_MORE, 2 * _MORE // len(fresh)))
        probes = [probe(session, place.after(Coordinates(mode.mean, mode.factor)), count) for mode in fresh]
        around += probes
        at = np.concatenate([mode.mean + own.starts @ mode.factor.T for mode, own in zip(fresh, probes, strict=True)])
        # the gradient at a narrow mode is longer in the coordinates of the main mode
        steep = np.concatenate(
            [own.steepness / np.linalg.norm(mode.factor, -2) for mode, own in zip(fresh, probes, strict=True)]
        )
        # searches from points near a known mode would end there
        near = np.zeros(len(at), bool)
        for mode in (main, *modes):
            near |= _distances(at, mode) < _BEYOND_KNOWN
        chosen = np.flatnonzero(~near)[: 4 * _MOST_SEARCHES]
        fresh, more = _searched(session, place, lines.at_origin, at[chosen], steep[chosen], modes)
        modes, ends = modes + fresh, np.concatenate([ends, more])
    return Search(modes, ends, around or [lines], not fresh)


def modes_near(session: Session, place: Coordinates, lines: Lines, search: Search, points: np.ndarray) -> Search:
    """The search with the modes to which Newton's method leads from some points, (point, dim)."""
    found, ends = _searched(session, place, lines.at_origin, points, np.zeros(len(points)), search.modes)
    return search._replace(modes=search.modes + found, ends=np.concatenate([search.ends, ends]))


def _searched(
    session: Session, place: Coordinates, at_origin: float, at: np.ndarray, steepness: np.ndarray, known: list[Mode]
) -> tuple[list[Mode], np.ndarray]:
    """New modes found by searches from the positions `at`, and the ends of searches at positions with mass.

    The `steepness` is that of the positions `at`, (start,).
    """
    if not len(at):
        return [], at
    # noise hides small steps and rises
    noise, allowed, one_mode = session.noise, 0.0, _ONE_MODE
    if noise is not None:
        allowed, one_mode = _HIDDEN * float(noise.value(np.zeros(1))[0]), _ONE_NOISY_MODE
    here, steep = expansions(session, place, at, steepness), steepness

    def last_step() -> np.ndarray | float:
        if noise is None:
            return _LAST_STEP
        blur = noise.expanded_gradient(steep) * at.shape[1] ** 0.5
        return np.asarray(np.maximum(_LAST_NOISY_STEP * blur, _LAST_STEP))

    def hidden_rise(own: np.ndarray, expected: np.ndarray) -> np.ndarray:
        if noise is None:
            return np.zeros(own.size)
        return np.asarray(_HIDDEN * np.hypot(noise.value(steep[own]), noise.value(expected)) / 2.0**0.5)

    def is_fine() -> np.ndarray | bool:
        if noise is None:
            return True
        # noise of a steep start would look like a mode
        curvature = np.linalg.norm(here.hessian, 2, axis=(1, 2))
        return np.asarray(steep <= _FINE * np.maximum(noise.near, np.sqrt(curvature)))

    def at_main() -> np.ndarray:
        # F rises around the main mode, and is low at another mode near it
        distance = np.linalg.norm(at, axis=1)
        around = (distance < one_mode) & (here.value - at_origin > np.square(distance) / 4.0)
        # a narrow mode within a wide one is deeper
        return ((distance < _ONE_MODE) & (here.value > at_origin - _DEEPER)) | around

    done, stuck = np.zeros(len(at), bool), here.value >= NOWHERE
    for _ in range(_MOST_NEWTON):
        steps = np.stack([newton_step(g, h)[0] for g, h in zip(here.gradient, here.hessian, strict=True)])
        length = np.array([np.sqrt(max(s @ h @ s, 0.0)) for s, h in zip(steps, here.hessian, strict=True)])
        done |= (length < last_step()) & is_fine() & np.array([np.linalg.eigvalsh(h)[0] > 0 for h in here.hessian])
        # searches that reached the main mode are done
        done |= at_main()
        own = np.flatnonzero(~done & ~stuck)
        if not own.size:
            break
        # several lengths of each step in one sum: the search moves to the lowest F
        trials = (at[own] + _LENGTHS[:, None, None] * steps[own]).reshape(-1, at.shape[1])
        expected = np.tile(here.steepness[own], _LENGTHS.size)
        there = expansions(session, place, trials, expected)
        value = np.where(np.isfinite(there.hessian).all(axis=(1, 2)), there.value, np.inf)
        best = value.reshape(_LENGTHS.size, -1).argmin(axis=0) * own.size + np.arange(own.size)
        # a last step may leave F as it is, and noise may hide its rise
        slack = np.where(length[own] < _SHORT, hidden_rise(own, expected[: own.size]), -allowed)
        better = value[best] <= here.value[own] + 1e-9 * (1 + abs(here.value[own])) + slack
        stuck[own[~better]] = True
        moves, best = own[better], best[better]
        at, steep, here = at.copy(), steep.copy(), Expansions(*(part.copy() for part in here))
        at[moves], steep[moves] = trials[best], expected[best]
        for part, new in zip(here, there, strict=True):
            part[moves] = new[best]
    found: list[Mode] = []
    rise, main = here.value - at_origin, at_main()
    for k in np.argsort(rise, kind="stable"):
        values = np.linalg.eigvalsh(here.hessian[k])
        if not done[k] or values[0] <= 1e-9 * values[-1] or main[k]:
            continue
        log_mass = float(-rise[k] - np.log(values).sum() / 2.0)
        factor = Coordinates.whitening(at[k], here.hessian[k]).factor
        same = any(
            np.linalg.norm(np.linalg.solve(other.factor, at[k] - other.mean)) < one_mode for other in [*known, *found]
        )
        if log_mass > -_NEGLIGIBLE and not same:
            found.append(Mode(at[k], np.linalg.cholesky(factor @ factor.T), log_mass))
    apart = ~at_main() & (rise < _end(np.linalg.norm(at, axis=1), at.shape[1]))
    return found, at[apart]
