"""Logistic regressions under differential privacy.

Each step releases the summed gradient and Hessian of the rows' log likelihoods at a position, with the law

    gradient ~ N(H (theta - position), H + s_g^2 I),    noised Hessian ~ H + s_h E,

with E a symmetric matrix of unit variance, sqrt(2) less off the diagonal. The Hessian H is unknown too: the posterior
is a mixture over Hessians drawn around the noised one, each weighted by the gradient (Bernstein and Sheldon 2018, 2019;
Kulkarni et al. 2021). The next position is the posterior mean so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import expit, logsumexp

from ...base.counters import generator
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ...results.certificate import Check
from .evaluations import raised
from .private_model import Answer, Components, Release, Step, gaussian_columns, noised_hessians

# Share of the privacy budget for each step. The first step only finds the position of the second one.
SHARES = (0.14, 0.86)
# Largest squared weight of the Hessian relative to the gradient. Up to it, the Hessian does not raise the largest norm.
_HESSIAN_WEIGHT = 22.0
# Largest growth of a row's norm by its Hessian, in each step.
_GROWTH = (1.8, 1.02)
# Hessians of the mixture.
_HESSIANS = 200
# Largest sd of the linear predictor between two positions whose releases are pooled.
_NEAR = 0.2
# Artificial rows and nodes for the curvature of the log likelihood beyond its Hessian.
ROWS, _NODES = 1000, 4
# Change of the linear predictor's sd at which its repetitions end.
_STILL = 1e-4
# Least eigenvalue of the Hessian of artificial rows, for a position where all of their weights vanish.
TINY = 1e-9
# Largest correction for this curvature, in standard deviations.
_BENT = 2.0
# Largest difference between Hessians of rows and of artificial columns, and sds of noise that a check allows for.
_UNLIKE, _SURE = 0.3, 1.5
# Noise of this difference above which the check sees nothing.
_BLIND = 3.0

# At a position: Hessian, change of the expected gradient, and mean eigenvalue of the gradient's covariance. All are
# relative to the Hessian at the release.
Bend = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, float]]


@of_rows
@coarse("private")
def clipped_newton(
    potential: Potential, shard: Shard, x: Float[Array, " dim"], radius: Array, weight: Array
) -> Float[Array, " number"]:
    """Gradient and negative Hessian of the log likelihood, summed over rows that are clipped to a norm.

    A row's norm is sqrt(|gradient|^2 + weight^2 |Hessian|^2 / 2), with the Frobenius norm. A row that is not finite
    counts as zero.
    """

    def each(x: Array) -> Array:
        per_row: Array = potential.log_likelihood(potential.unravel(x), shard.rows)
        return per_row

    # (row, dim) and (row, dim, dim)
    gradients, hessians = jax.jacfwd(each)(x), -jax.jacfwd(jax.jacfwd(each))(x)
    norms = jnp.sqrt(jnp.sum(gradients**2, axis=1) + weight**2 / 2.0 * jnp.sum(hessians**2, axis=(1, 2)))
    counted = (jnp.arange(norms.size) < shard.size) & jnp.isfinite(norms)
    factors = jnp.where(counted, jnp.minimum(1.0, radius / jnp.maximum(norms, 1e-300)), 0.0)
    # zero times infinity is not zero
    gradients = jnp.where(counted[:, None], gradients, 0.0)
    hessians = jnp.where(counted[:, None, None], hessians, 0.0)
    upper = np.triu_indices(x.size)
    return jnp.concatenate([factors @ gradients, jnp.tensordot(factors, hessians, 1)[upper]])


@dataclass(frozen=True)
class Logistic:
    """Logistic regressions, see `PrivateModel`."""

    shares: ClassVar[tuple[float, ...]] = SHARES
    # repetitions of the correction for curvature
    bends: ClassVar[int] = 4
    # largest sd of the linear predictor between two of them
    reach: ClassVar[float] = np.inf

    def columns(self, dim: int) -> int:
        """Number of coefficients."""
        return dim

    def start(self, dim: int) -> np.ndarray:
        """Zero."""
        return np.zeros(dim)

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others."""
        return step_of(position, mu, _GROWTH[len(releases)])

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        last, (mean, precision) = releases[-1], prior
        used = self._pooled(releases)
        dim = len(mean)
        hessians = noised_hessians(used, np.trace(precision) / dim, random, _HESSIANS)[1:]
        each = np.array([one.of_gradient for one in used]) ** -2.0
        position = each @ [one.position for one in used] / each.sum()
        gradient = each @ [one.gradient for one in used] / each.sum()
        columns = gaussian_columns(relative(releases[0]))(generator(0, "columns"), ROWS)
        bend, at, before = self._bend(columns, last._replace(position=position)), position, None
        for _ in range(self.bends):
            slope, expected, share = bend(at)
            slopes, noise = hessians @ slope, share * hessians + np.eye(dim) / each.sum()
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
            change = _spread(centre - at)
            if change < _STILL:
                break
            at = at + (centre - at) * min(1.0, self.reach / change)
        return mixture

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The posterior mean so far."""
        return found.centre

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        y = (random.random(len(x)) < expit(x @ truth)).astype(np.float64)

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            mean = expit(x @ position)
            hessian = (x * (mean * (1.0 - mean))[:, None]).T @ x
            exact = np.concatenate([x.T @ (y - mean), hessian[np.triu_indices(len(position))]])
            return exact + step.noise(len(position)) * random.standard_normal(exact.size)

        return answer

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller ones if the prior is narrow."""
        dim = len(precision)
        # a linear predictor of sd 1 at most
        root = np.linalg.inv(np.linalg.cholesky(precision + (1.0 + (dim - 1) / 3.0) * np.eye(dim)))
        return lambda random: np.asarray(random.standard_normal(dim) @ root)

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns. At the first position every row has the weight 1/4."""
        return 4.0 * release.hessian / rows

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had no noise."""
        return np.linalg.inv(raised(releases[-1].hessian, 0.0) + precision)

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

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of gradients and Hessians. It differentiates once for each column."""
        arguments = np.float64(step.radius), np.float64(step.weight)
        return clipped_newton, arguments, {"coordinates": place, "gradients": 1 + len(place.origin)}

    def _unlike(self, first: Release, last: Release) -> tuple[float, float]:
        """The difference between the last Hessian and the expected one, and the largest difference that noise makes.

        The expected one is the first Hessian, changed as that of artificial columns. Differences are relative to it,
        in the direction in which they are largest.
        """
        columns = gaussian_columns(relative(first))(generator(0, "columns"), ROWS)

        def root_of(release: Release) -> np.ndarray:
            hessian = (columns * self._weight(columns @ release.position, release)[:, None]).T @ columns
            return np.linalg.cholesky(raised(hessian, 1e-6 * np.trace(hessian) + TINY))

        own = np.linalg.cholesky(raised(first.hessian, 1e-6 * max(first.hessian[0, 0], first.of_hessian)))
        inverse = np.linalg.inv(own @ np.linalg.solve(root_of(first), root_of(last)))
        off = np.abs(np.linalg.eigvalsh(inverse @ last.hessian @ inverse.T) - 1.0).max()
        sd = np.hypot(last.of_hessian, first.of_hessian) if last is not first else last.of_hessian
        noise = sd * np.linalg.norm(inverse, 2) ** 2 * (2.0 * len(columns.T)) ** 0.5
        return float(off), float(noise)

    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        """The weight of rows in the Hessian of a release, (row,)."""
        mean = expit(predictor)
        return np.asarray(mean * (1.0 - mean))

    def _pooled(self, releases: Sequence[Release]) -> Sequence[Release]:
        """The releases of steps near the last one, which are pooled."""
        return [one for one in releases if _is_near(one, releases[-1])]

    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        """The correction for the curvature of the log likelihood beyond its Hessian, for similar columns."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        begin = columns @ last.position
        mean = expit(begin)
        hessian = (columns * (mean * (1.0 - mean))[:, None]).T @ columns

        def bend(to: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
            change = to - last.position
            mean = expit(begin + (nodes[:, None] + 1.0) / 2.0 * (columns @ change))
            on_the_way = (columns * (weights / 2.0 @ (mean * (1.0 - mean)))[:, None]).T @ columns
            ridge = (1e-6 * np.trace(on_the_way) / len(to) + TINY) * np.eye(len(to))
            slope = np.linalg.solve(hessian + ridge, on_the_way + ridge)
            return slope, slope @ change, 1.0

        return bend


def relative(first: Release) -> np.ndarray:
    """Noised second moments of the columns, relative to the number of rows that count."""
    return np.asarray(first.hessian / max(first.hessian[0, 0], first.of_hessian))


def _is_near(one: Release, last: Release) -> bool:
    """Whether the linear predictor differs by little between two positions."""
    return one is last or _spread(one.position - last.position) < _NEAR


def _spread(position: np.ndarray) -> float:
    """Sd of the linear predictor for columns that are uniform between -1 and 1, except for a constant first one."""
    return float(np.sqrt(position[0] ** 2 + np.square(position[1:]).sum() / 3.0))


def step_of(position: np.ndarray, mu: float, growth: float) -> Step:
    """What a step of a logistic regression releases, for a ratio `mu` of sensitivity and sd of noise.

    The Hessian may raise the largest norm of a row by the factor `growth`.

    A row with the residual r has a gradient of norm r R and a Hessian of norm r (1 - r) R^2 at most, R = sqrt(dim). The
    residual lies between 1 - expit(s) and expit(s), with s the sum of the sizes of the coefficients. The inner
    product of two Hessians is not negative, so that two clipped rows differ by at most 2 radius.
    """
    largest, root = float(expit(np.abs(position).sum())), len(position) ** 0.5
    residual = np.linspace(1.0 - largest, largest, 1001)
    for square in _HESSIAN_WEIGHT * 2.0 ** (-np.arange(24.0) / 4.0):
        radius = root * float((residual * np.sqrt(1.0 + square / 2.0 * (1.0 - residual) ** 2)).max())
        if radius <= growth * largest * root:
            break
    of_gradient, weight = 2.0 * radius / mu, square**0.5 / root
    return Step(radius, weight, of_gradient, of_gradient / weight)
