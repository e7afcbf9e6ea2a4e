"""The shape of a posterior around its mode: half-lines on which it rises slowly, and other modes.

An elliptical proposal is silent about what it never reaches: a heavy tail along one direction, a second mode. Both show
where F is looked at along lines, in one sum; what they show is then followed, all lines and modes at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.counters import generator
from ..fitting.adaptation import Mode
from ..fitting.evaluations import NOWHERE, Expansions, expansions, slopes
from ..fitting.network_sums import NetworkSums
from ..fitting.proposal import Mixture
from ..posterior.coordinates import Coordinates
from ..posterior.newton import newton_step

# Distances, in standard deviations, at which F is looked at on each half-line: for slow tails, and for other modes.
_NEAR, _FAR = (2.0, 3.0, 4.5), (8.0, 15.0, 30.0, 60.0, 120.0, 250.0, 500.0, 1000.0)
DISTANCES = np.array(_NEAR + _FAR)
# Points scattered around the mode, at these distances, which lines may all miss.
_SCATTERED, _RADII = 384, (4.0, 6.0, 8.0, 12.0, 20.0, 30.0)
# Dimensions up to which lines follow the principal axes too, and not the parameters alone.
_FEW_DIMENSIONS = 20
# A half-line is slow where F rises by less than this share of what a Gaussian's does.
_SLOW = 0.6
# Half-lines at most that are followed, and the cosine above which two of them are the same.
_MOST_FOLLOWED, _SAME = 8, 0.9
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
# Searches for another mode at most, Newton steps of each, and the length of the last.
_MOST_SEARCHES, _MOST_NEWTON, _LAST_STEP = 8, 15, 1e-2
# How far apart searches begin, as a share of their distance from the origin: in few dimensions many points lie alike.
_SPREAD = 0.25
# Modes at which no more are looked for, and how far from one, in its standard deviations, another search begins.
_MOST_MODES, _KNOWN = 12, 3.0
# Log mass below that of the main mode, by Laplace's approximation, at which another mode is no matter.
_NEGLIGIBLE = 14.0


class Lines(NamedTuple):
    """F around the mode: its rise above its value there, along half-lines and at scattered points.

    Parameters
    ----------
    directions
        Unit vectors, shape (line, dim).
    points, risen, gradient
        All points that F was looked at, on the lines and scattered, its rise there, and its gradient; shapes
        (point, dim), (point,), (point, dim). Those of the lines come first, line by line, at `DISTANCES`.
    at_origin
        F at the origin.
    """

    directions: np.ndarray
    points: np.ndarray
    risen: np.ndarray
    gradient: np.ndarray
    at_origin: float

    @property
    def rise(self) -> np.ndarray:
        """The rise on the lines, shape (line, distance)."""
        shape = len(self.directions), DISTANCES.size
        return self.risen[: np.prod(shape)].reshape(shape)

    @property
    def slow(self) -> np.ndarray:
        """How slowly F rises on each half-line, at worst, as a share of a Gaussian's rise; shape (line,)."""
        share = np.nan_to_num(self.rise / (np.square(DISTANCES) / 2.0), nan=np.inf, posinf=np.inf)
        # a plateau far out may be low and yet hold mass, as it is wide; where it is lower than that it holds none
        matters = self.rise < _end(DISTANCES, self.directions.shape[1])
        return np.where(matters, share, np.inf).min(axis=1, initial=np.inf)

    @property
    def convex(self) -> bool:
        """Whether F looks convex from the origin wherever it was looked at, as that of a log-concave posterior does."""
        return not self._bent.any()

    @property
    def starts(self) -> np.ndarray:
        """Where another mode may be near, the likeliest first, shape (start, dim): where F is less than convex."""
        bent = np.flatnonzero(self._bent)
        chosen = np.empty((0, self.points.shape[1]))
        for point in self.points[bent[np.argsort(self.risen[bent], kind="stable")]]:
            if (np.linalg.norm(chosen - point, axis=1) > _SPREAD * np.linalg.norm(point)).all():
                chosen = np.concatenate([chosen, point[None]])
            if len(chosen) == _MOST_SEARCHES:
                break
        return chosen

    @property
    def _bent(self) -> np.ndarray:
        """Where a convex F with this gradient would have to be lower at the origin than it is, shape (point,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            back = np.einsum("pi,pi->p", self.points, self.gradient)
            # a tenth of it beyond rounding; where F is no number nothing is said
            return (back < 0.9 * self.risen - 1e-6) & (self.risen < NOWHERE)


def look(sums: NetworkSums, place: Coordinates, seed: int) -> Lines:
    """F along half-lines from the mode, each parameter's and the principal axes', and at scattered points; one sum.

    Parameters
    ----------
    sums, place
        Sums over the network, and the coordinates whose origin is the mode.
    seed
        Of the scattered points.
    """
    factor = place.factor
    # where a parameter goes, the others go with it as a Gaussian's do
    lines = [factor / np.linalg.norm(factor, axis=1)[:, None]]
    if 1 < len(factor) <= _FEW_DIMENSIONS:
        own = np.linalg.norm(factor, axis=1)
        vectors = np.linalg.eigh((factor @ factor.T) / np.outer(own, own))[1]
        axes = np.linalg.solve(factor, own[:, None] * vectors).T
        lines.append(axes / np.linalg.norm(axes, axis=1)[:, None])
    directions = np.concatenate([sign * line for line in lines for sign in (1.0, -1.0)])
    on_lines = (DISTANCES[None, :, None] * directions[:, None, :]).reshape(-1, len(factor))
    scattered = generator(seed, "scatter").standard_normal((_SCATTERED, len(factor)))
    scattered *= np.resize(_RADII, _SCATTERED)[:, None] / np.linalg.norm(scattered, axis=1)[:, None]
    points = np.concatenate([on_lines, scattered, np.zeros((1, len(factor)))])
    value, gradient = slopes(sums, place, points)
    return Lines(directions, points[:-1], value[:-1] - value[-1], gradient[:-1], float(value[-1]))


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


def follow(sums: NetworkSums, place: Coordinates, lines: Lines) -> Skeleton:
    """A skeleton along the slow half-lines, as INLA explores its hyperparameters (Rue, Martino & Chopin 2009).

    At each step along a half-line the other coordinates go where F is least, by a Newton step; each place is a
    component whose covariance is the inverse Hessian across and the step along. Steps are as long as F is flat. All
    half-lines are followed at a time.
    """
    chosen, step = _slow_directions(lines)
    if not len(chosen):
        return Skeleton(None, np.inf)
    means, factors, masses = list[np.ndarray](), list[np.ndarray](), list[float]()
    at, rise = np.zeros_like(chosen), np.zeros(len(chosen))
    reached = np.inf
    for _ in range(_MOST_STEPS):
        following = at + step[:, None] * chosen
        seen = expansions(sums, place, following)
        risen = seen.value - lines.at_origin
        for k, direction in enumerate(chosen):
            if risen[k] - rise[k] > _END + float(_end(np.asarray(np.linalg.norm(following[k])), len(direction))):
                continue
            correction, across, log_det = _across(
                direction, seen.gradient[k], seen.hessian[k], float(np.linalg.norm(at[k]))
            )
            # F after the correction, by the expansion
            risen[k] += seen.gradient[k] @ correction / 2.0
            following[k] += correction
            means.append(following[k].copy())
            factors.append(np.linalg.cholesky(across + step[k] ** 2 * np.outer(direction, direction)))
            masses.append(-risen[k] + log_det / 2.0 + np.log(step[k]))
        at, gained = following, np.maximum(risen - rise, 1e-3)
        step, rise = step * np.clip(_RISE / gained, _SHRINKAGE, _GROWTH), risen
        going = rise < _end(np.linalg.norm(at, axis=1), at.shape[1])
        at, chosen, step, rise = at[going], chosen[going], step[going], rise[going]
        if not len(at):
            break
    else:
        reached = float(rise.min())
    if not means:
        return Skeleton(None, reached)
    # flattened: the skeleton is for what the main component leaves out
    share = np.exp((np.array(masses) - np.max(masses)) / 2.0)
    freedom = np.full(len(means), _FREEDOM)
    return Skeleton(Mixture(share / share.sum(), np.array(means), np.array(factors), freedom), reached)


def _end(distance: np.ndarray, dim: int) -> np.ndarray:
    """The rise of F at distances from the mode beyond which there is no mass: more where there is more room."""
    return _END + dim * np.log(np.maximum(1.0, distance / _NEAR[-1]))


def _slow_directions(lines: Lines) -> tuple[np.ndarray, np.ndarray]:
    """The slow half-lines, the slowest first, none of them twice, (line, dim), and their first steps, (line,).

    Where F rises as a Gaussian's does before it is slow, the first step leads to where most of the mass beyond is.
    """
    slow, chosen, steps = lines.slow, list[np.ndarray](), list[float]()
    is_slow = lines.rise < _SLOW * np.square(DISTANCES) / 2.0
    room = lines.rise - lines.directions.shape[1] * np.log(DISTANCES)
    near = is_slow & (DISTANCES <= _NEAR[-1])
    where = np.where(near.any(axis=1), 0.0, DISTANCES[np.where(is_slow, room, np.inf).argmin(axis=1)])
    for line in np.argsort(slow):
        if slow[line] >= _SLOW or len(chosen) == _MOST_FOLLOWED:
            break
        direction = lines.directions[line]
        if all(direction @ other < _SAME for other in chosen):
            chosen.append(direction)
            steps.append(float(where[line]) if where[line] > _NEAR[-1] else _STEP)
    return np.array(chosen).reshape(-1, lines.directions.shape[1]), np.array(steps)


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
    whole
        Whether the last of them were found without another one in sight.
    """

    modes: list[Mode]
    ends: np.ndarray
    whole: bool = True


def other_modes(sums: NetworkSums, place: Coordinates, lines: Lines, seed: int) -> Search:
    """Modes found by Newton's method from where F is not convex, and from these in turn, all searches at a time.

    `seed` is that of the points scattered around each.
    """
    modes, ends = _searched(sums, place, lines.at_origin, lines.starts, [])
    fresh = modes
    while fresh and len(modes) < _MOST_MODES:
        starts = []
        for mode in fresh:
            around = look(sums, place.after(Coordinates(mode.mean, mode.factor)), seed)
            starts.append(mode.mean + around.starts @ mode.factor.T)
        at = np.concatenate(starts)
        # what is near a mode that is known leads there
        near = np.linalg.norm(at, axis=1) < _KNOWN
        for mode in modes:
            near |= np.linalg.norm(np.linalg.solve(mode.factor, (at - mode.mean).T), axis=0) < _KNOWN
        fresh, more = _searched(sums, place, lines.at_origin, at[~near][: 4 * _MOST_SEARCHES], modes)
        modes, ends = modes + fresh, np.concatenate([ends, more])
    return Search(modes, ends, not fresh)


def _searched(
    sums: NetworkSums, place: Coordinates, at_origin: float, at: np.ndarray, known: list[Mode]
) -> tuple[list[Mode], np.ndarray]:
    """Modes that are not known yet, found from some positions, and where searches ended that hold mass."""
    if not len(at):
        return [], at
    here = expansions(sums, place, at)
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
        there = expansions(sums, place, moved)
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
