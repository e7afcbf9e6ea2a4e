"""Poisson regressions with a log link under differential privacy.

Neither residuals nor weights of a Poisson regression have a small bound. So each row has the score

    psi(y) = clip(y, a, b) - E clip(y, a, b),

for a Poisson count y with the mean m of the row at the position. The ends a and b are m +- cut, or the end of the
declared range if that is nearer. The score has mean zero at the position, so clipping has no bias there. The sums are

    gradient = sum q psi x,    H = sum q kappa x x',

with kappa the derivative of E psi by the linear predictor, and q <= 1 a weight that bounds the norm of a row. As a, b,
kappa and q depend on the row's columns only, H is the derivative of the expected gradient at the position. All three
follow from the Poisson distribution in closed form.

The first position has the same mean for all rows. The position and the cut of a later step follow from earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from ...base.counters import generator
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from .evaluations import raised
from .private_logistic import ROWS, TINY, Bend, Logistic, relative
from .private_model import Answer, Components, Release, Step, gaussian_columns, parts_of

# Share of the privacy budget for each step. The first steps find the position and the cut of the last one.
SHARES = (0.25, 0.15, 0.6)
# Cut of residuals in sds.
_CUT = 1.35
# Largest squared norm of the weighted Hessian of a row relative to the gradient.
_HESSIAN = 1.0
# Weight of the Hessian of a row that has this norm, in mean counts.
_HEAVY = 0.8
# Least linear predictor of a row.
_LEAST = -30.0
# Sd of the linear predictor in a simulation.
_SIGNAL = 0.5


class Score(NamedTuple):
    """The law of the weighted score of rows at a position.

    Parameters
    ----------
    low, high
        Ends to which counts are clipped, (row,).
    expected
        Means of clipped counts at the position, (row,).
    slope
        Derivatives of these means by the linear predictor, (row,).
    weight
        Weights of rows, (row,).
    """

    low: Any
    high: Any
    expected: Any
    slope: Any
    weight: Any


def score(xp: Any, mean: Any, ends: Any, cut: Any) -> Score:
    """The scores of rows with the means `mean` at the position, in NumPy or `jax.numpy`.

    The norm of a row is at most that of a residual of `cut` and a weight of the Hessian of `_HEAVY (cut / _CUT)^2`.
    """
    low, high = (xp.clip(xp.full_like(mean, end), mean - cut, mean + cut) for end in (ends[0], ends[1]))
    expected, slope, _ = clipped(xp, mean, low, high)
    largest = xp.maximum(expected - low, high - expected)
    # relative to the largest norm of a gradient
    norm = xp.sqrt(largest**2 + _HESSIAN * (slope / _level(cut)) ** 2 * cut**2) / cut
    return Score(low, high, expected, slope, (1.0 + _HESSIAN) ** 0.5 / xp.maximum(norm, (1.0 + _HESSIAN) ** 0.5))


def _level(cut: Any) -> Any:
    """The weight of a row's Hessian that counts as large."""
    return _HEAVY * (cut / _CUT) ** 2


def _mean(xp: Any, predictor: Any, usual: Any, ends: Any) -> Any:
    """The means of rows, up to ten times the highest count. All scores are zero there, as cuts are less."""
    return usual * xp.exp(xp.clip(predictor, _LEAST, xp.log(10.0 * (1.0 + ends[1]) / usual)))


def clipped(xp: Any, mean: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Mean of a Poisson count that is clipped to an interval, its derivative by log(mean), and the variance."""
    gamma: Any = scipy.special.gammaincc if xp is np else jax.scipy.special.gammaincc
    found = []
    for end in (high, low):
        whole = xp.floor(end)
        # P(y <= whole), P(y <= whole - 1), P(y <= whole - 2)
        most, below, lower = (
            xp.where(whole < gap, 0.0, gamma(xp.maximum(whole - gap, 0.0) + 1.0, mean)) for gap in (0.0, 1.0, 2.0)
        )
        # of min(y, end): mean, derivative by the mean, and mean square
        first = mean * below + end * (1.0 - most)
        slope = below + (end - whole) * (most - below)
        second = mean**2 * lower + mean * below + end**2 * (1.0 - most)
        found.append((first, slope, second))
    (first, slope, second), (less, flatter, smaller) = found
    # clip(y, low, high) = min(y, high) - min(y, low) + low
    expected = first - less + low
    return expected, mean * (slope - flatter), xp.maximum(second - smaller + low**2 - expected**2, 0.0)


@of_rows
@coarse("private")
def clipped_scores(
    potential: Potential,
    shard: Shard,
    x: Float[Array, " dim"],
    scaled: Float[Array, "dim dim"],
    usual: Array,
    ends: Float[Array, " 2"],
    cut: Array,
) -> Float[Array, " number"]:
    """Sums over rows of scores and of the upper triangle of their Hessian.

    Columns beyond their ranges count as the end of the range. A row that is not finite counts as zero.

    Parameters
    ----------
    potential, shard
        Of one agent.
    x
        The position.
    scaled
        Maps a row's columns to units of half a range.
    usual
        The mean of a row whose linear predictor is zero.
    ends
        The declared range of the response.
    cut
        Largest residual.
    """
    columns, response, weight = parts_of(shard.rows)
    columns = columns @ scaled
    finite = jnp.isfinite(columns).all(axis=1) & jnp.isfinite(response)
    counted = (jnp.arange(len(columns)) < shard.size) & (weight > 0.0) & finite
    # zero times infinity is not zero
    columns = jnp.where(counted[:, None], jnp.clip(columns, -1.0, 1.0), 0.0)
    numbers = _numbers(jnp, columns, jnp.where(counted, response, 0.0), _mean(jnp, columns @ x, usual, ends), ends, cut)
    return jnp.concatenate(numbers)


def _numbers(xp: Any, columns: Any, response: Any, mean: Any, ends: Any, cut: Any) -> list[Any]:
    """The gradient and the upper triangle of the Hessian of rows."""
    found = score(xp, mean, ends, cut)
    residuals = found.weight * (xp.clip(response, found.low, found.high) - found.expected)
    hessian = (columns * (found.weight * found.slope)[:, None]).T @ columns
    return [residuals @ columns, hessian[np.triu_indices(columns.shape[1])]]


@dataclass(frozen=True)
class PoissonScores(Logistic):
    """Poisson regressions, see `PrivateModel`.

    Parameters
    ----------
    ends
        The declared range of the response.
    """

    ends: tuple[float, float]

    shares: ClassVar[tuple[float, ...]] = SHARES
    bends: ClassVar[int] = 8
    reach: ClassVar[float] = 1.0

    @property
    def usual_mean(self) -> float:
        """The mean of a row whose linear predictor is zero: the geometric middle of the range, shifted by 1."""
        low, high = self.ends
        return float(((1.0 + low) * (1.0 + high)) ** 0.5 - 1.0)

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others.

        Two Hessians of rows have an inner product that is not negative, so that two rows differ by at most twice the
        largest norm.
        """
        if releases:
            columns = gaussian_columns(relative(releases[0]))(generator(0, "columns"), ROWS)
            level = np.minimum(self._mean(columns @ position), self.ends[1]).mean()
            cut = _CUT * level**0.5
        else:
            # no count from zero to twice the usual mean is clipped
            cut = max(self.usual_mean, _CUT * self.usual_mean**0.5)
        cut, root = min(cut, self.ends[1] - self.ends[0]), len(position) ** 0.5
        # sqrt(weight^2 / 2) |Hessian| is this share of the largest gradient
        weight = (2.0 * _HESSIAN) ** 0.5 * cut / (_level(cut) * root)
        of_gradient = 2.0 * cut * root * (1.0 + _HESSIAN) ** 0.5 / mu
        return Step(cut, weight, of_gradient, of_gradient / weight)

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        return self.answers(x, random.poisson(self._mean(x @ truth)), random)

    def answers(self, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Answer:
        """The noised numbers of rows of columns between -1 and 1 and responses."""

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            exact = np.concatenate(_numbers(np, x, y, self._mean(x @ position), self.ends, step.radius))
            return exact + step.noise(len(position)) * random.standard_normal(exact.size)

        return answer

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller ones if the prior is narrow."""
        dim = len(precision)
        root = np.linalg.inv(np.linalg.cholesky(precision + (1.0 + (dim - 1) / 3.0) / _SIGNAL**2 * np.eye(dim)))
        return lambda random: np.asarray(random.standard_normal(dim) @ root)

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns. At the first position every row has the same weight."""
        return release.hessian / (float(self._weight(np.zeros(1), release)[0]) * rows)

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had neither noise nor clipped residuals."""
        last = releases[-1]
        columns = gaussian_columns(relative(releases[0]))(generator(0, "columns"), ROWS)
        mean = self._mean(columns @ last.position)
        at = score(np, mean, self.ends, last.radius)
        hessian = (columns * (at.weight * at.slope)[:, None]).T @ columns
        ridge = (1e-6 * np.trace(hessian) / len(hessian) + TINY) * np.eye(len(hessian))
        share = np.trace(np.linalg.solve(hessian + ridge, (columns * mean[:, None]).T @ columns + ridge)) / len(hessian)
        return np.linalg.inv(share * raised(last.hessian, 0.0) + precision)

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of scores. It differentiates nothing."""
        arguments = np.float64(self.usual_mean), np.array(self.ends, np.float64), np.float64(step.radius)
        return clipped_scores, (place.factor, *arguments), {"gradients": 1}

    def _mean(self, predictor: np.ndarray) -> np.ndarray:
        return np.asarray(_mean(np, predictor, self.usual_mean, self.ends))

    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        at = score(np, self._mean(predictor), self.ends, release.radius)
        return np.asarray(at.weight * at.slope)

    def _pooled(self, releases: Sequence[Release]) -> Sequence[Release]:
        # other cuts
        return releases[-1:]

    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        at = score(np, self._mean(columns @ last.position), self.ends, last.radius)
        hessian = (columns * (at.weight * at.slope)[:, None]).T @ columns
        ridge = (1e-6 * np.trace(hessian) / len(hessian) + TINY) * np.eye(len(hessian))
        inverse = np.linalg.inv(hessian + ridge)

        def bend(to: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
            expected, slope, variance = clipped(np, self._mean(columns @ to), at.low, at.high)
            there = (columns * (at.weight * slope)[:, None]).T @ columns
            spread = (columns * (at.weight**2 * variance)[:, None]).T @ columns
            gradient = (at.weight * (expected - at.expected)) @ columns
            share = np.trace(inverse @ (spread + ridge)) / len(to)
            return inverse @ (there + ridge), inverse @ gradient, float(share)

        return bend
