"""The posterior given noised gradients and Hessians of a regression.

Each step releases the summed gradient and Hessian of the rows' log likelihoods, or of their clipped scores, at a
position, with the law

    gradient ~ N(H (theta - position), H + s_g^2 I),    noised Hessian ~ H + s_h E,

with E a symmetric matrix of unit variance, sqrt(2) less off the diagonal. The Hessian H is unknown too: the posterior
is a mixture over Hessians drawn around the noised one, each weighted by the gradient (Bernstein and Sheldon 2018, 2019;
Kulkarni et al. 2021). The next position is the posterior mean so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from ...base.counters import generator
from ...results.certificate import Check
from .evaluations import raised
from .private_model import Components, Levels, Release, noised_hessians, similar_columns

# Hessians of the mixture.
_HESSIANS = 200
# Artificial rows for the curvature of the log likelihood beyond its Hessian.
_ROWS = 1000
# Change of the linear predictor's sd at which repetitions of the correction for curvature end.
_STILL = 1e-4
# Largest correction for curvature, in standard deviations.
_BENT = 2.0
# Least eigenvalue of the Hessian of artificial rows, for a position where all of their weights vanish.
_TINY = 1e-9
# Largest difference between Hessians of rows and of artificial columns, and sds of noise that a check allows for.
_UNLIKE, _SURE = 0.3, 1.5
# Noise of this difference above which the check sees nothing.
_BLIND = 3.0

# At a position: Hessian, change of the expected gradient, and covariance of the gradient. All are relative to the
# Hessian H at the release: H times the first two, and the covariance between two Cholesky factors of H.
Bend = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Gradients(ABC):
    """The part of a `PrivateModel` that all models with gradients and Hessians share."""

    # columns that are known to have two values
    levels: Levels
    # repetitions of the correction for curvature
    bends: ClassVar[int] = 8
    # largest sd of the linear predictor between two of them
    reach: ClassVar[float] = 1.0

    @abstractmethod
    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        """The weight of rows in the Hessian of a release, (row,)."""

    @abstractmethod
    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        """The correction for the curvature of the log likelihood beyond its Hessian, for similar columns."""

    @abstractmethod
    def _least(self, dim: int) -> np.ndarray:
        """Precisions of parameters of usual size, (dim,)."""

    def _pooled(self, releases: Sequence[Release]) -> Sequence[Release]:
        """The releases that are pooled."""
        return releases[-1:]

    def columns(self, dim: int) -> int:
        """Number of coefficients."""
        return dim

    def start(self, dim: int) -> np.ndarray:
        """Zero."""
        return np.zeros(dim)

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        last, (mean, precision) = releases[-1], prior
        used = self._pooled(releases)
        dim = len(mean)
        hessians = noised_hessians(used, np.trace(precision) / dim, random, _HESSIANS)[1:]
        each = np.array([one.step.of_gradient for one in used]) ** -2.0
        position = each @ [one.position for one in used] / each.sum()
        gradient = each @ [one.gradient for one in used] / each.sum()
        bend = self._bend(self._artificial(releases[0]), last._replace(position=position))
        roots, at, before = np.linalg.cholesky(hessians), position, None
        for _ in range(self.bends):
            slope, expected, covariance = bend(at)
            slopes = hessians @ slope
            noise = roots @ covariance @ np.swapaxes(roots, 1, 2) + np.eye(dim) / each.sum()
            weighted = np.linalg.solve(noise, slopes)
            covariance = np.linalg.inv(np.swapaxes(weighted, 1, 2) @ slopes + precision)
            # of a log likelihood that is quadratic: the gradient at 0
            origin = gradient + hessians @ (slope @ at - expected)
            found = np.einsum("jab,jb->ja", covariance, np.einsum("jba,jb->ja", weighted, origin) + precision @ mean)
            # the density of the gradients given each Hessian
            total = noise + slopes @ np.linalg.solve(precision, np.swapaxes(slopes, 1, 2))
            off = origin - slopes @ mean
            squares = np.einsum("ja,ja->j", off, np.linalg.solve(total, off[..., None])[..., 0])
            log_weight = -0.5 * np.linalg.slogdet(total)[1] - 0.5 * squares
            weight = np.exp(log_weight - logsumexp(log_weight))
            centre = weight @ found
            before = centre if before is None else before
            mixture = Components(weight, found, covariance, before)
            change = spread(centre - at)
            if change < _STILL:
                break
            at = at + (centre - at) * min(1.0, self.reach / change)
        return mixture

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The posterior mean so far."""
        return found.centre

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller ones if the prior is narrow."""
        root = np.linalg.inv(np.linalg.cholesky(precision + np.diag(self._least(len(precision)))))
        return lambda random: np.asarray(random.standard_normal(len(precision)) @ root)

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns. At the first position every row has the same weight."""
        return self._of_columns(release).hessian / (float(self._weight(np.zeros(1), release)[0]) * rows)

    def checks(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check, ...]:
        """Whether the correction for curvature is small, and the artificial columns, for which it is, like the rows."""
        holds = found.bent <= _BENT
        text = f"correction for curvature of at most {found.bent:.2g} standard deviations (limit {_BENT:g})"
        remedy = "" if holds else ": the last position was far off, because effects are strong or responses rare"
        curvature = Check("curvature", found.bent, _BENT, holds, text + remedy)
        off, noise = self._unlike(releases[0], releases[-1])
        alike = off <= _UNLIKE + _SURE * noise
        text = f"the change of the Hessian differs by {off:.0%} from that of artificial columns (limit {_UNLIKE:.0%}"
        text += f" and {_SURE * noise:.0%} for noise)"
        if alike and _SURE * noise > _BLIND:
            text = "not checked, as the noise would hide any difference: a rare level with a strong effect is not seen"
        remedy = "" if alike else ": columns are skewed and their effects strong, take log()"
        return curvature, Check("skewness", off, _UNLIKE + _SURE * noise, alike, text + remedy)

    def _unlike(self, first: Release, last: Release) -> tuple[float, float]:
        """The difference between the last Hessian and the expected one, and the largest difference that noise makes.

        The expected one is the first Hessian, changed as that of artificial columns. Differences are relative to it,
        in the direction in which they are largest.
        """
        columns, first, last = self._artificial(first), *map(self._of_columns, (first, last))

        def root_of(release: Release) -> np.ndarray:
            hessian = (columns * self._weight(columns @ release.position, release)[:, None]).T @ columns
            return np.linalg.cholesky(raised(hessian, 1e-6 * np.trace(hessian) + _TINY))

        own = np.linalg.cholesky(raised(first.hessian, 1e-6 * max(first.hessian[0, 0], first.step.of_hessian)))
        inverse = np.linalg.inv(own @ np.linalg.solve(root_of(first), root_of(last)))
        off = np.abs(np.linalg.eigvalsh(inverse @ last.hessian @ inverse.T) - 1.0).max()
        sd = np.hypot(last.step.of_hessian, first.step.of_hessian)
        noise = sd * np.linalg.norm(inverse, 2) ** 2 * (2.0 * len(columns.T)) ** 0.5
        return float(off), float(noise)

    def _artificial(self, first: Release) -> np.ndarray:
        """Artificial columns with the released moments, relative to the number of rows that count."""
        hessian = self._of_columns(first).hessian
        moments = hessian / max(hessian[0, 0], first.step.of_hessian)
        return similar_columns(moments, self.levels)(generator(0, "columns"), _ROWS)

    def _of_columns(self, release: Release) -> Release:
        """The part of a release about coefficients."""
        count = self.columns(len(release.position))
        position, gradient, hessian = release.position[:count], release.gradient[:count], release.hessian
        return release._replace(position=position, gradient=gradient, hessian=hessian[:count, :count])


def ridge(hessian: np.ndarray) -> np.ndarray:
    """A multiple of the identity that makes a Hessian of artificial rows positive definite."""
    return (1e-6 * np.trace(hessian) / len(hessian) + _TINY) * np.eye(len(hessian))


def spread(position: np.ndarray) -> float:
    """Sd of the linear predictor for columns that are uniform between -1 and 1, except for a constant first one."""
    return float(np.sqrt(position[0] ** 2 + np.square(position[1:]).sum() / 3.0))


def precisions(count: int, sd: float) -> np.ndarray:
    """Precisions of coefficients for which a linear predictor has at most this sd, (count,)."""
    return np.full(count, (1.0 + (count - 1) / 3.0) / sd**2)
