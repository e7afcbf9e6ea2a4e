"""Poisson, gamma, negative binomial, beta and Student regressions under differential privacy.

A row has a score s(y): the derivatives of its log density by the linear predictor and by the log of the family's other
parameter, such as a shape, in units of their sds. A Poisson regression has the first one only. At a position, each row
has

    c(y) = (s(y) - a) min(1, cut / |s(y) - a|),    K = E c (s - a)',

with expectations over responses y of the family at the position, and the centre a such that E c = 0. So clipping has no
bias there, and K is the derivative of E c. The sums are

    gradient = sum q B c,    H = sum q B K B',

with B = diag(x, sqrt(dim)), x the columns, dim their number, and q <= 1 a weight that bounds the norm of a row. As a, q
and K depend on the row's columns only, H is the derivative of the expected gradient at the position. The centre a and
K are tables over the linear predictor, from sums over a grid of responses.

A further sum has the dispersion of Poisson counts, r^2 - r - E (r^2 - r) for residuals r = y - m that are clipped more
widely. Its expected value is near zero also at means near m, as the variance of a Poisson count is m (Cameron and
Trivedi 1990).
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
from ...models.families import Beta, Family, Poisson
from ...models.regression import COEFFICIENTS
from ...posterior.coarse import coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ...results.certificate import Check
from .evaluations import raised
from .private_gradients import Bend, Gradients, precisions, ridge
from .private_model import Answer, Components, Levels, Release, Step, parts_of

# The other parameter of families, and its value at the first position. Sigma is in units of half the range.
OTHERS = {"gamma": ("shape", 1.0), "negative_binomial": ("concentration", 1.0), "beta": ("precision", 2.0)}
OTHERS |= {"student": ("sigma", 0.2)}
# Share of the privacy budget for each step. The first steps find the position of the last one.
SHARES = (0.2, 0.25, 0.55)
# Largest norm of a score.
_CUT = 1.0
# Weight of the other parameter in the norm of a score.
_WEIGHT = 0.5
# Unit of the score of Poisson counts, in sds.
_UNIT = 1.35
# Cut of residuals for the dispersion, relative to the unit, its least value, and the dispersion's weight in the norm.
_WIDER, _WIDEST, _DISPERSION = 2.0, 2.0, 0.5
# Draws for the expected dispersion, and its largest distance from 1, in standard deviations.
_DRAWN, _OFF = 100, 2.6
# Sd of the expected dispersion, relative to its change since the position.
_UNSURE = 0.5
# Largest squared norm of the weighted Hessian of a row relative to the gradient.
_HESSIAN = 1.0
# Responses of a grid.
_RESPONSES = 200
# End of a grid of counts: relative to the declared range, and beyond.
_BEYOND, _FURTHER = 2.0, 20.0
# End of another grid, as arsinh of sds of the response on the scale of the link.
_TAIL = 5.0
# Largest sizes of the log and of the logit of a response.
_LOG, _LOGIT = 600.0, 30.0
# Linear predictors of a table.
_PREDICTORS = 129
# Repetitions for the centre, and its last change.
_CENTRED, _STILL = 50, 1e-5
# Responses of all artificial rows for the curvature.
_ARTIFICIAL = 20_000
# Largest distance of the log of the other parameter from the first position.
_FAR = 4.0
# Largest linear predictor, in its units.
_FARTHEST = 20.0
# Largest share of responses beyond their range.
_OUTSIDE = 0.01
# Largest information of whole scores relative to clipped ones.
_MOST_INFORMATION = 1e4
# Sd of the linear predictor in a simulation, with a log or logit link and in units of half the range.
_SIGNAL, _LOCATED = 0.5, 0.2
# Sd of the log of the other parameter in a simulation.
_OTHER = 0.5

# Log density of a response for a linear predictor and other parameters, (0,) or (1,).
Density = Callable[[Array, Array, Array], Array]


class Law(NamedTuple):
    """The law of scores at a position.

    Parameters
    ----------
    unit
        Units of the scores, (score,).
    low, gap
        The first linear predictor of the table, and the difference between two.
    centre, slope
        For each linear predictor, the centre a, (predictor, score), and K, (predictor, score, score).
    level
        The usual trace of K.
    dispersion
        For each linear predictor, the mean of r^2 - r and the largest distance from it, (predictor, 2). Zero unless the
        family is Poisson.
    """

    unit: Any
    low: Any
    gap: Any
    centre: Any
    slope: Any
    level: Any
    dispersion: Any

    def at(self, xp: Any, predictor: Any) -> tuple[Any, Any, Any, Any]:
        """Weights q, centres, K and dispersions of rows, in NumPy or `jax.numpy`."""
        place = xp.clip((predictor - self.low) / self.gap, 0.0, _PREDICTORS - 1.0)
        first = xp.minimum(xp.floor(place).astype(int), _PREDICTORS - 2)
        part = (place - first)[:, None]

        def between(table: Any) -> Any:
            flat = table.reshape(_PREDICTORS, -1)
            return ((1.0 - part) * flat[first] + part * flat[first + 1]).reshape(-1, *table.shape[1:])

        centre, slope, dispersion = map(between, (self.centre, self.slope, self.dispersion))
        # largest norm relative to the usual one
        squares = 1.0 + _HESSIAN * (xp.trace(slope, axis1=1, axis2=2) / self.level) ** 2
        norm = xp.sqrt(squares + (dispersion[:, 1] / self.dispersed(xp)) ** 2)
        return (1.0 + _HESSIAN) ** 0.5 / xp.maximum(norm, (1.0 + _HESSIAN) ** 0.5), centre, slope, dispersion

    def dispersed(self, xp: Any) -> Any:
        """The dispersion that has the norm of a score."""
        far = self.far(xp)
        return far * (far - 1.0) / _DISPERSION

    def far(self, xp: Any) -> Any:
        """The cut of residuals for the dispersion."""
        return xp.maximum(_WIDER * self.unit[0], _WIDEST)

    def dispersion_of(self, xp: Any, residuals: Any, dispersion: Any) -> Any:
        """The dispersions of residuals (..., row), within their bounds."""
        clipped, (expected, most) = xp.clip(residuals, -self.far(xp), self.far(xp)), dispersion.T
        return xp.clip(clipped**2 - clipped - expected, -most, most)


def _cut(xp: Any, scores: Any) -> Any:
    """The factors by which scores are shortened to the norm `_CUT`."""
    return _CUT / xp.maximum(xp.sqrt(xp.sum(scores**2, axis=-1, keepdims=True)), _CUT)


def _placed(xp: Any, columns: Any, scores: int) -> Any:
    """B of rows, (row, parameter, score)."""
    count, dim = columns.shape
    above = xp.stack([columns, xp.zeros((count, dim))], axis=2)
    below = xp.broadcast_to(xp.array([0.0, dim**0.5]), (count, 1, 2))
    return xp.concatenate([above, below], axis=1)[:, : dim + scores - 1, :scores]


def _scores(
    density: Density, origin: Array, predictor: Array, other: Array, y: Array
) -> tuple[Float[Array, " row"], Float[Array, "row score"]]:
    """Log densities of rows and scores without units."""

    def one(at: Array, y: Array) -> Array:
        return density(origin[0] + origin[1] * at[0], jnp.exp(origin[2:] + at[1:]), y)

    at = jnp.column_stack([predictor, jnp.broadcast_to(other, (len(predictor), len(other)))])
    found: tuple[Array, Array] = jax.vmap(jax.value_and_grad(one))(at, y)
    return found


def _other(family: Family) -> tuple[str, ...]:
    """The name of the other parameter, if there is one."""
    return (OTHERS[family.name][0],) if family.name in OTHERS else ()


def _density(family: Family) -> Density:
    """The log density of a family."""
    return lambda eta, other, y: family.log_density(dict(zip(_other(family), other, strict=True)), eta, {"y": y})


@partial(jax.jit, static_argnums=0)
def _on_grid(
    family: Family, origin: Array, predictor: Array, other: Array, y: Array, log_width: Array
) -> tuple[Float[Array, "row y"], Float[Array, "row y score"]]:
    """The probabilities of responses and their scores, for linear predictors (row,)."""
    log_density, scores = _scores(_density(family), origin, jnp.repeat(predictor, y.shape[1]), other, y.ravel())
    mass = jax.nn.softmax(log_density.reshape(y.shape) + log_width, axis=1)
    return mass, scores.reshape(*mass.shape, -1)


@partial(jax.jit, static_argnums=0)
def _mass(*arguments: Any) -> Float[Array, "row y"]:
    return _on_grid(*arguments)[0]


@of_rows
@coarse("private")
def clipped_family_scores(
    potential: Potential,
    shard: Shard,
    x: Float[Array, " dim"],
    scaled: Float[Array, "column column"],
    origin: Float[Array, " number"],
    ends: Float[Array, " 2"],
    *law: Array,
) -> Float[Array, " number"]:
    """Sums over rows of clipped scores, of the upper triangle of their Hessian, and of the dispersion of counts.

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
        Origin and unit of the linear predictor, and the origin of the log of the other parameter, if any.
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
    params = potential.unravel(jnp.zeros(x.size))

    def density(eta: Array, other: Array, y: Array) -> Array:
        row = {"design": jnp.zeros((1, len(scaled))), "offset": eta[None], "y": y[None]}
        own = dict(zip(set(params) - {COEFFICIENTS}, other, strict=True))
        of_row: Array = potential.log_likelihood({COEFFICIENTS: jnp.zeros(len(scaled)), **own}, row)[0]
        return of_row

    # the only family without a formula is Poisson
    found = density if isinstance(params, dict) else _density(Poisson())
    return _numbers(found, origin, columns, response, counted, x, Law(*law))


@partial(jax.jit, static_argnums=0)
def _numbers_of(family: Family, *arguments: Any) -> Float[Array, " number"]:
    return _numbers(_density(family), *arguments)


def _numbers(
    density: Density, origin: Array, columns: Array, response: Array, counted: Array, x: Array, law: Law
) -> Float[Array, " number"]:
    """The gradient, the upper triangle of the Hessian, and the dispersion if there is one score."""
    count = columns.shape[1]
    predictor = columns @ x[:count]
    raw = _scores(density, origin, predictor, x[count:], response)[1]
    scores = raw / law.unit[None]
    weight, centre, slope, dispersion = law.at(jnp, predictor)
    counted = counted & jnp.isfinite(scores).all(axis=1) & jnp.isfinite(weight)
    weight = jnp.where(counted, weight, 0.0)
    off = jnp.where(counted[:, None], scores - centre, 0.0)
    slope = jnp.where(counted[:, None, None], slope, 0.0)
    placed = _placed(jnp, columns, scores.shape[1])
    gradient = jnp.einsum("r,rai,ri->a", weight, placed, _cut(jnp, off) * off)
    hessian = jnp.einsum("r,rai,rij,rbj->ab", weight, placed, slope, placed)[np.triu_indices(len(x))]
    if scores.shape[1] > 1:
        return jnp.concatenate([gradient, hessian])
    residuals = jnp.where(counted, raw[:, 0], 0.0)
    return jnp.concatenate([gradient, hessian, (weight @ law.dispersion_of(jnp, residuals, dispersion))[None]])


@dataclass(frozen=True)
class FamilyScores(Gradients):
    """Poisson regressions, and regressions of a family in `OTHERS`, with the log of the other parameter last.

    Parameters
    ----------
    family
        The family.
    ends
        The declared range of the response.
    levels
        See `PrivateModel`.
    """

    family: Family
    ends: tuple[float, float]
    levels: Levels = ()

    shares: ClassVar[tuple[float, ...]] = SHARES

    @property
    def origin(self) -> np.ndarray:
        """Origin and unit of the linear predictor, and the origin of the log of the other parameter, if any."""
        (low, high), (_, other) = self.ends, OTHERS.get(self.family.name, ("", 1.0))
        if self.family.is_log_linear:
            # the geometric middle, of counts shifted by 1
            shift = float(self.family.is_whole)
            middle = ((shift + low) * (shift + high)) ** 0.5 - shift
            found = [np.log(middle), 1.0, np.log(other)]
        elif isinstance(self.family, Beta):
            found = [0.0, 1.0, np.log(other)]
        else:
            found = [(low + high) / 2.0, (high - low) / 2.0, np.log((high - low) / 2.0 * other)]
        return np.array(found[: 2 + len(_other(self.family))])

    def _grid(self, predictor: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Responses around linear predictors (row,), and logs of their distances, each (row, response)."""
        (at, unit, *log_other), z = self.origin, np.linspace(-_TAIL, _TAIL, _RESPONSES)
        eta, value = (at + unit * predictor)[:, None], np.exp(log_other + other)
        if self.family.is_whole:
            last = np.ceil(_BEYOND * self.ends[1] + _FURTHER)
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
        return dim - len(_other(self.family))

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others.

        Two Hessians of rows have an inner product that is not negative, so that two rows differ by at most twice the
        largest norm.
        """
        law, root = self._law(position, releases), self.columns(len(position)) ** 0.5
        # sqrt(weight^2 / 2) |Hessian| is this share of the largest gradient
        weight = (2.0 * _HESSIAN) ** 0.5 * _CUT / (law.level * root)
        of_gradient = 2.0 * _CUT * root * (1.0 + _HESSIAN) ** 0.5 / mu
        of_fit = () if _other(self.family) else (of_gradient / (_CUT * root) * float(law.dispersed(np)),)
        return Step(_CUT, weight, of_gradient, of_gradient / weight, of_fit=of_fit, law=law)

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        (mean, precision), last = prior, releases[-1]
        units = self.units(last)
        pair = releases[0], last._replace(position=last.position * units)
        within = mean * units, precision / np.outer(units, units)
        found = super().given(pair, within, rows, random)
        # positive definite, also far from the position
        values, vectors = np.linalg.eigh(found.covariance)
        roots = vectors * np.sqrt(np.maximum(values, 1e-10 * values[:, -1:]))[:, None] / units[:, None]
        covariance = roots @ np.swapaxes(roots, 1, 2)
        return Components(found.weight, found.mean / units, covariance, found.before / units)

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The posterior mean so far, unless it is very far off."""
        coefficients, other = np.split(found.centre, [self.columns(len(found.centre))])
        shorter = min(1.0, _FARTHEST / np.abs(coefficients).sum())
        return np.append(shorter * coefficients, np.clip(other, -_FAR, _FAR))

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        (at, unit, *other), count = self.origin, x.shape[1]
        with jax.enable_x64(True):
            own = dict(zip(_other(self.family), jnp.exp(np.array(other) + truth[count:]), strict=True))
            key = jax.random.key(random.integers(2**32))
            y = self.family.replicated(own, jnp.asarray(at + unit * (x @ truth[:count])), {}, key)
            return self.answers(x, np.asarray(y, np.float64), random)

    def answers(self, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Answer:
        """The noised numbers of rows of columns between -1 and 1 and responses."""
        y, counted = np.clip(y, *self.ends), np.ones(len(x), bool)

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            with jax.enable_x64(True):
                exact = np.asarray(_numbers_of(self.family, self.origin, x, y, counted, position, step.law))
            return exact + step.noise(len(position)) * random.standard_normal(exact.size)

        return answer

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had neither noise nor clipped scores."""
        last, units, columns = releases[-1], self.units(releases[-1]), self._few(releases[0])
        predictor, other, placed = self._at(columns, last.position)
        mass, scores = self._scores_at(predictor, other)
        weight, _, slope, _ = last.step.law.at(np, predictor)
        scores = scores / last.step.law.unit
        information = np.einsum("ry,ryi,ryj->rij", mass, scores, scores)
        both = (
            np.einsum("rai,rij,raj->a", placed, one, placed) for one in (information, weight[:, None, None] * slope)
        )
        # noise can move a position to where almost no row has a weight
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.sqrt(np.nan_to_num(np.divide(*both), nan=1.0).clip(0.0, _MOST_INFORMATION)) * units
        return np.linalg.inv(raised(last.hessian, 0.0) * np.outer(more, more) + precision)

    def checks(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check, ...]:
        """The checks of all models with gradients, and two of the other parameter or one of the counts."""
        own = self._of_other(found, releases) if _other(self.family) else self._of_counts(found, releases, rows)
        return *super().checks(found, releases, rows), *own

    def _of_other(self, found: Components, releases: Sequence[Release]) -> tuple[Check, Check]:
        """Whether the other parameter is known, and whether responses fit into their range."""
        (name,), other, sd = _other(self.family), float(found.centre[-1]), float(found.spread[-1, -1] ** 0.5)
        reached = abs(other) + 2.0 * sd
        known = reached <= _FAR
        text = f"log({name}) is {self.origin[2] + other:.2g} +- {sd:.2g}"
        remedy = "" if known else ": use more rows, or a family with fewer parameters"
        predictor, at, _ = self._at(self._few(releases[0]), found.centre)
        mass = self._mass_at(predictor, at)
        y, _ = self._grid(predictor, at)
        outside = float(np.sum(mass * ((y < self.ends[0]) | (y > self.ends[1]))) / len(y))
        fits = outside <= _OUTSIDE
        shown = f"about {outside:.2%} of the responses lie beyond their range (at most {_OUTSIDE:.0%})"
        advice = "" if fits else ": declare a wider range"
        return (
            Check(name, reached, _FAR, known, text + remedy),
            Check("response", outside, _OUTSIDE, fits, shown + advice),
        )

    def _of_counts(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check]:
        """Whether the counts have the variance of Poisson counts as well."""
        last, columns = releases[-1], self._few(releases[0])
        law, (predictor, other, _) = last.step.law, self._at(columns, last.position)
        weight, _, _, dispersion = law.at(np, predictor)
        mass, scores = self._scores_at(predictor, other)
        residuals = scores[..., 0].T
        each = law.dispersion_of(np, residuals, dispersion)

        def mean(mass: np.ndarray, of: np.ndarray, power: float = 1.0) -> float:
            """The mean over rows of an expected value, times a power of the weight."""
            return float(weight**power @ np.sum(mass * of.T, axis=1)) / len(weight)

        draws = found.draws(_DRAWN, generator(0, "draws"))
        changes = [mean(self._mass_at(*self._at(columns, draw)[:2]), each) for draw in draws]
        usual = mean(mass, np.clip(residuals, -law.far(np), law.far(np)) ** 2)
        counted = rows * float(np.clip(self.moments(releases[0], rows)[0, 0], 1.0 / rows, 1.0))
        ratio = 1.0 + (float(last.fit[0]) / counted - float(np.mean(changes))) / usual
        # the change since the position is that of artificial columns, so it is uncertain too
        by_draws = float(np.var(changes)) + (_UNSURE * float(np.mean(changes))) ** 2
        noise = (by_draws + mean(mass, each**2, 2.0) / counted + (last.step.of_fit[0] / counted) ** 2) ** 0.5 / usual
        off = abs(ratio - 1.0) / noise
        holds = off <= _OFF
        text = f"the variance of the counts is about {ratio:.2f} +- {noise:.2f} times that of Poisson counts"
        remedy = "" if holds else ": intervals do not cover, a negative binomial regression may"
        text = f"{text} ({off:.2g} standard deviations, limit {_OFF:g}){remedy}"
        return (Check("dispersion", off, _OFF, holds, text),)

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The sum of scores. It differentiates by one or two numbers of each row."""
        count = self.columns(len(place.origin))
        scaled = place.factor[:count, :count] / self.origin[1]
        arguments = scaled, self.origin, np.array(self.ends, np.float64), *map(np.asarray, step.law)
        return clipped_family_scores, arguments, {"gradients": 1}

    def units(self, release: Release) -> np.ndarray:
        """Units of parameters in which the gradient of a release is the derivative, (dim,)."""
        count, (first, *other) = self.columns(len(release.position)), release.step.law.unit
        return np.append(np.full(count, first), np.array(other) / count**0.5)

    def _few(self, first: Release) -> np.ndarray:
        """Fewer artificial columns, for a grid of responses."""
        return self._artificial(first)[: self._most]

    @property
    def _most(self) -> int:
        """The largest number of artificial columns."""
        return _ARTIFICIAL // self._grid(np.zeros(1), np.zeros(len(self.origin) - 2))[0].size

    def _at(self, columns: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Linear predictors and the other parameter at a position, within limits, and B of rows."""
        count = columns.shape[1]
        predictor = np.clip(columns @ position[:count], -_FARTHEST, _FARTHEST)
        other = np.clip(position[count:], -_FAR, _FAR)
        return predictor, other, _placed(np, columns, 1 + len(other))

    def _scores_at(self, predictor: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of a grid of responses, and their scores if clipped to the range."""
        y, log_width = self._grid(predictor, other)
        with jax.enable_x64(True):
            clipped = np.clip(y, *self.ends)
            _, scores = _on_grid(self.family, self.origin, predictor, other, clipped, log_width)
            return self._mass_at(predictor, other), np.asarray(scores)

    def _mass_at(self, predictor: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Probabilities of a grid of responses."""
        with jax.enable_x64(True):
            return np.asarray(_mass(self.family, self.origin, predictor, other, *self._grid(predictor, other)))

    def _law(self, position: np.ndarray, releases: Sequence[Release]) -> Law:
        """The law of scores at a position, for artificial columns with the moments of the first release."""
        coefficients, other = np.split(position, [self.columns(len(position))])
        half = max(1e-3, np.abs(coefficients[1:]).sum())
        table = position[0] + np.linspace(-half, half, _PREDICTORS)
        mass, scores = self._scores_at(table, other)
        # the share of rows at each linear predictor
        rows = self._artificial(releases[0]) @ coefficients if releases else position[:1]
        place = np.clip(np.round((rows - table[0]) / (table[1] - table[0])), 0, _PREDICTORS - 1).astype(int)
        share = np.bincount(place, minlength=_PREDICTORS) / len(rows)
        unit, dispersion = np.sqrt(np.einsum("g,gy,gyi->i", share, mass, scores**2)), np.zeros((_PREDICTORS, 2))
        if other.size:
            unit = unit / np.array([1.0, _WEIGHT])
        else:
            # no count from zero to twice the usual mean is clipped at first
            unit = np.maximum(_UNIT * unit, 0.0 if releases else np.exp(self.origin[0]))
        with jax.enable_x64(True):
            centre, slope = map(np.asarray, _centred(mass, scores / unit))
        level = share @ np.trace(slope, axis1=1, axis2=2)
        law = Law(unit, table[0], table[1] - table[0], centre, slope, level, dispersion)
        if other.size:
            return law
        residuals = np.clip(scores[..., 0], -law.far(np), law.far(np))
        each = residuals**2 - residuals
        expected = np.sum(mass * each, axis=1)
        return law._replace(dispersion=np.column_stack([expected, np.abs(each - expected[:, None]).max(axis=1)]))

    def _weight(self, predictor: np.ndarray, release: Release) -> np.ndarray:
        weight, _, slope, _ = release.step.law.at(np, predictor)
        return np.asarray(weight * slope[:, 0, 0])

    def _least(self, dim: int) -> np.ndarray:
        count = self.columns(dim)
        signal = _SIGNAL if self.family.is_log_linear or isinstance(self.family, Beta) else _LOCATED
        return np.append(precisions(count, signal), np.full(dim - count, _OTHER**-2.0))

    def _bend(self, columns: np.ndarray, last: Release) -> Bend:
        law, units = last.step.law, self.units(last)
        columns = columns[: self._most]
        predictor, other, placed = self._at(columns, last.position / units)
        weight, centre, _, _ = law.at(np, predictor)
        mass, scores = self._scores_at(predictor, other)
        off = scores / law.unit - centre[:, None]
        clipped = _cut(np, off) * off
        begin = np.einsum("ry,ryi->ri", mass, clipped)
        hessian = _summed(placed, weight[:, None, None] * np.einsum("ry,ryi,ryj->rij", mass, clipped, off))
        inverse, (y, log_width) = np.linalg.inv(hessian + ridge(hessian)), self._grid(predictor, other)
        root = np.linalg.inv(np.linalg.cholesky(hessian + ridge(hessian)))

        def bend(to: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            predictor, other, _ = self._at(columns, to / units)
            with jax.enable_x64(True):
                moments = _moments(self.family, self.origin, predictor, other, y, log_width, clipped)
            expected, slope, variance = map(np.asarray, moments)
            gradient = np.einsum("r,rai,ri->a", weight, placed, expected - begin)
            there = _summed(placed, weight[:, None, None] * slope / law.unit)
            covariance = root @ _summed(placed, weight[:, None, None] ** 2 * variance) @ root.T
            return inverse @ (there + ridge(hessian)), inverse @ gradient, covariance

        return bend


@jax.jit
def _centred(mass: Array, scores: Array) -> tuple[Float[Array, "row score"], Float[Array, "row score score"]]:
    """Centres and K of rows, by Weiszfeld's algorithm for a geometric median."""

    def moments(centre: Array) -> tuple[Array, Array]:
        off = scores - centre[:, None]
        return mass * _cut(jnp, off)[..., 0], off

    def better(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        centre, _, count = state
        near, off = moments(centre)
        change = jnp.einsum("gy,gyi->gi", near, off) / near.sum(axis=1)[:, None]
        return centre + change, jnp.abs(change).max(), count + 1

    begin = jnp.zeros((len(mass), scores.shape[2])), jnp.asarray(jnp.inf), jnp.asarray(0)
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
