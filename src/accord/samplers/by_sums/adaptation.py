"""The next proposal, fitted to weighted points with gradients, as far as it does better on points that it never saw.

Moments of a few hundred weighted points are mostly noise in tens of dimensions, and that noise is what importance
sampling loses most by. Gradients take nearly all of it away. With g = grad F, integration by parts gives E[g] = 0 and
E[z g'] = 1 under the posterior, so that for any matrix A

    E[z] = E[z - A^-1 g],    E[(z - m)(z - m)'] = A^-1 + E[(z - m)(z - m - A^-1 g)'],

whose right sides have no noise where F is quadratic with Hessian A; A is regressed from the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ...base.weights import effective
from .proposal import Mixture, log_t, squares, student
from .weighing import Weighing

# How far a fit goes towards the component before it, and degrees of freedom that are tried.
_KEPT = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_FREEDOM = (5.0, 10.0, 30.0)
# Effective points for each dimension below which weights are tempered for the fit (Koblents & Miguez 2015).
_LEAST = 4.0
# Limits of curvature and variance of a fit, relative to those of the coordinates.
_LEAST_CURVATURE, _LEAST_VARIANCE = 0.02, 0.01
# Shares of the wide component around the main one and of a skeleton, before anything is known, and how much of these
# first shares every proposal keeps.
_WIDE_SHARE, _SKELETON_SHARE, _FIRST_SHARES = 0.1, 0.3, 0.5
# The wide component's degrees of freedom, and its scale beside the main one's; components at other modes.
_WIDE_FREEDOM, _WIDE_SCALE, _MODE_FREEDOM = 3.0, 1.5, 5.0
# Components at most around the heaviest points, their degrees of freedom, and how far apart they are, in standard
# deviations of the main one (Raftery & Bao 2010).
_MOST_AROUND, _AROUND_FREEDOM, _APART = 4, 5.0, 1.5
# Points around such a component, for each dimension and at least, whose spread is its own.
_NEAR, _FEWEST = 8, 100
# Effective points from which on shares are fitted, and rounds of that.
_SHARED, _ROUNDS = 50.0, 20


class Main(NamedTuple):
    """The main component of a proposal: mean (dim,), scale matrix (dim, dim) and degrees of freedom."""

    mean: np.ndarray
    scale: np.ndarray
    freedom: float

    def mixture(self) -> Mixture:
        """It, as a proposal of its own."""
        return student(self.mean, np.linalg.cholesky(self.scale), self.freedom)


class Mode(NamedTuple):
    """A mode beside the main one: where, its factor (dim, dim), and its log mass relative to the main mode's."""

    mean: np.ndarray
    factor: np.ndarray
    log_mass: float

    def seen_from(self, other: Mode) -> Mode:
        """The mode in coordinates whose origin and factor are those of another mode."""
        mean, factor = np.linalg.solve(other.factor, self.mean - other.mean), np.linalg.solve(other.factor, self.factor)
        return Mode(mean, factor, self.log_mass - other.log_mass)


class Proposals(NamedTuple):
    """What a proposal has beside its main component, and the share of each part.

    Parameters
    ----------
    modes
        Other modes.
    skeleton
        Components along slow half-lines.
    shares
        Of the main component and of each component beside it: the wide one around it, modes, skeleton; shape (part,).
        None: before anything is known.
    """

    modes: list[Mode]
    skeleton: Mixture | None
    shares: np.ndarray | None = None

    def around(self, main: Main) -> Mixture:
        """The whole proposal around a main component: that, the wide one, and what is fixed."""
        first = [1.0 - _WIDE_SHARE, _WIDE_SHARE, *(np.exp(mode.log_mass / 2.0) for mode in self.modes)]
        parts = [main.mixture(), self._wide(main)]
        # flattened: Laplace's masses are rough
        parts += [student(mode.mean, mode.factor, _MODE_FREEDOM) for mode in self.modes]
        if self.skeleton is not None:
            first.append(sum(first) * _SKELETON_SHARE / (1.0 - _SKELETON_SHARE))
            parts.append(self.skeleton)
        whole = Mixture.of(*zip(first, parts, strict=True))
        if self.shares is None:
            return whole
        # what was found to be of no use keeps a part of its first share: nobody knows what it has not drawn yet
        return whole._replace(share=(1.0 - _FIRST_SHARES) * self.shares + _FIRST_SHARES * whole.share)

    def _wide(self, main: Main) -> Mixture:
        return student(main.mean, _WIDE_SCALE * np.linalg.cholesky(main.scale), _WIDE_FREEDOM)

    def candidates_at(self, points: np.ndarray, before: Main) -> Callable[..., Iterator[np.ndarray]]:
        """The log density at some points, (point,), of the proposal around any main component, for several freedoms."""
        whole = self.around(before)
        near, fixed = np.log(whole.share[:2]), whole.part(slice(2, None))
        rest = fixed.log_density(points) if fixed.share.size else np.full(len(points), -np.inf)

        def densities(mean: np.ndarray, scale: np.ndarray, freedoms: Sequence[float]) -> Iterator[np.ndarray]:
            factor = np.linalg.cholesky(scale)[None]
            square = squares(points, mean[None], factor)
            wide = log_t(square / _WIDE_SCALE**2, _WIDE_SCALE * factor, np.array([_WIDE_FREEDOM]))[0]
            beside = np.logaddexp(near[1] + wide, rest)
            for freedom in freedoms:
                yield np.logaddexp(near[0] + log_t(square, factor, np.array([freedom]))[0], beside)

        return densities

    def shared(self, found: Weighing, main: Main) -> Proposals:
        """The same with shares fitted to weighted points by expectation maximisation (Cappe et al. 2008)."""
        usual = np.isfinite(found.log_weight)
        log_w = truncated(found.log_weight[usual])
        if effective(log_w) < _SHARED:
            return self
        weight = np.exp(log_w - logsumexp(log_w))
        whole = self.around(main)
        densities, share = whole.log_densities(found.points[usual]), whole.share
        densities = densities - densities.max(axis=0)
        for _ in range(_ROUNDS):
            own = share[:, None] * np.exp(densities)
            share = (own / own.sum(axis=0)) @ weight
        return self._replace(shares=share / share.sum())


def adapted(found: Weighing, before: Main, proposals: Proposals) -> tuple[Main, float]:
    """The next main component, and the efficiency expected of it: effective draws a point; 0 where it is unknown.

    Candidates lie between a fit and the component before, with several tails. Each is fitted to one half of the points
    and judged by the other: the mean of pi / q over draws of pi is one over the efficiency of q.

    Parameters
    ----------
    found
        The points so far; those of batches with gradients are fitted to.
    before
        The main component until now, which is a candidate too.
    proposals
        What a proposal has beside it.
    """
    sloped = np.concatenate([np.full(len(b.rise), b.gradient is not None) for b in found.batches])
    gradient = np.concatenate([b.gradient for b in found.batches if b.gradient is not None])
    usable = np.isfinite(gradient).all(axis=1) & np.isfinite(found.log_weight[sloped])
    places, gradient = np.flatnonzero(sloped)[usable], gradient[usable]
    log_w = truncated(found.log_weight[places])
    least = _LEAST * found.points.shape[1]
    power = _tempering(log_w, least)
    if power < 1.0:
        # too few to judge by; those of earlier batches would only hold it back
        last = found.batches[-1]
        assert last.gradient is not None
        log_w = -found.rise[-len(last.rise) :] - last.proposal.log_density(last.points)
        return _towards(before, last.points, last.gradient, _tempering(log_w, least) * log_w), 0.0
    mean, cov = moments(found.points[places], gradient, log_w)
    halves = places % 2
    fits = [moments(found.points[places[h]], gradient[h], log_w[h]) for h in (halves == 0, halves == 1)]
    candidates = proposals.candidates_at(found.points, before)
    judges = [np.arange(found.rise.size) % 2 != half for half in range(2)]
    scores = {}
    # lighter tails than those risk rare points of large weight, and cost much only where there are more dimensions
    tails = _FREEDOM if mean.size <= _FREEDOM[-1] else (*_FREEDOM, float(mean.size))
    for kept in _KEPT:
        freedoms = (before.freedom,) if kept == 1.0 else tails
        densities = [candidates(*_between(before, fit, kept), freedoms) for fit in fits]
        for freedom, *both in zip(freedoms, *densities, strict=True):
            judged = [_inefficiency(found, judge, density) for judge, density in zip(judges, both, strict=True)]
            scores[kept, freedom] = float(np.mean(judged))
    kept, freedom = min(scores, key=lambda which: scores[which])
    return Main(*_between(before, (mean, cov), kept), freedom), 1.0 / scores[kept, freedom]


def truncated(log_w: np.ndarray) -> np.ndarray:
    """Log weights of which none is above the root of their number times their mean (Ionides 2008)."""
    mean = logsumexp(log_w) - np.log(log_w.size)
    return np.minimum(log_w, mean + np.log(log_w.size) / 2.0)


def _tempering(log_w: np.ndarray, least: float) -> float:
    """The largest power, at most 1, that leaves weights so many effective points."""
    if effective(log_w) >= least:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if effective(middle * log_w) >= least else (low, middle)
    return low


def moments(z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of weighted points, with their gradients as control variates; see the module's text.

    Points and F's gradients there have shape (point, dim), log weights shape (point,).
    """
    w, inverse, mean = _center(z, gradient, log_w)
    apart = z - mean
    cov = inverse + (apart.T * w) @ (apart - gradient @ inverse)
    values, vectors = np.linalg.eigh((cov + cov.T) / 2.0)
    return mean, (vectors * np.maximum(values, _LEAST_VARIANCE)) @ vectors.T


def fitted_to_draws(positions: np.ndarray, gradients: np.ndarray, freedom: float) -> Main:
    """The main component that fits draws of the posterior, (draw, dim), and F's gradients there."""
    return Main(*moments(positions, gradients, np.zeros(len(positions))), freedom)


def around_heaviest(points: np.ndarray, log_weight: np.ndarray, found: Weighing, main: Main) -> Mixture:
    """Components at some points of large weights that are apart, as wide as the points of batches near them are spread.

    Parameters
    ----------
    points, log_weight
        Where, (point, dim), and how much heavier than other points, (point,).
    found
        The points of all batches.
    main
        The main component, whose distances say what is near.
    """
    factor, dim = np.linalg.cholesky(main.scale)[None], found.points.shape[1]
    centers = list[np.ndarray]()
    for place in np.argsort(-log_weight, kind="stable")[:_FEWEST]:
        point = points[place]
        if not centers or squares(np.array(centers), point[None], factor).min() > _APART**2:
            centers.append(point)
        if len(centers) == _MOST_AROUND:
            break
    count = min(max(_FEWEST, _NEAR * dim), found.weight.size)
    scales = []
    for away in squares(found.points, np.array(centers), np.repeat(factor, len(centers), axis=0)):
        near = np.argsort(away, kind="stable")[:count]
        # half by weight and half by number, as few points may have all the weight
        w = (found.weight[near] / found.weight[near].sum() + 1.0 / count) / 2.0
        apart = found.points[near] - w @ found.points[near]
        # shrunk towards the main one, as few points say little
        kept = dim / (dim + count)
        scales.append((1.0 - kept) * (apart.T * w) @ apart + kept * main.scale)
    share = np.full(len(centers), 1.0 / len(centers))
    return Mixture(
        share, np.array(centers), np.linalg.cholesky(np.array(scales)), np.full(len(centers), _AROUND_FREEDOM)
    )


def _towards(before: Main, z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> Main:
    """Half the way to the Gaussian whose gradient fits those of weighted points best.

    Where the points are its own draws, that is the Gaussian nearest to the posterior (Opper & Archambeau 2009).
    """
    _, inverse, mean = _center(z, gradient, log_w)
    precision = (np.linalg.inv(before.scale) + np.linalg.inv(inverse)) / 2.0
    scale = np.linalg.inv(precision)
    return Main((before.mean + mean) / 2.0, (scale + scale.T) / 2.0, before.freedom)


def _center(z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of sum one, the inverse of the gradients' slope, and the mean by it as a control variate."""
    w = np.exp(log_w - log_w.max())
    w = w / w.sum()
    inverse = _inverse_slope(z, gradient, w)
    return w, inverse, w @ (z - gradient @ inverse)


def _inverse_slope(z: np.ndarray, gradient: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The inverse of the matrix that gradients are regressed on weighted points by, made definite."""
    count, dim = z.shape
    # no few points lead the regression, and none is left out
    root = np.sqrt(np.minimum(w, 3.0 / count) + 0.2 / count)[:, None]
    design = np.concatenate([z, np.ones((count, 1))], axis=1)
    design, gradient = design * root, gradient * root
    # normal equations: in these coordinates points are about standard normal
    slope = np.linalg.solve(design.T @ design, design.T @ gradient)[:dim]
    values, vectors = np.linalg.eigh((slope + slope.T) / 2.0)
    return np.asarray((vectors / np.maximum(values, _LEAST_CURVATURE)) @ vectors.T)


def _between(before: Main, fit: tuple[np.ndarray, np.ndarray], kept: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale between those of the component before and a fit's."""
    mean, cov = fit
    return kept * before.mean + (1.0 - kept) * mean, kept * before.scale + (1.0 - kept) * cov


def _inefficiency(found: Weighing, chosen: np.ndarray, log_density: np.ndarray) -> float:
    """The mean of pi / q over draws of pi: one over the efficiency of q, from some of the points."""
    chosen = chosen & np.isfinite(found.log_weight)
    log_w = found.log_weight[chosen]
    log_pi = -found.rise[chosen] - (logsumexp(log_w) - np.log(log_w.size))
    ratio = log_w + log_pi - log_density[chosen]
    return float(np.exp(logsumexp(ratio) - logsumexp(log_w)))
