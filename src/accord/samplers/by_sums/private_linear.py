"""Linear regressions with an unknown residual sd under differential privacy.

Each step releases one sum, of z z' over the rows, with z = (x, w r): the columns x and the residual r at a position
b_0, clipped to +-cut, all in units of half a declared range. The blocks of this sum are H = sum x x', g = sum x r and
q = sum r^2. Replacing a row changes the sum by at most sqrt(2) max |z|^2 in Frobenius norm, as z z' is positive
semidefinite.

Given H, the coefficients b and the residual sd s,

    g ~ N(H (b - b_0), s^2 H),    q ~ g'H^-1 g + s^2 chi^2,

with as many degrees of freedom as rows beyond columns. The noise of H, g and q is Gaussian. The posterior is a mixture
over points (H, s): H is drawn around the noised Hessian, and s from a grid. Given a point, b is Gaussian. The weight of
a point is the density of the noised g, times that of the noised q given it: a Gaussian with the exact moments. Normal
residuals beyond the cut shrink E q by a known factor.

The first step clips at the declared range of the response. The second step clips at a few sds of the residuals that the
first one found, so that its noise follows the residuals and not the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import log_softmax, ndtr

from ...base.counters import generator
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ...results.certificate import Check
from .evaluations import raised
from .private_model import Answer, Components, Levels, Release, Step, noised_hessians, parts_of

# Share of the privacy budget for each step. The first step finds the position and the cut of the second one.
SHARES = (0.2, 0.8)
# Largest squared norm of the weighted residual relative to the columns. With 1, g has the least noise, with less, H.
_RESIDUAL = 0.6
# Cut of residuals in sds, and its upper limit in units of half the range of the response.
_CUT, _WIDEST = 3.0, 2.0
# Middles and sd of the kernels of residuals, and growth of the largest norm of a row by them.
_MIDDLES, _KERNEL_SD, _GROWTH = np.array([-1.3, 0.0, 1.3]), 0.7, 1.001
# Draws for the expected kernels, repetitions for the variance of residuals, and its limits in units of the kernels.
_DRAWN, _REPEATED, _VARIANCES = 1000, 5, (0.01, 9.0)
# Largest distance of the kernels from the expected ones, in standard deviations.
_OFF = 3.6
# Points (H, s) of the mixture.
_POINTS = 1000
# Cells of the grid of log s, its first width, the log weight at which it ends, and how often it is refined.
_CELLS, _REACH, _END, _REFINED = 40, 6.0, 20.0, 3
# Largest q, in standard deviations, that the grid allows for.
_HIGH = 5.0
# Share of points that are uniform in the grid.
_UNIFORM = 0.1
# Sd of log s in a component, relative to the posterior.
_KERNEL = 0.1
# Sds of the linear predictor and of the residuals in a simulation.
_SIGNAL, _RESIDUALS = 0.2, (0.1, 0.3)


@of_rows
@coarse("private")
def clipped_moments(
    potential: Potential,
    shard: Shard,
    x: Float[Array, " dim"],
    scaled: Float[Array, "dim dim"],
    cut: Array,
) -> Float[Array, " number"]:
    """Sums over rows of the blocks x r, the upper triangle of x x', r^2, and of kernels of r.

    Columns and responses beyond their ranges count as the end of the range. A row that is not finite counts as zero.

    Parameters
    ----------
    potential, shard
        Of one agent.
    x
        The position: coefficients, then the log of the residual sd.
    scaled
        Maps a row's columns and response to units of half a range.
    cut
        Largest residual.
    """
    columns, response, weight = parts_of(shard.rows)
    rows = jnp.column_stack([columns, response]) @ scaled
    counted = (jnp.arange(len(rows)) < shard.size) & (weight > 0.0) & jnp.isfinite(rows).all(axis=1)
    # zero times infinity is not zero
    rows = jnp.where(counted[:, None], jnp.clip(rows, -1.0, 1.0), 0.0)
    columns = rows[:, :-1]
    return jnp.concatenate(_numbers(jnp, columns, rows[:, -1] - columns @ x[:-1], cut))


def _numbers(xp: Any, columns: Any, residuals: Any, cut: Any) -> list[Any]:
    """The sums of rows. Rows of zeros do not count."""
    clipped = xp.clip(residuals, -cut, cut)
    upper = np.triu_indices(columns.shape[1])
    sds, counted = _CUT / cut * residuals, xp.abs(columns[:, 0])
    kernels = [counted @ xp.exp(-0.5 * ((sds - middle) / _KERNEL_SD) ** 2) for middle in _MIDDLES]
    return [clipped @ columns, (columns.T @ columns)[upper], (clipped @ clipped)[None], xp.stack(kernels)]


class _Seen(NamedTuple):
    """The numbers of the last release, with the Gaussian prior of the coefficients."""

    release: Release
    mean: np.ndarray
    precision: np.ndarray


@dataclass(frozen=True)
class Linear:
    """Linear regressions, see `PrivateModel`. The last parameter is the log of the residual sd.

    Parameters
    ----------
    all_count
        Whether every row counts. Otherwise the number of rows that do is the first number of H, known with noise.
    levels
        See `PrivateModel`.
    """

    all_count: bool = True
    levels: Levels = ()

    shares = SHARES

    def columns(self, dim: int) -> int:
        """Number of coefficients."""
        return dim - 1

    def start(self, dim: int) -> np.ndarray:
        """Zero, with the declared range as the cut."""
        return np.append(np.zeros(dim - 1), -np.log(_CUT))

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others.

        A row z = (x, w r) has |x|^2 <= columns and |w r|^2 <= _RESIDUAL columns. Off the diagonal, numbers stand twice
        in z z', so that their noise has sqrt(2) less.

        Kernels are small where |z| is large, so that they fit into almost the same largest norm. No kernel is negative,
        so that no inner product of two rows is.
        """
        columns, cut = len(position) - 1, _CUT * float(np.exp(position[-1]))
        weight, largest = (_RESIDUAL * columns) ** 0.5 / cut, _GROWTH * (1.0 + _RESIDUAL)
        noise = 2.0**0.5 * largest * columns / mu
        of_fit = (noise / columns / _kernel_weight(largest),) * len(_MIDDLES)
        return Step(cut, weight, noise / 2.0**0.5 / weight, noise, noise / weight**2, of_fit)

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        mean, precision = prior
        last, count = releases[-1], len(mean) - 1
        largest = max(last.square, 0.0) * (1.0 + _HIGH * (2.0 / rows) ** 0.5) + _HIGH * (last.step.of_square or 0.0)
        end = 0.5 * float(np.log(largest / rows))
        # the information of the rows is H / s^2
        least = np.trace(precision[:-1, :-1]) / count * np.exp(2.0 * end)
        hessians = noised_hessians(releases, least, random, _POINTS, (rows if self.all_count else 1, rows))
        seen = _Seen(last, mean[:-1], precision[:-1, :-1])

        def of_log_sd(log_sd: np.ndarray) -> np.ndarray:
            return np.asarray(-0.5 * precision[-1, -1] * (log_sd - mean[-1]) ** 2)

        low, high = end - _REACH, end
        for _ in range(_REFINED):
            edges, width = np.linspace(low, high, _CELLS + 1, retstep=True)
            middles = (edges[1:] + edges[:-1]) / 2.0
            weights = _weighted(seen, np.repeat(hessians[:1], _CELLS, axis=0), middles)[0] + of_log_sd(middles)
            within = np.flatnonzero(weights > weights.max() - _END)
            low, high = edges[within[0]] - width, edges[within[-1] + 1] + width
        # flatter than the weights
        share = (1.0 - _UNIFORM) * np.exp(log_softmax(weights / 2.0)) + _UNIFORM / _CELLS
        cell = random.choice(_CELLS, _POINTS, p=share)
        log_sd = edges[cell] + width * random.random(_POINTS)
        log_weight, found, covariances = _weighted(seen, hessians[1:], log_sd)
        weight = np.exp(log_softmax(log_weight + of_log_sd(log_sd) - np.log(share[cell])))
        covariance = np.zeros((_POINTS, count + 1, count + 1))
        covariance[:, :-1, :-1] = covariances
        covariance[:, -1, -1] = _KERNEL**2 * max(weight @ (log_sd - weight @ log_sd) ** 2, 1e-12)
        points = np.column_stack([found, log_sd])
        return Components(weight, points, covariance, weight @ points)

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The posterior mean so far, with the log of the sd that residuals there have at most, by one sd."""
        position, variance = found.centre, np.exp(2.0 * found.mean[:, -1])
        mean = found.weight @ variance
        above = (found.weight @ (variance - mean) ** 2) ** 0.5
        of_predictor = np.trace(raised(releases[-1].hessian, 0.0) @ found.spread[:-1, :-1]) / rows
        position[-1] = min(0.5 * np.log(mean + above + of_predictor), np.log(_WIDEST / _CUT))
        return position

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        y = np.clip(x @ truth[:-1] + np.exp(truth[-1]) * random.standard_normal(len(x)), -1.0, 1.0)
        return answers(x, y, random)

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller coefficients if the prior is narrow."""
        count = len(precision) - 1
        largest = (1.0 + (count - 1) / 3.0) / _SIGNAL**2 * np.eye(count)
        root = np.linalg.inv(np.linalg.cholesky(precision[:-1, :-1] + largest))
        return lambda random: np.append(random.standard_normal(count) @ root, np.log(random.uniform(*_RESIDUALS)))

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns."""
        return release.hessian / rows

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had no noise."""
        information = np.zeros_like(precision)
        information[:-1, :-1] = raised(releases[-1].hessian, 0.0) * np.exp(-2.0 * found.centre[-1])
        information[-1, -1] = 2.0 * rows
        return np.linalg.inv(information + precision)

    def checks(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check, ...]:
        """Whether kernels of the residuals have the sums of normal residuals."""
        last, normals = releases[-1], generator(0, "kernels").standard_normal((3, _DRAWN))
        counted = np.full(_DRAWN, float(rows))
        if not self.all_count:
            counted = np.clip(last.hessian[0, 0] + last.step.of_hessian * normals[0], 1.0, rows)
        # mean and variance of residuals at the position, in units of the kernels
        unit = _CUT / last.step.radius
        middle = unit * (last.gradient[0] + last.step.of_gradient * normals[1]) / counted
        square = unit**2 * (last.square + last.step.of_square * normals[2]) / counted
        variance = np.clip(square - middle**2, *_VARIANCES)
        for _ in range(_REPEATED):
            variance = np.clip(square / _kept(_CUT / np.sqrt(variance)) - middle**2, *_VARIANCES)

        def expected(middles: np.ndarray, own: float) -> np.ndarray:
            """Expected sums of kernels with a variance of their own, (draw, kernel)."""
            total = variance[:, None] + own
            apart = middle[:, None] - middles
            return np.asarray(counted[:, None] * np.sqrt(own / total) * np.exp(-0.5 * apart**2 / total))

        each = expected(_MIDDLES, _KERNEL_SD**2)
        mean, usual = each.mean(axis=0), variance.mean()
        # two kernels make one between them
        between, apart = np.add.outer(_MIDDLES, _MIDDLES) / 2.0, np.subtract.outer(_MIDDLES, _MIDDLES)
        products = expected(between.ravel(), _KERNEL_SD**2 / 2.0).mean(axis=0).reshape(apart.shape)
        products *= np.exp(-((apart / _KERNEL_SD / 2.0) ** 2))
        # mean and variance follow from the same rows, which hides a part of the differences
        away = (middle.mean() - _MIDDLES) / np.sqrt(usual + _KERNEL_SD**2)
        share = usual / (usual + _KERNEL_SD**2)
        by_mean, by_log_sd = -away * share**0.5 * mean, share * (away**2 - 1.0) * mean
        hidden = np.outer(mean, mean) + np.outer(by_mean, by_mean) + np.outer(by_log_sd, by_log_sd) / 2.0
        covariance = products - hidden / counted.mean() + np.cov(each.T) + np.diag(np.square(last.step.of_fit))
        difference = np.asarray(last.fit) - mean
        off = float(difference @ np.linalg.solve(covariance, difference)) ** 0.5
        holds = off <= _OFF
        text = f"the law of the residuals differs from a normal one by {off:.2g} standard deviations (limit {_OFF:g})"
        remedy = "" if holds else ": intervals of the residual sd are wrong, take log() of the response if it is skewed"
        return (Check("normality", off, _OFF, holds, text + remedy),)

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of moments. It differentiates nothing."""
        half = np.exp(place.origin[-1])
        scaled = np.eye(len(place.origin)) / half
        scaled[:-1, :-1] = place.factor[:-1, :-1] / half
        scaled[:-1, -1] = -place.origin[:-1] / half
        return clipped_moments, (scaled, np.float64(step.radius)), {"gradients": 1}


def answers(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Answer:
    """The noised numbers of rows of columns and responses in units of half a range."""

    def answer(position: np.ndarray, step: Step) -> np.ndarray:
        exact = np.concatenate(_numbers(np, x, y - x @ position[:-1], step.radius))
        return exact + step.noise(len(position)) * random.standard_normal(exact.size)

    return answer


def _weighted(seen: _Seen, hessians: np.ndarray, log_sd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log weights (point,) of Hessians and residual sds, and mean and covariance of the coefficients given each."""
    (release, mean, precision), rows = seen, hessians[:, 0, 0]
    gradient, position = release.gradient, release.position[:-1]
    variance = np.exp(2.0 * log_sd)
    hidden = release.step.of_gradient**2
    inverse = np.linalg.inv(variance[:, None, None] * hessians + hidden * np.eye(len(mean)))
    # D^-1 H and H D^-1 H
    weighted = inverse @ hessians
    back = np.swapaxes(weighted, 1, 2)
    information = back @ hessians
    covariance = np.linalg.inv(information + precision)
    pull = np.einsum("jab,b->ja", back, gradient) + information @ position + precision @ mean
    found = np.einsum("jab,jb->ja", covariance, pull)
    # the density of the gradient, by Woodbury's identity
    total = inverse - weighted @ covariance @ back
    off = gradient - hessians @ (mean - position)
    solved = np.einsum("jab,jb->ja", total, off)
    determinants = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(inverse)[1]
    log_weight = 0.5 * (determinants - np.einsum("ja,ja->j", off, solved))
    # the gradient without noise, given the noised one: its mean and covariance
    quiet, left = gradient - hidden * solved, hidden * (np.eye(len(mean)) - hidden * total)
    share, fit = np.linalg.solve(hessians, left), np.linalg.solve(hessians, quiet[..., None])[..., 0]
    free = np.maximum(rows - len(mean), 1.0)
    expected = free * variance + np.einsum("ja,ja->j", quiet, fit) + np.trace(share, axis1=1, axis2=2)
    of_square = (
        2.0 * free * variance**2 + (release.step.of_square or 0.0) ** 2 + 2.0 * np.einsum("jab,jba->j", share, share)
    )
    of_square = of_square + 4.0 * np.einsum("ja,jab,jb->j", fit, left, fit)
    kept = _kept(release.step.radius / np.sqrt(expected / rows))
    off_square = release.square - kept * expected
    return log_weight - 0.5 * np.log(of_square) - 0.5 * off_square**2 / of_square, found, covariance


def _kernel_weight(largest: float) -> float:
    """The weight of the kernels in the norm of a row, for a largest |z|^2 relative to the number of columns."""
    sds = np.linspace(0.0, _CUT, 3001)
    squares = np.exp(-(((sds[:, None] - _MIDDLES) / _KERNEL_SD) ** 2)).sum(axis=1)
    left = largest**2 - (1.0 + _RESIDUAL * (sds / _CUT) ** 2) ** 2
    # less than between two nodes
    return float(0.999 * (left / squares).min() ** 0.5)


def _kept(cut: np.ndarray) -> np.ndarray:
    """The mean square of a standard normal number that is clipped at +-cut."""
    beyond, density = ndtr(-cut), np.exp(-(cut**2) / 2.0) / (2.0 * np.pi) ** 0.5
    return np.asarray(1.0 - 2.0 * beyond - 2.0 * cut * density + 2.0 * cut**2 * beyond)
