"""Adaptation of the proposal: fits to weighted points with gradients, chosen by cross-validation.

In tens of dimensions the moments of a few hundred weighted points are mostly noise, and this noise costs importance
sampling most of its efficiency. Gradients as control variates remove nearly all of it. With g = grad F, integration by
parts gives E[g] = 0 and E[z g'] = 1 under the posterior, so for any matrix A

    E[z] = E[z - A^-1 g],    E[(z - m)(z - m)'] = A^-1 + E[(z - m)(z - m - A^-1 g)'].

The right sides have no noise if F is quadratic with Hessian A. A is estimated by regression of g on z at the points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy.special import logsumexp

from ...base.weights import effective
from .proposal import Mixture, log_t, squares, student
from .weighing import Weighing

# Weights of the previous component in the candidates between it and a fit.
_KEPT = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
# Degrees of freedom of the candidates.
_FREEDOM = (5.0, 10.0, 30.0)
# Effective points per dimension below which weights are tempered for the fit (Koblents & Miguez 2015).
_LEAST = 4.0
# Least degrees of freedom of the first main component.
_LEAST_FREEDOM = 5
# Least curvature and variance of a fit, in whitened coordinates.
_LEAST_CURVATURE, _LEAST_VARIANCE = 0.02, 0.01
# First share of the wide component around the main one.
_WIDE_SHARE = 0.1
# First share of a skeleton.
_SKELETON_SHARE = 0.3
# Weight of the first shares in the shares of every proposal.
_FIRST_SHARES = 0.5
# Least ratio of the smallest to the largest precision of a fit.
_LEAST_RATIO = 1e-10
# Degrees of freedom of the wide component.
_WIDE_FREEDOM = 3.0
# Scale of the wide component relative to the main one.
_WIDE_SCALE = 1.5
# Degrees of freedom of components at other modes.
_MODE_FREEDOM = 5.0
# Most components around the heaviest points (Raftery & Bao 2010).
_MOST_AROUND = 4
# Degrees of freedom of these components.
_AROUND_FREEDOM = 5.0
# Least distance between these components, in standard deviations of the main one.
_APART = 1.5
# Points per dimension that determine the scale of such a component, and the fewest.
_NEAR, _FEWEST = 8, 100
# Effective points from which on shares are fitted.
_SHARED = 50.0
# Iterations of expectation maximisation for the shares.
_ITERATIONS = 20


class Main(NamedTuple):
    """The main component of a proposal: mean (dim,), scale matrix (dim, dim) and degrees of freedom."""

    mean: np.ndarray
    scale: np.ndarray
    freedom: float

    @classmethod
    def first(cls, dim: int) -> Self:
        """The component before any fit: standard, with tails that no fit has confirmed to be light."""
        return cls(np.zeros(dim), np.eye(dim), float(max(_LEAST_FREEDOM, dim)))

    def mixture(self) -> Mixture:
        """The component as a mixture of one."""
        try:
            return student(self.mean, np.linalg.cholesky(self.scale), self.freedom)
        except np.linalg.LinAlgError as error:
            raise ArithmeticError("no proposal fits the points: its covariance is not positive definite") from error


class Mode(NamedTuple):
    """A mode: mean (dim,), factor of the covariance (dim, dim), and log mass relative to the main mode."""

    mean: np.ndarray
    factor: np.ndarray
    log_mass: float

    def seen_from(self, other: Mode) -> Mode:
        """The mode in coordinates in which `other` is standard normal."""
        mean, factor = np.linalg.solve(other.factor, self.mean - other.mean), np.linalg.solve(other.factor, self.factor)
        return Mode(mean, factor, self.log_mass - other.log_mass)


class Proposals(NamedTuple):
    """The fixed components of a proposal and the shares of all components.

    Parameters
    ----------
    modes
        Other modes.
    skeleton
        Components along slow half-lines, or None.
    shares
        Shares of the main component, the wide one, the modes and the skeleton's components, shape (component,). None:
        the first shares.
    """

    modes: list[Mode]
    skeleton: Mixture | None
    shares: np.ndarray | None = None

    def around(self, main: Main) -> Mixture:
        """The proposal with a main component: main, wide, modes and skeleton."""
        first = [1.0 - _WIDE_SHARE, _WIDE_SHARE, *(np.exp(mode.log_mass / 2.0) for mode in self.modes)]
        parts = [main.mixture(), self._wide(main)]
        # square roots of the masses in `first`, as Laplace's masses are rough
        parts += [student(mode.mean, mode.factor, _MODE_FREEDOM) for mode in self.modes]
        if self.skeleton is not None:
            first.append(sum(first) * _SKELETON_SHARE / (1.0 - _SKELETON_SHARE))
            parts.append(self.skeleton)
        whole = Mixture.of(*zip(first, parts, strict=True))
        if self.shares is None:
            return whole
        # a component with few points so far may still cover a region without points, so it keeps a part of its share
        return whole._replace(share=(1.0 - _FIRST_SHARES) * self.shares + _FIRST_SHARES * whole.share)

    def _wide(self, main: Main) -> Mixture:
        return student(main.mean, _WIDE_SCALE * np.linalg.cholesky(main.scale), _WIDE_FREEDOM)

    def candidates_at(self, points: np.ndarray, before: Main) -> Callable[..., Iterator[np.ndarray]]:
        """A function that evaluates proposals at `points`: from mean, scale and freedoms to log densities, (point,)."""
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
        """The proposals with shares fitted to weighted points by expectation maximisation (Cappe et al. 2008)."""
        usual = np.isfinite(found.log_weight)
        log_w = truncated(found.log_weight[usual])
        if effective(log_w) < _SHARED:
            return self
        weight = np.exp(log_w - logsumexp(log_w))
        whole = self.around(main)
        densities, share = whole.log_densities(found.points[usual]), whole.share
        densities = densities - densities.max(axis=0)
        for _ in range(_ITERATIONS):
            own = share[:, None] * np.exp(densities)
            share = (own / own.sum(axis=0)) @ weight
        return self._replace(shares=share / share.sum())


def adapted(found: Weighing, before: Main, proposals: Proposals) -> tuple[Main, float]:
    """The next main component and its expected efficiency in effective draws per point (0: unknown).

    Candidates lie between a fit and the previous component, with several degrees of freedom. Each is fitted to one half
    of the points and evaluated on the other half: the mean of pi / q over draws of pi is one over the efficiency of q.

    Parameters
    ----------
    found
        The points so far. Only points with gradients enter the fit.
    before
        The previous main component, which is also a candidate.
    proposals
        The other components.
    """
    sloped = np.concatenate([np.full(len(b.rise), b.gradient is not None) for b in found.batches])
    gradient = np.concatenate([b.gradient for b in found.batches if b.gradient is not None])
    usable = np.isfinite(gradient).all(axis=1) & np.isfinite(found.log_weight[sloped])
    places, gradient = np.flatnonzero(sloped)[usable], gradient[usable]
    log_w = truncated(found.log_weight[places])
    least = _LEAST * found.points.shape[1]
    power = _tempering(log_w, least)
    if power < 1.0:
        # too few effective points for cross-validation. The last batch alone, as earlier ones slow the adaptation down
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
    # lighter tails than t_30 risk rare points of large weight, and pay off only in more than 30 dimensions
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
    """Log weights truncated at sqrt(number of points) times their mean (Ionides 2008)."""
    mean = logsumexp(log_w) - np.log(log_w.size)
    return np.minimum(log_w, mean + np.log(log_w.size) / 2.0)


def _tempering(log_w: np.ndarray, least: float) -> float:
    """The largest power in [0, 1] of the weights that keeps `least` effective points."""
    if effective(log_w) >= least:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if effective(middle * log_w) >= least else (low, middle)
    return low


def moments(z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of weighted points with gradients as control variates (see the module docstring).

    Points and gradients of F have shape (point, dim), log weights shape (point,).
    """
    w, inverse, mean = _center(z, gradient, log_w)
    apart = z - mean
    cov = inverse + (apart.T * w) @ (apart - gradient @ inverse)
    values, vectors = np.linalg.eigh((cov + cov.T) / 2.0)
    return mean, (vectors * np.maximum(values, _LEAST_VARIANCE)) @ vectors.T


def fitted_to_draws(positions: np.ndarray, gradients: np.ndarray, freedom: float) -> Main:
    """The main component fitted to draws of the posterior, (draw, dim), and gradients of F."""
    return Main(*moments(positions, gradients, np.zeros(len(positions))), freedom)


def around_heaviest(points: np.ndarray, log_weight: np.ndarray, found: Weighing, main: Main) -> Mixture:
    """Components at separate points of large weight, with scales from the spread of nearby points of all batches.

    Parameters
    ----------
    points, log_weight
        Candidate centers, (point, dim), and their log weights, (point,).
    found
        The points of all batches.
    main
        The main component, which defines distances.
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
        # half importance weights and half equal weights, as few points may have all the weight
        w = (found.weight[near] / found.weight[near].sum() + 1.0 / count) / 2.0
        apart = found.points[near] - w @ found.points[near]
        # shrinkage towards the main scale, as there are few points
        kept = dim / (dim + count)
        scales.append((1.0 - kept) * (apart.T * w) @ apart + kept * main.scale)
    share = np.full(len(centers), 1.0 / len(centers))
    return Mixture(
        share, np.array(centers), np.linalg.cholesky(np.array(scales)), np.full(len(centers), _AROUND_FREEDOM)
    )


def _towards(before: Main, z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> Main:
    """Half a step towards the Gaussian whose gradients fit the gradients of F at weighted points best.

    If the points are draws of that Gaussian, it is the one nearest to the posterior (Opper & Archambeau 2009). The mean
    moves no further than usual points are away, as gradients far away can mislead.
    """
    _, inverse, mean = _center(z, gradient, log_w)
    precision = (np.linalg.inv(before.scale) + np.linalg.inv(inverse)) / 2.0
    values, vectors = np.linalg.eigh((precision + precision.T) / 2.0)
    # a precision of a narrow mode far away may be singular to rounding
    scale = (vectors / np.maximum(values, _LEAST_RATIO * values[-1])) @ vectors.T
    step = (mean - before.mean) / 2.0
    away = float(np.linalg.norm(np.linalg.solve(np.linalg.cholesky(before.scale), step)))
    return Main(before.mean + min(1.0, step.size**0.5 / max(away, 1.0)) * step, scale, before.freedom)


def _center(z: np.ndarray, gradient: np.ndarray, log_w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalised weights, the inverse slope of the gradients, and the mean with gradients as control variates."""
    w = np.exp(log_w - log_w.max())
    w = w / w.sum()
    inverse = _inverse_slope(z, gradient, w)
    return w, inverse, w @ (z - gradient @ inverse)


def _inverse_slope(z: np.ndarray, gradient: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Inverse of the slope of a weighted regression of gradients on points, made positive definite."""
    count, dim = z.shape
    # bounded weights, so that no few points dominate the regression and every point counts
    root = np.sqrt(np.minimum(w, 3.0 / count) + 0.2 / count)[:, None]
    design = np.concatenate([z, np.ones((count, 1))], axis=1)
    design, gradient = design * root, gradient * root
    # normal equations are accurate, as points are about standard normal in these coordinates
    slope = np.linalg.solve(design.T @ design, design.T @ gradient)[:dim]
    values, vectors = np.linalg.eigh((slope + slope.T) / 2.0)
    return np.asarray((vectors / np.maximum(values, _LEAST_CURVATURE)) @ vectors.T)


def _between(before: Main, fit: tuple[np.ndarray, np.ndarray], kept: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale interpolated between the previous component and a fit."""
    mean, cov = fit
    return kept * before.mean + (1.0 - kept) * mean, kept * before.scale + (1.0 - kept) * cov


def _inefficiency(found: Weighing, chosen: np.ndarray, log_density: np.ndarray) -> float:
    """One over the efficiency of a proposal q: the mean of pi / q over draws of pi, estimated from chosen points."""
    chosen = chosen & np.isfinite(found.log_weight)
    log_w = found.log_weight[chosen]
    log_pi = -found.rise[chosen] - (logsumexp(log_w) - np.log(log_w.size))
    ratio = log_w + log_pi - log_density[chosen]
    return float(np.exp(logsumexp(ratio) - logsumexp(log_w)))
