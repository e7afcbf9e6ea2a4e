"""Shared by all models of `Private`: noise, its budget, the releases, and the simulated coverage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from ...base.counters import generator
from ...posterior.coordinates import Coordinates
from ...results.certificate import Check
from .evaluations import unpacked

# Least simulated coverage of intervals of 90%.
COVERAGE, _LEVEL = 0.88, 0.9
# Largest simulated width of intervals, relative to intervals without noise, if the rows alone decide.
WIDEST = 20.0
# Largest noise of a Hessian, relative to its smallest eigenvalue, at which widths mean anything.
_HIDDEN = 1.0
# Replicates of a simulation, rows of one at most, and draws for its intervals.
_REPLICATES, _MOST_ROWS, _DRAWS = 200, 5_000, 1000
# Least share of rows that count in moments.
_COUNTED = 0.05
# Least share of a level in similar columns.
_RAREST = 1e-3
# Least eigenvalue of a Hessian relative to the mean one of the prior.
_FLOOR = 1e-3


def strength(epsilon: float, delta: float) -> float:
    """The ratio mu = sensitivity / sd of noise of a Gaussian mechanism that is (epsilon, delta)-private.

    Several Gaussian mechanisms compose to one with mu^2 = sum mu_k^2.
    """
    most = 100.0 * (1.0 + epsilon**0.5)
    return float(brentq(lambda mu: _delta(mu, epsilon) - delta, 1e-9, most, xtol=1e-12))


def spent(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism with this ratio `mu`, see `strength`."""
    if _delta(mu, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: _delta(mu, epsilon) - delta, 0.0, mu**2 + 100.0 * mu, xtol=1e-12))


def _delta(mu: float, epsilon: float) -> float:
    """The delta of a Gaussian mechanism (Balle and Wang 2018)."""
    second = np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2.0))
    return float(ndtr(-epsilon / mu + mu / 2.0) - second)


class Step(NamedTuple):
    """What one step releases.

    Parameters
    ----------
    radius
        Largest norm of a row or of its score, or largest residual of a linear regression.
    weight
        Weight of the Hessian, or of the residual, in the norm of a row.
    of_gradient, of_hessian
        Sds of the noise in the sum over all agents. Numbers off the diagonal have `of_hessian / sqrt(2)`.
    of_square
        Sd of the noise in the sum of squared residuals, None without this sum.
    of_fit
        Sd of the noise in each sum that only checks the law of the responses.
    law
        The law of a row's score at the position, see `private_families.Law`. None in other models.
    """

    radius: float
    weight: float
    of_gradient: float
    of_hessian: float
    of_square: float | None = None
    of_fit: tuple[float, ...] = ()
    law: Any = None

    def noise(self, dim: int) -> Float[np.ndarray, " number"]:
        """The sd of each number's noise: gradient, Hessian, sum of squares and others, for a number of parameters."""
        columns = dim - (self.of_square is not None)
        upper = np.triu_indices(columns)
        off = np.where(upper[0] == upper[1], 1.0, 2.0**-0.5)
        square = [] if self.of_square is None else [self.of_square]
        return np.concatenate([np.full(columns, self.of_gradient), self.of_hessian * off, square, self.of_fit])


class Release(NamedTuple):
    """The released numbers of one step.

    Parameters
    ----------
    position
        The position, (dim,).
    gradient, hessian
        The noised gradient (column,) and negative Hessian (column, column) of the log likelihood. In a linear
        regression, of the log likelihood for a residual sd of 1. In other families, the other parameter is the last
        column.
    step
        What was released, with the sds of the noise.
    square
        The noised sum of squared residuals, 0 without this sum.
    fit
        The noised sums that only check the law of the responses.
    """

    position: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    step: Step
    square: float = 0.0
    fit: np.ndarray | tuple[float, ...] = ()

    @classmethod
    def of(cls, position: np.ndarray, step: Step, numbers: np.ndarray) -> Release:
        """The release of flat numbers at a position."""
        columns = len(position) - (step.of_square is not None)
        ends = np.cumsum([columns, columns * (columns + 1) // 2, step.of_square is not None])
        gradient, upper, square, fit = np.split(numbers, ends)
        return cls(position, gradient, unpacked(upper, columns), step, float(square.sum()), fit)

    @property
    def sds(self) -> dict[str, float]:
        """Sds of the noise by name."""
        step = self.step
        found = {"gradient": step.of_gradient, "hessian": step.of_hessian, "square": step.of_square or 0.0}
        found |= {"fit": max(step.of_fit, default=0.0)}
        return {name: float(sd) for name, sd in found.items() if sd > 0.0}


# The noised numbers of a step at a position, flat, see `Step.noise`.
Answer = Callable[[np.ndarray, Step], np.ndarray]
# Mean (dim,) and precision (dim, dim) of a Gaussian that stands for the prior near a position.
GaussianPriors = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
# Columns of two values, such as a level of a factor: number of the column, lower value, higher value.
Levels = tuple[tuple[int, float, float], ...]
# Draws columns (row, column), the first one constant.
Columns = Callable[[np.random.Generator, int], np.ndarray]


class Components(NamedTuple):
    """A mixture of Gaussians.

    Parameters
    ----------
    weight, mean, covariance
        Shapes (component,), (component, dim) and (component, dim, dim).
    before
        The mean of the mixture before the correction for curvature, (dim,).
    """

    weight: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    before: np.ndarray

    @property
    def centre(self) -> np.ndarray:
        """The mean of the mixture, (dim,)."""
        return np.asarray(self.weight @ self.mean)

    @property
    def bent(self) -> float:
        """The largest correction for curvature of a parameter, in its standard deviations."""
        return float(np.max(np.abs(self.centre - self.before) / np.sqrt(np.diagonal(self.spread))))

    @property
    def spread(self) -> np.ndarray:
        """The covariance of the mixture, (dim, dim)."""
        off = self.mean - self.centre
        return np.einsum("j,jab->ab", self.weight, self.covariance) + np.einsum("j,ja,jb->ab", self.weight, off, off)

    def draws(self, count: int, random: np.random.Generator) -> np.ndarray:
        """Draws, shape (draw, dim)."""
        chosen = random.choice(len(self.weight), count, p=self.weight)
        values, vectors = np.linalg.eigh(self.covariance)
        # symmetric, as sites of a study must have the same draws, and eigenvectors are not unique
        roots = ((vectors * np.sqrt(np.maximum(values, 0.0))[:, None]) @ np.swapaxes(vectors, 1, 2))[chosen]
        normals = random.standard_normal((count, self.mean.shape[1]))
        return np.asarray(self.mean[chosen] + np.einsum("kab,kb->ka", roots, normals))


def symmetric_noise(random: np.random.Generator, dim: int, count: int = 1) -> np.ndarray:
    """Symmetric matrices of standard normal numbers, sqrt(2) less off the diagonal, shape (count, dim, dim)."""
    lower = np.tril(random.standard_normal((count, dim, dim)))
    below = np.tril(lower, -1) / 2.0**0.5
    return np.asarray(below + np.swapaxes(below, 1, 2) + lower * np.eye(dim))


def noised_hessians(
    releases: Sequence[Release],
    least: float,
    random: np.random.Generator,
    count: int,
    rows: tuple[int, int] | None = None,
) -> np.ndarray:
    """Hessians around the noised one of several releases, with positive eigenvalues, (1 + count, column, column).

    The first one is without new noise.

    Parameters
    ----------
    releases
        Releases of the same Hessian.
    least
        Mean eigenvalue of the prior's precision, which bounds eigenvalues from below.
    random
        Draws the Hessians.
    count
        Number of Hessians around the noised one.
    rows
        Limits of the first number of the Hessian, None if it has none.
    """
    each = np.array([one.step.of_hessian for one in releases]) ** -2.0
    noised = np.tensordot(each, [one.hessian for one in releases], 1) / each.sum()
    around = noised + each.sum() ** -0.5 * symmetric_noise(random, len(noised), count)
    found = np.concatenate([noised[None], around])
    if rows is not None:
        found[:, 0, 0] = np.clip(found[:, 0, 0], *rows)
    values, vectors = np.linalg.eigh(found)
    return np.asarray((vectors * np.maximum(np.abs(values), _FLOOR * least)[:, None]) @ np.swapaxes(vectors, 1, 2))


def parts_of(rows: Any) -> tuple[Array, Array, Array]:
    """Columns (row, column), responses (row,) and weights (row,) of a shard, of a formula or a pair of arrays."""
    if isinstance(rows, dict):
        return rows["design"], rows["y"], rows["weight"]
    return *rows, jnp.ones(len(rows[1]))


class PrivateModel(Protocol):
    """A model that `Private` samples: what its steps release, and the posterior given the releases.

    The first `columns` parameters are coefficients of columns between -1 and 1, the first one constant.
    """

    def __hash__(self) -> int:
        """Equal models have equal hashes."""
        ...

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the privacy budget for each step."""
        ...

    @property
    def levels(self) -> Levels:
        """Columns that are known to have two values."""
        ...

    def columns(self, dim: int) -> int:
        """Number of coefficients, for `dim` parameters."""
        ...

    def start(self, dim: int) -> np.ndarray:
        """The first position, (dim,)."""
        ...

    def step(self, position: np.ndarray, mu: float, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others, for a ratio `mu` of sensitivity and sd of noise."""
        ...

    def given(
        self, releases: Sequence[Release], prior: tuple[np.ndarray, np.ndarray], rows: int, random: np.random.Generator
    ) -> Components:
        """The posterior given the releases of all steps, for a Gaussian prior."""
        ...

    def next(self, releases: Sequence[Release], found: Components, rows: int) -> np.ndarray:
        """The next position, (dim,)."""
        ...

    def simulated(self, x: np.ndarray, truth: np.ndarray, random: np.random.Generator) -> Answer:
        """Simulated answers for simulated responses, given columns and parameters."""
        ...

    def usual(self, precision: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Draws parameters of usual size, or smaller ones if the prior is narrow."""
        ...

    def moments(self, release: Release, rows: int) -> np.ndarray:
        """Noised second moments of the columns, from the first release, (column, column)."""
        ...

    def without_noise(
        self, releases: Sequence[Release], found: Components, precision: np.ndarray, rows: int
    ) -> np.ndarray:
        """The posterior's covariance if the sums had no noise, (dim, dim)."""
        ...

    def checks(self, found: Components, releases: Sequence[Release], rows: int) -> tuple[Check, ...]:
        """Checks of this model alone."""
        ...

    def message(self, place: Coordinates, step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function of the rows that is summed, its arguments and the options of the sum."""
        ...


class Budget(NamedTuple):
    """The noise of a run, from public facts.

    Parameters
    ----------
    mu
        Sensitivity / sd of noise of all steps together.
    excess
        Sd of the noise in a sum over all agents, relative to the sd that `mu` needs.
    share
        Rows of a simulation / rows of the study. The noise shrinks with it, so that a simulation has the same coverage.
    """

    mu: float
    excess: float
    share: float = 1.0

    def step(self, model: PrivateModel, position: np.ndarray, releases: Sequence[Release]) -> Step:
        """What a step releases at a position, after others, with the noise of all agents together."""
        step = model.step(position, self.mu * model.shares[len(releases)] ** 0.5, releases)
        noise = self.excess * self.share**0.5
        return step._replace(
            of_gradient=noise * step.of_gradient,
            of_hessian=noise * self.share**0.5 * step.of_hessian,
            of_square=None if step.of_square is None else noise * step.of_square,
            of_fit=tuple(noise * one for one in step.of_fit),
        )

    def released(
        self, model: PrivateModel, dim: int, rows: int, answer: Answer, prior: GaussianPriors, seed: int
    ) -> tuple[list[Release], Components]:
        """The releases of all steps, and the posterior given them."""
        releases, position = list[Release](), model.start(dim)
        for number in range(len(model.shares)):
            step = self.step(model, position, releases)
            releases.append(Release.of(position, step, answer(position, step)))
            found = model.given(releases, prior(position), rows, generator(seed, "hessians", number))
            position = model.next(releases, found, rows)
        return releases, found


class Covered(NamedTuple):
    """A simulated coverage, its standard error, and the width of the intervals.

    Parameters
    ----------
    share, error
        The coverage and its standard error.
    wider
        Median width of intervals from the rows alone, without the prior, relative to intervals without noise.
        Infinite if noise hides the Hessian.
    """

    share: float
    error: float
    wider: float = 1.0

    @property
    def is_enough(self) -> bool:
        """Whether the coverage may be large enough, within two standard errors."""
        return self.share + 2.0 * self.error >= COVERAGE

    @property
    def is_narrow(self) -> bool:
        """Whether the rows have a say beside the noise."""
        return self.wider <= WIDEST

    @property
    def width(self) -> str:
        """The width in words."""
        if not np.isfinite(self.wider):
            return "about as wide as without any rows"
        return f"typically {self.wider:.{1 if self.wider < 10.0 else 0}f} times as wide as without noise"


def coverage(
    model: PrivateModel,
    budget: Budget,
    rows: int,
    prior: tuple[np.ndarray, np.ndarray],
    parameters: Callable[[np.random.Generator], np.ndarray],
    columns: Columns,
) -> Covered:
    """Simulated coverage of intervals of 90%: the mean over coefficients, or that of other parameters if less.

    Parameters
    ----------
    model
        The model.
    budget
        The noise.
    rows
        Rows of all agents.
    prior
        Mean (dim,) and precision (dim, dim) of the prior.
    parameters
        Draws parameters (dim,).
    columns
        Draws columns.
    """
    (mean, precision), used = prior, min(rows, _MOST_ROWS)
    dim, budget = len(mean), budget._replace(share=used / rows)
    prior = mean, precision * budget.share
    inside, wider, hidden = [], [], []
    for replicate in range(_REPLICATES):
        random = generator(replicate, "covered")
        truth, x = parameters(random), columns(random, used)
        answer = model.simulated(x, truth, random)
        releases, found = budget.released(model, dim, used, answer, lambda position: prior, replicate)
        low, high = np.quantile(found.draws(_DRAWS, random), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
        inside.append((low < truth) & (truth < high))
        quiet, exact = _quiet(model, budget, releases, truth, answer, prior[1], used)
        hidden.append(_noise_of(releases[-1]) / np.linalg.eigvalsh(quiet.hessian)[0])
        without, own, before = (
            1.0 / np.diagonal(one)[: model.columns(dim)] for one in (exact, found.spread, np.linalg.inv(prior[1]))
        )
        wider.append(((without - before) / np.maximum(own - before, 1e-12 * before)) ** 0.5)
    parts = [part.mean(axis=1) for part in np.split(np.array(inside), [model.columns(dim)], axis=1) if part.size]
    each = [Covered(float(part.mean()), float(part.std()) / _REPLICATES**0.5) for part in parts]
    worst = min(each, key=lambda one: one.share + 2.0 * one.error)
    return worst._replace(wider=float(np.median(wider)) if np.median(hidden) <= _HIDDEN else np.inf)


def _noise_of(release: Release) -> float:
    """The largest eigenvalue of the noise in a Hessian, for many columns."""
    return release.step.of_hessian * (2.0 * len(release.hessian)) ** 0.5


def _quiet(
    model: PrivateModel,
    budget: Budget,
    releases: Sequence[Release],
    truth: np.ndarray,
    answer: Answer,
    precision: np.ndarray,
    rows: int,
) -> tuple[Release, np.ndarray]:
    """The last release of a simulated study without noise, and the covariance of the posterior, (dim, dim)."""
    quiet = []
    for number, position in ((0, releases[0].position), (len(releases) - 1, truth)):
        step = budget.step(model, position, releases[:number])
        step = step._replace(
            of_gradient=0.0,
            of_hessian=0.0,
            of_square=None if step.of_square is None else 0.0,
            of_fit=(0.0,) * len(step.of_fit),
        )
        quiet.append(Release.of(position, step, answer(position, step)))
    at_truth = Components(np.ones(1), truth[None], np.zeros((1, *precision.shape)), truth)
    return quiet[-1], model.without_noise(quiet, at_truth, precision, rows)


@cache
def likely(
    model: PrivateModel,
    budget: Budget,
    rows: int,
    of_prior: tuple[tuple[float, ...], ...],
    made_up: bytes | None = None,
) -> Covered:
    """Simulated coverage for parameters of usual size, or smaller ones if the prior is narrow.

    `of_prior` has the rows of the prior's precision, and `made_up` rows of columns, else they are uniform.
    """
    precision = np.array(of_prior)
    count = model.columns(len(precision))
    known = None if made_up is None else np.frombuffer(made_up).reshape(-1, count)

    def columns(random: np.random.Generator, rows: int) -> np.ndarray:
        if known is not None:
            return known[random.integers(len(known), size=rows)]
        return np.column_stack([np.ones(rows), random.uniform(-1.0, 1.0, (rows, count - 1))])

    return coverage(model, budget, rows, (np.zeros(len(precision)), precision), model.usual(precision), columns)


def similar_columns(moments: np.ndarray, levels: Levels = ()) -> Columns:
    """Draws Gaussian columns, clipped to -1 and 1, from their noised second moments with a constant first column.

    A column of two values has the higher one where its Gaussian is largest, as often as its mean says.
    """
    # some rows may not count
    moments = moments / np.clip(moments[0, 0], _COUNTED, 1.0)
    mean = np.clip(moments[0, 1:], -1.0, 1.0)
    values, vectors = np.linalg.eigh(moments[1:, 1:] - np.outer(mean, mean))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    sds = np.sqrt(np.square(root).sum(axis=1))

    def columns(random: np.random.Generator, count: int) -> np.ndarray:
        off = random.standard_normal((count, len(mean))) @ root.T
        found = np.column_stack([np.ones(count), np.clip(mean + off, -1.0, 1.0)])
        for number, low, high in levels:
            k = number - 1
            share = np.clip((mean[k] - low) / (high - low), _RAREST, 1.0 - _RAREST)
            found[:, number] = np.where(off[:, k] > sds[k] * ndtri(1.0 - share), high, low)
        return found

    return columns
