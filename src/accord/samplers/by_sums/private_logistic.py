"""Logistic regressions under differential privacy.

Each step releases the gradient and the Hessian of the log likelihood at a position, see `private_gradients.py`. Rows
are clipped to a norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import expit

from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from .evaluations import raised
from .private_gradients import Bend, Gradients, precisions, ridge, spread
from .private_model import Answer, Components, Levels, Release, Step

# Share of the privacy budget for each step. The first step only finds the position of the second one.
SHARES = (0.14, 0.86)
# Largest squared weight of the Hessian relative to the gradient. Up to it, the Hessian does not raise the largest norm.
_HESSIAN_WEIGHT = 22.0
# Largest growth of a row's norm by its Hessian, in each step.
_GROWTH = (1.8, 1.02)
# Largest sd of the linear predictor between two positions whose releases are pooled.
_NEAR = 0.2
# Nodes for the curvature of the log likelihood beyond its Hessian.
_NODES = 4


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
class Logistic(Gradients):
    """Logistic regressions, see `PrivateModel`."""

    levels: Levels = ()

    shares: ClassVar[tuple[float, ...]] = SHARES
    bends: ClassVar[int] = 4
    reach: ClassVar[float] = np.inf

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others."""
        return step_of(position, mu, _GROWTH[len(releases)])

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        y = (random.random(len(x)) < expit(x @ truth)).astype(np.float64)

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            hessian = (x * _weight(x @ position)[:, None]).T @ x
            exact = np.concatenate([x.T @ (y - expit(x @ position)), hessian[np.triu_indices(len(position))]])
            return exact + step.noise(len(position)) * random.standard_normal(exact.size)

        return answer

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had no noise."""
        return np.linalg.inv(raised(releases[-1].hessian, 0.0) + precision)

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of gradients and Hessians. It differentiates once for each column."""
        arguments = np.float64(step.radius), np.float64(step.weight)
        return clipped_newton, arguments, {"coordinates": place, "gradients": 1 + len(place.origin)}

    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        return _weight(predictor)

    def _least(self, dim: int) -> np.ndarray:
        return precisions(dim, 1.0)

    def _pooled(self, releases: Sequence[Release]) -> Sequence[Release]:
        last = releases[-1]
        return [one for one in releases if one is last or spread(one.position - last.position) < _NEAR]

    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        begin = columns @ last.position
        hessian = (columns * _weight(begin)[:, None]).T @ columns

        def bend(to: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            change = to - last.position
            on_the_way = _weight(begin + (nodes[:, None] + 1.0) / 2.0 * (columns @ change))
            mean = (columns * (weights / 2.0 @ on_the_way)[:, None]).T @ columns
            slope = np.linalg.solve(hessian + ridge(mean), mean + ridge(mean))
            return slope, slope @ change, np.eye(len(to))

        return bend


def _weight(predictor: np.ndarray) -> np.ndarray:
    """The weights of rows in the Hessian."""
    return np.asarray(expit(predictor) * expit(-predictor))


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
