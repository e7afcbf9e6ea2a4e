"""Gamma, negative binomial, beta and Student regressions under differential privacy.

A row has a score s(y): the derivatives of its log density by the linear predictor and by the log of the family's other
parameter, such as a shape, in units of their sds. At a position, each row has

    c(y) = (s(y) - a) min(1, cut / |s(y) - a|),    K = E c (s - a)',

with expectations over responses y of the family at the position, and the centre a such that E c = 0. So clipping has no
bias there, and K is the derivative of E c. The sums are

    gradient = sum q B c,    H = sum q B K B',

with B = diag(x, sqrt(dim)), x the columns, dim their number, and q <= 1 a weight that bounds the norm of a row. As a, q
and K depend on the row's columns only, H is the derivative of the expected gradient at the position. The centre a and
K are tables over the linear predictor, from sums over a grid of responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import digamma, expit, polygamma

from ...base.counters import generator
from ...models.families import Beta, Family
from ...models.regression import COEFFICIENTS
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ...results.certificate import Check
from .evaluations import raised
from .private_logistic import ROWS, Bend, Logistic
from .private_model import Answer, Components, Release, Step, gaussian_columns, parts_of

# The other parameter of each family, and its value at the first position. Sigma is in units of half the range.
OTHERS = {"gamma": ("shape", 1.0), "negative_binomial": ("concentration", 1.0), "beta": ("precision", 2.0)}
OTHERS |= {"student": ("sigma", 0.2)}
# Share of the privacy budget for each step. The first steps find the position of the last one.
SHARES = (0.25, 0.15, 0.6)
# Largest norm of a score.
_CUT = 1.0
# Weight of the other parameter in the norm of a score.
_WEIGHT = 0.5
# Largest squared norm of the weighted Hessian of a row relative to the gradient.
_HESSIAN = 1.0
# Responses of a grid.
_RESPONSES = 200
# End of a grid of counts relative to the declared range.
_BEYOND = 2.0
# End of another grid, as arsinh of sds of the response on the scale of the link.
_TAIL = 5.0
# Largest sizes of the log and of the logit of a response.
_LOG, _LOGIT = 600.0, 30.0
# Linear predictors of a table.
_PREDICTORS = 129
# Repetitions for the centre, and its last change.
_CENTRED, _STILL = 50, 1e-5
# Artificial rows for the curvature.
_ARTIFICIAL = 100
# Largest distance of the log of the other parameter from the first position.
_FAR = 4.0
# Largest linear predictor, in its units.
_FARTHEST = 20.0
# Largest share of responses beyond their range.
_OUTSIDE = 0.01
# Sd of the linear predictor in a simulation, with a log or logit link and in units of half the range.
_SIGNAL, _LOCATED = 0.5, 0.2
# Sd of the log of the other parameter in a simulation.
_OTHER = 0.5

# Log density of a response for a linear predictor and another parameter.
Density = Callable[[Array, Array, Array], Array]


class Law(NamedTuple):
    """The law of scores at a position.

    Parameters
    ----------
    unit
        Units of the two scores, (2,).
    low, gap
        The first linear predictor of the table, and the difference between two.
    centre, slope
        For each linear predictor, the centre a, (predictor, 2), and K, (predictor, 2, 2).
    level
        The usual trace of K.
    """

    unit: Any
    low: Any
    gap: Any
    centre: Any
    slope: Any
    level: Any

    def at(self, xp: Any, predictor: Any) -> tuple[Any, Any, Any]:
        """Weights q, centres and K of rows, in NumPy or `jax.numpy`."""
        place = xp.clip((predictor - self.low) / self.gap, 0.0, _PREDICTORS - 1.0)
        first = xp.minimum(xp.floor(place).astype(int), _PREDICTORS - 2)
        part = (place - first)[:, None]
        centre = (1.0 - part) * self.centre[first] + part * self.centre[first + 1]
        slope = (1.0 - part[..., None]) * self.slope[first] + part[..., None] * self.slope[first + 1]
        # largest norm relative to the usual one
        norm = xp.sqrt(1.0 + _HESSIAN * (xp.trace(slope, axis1=1, axis2=2) / self.level) ** 2)
        return (1.0 + _HESSIAN) ** 0.5 / xp.maximum(norm, (1.0 + _HESSIAN) ** 0.5), centre, slope


def _cut(xp: Any, scores: Any) -> Any:
    """The factors by which scores are shortened to the norm `_CUT`."""
    return _CUT / xp.maximum(xp.sqrt(xp.sum(scores**2, axis=-1, keepdims=True)), _CUT)


def _placed(xp: Any, columns: Any) -> Any:
    """B of rows, (row, parameter, 2)."""
    count, dim = columns.shape
    above = xp.stack([columns, xp.zeros((count, dim))], axis=2)
    below = xp.broadcast_to(xp.array([0.0, dim**0.5]), (count, 1, 2))
    return xp.concatenate([above, below], axis=1)


def _scores(
    density: Density, origin: Array, predictor: Array, other: Array, y: Array
) -> tuple[Float[Array, " row"], Float[Array, "row 2"]]:
    """Log densities of rows and scores without units."""

    def one(at: Array, y: Array) -> Array:
        return density(origin[0] + origin[1] * at[0], jnp.exp(origin[2] + at[1]), y)

    at = jnp.column_stack([predictor, jnp.full_like(predictor, other)])
    found: tuple[Array, Array] = jax.vmap(jax.value_and_grad(one))(at, y)
    return found


def _density(family: Family) -> Density:
    """The log density of a family."""
    return lambda eta, other, y: family.log_density({OTHERS[family.name][0]: other}, eta, {"y": y})


@partial(jax.jit, static_argnums=0)
def _on_grid(
    family: Family, origin: Array, predictor: Array, other: Array, y: Array, log_width: Array
) -> tuple[Float[Array, "row y"], Float[Array, "row y 2"]]:
    """The probabilities of responses and their scores, for linear predictors (row,)."""
    log_density, scores = _scores(_density(family), origin, jnp.repeat(predictor, y.shape[1]), other, y.ravel())
    mass = jax.nn.softmax(log_density.reshape(y.shape) + log_width, axis=1)
    return mass, scores.reshape(*mass.shape, 2)


@of_rows
@coarse("private")
def clipped_family_scores(
    potential: Potential,
    shard: Shard,
    x: Float[Array, " dim"],
    scaled: Float[Array, "column column"],
    origin: Float[Array, " 3"],
    ends: Float[Array, " 2"],
    *law: Array,
) -> Float[Array, " number"]:
    """Sums over rows of clipped scores and of the upper triangle of their Hessian.

    Columns and responses beyond their ranges count as the end of the range. A row that is not finite counts as zero.

    Parameters
    ----------
    potential, shard
        Of one agent.
    x
        The position.
    scaled
        Maps a row's columns to units of half a range.
    origin
        Origin and unit of the linear predictor, and the origin of the log of the other parameter.
    ends
        The declared range of the response.
    law
        The law of scores at the position, see `Law`.
    """
    columns, response, weight = parts_of(shard.rows)
    columns = columns @ scaled
    finite = jnp.isfinite(columns).all(axis=1) & jnp.isfinite(response)
    counted = (jnp.arange(len(columns)) < shard.size) & (weight > 0.0) & finite
    # zero times infinity is not zero
    columns = jnp.where(counted[:, None], jnp.clip(columns, -1.0, 1.0), 0.0)
    response = jnp.where(counted, jnp.clip(response, *ends), ends[0])
    (name,) = set(potential.unravel(jnp.zeros(x.size))) - {COEFFICIENTS}

    def density(eta: Array, other: Array, y: Array) -> Array:
        row = {"design": jnp.zeros((1, 1)), "offset": eta[None], "y": y[None]}
        of_row: Array = potential.log_likelihood({COEFFICIENTS: jnp.zeros(1), name: other}, row)[0]
        return of_row

    return _numbers(density, origin, columns, response, counted, x, Law(*law))


@partial(jax.jit, static_argnums=0)
def _numbers_of(family: Family, *arguments: Any) -> Float[Array, " number"]:
    return _numbers(_density(family), *arguments)


def _numbers(
    density: Density, origin: Array, columns: Array, response: Array, counted: Array, x: Array, law: Law
) -> Float[Array, " number"]:
    """The gradient and the upper triangle of the Hessian of rows."""
    predictor = columns @ x[:-1]
    scores = _scores(density, origin, predictor, x[-1], response)[1] / law.unit[None]
    weight, centre, slope = law.at(jnp, predictor)
    counted = counted & jnp.isfinite(scores).all(axis=1) & jnp.isfinite(weight)
    weight = jnp.where(counted, weight, 0.0)
    off = jnp.where(counted[:, None], scores - centre, 0.0)
    slope = jnp.where(counted[:, None, None], slope, 0.0)
    placed = _placed(jnp, columns)
    gradient = jnp.einsum("r,rai,ri->a", weight, placed, _cut(jnp, off) * off)
    hessian = jnp.einsum("r,rai,rij,rbj->ab", weight, placed, slope, placed)
    return jnp.concatenate([gradient, hessian[np.triu_indices(len(x))]])


@dataclass(frozen=True)
class FamilyScores(Logistic):
    """Regressions of a family in `OTHERS`, see `PrivateModel`. The last parameter is the log of the other one.

    Parameters
    ----------
    family
        The family.
    ends
        The declared range of the response.
    """

    family: Family
    ends: tuple[float, float]

    shares: ClassVar[tuple[float, ...]] = SHARES
    bends: ClassVar[int] = 8
    reach: ClassVar[float] = 1.0

    @property
    def origin(self) -> np.ndarray:
        """Origin and unit of the linear predictor, and the origin of the log of the other parameter."""
        (low, high), (_, other) = self.ends, OTHERS[self.family.name]
        if self.family.is_log_linear:
            # the geometric middle
            middle = (low * high) ** 0.5 if low > 0.0 else (1.0 + high) ** 0.5 - 1.0
            return np.array([np.log(middle), 1.0, np.log(other)])
        if isinstance(self.family, Beta):
            return np.array([0.0, 1.0, np.log(other)])
        half = (high - low) / 2.0
        return np.array([(low + high) / 2.0, half, np.log(half * other)])

    def _grid(self, predictor: np.ndarray, other: float) -> tuple[np.ndarray, np.ndarray]:
        """Responses around linear predictors (row,), and logs of their distances, each (row, response)."""
        (at, unit, log_other), z = self.origin, np.linspace(-_TAIL, _TAIL, _RESPONSES)
        eta, value = (at + unit * predictor)[:, None], np.exp(log_other + other)
        if self.family.is_whole:
            last = np.ceil(_BEYOND * self.ends[1])
            y = np.arange(last + 1.0)
            if len(y) > _RESPONSES:
                y = np.unique(np.round(np.geomspace(1.0, 1.0 + last, _RESPONSES))) - 1.0
            y, log_gap = (np.broadcast_to(one, (len(eta), len(y))) for one in (y, np.log(np.gradient(y))))
            return y, log_gap
        # narrow near the centre of the law, and wide in its tails
        z, log_gap = np.sinh(z), np.log(np.cosh(z))
        if self.family.is_log_linear:
            log_y = eta + digamma(value) - np.log(value) + polygamma(1, value) ** 0.5 * z
            y = np.exp(np.clip(log_y, -_LOG, _LOG))
            return y, np.log(y) + log_gap
        if isinstance(self.family, Beta):
            first, second = value * expit(eta), value * expit(-eta)
            logit_y = digamma(first) - digamma(second) + (polygamma(1, first) + polygamma(1, second)) ** 0.5 * z
            y = expit(np.clip(logit_y, -_LOGIT, _LOGIT))
            return y, np.log(y * (1.0 - y)) + log_gap
        return eta + value * z, np.broadcast_to(log_gap, (len(eta), len(z)))

    def columns(self, dim: int) -> int:
        """Number of coefficients."""
        return dim - 1

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others.

        Two Hessians of rows have an inner product that is not negative, so that two rows differ by at most twice the
        largest norm.
        """
        law, root = self._law(position, releases), self.columns(len(position)) ** 0.5
        # sqrt(weight^2 / 2) |Hessian| is this share of the largest gradient
        weight = (2.0 * _HESSIAN) ** 0.5 * _CUT / (law.level * root)
        of_gradient = 2.0 * _CUT * root * (1.0 + _HESSIAN) ** 0.5 / mu
        return Step(_CUT, weight, of_gradient, of_gradient / weight, law=law)

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        (mean, precision), last = prior, releases[-1]
        units = units_of(last)
        pair = _of_coefficients(releases[0]), last._replace(position=last.position * units)
        within = mean * units, precision / np.outer(units, units)
        found = super().given(pair, within, rows, random)
        # positive definite, also far from the position
        values, vectors = np.linalg.eigh(found.covariance)
        roots = vectors * np.sqrt(np.maximum(values, 1e-10 * values[:, -1:]))[:, None] / units[:, None]
        covariance = roots @ np.swapaxes(roots, 1, 2)
        return Components(found.weight, found.mean / units, covariance, found.before / units)

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The posterior mean so far, unless it is very far off."""
        *coefficients, other = found.centre
        shorter = min(1.0, _FARTHEST / np.abs(coefficients).sum())
        return np.append(shorter * np.array(coefficients), np.clip(other, -_FAR, _FAR))

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        at, unit, other = self.origin
        with jax.enable_x64(True):
            own = {OTHERS[self.family.name][0]: jnp.exp(other + truth[-1])}
            key = jax.random.key(random.integers(2**32))
            y = self.family.replicated(own, jnp.asarray(at + unit * (x @ truth[:-1])), {}, key)
            return self.answers(x, np.asarray(y, np.float64), random)

    def answers(self, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Answer:
        """The noised numbers of rows of columns between -1 and 1 and responses."""
        y, counted = np.clip(y, *self.ends), np.ones(len(x), bool)

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            with jax.enable_x64(True):
                exact = np.asarray(_numbers_of(self.family, self.origin, x, y, counted, position, step.law))
            return exact + step.noise(len(position)) * random.standard_normal(exact.size)

        return answer

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller ones if the prior is narrow."""
        dim = self.columns(len(precision))
        signal = _SIGNAL if self.family.is_log_linear or isinstance(self.family, Beta) else _LOCATED
        least = np.append(np.full(dim, (1.0 + (dim - 1) / 3.0) / signal**2), _OTHER**-2.0)
        root = np.linalg.inv(np.linalg.cholesky(precision + np.diag(least)))
        return lambda random: np.asarray(random.standard_normal(dim + 1) @ root)

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns. At the first position every row has the same weight."""
        return _of_coefficients(release).hessian / (float(self._weight(np.zeros(1), release)[0]) * rows)

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had neither noise nor clipped scores."""
        last, units, columns = releases[-1], units_of(releases[-1]), self._artificial(releases[0])[:_ARTIFICIAL]
        predictor, placed = columns @ last.position[:-1], _placed(np, columns)
        mass, scores = self._scores_at(predictor, last.position[-1])
        weight, _, slope = last.law.at(np, predictor)
        information = np.einsum("ry,ryi,ryj->rij", mass, scores / last.law.unit, scores / last.law.unit)
        both = (
            np.einsum("rai,rij,raj->a", placed, one, placed) for one in (information, weight[:, None, None] * slope)
        )
        more = np.sqrt(np.divide(*both)) * units
        return np.linalg.inv(raised(last.hessian, 0.0) * np.outer(more, more) + precision)

    def checks(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check, ...]:
        """The checks of a logistic regression, of the other parameter, and of the range of the response."""
        checks = super().checks(found, [_of_coefficients(one) for one in releases], rows)
        name, other, sd = OTHERS[self.family.name][0], found.centre[-1], found.spread[-1, -1] ** 0.5
        reached = abs(other) + 2.0 * sd
        known = reached <= _FAR
        text = f"log({name}) is {self.origin[2] + other:.2g} +- {sd:.2g}"
        remedy = "" if known else ": use more rows, or a family with fewer parameters"
        predictor = self._artificial(releases[0])[:_ARTIFICIAL] @ found.centre[:-1]
        predictor, other = np.clip(predictor, -_FARTHEST, _FARTHEST), np.clip(other, -_FAR, _FAR)
        mass, _ = self._scores_at(predictor, other)
        y, _ = self._grid(predictor, other)
        outside = float(np.sum(mass * ((y < self.ends[0]) | (y > self.ends[1]))) / len(y))
        fits = outside <= _OUTSIDE
        shown = f"about {outside:.2%} of the responses lie beyond their range (at most {_OUTSIDE:.0%})"
        advice = "" if fits else ": declare a wider range"
        return (
            *checks,
            Check(name, reached, _FAR, known, text + remedy),
            Check("response", outside, _OUTSIDE, fits, shown + advice),
        )

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of scores. It differentiates by two numbers of each row."""
        scaled = place.factor[:-1, :-1] / self.origin[1]
        arguments = scaled, self.origin, np.array(self.ends, np.float64), *map(np.asarray, step.law)
        return clipped_family_scores, arguments, {"gradients": 1}

    def _artificial(self, first: Release) -> np.ndarray:
        """Artificial columns with the released moments."""
        return gaussian_columns(_relative(first))(generator(0, "columns"), ROWS)

    def _scores_at(self, predictor: np.ndarray, other: float) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of a grid of responses, and their scores if clipped to the range."""
        (y, log_width), origin = self._grid(predictor, other), self.origin
        with jax.enable_x64(True):
            mass, _ = _on_grid(self.family, origin, predictor, np.float64(other), y, log_width)
            _, scores = _on_grid(self.family, origin, predictor, np.float64(other), np.clip(y, *self.ends), log_width)
            return np.asarray(mass), np.asarray(scores)

    def _law(self, position: np.ndarray, releases: Sequence[Release]) -> Law:
        """The law of scores at a position, for artificial columns with the moments of the first release."""
        half = max(1e-3, np.abs(position[1:-1]).sum())
        table = position[0] + np.linspace(-half, half, _PREDICTORS)
        mass, scores = self._scores_at(table, position[-1])
        # the share of rows at each linear predictor
        rows = self._artificial(releases[0]) @ position[:-1] if releases else position[:1]
        place = np.clip(np.round((rows - table[0]) / (table[1] - table[0])), 0, _PREDICTORS - 1).astype(int)
        share = np.bincount(place, minlength=_PREDICTORS) / len(rows)
        unit = np.sqrt(np.einsum("g,gy,gyi->i", share, mass, scores**2)) / np.array([1.0, _WEIGHT])
        with jax.enable_x64(True):
            centre, slope = map(np.asarray, _centred(mass, scores / unit))
        return Law(unit, table[0], table[1] - table[0], centre, slope, share @ np.trace(slope, axis1=1, axis2=2))

    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        weight, _, slope = release.law.at(np, predictor)
        return np.asarray(weight * slope[:, 0, 0])

    def _pooled(self, releases: Sequence[Release]) -> Sequence[Release]:
        # other units
        return releases[-1:]

    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        columns, law, units = columns[:_ARTIFICIAL], last.law, units_of(last)
        position, placed = last.position / units, _placed(np, columns)
        predictor = columns @ position[:-1]
        weight, centre, _ = law.at(np, predictor)
        mass, scores = self._scores_at(predictor, position[-1])
        off = scores / law.unit - centre[:, None]
        clipped = _cut(np, off) * off
        begin = np.einsum("ry,ryi->ri", mass, clipped)
        hessian = _summed(placed, weight[:, None, None] * np.einsum("ry,ryi,ryj->rij", mass, clipped, off))
        ridge = 1e-6 * np.trace(hessian) / len(hessian) * np.eye(len(hessian))
        inverse, (y, log_width) = np.linalg.inv(hessian + ridge), self._grid(predictor, position[-1])

        def bend(to: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            at = to / units
            other = np.clip(at[-1], -_FAR, _FAR)
            there = np.clip(columns @ at[:-1], -_FARTHEST, _FARTHEST)
            with jax.enable_x64(True):
                moments = _moments(self.family, self.origin, there, other, y, log_width, clipped)
            expected, slope, variance = map(np.asarray, moments)
            gradient = np.einsum("r,rai,ri->a", weight, placed, expected - begin)
            there = _summed(placed, weight[:, None, None] * slope / law.unit)
            spread = np.diagonal(_summed(placed, weight[:, None, None] ** 2 * variance))
            share = np.sqrt(np.maximum(spread, 0.0) / np.diagonal(hessian + ridge))
            return inverse @ (there + ridge), inverse @ gradient, np.outer(share, share)

        return bend


@jax.jit
def _centred(mass: Array, scores: Array) -> tuple[Float[Array, "row 2"], Float[Array, "row 2 2"]]:
    """Centres and K of rows, by Weiszfeld's algorithm for a geometric median."""

    def moments(centre: Array) -> tuple[Array, Array]:
        off = scores - centre[:, None]
        return mass * _cut(jnp, off)[..., 0], off

    def better(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        centre, _, count = state
        near, off = moments(centre)
        change = jnp.einsum("gy,gyi->gi", near, off) / near.sum(axis=1)[:, None]
        return centre + change, jnp.abs(change).max(), count + 1

    begin = jnp.zeros((len(mass), 2)), jnp.asarray(jnp.inf), jnp.asarray(0)
    centre, *_ = jax.lax.while_loop(lambda state: (state[1] > _STILL) & (state[2] < _CENTRED), better, begin)
    near, off = moments(centre)
    return centre, jnp.einsum("gy,gyi,gyj->gij", near, off, off)


@partial(jax.jit, static_argnums=0)
def _moments(
    family: Family, origin: Array, predictor: Array, other: Array, y: Array, log_width: Array, clipped: Array
) -> tuple[Array, Array, Array]:
    """Means of clipped scores (row, 2), their derivatives and covariances (row, 2, 2), at another position."""
    mass, scores = _on_grid(family, origin, predictor, other, y, log_width)
    expected = jnp.einsum("ry,ryi->ri", mass, clipped)
    off = mass[:, :, None] * (clipped - expected[:, None])
    return expected, jnp.einsum("ryi,ryj->rij", off, scores), jnp.einsum("ryi,ryj->rij", off, clipped)


def _summed(placed: np.ndarray, each: np.ndarray) -> np.ndarray:
    """The sum of B K B' over rows."""
    return np.einsum("rai,rbi->ab", placed @ each, placed)


def units_of(release: Release) -> np.ndarray:
    """Units of parameters in which the gradient of a release is the derivative, (dim,)."""
    columns = len(release.position) - 1
    return np.append(np.full(columns, release.law.unit[0]), release.law.unit[1] / columns**0.5)


def _of_coefficients(release: Release) -> Release:
    """The part of a release about coefficients."""
    position, gradient, hessian = release.position[:-1], release.gradient[:-1], release.hessian[:-1, :-1]
    return release._replace(position=position, gradient=gradient, hessian=hessian)


def _relative(first: Release) -> np.ndarray:
    """Noised second moments of the columns, relative to the number of rows that count."""
    return np.asarray(first.hessian[:-1, :-1] / max(first.hessian[0, 0], first.of_hessian))
