"""Differential privacy: a few sums with noise, and a posterior whose intervals take the noise into account.

Each step is one message of each agent: the summed gradient and Hessian of its rows' log likelihoods at a position, in
coordinates in which every column lies between -1 and 1. Each row's contribution is clipped to a norm, so that one row
changes a sum by a known amount at most, and Gaussian noise hides this change. Rows are neighbours if one is replaced.
The released numbers have the law

    gradient ~ N(H (theta - position), H + s_g^2 I),    noised Hessian ~ H + s_h E,

with E a symmetric matrix of unit variance, sqrt(2) less off the diagonal. The Hessian H is unknown too: the posterior
is a mixture over Hessians drawn around the noised one, each weighted by the gradient (Bernstein and Sheldon 2018, 2019;
Kulkarni et al. 2021). The next position is the posterior mean so far.

All releases together are one Gaussian mechanism, so (epsilon, delta) is exact (Dong, Roth and Su 2022, Balle and Wang
2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr, logsumexp, ndtr

from ...base.checks import positive, whole_number
from ...base.counters import generator
from ...base.errors import unknown_name_error
from ...models.families import Bernoulli
from ...models.predictive import PairsPredictive
from ...models.regression import Regression
from ...posterior import Posterior
from ...posterior.coarse import Coder, coarse
from ...posterior.coordinates import Coordinates
from ...posterior.potential import Potential, Shard
from ...posterior.totals import of_rows
from ...results.certificate import Certificate, Check
from ...results.points import Points
from ...results.traffic import Cost, Traffic
from ..costs import total_traffic
from ..engine import Builder, is_coarse, is_whole
from ..session import Job, Session
from .evaluations import raised, unpacked
from .method import BySums, Result, SumsForecast
from .start import Start

# Share of the privacy budget for each step. The first step only finds the position of the second one.
_SHARES = (0.14, 0.86)
# Largest squared weight of the Hessian relative to the gradient. Up to it, the Hessian does not raise the largest norm.
_HESSIAN_WEIGHT = 22.0
# Largest growth of a row's norm by its Hessian, in each step.
_GROWTH = (1.8, 1.02)
# Hessians of the mixture.
_HESSIANS = 200
# Largest sd of the linear predictor between two positions whose releases are pooled.
_NEAR = 0.2
# Grid of released numbers, relative to the sd of their noise.
_GRID = 2.0**-16
# Bytes of a released number.
_WIDTH = 6
# Least simulated coverage of intervals of 90%.
_COVERAGE, _LEVEL = 0.88, 0.9
# Replicates of a simulation, rows of one at most, and draws for its intervals.
_REPLICATES, _MOST_ROWS, _DRAWS = 200, 5_000, 1000
# Least eigenvalue of a Hessian relative to the mean one of the prior, and least curvature of a prior.
_FLOOR, _FLAT = 1e-3, 1e-6
# Artificial rows, nodes and repetitions for the curvature of the log likelihood beyond its Hessian.
_ROWS, _NODES, _BENDS = 1000, 4, 4
# Largest correction for this curvature, in standard deviations.
_BENT = 2.0
# Points for each draw, and least share of effective draws.
_SPARE, _LEAST = 1.1, 0.5


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


class Release(NamedTuple):
    """The released numbers of one step.

    Parameters
    ----------
    position
        The position, (dim,).
    gradient, hessian
        The noised gradient (dim,) and negative Hessian (dim, dim) of the log likelihood.
    of_gradient, of_hessian
        Sds of their noise. Numbers off the diagonal have `of_hessian / sqrt(2)`.
    """

    position: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    of_gradient: float
    of_hessian: float


class Step(NamedTuple):
    """What one step releases.

    Parameters
    ----------
    radius
        Largest norm of a row.
    weight
        Weight of the Hessian in this norm.
    of_gradient, of_hessian
        Sds of the noise in the sum over all agents, as in `Release`.
    """

    radius: float
    weight: float
    of_gradient: float
    of_hessian: float


# Noised gradient and Hessian at a position.
Answer = Callable[[np.ndarray, Step], tuple[np.ndarray, np.ndarray]]
# Mean (dim,) and precision (dim, dim) of a Gaussian that stands for the prior near a position.
GaussianPriors = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


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
        roots = np.linalg.cholesky(self.covariance)[chosen]
        normals = random.standard_normal((count, self.mean.shape[1]))
        return np.asarray(self.mean[chosen] + np.einsum("kab,kb->ka", roots, normals))


def symmetric_noise(random: np.random.Generator, dim: int, count: int = 1) -> np.ndarray:
    """Symmetric matrices of standard normal numbers, sqrt(2) less off the diagonal, shape (count, dim, dim)."""
    lower = np.tril(random.standard_normal((count, dim, dim)))
    below = np.tril(lower, -1) / 2.0**0.5
    return np.asarray(below + np.swapaxes(below, 1, 2) + lower * np.eye(dim))


def given_releases(
    releases: Sequence[Release],
    prior: tuple[np.ndarray, np.ndarray],
    random: np.random.Generator,
) -> Components:
    """The posterior given the released numbers, for a Gaussian prior.

    Parameters
    ----------
    releases
        Of all steps. The gradients of steps near the last one are pooled.
    prior
        Mean (dim,) and precision (dim, dim).
    random
        Draws Hessians around the noised one.
    """
    last, (mean, precision) = releases[-1], prior
    used = [one for one in releases if _is_near(one, last)]
    dim, each = len(mean), np.array([one.of_hessian for one in used]) ** -2.0
    noised = np.tensordot(each, [one.hessian for one in used], 1) / each.sum()
    values, vectors = np.linalg.eigh(noised + each.sum() ** -0.5 * symmetric_noise(random, dim, _HESSIANS))
    least = _FLOOR * np.trace(precision) / dim
    hessians = (vectors * np.maximum(np.abs(values), least)[:, None]) @ np.swapaxes(vectors, 1, 2)
    each = np.array([one.of_gradient for one in used]) ** -2.0
    position = each @ [one.position for one in used] / each.sum()
    gradient = each @ [one.gradient for one in used] / each.sum()
    noise = hessians + np.eye(dim) / each.sum()
    columns = _gaussian_columns(releases[0].hessian / releases[0].hessian[0, 0])(generator(0, "columns"), _ROWS)
    centre, before = position, None
    for _ in range(_BENDS):
        slopes = hessians @ _bend(columns, position, centre)
        weighted = np.linalg.solve(noise, slopes)
        covariance = np.linalg.inv(np.swapaxes(weighted, 1, 2) @ slopes + precision)
        # of a log likelihood that is quadratic: the gradient at 0
        origin = gradient + slopes @ position
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
    return mixture


def _bend(columns: np.ndarray, position: np.ndarray, to: np.ndarray) -> np.ndarray:
    """The Hessian on the way between two positions relative to that at the first one, for similar columns."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    begin, step = columns @ position, columns @ (to - position)
    mean = expit(begin + (nodes[:, None] + 1.0) / 2.0 * step)
    on_the_way = (columns * (weights / 2.0 @ (mean * (1.0 - mean)))[:, None]).T @ columns
    mean = expit(begin)
    ridge = 1e-6 * np.trace(on_the_way) / len(to) * np.eye(len(to))
    return np.linalg.solve((columns * (mean * (1.0 - mean))[:, None]).T @ columns + ridge, on_the_way + ridge)


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

    def steps(self, position: np.ndarray, number: int) -> Step:
        """What step `number` releases at a position, with the noise of all agents together."""
        step = step_of(position, self.mu * _SHARES[number] ** 0.5, _GROWTH[number])
        noise = self.excess * self.share**0.5
        return step._replace(of_gradient=noise * step.of_gradient, of_hessian=noise * self.share**0.5 * step.of_hessian)

    def released(self, dim: int, answer: Answer, prior: GaussianPriors, seed: int) -> tuple[list[Release], Components]:
        """The releases of all steps, and the posterior given them."""
        releases, position = list[Release](), np.zeros(dim)
        for number in range(len(_SHARES)):
            step = self.steps(position, number)
            releases.append(Release(position, *answer(position, step), step.of_gradient, step.of_hessian))
            found = given_releases(releases, prior(position), generator(seed, "hessians", number))
            position = found.centre
        return releases, found


class Covered(NamedTuple):
    """A simulated coverage and its standard error."""

    share: float
    error: float

    @property
    def is_enough(self) -> bool:
        """Whether the coverage may be large enough, within two standard errors."""
        return self.share + 2.0 * self.error >= _COVERAGE


def coverage(
    budget: Budget,
    rows: int,
    precision: Float[np.ndarray, "dim dim"],
    parameters: Callable[[np.random.Generator], np.ndarray],
    columns: Callable[[np.random.Generator, int], np.ndarray],
) -> Covered:
    """Simulated coverage of intervals of 90%, the mean over parameters.

    Parameters
    ----------
    budget
        The noise.
    rows
        Rows of all agents.
    precision
        Precision of the prior, whose mean is 0.
    parameters
        Draws parameters (dim,).
    columns
        Draws columns (row, dim), the first one constant.
    """
    dim, used = len(precision), min(rows, _MOST_ROWS)
    budget = budget._replace(share=used / rows)
    prior = np.zeros(dim), precision * budget.share
    inside = []
    for replicate in range(_REPLICATES):
        random = generator(replicate, "covered")
        truth, x = parameters(random), columns(random, used)
        answer = partial(_answered, x, (random.random(used) < expit(x @ truth)).astype(np.float64), random)
        _, found = budget.released(dim, answer, lambda position: prior, replicate)
        low, high = np.quantile(found.draws(_DRAWS, random), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
        inside.append(((low < truth) & (truth < high)).mean())
    return Covered(float(np.mean(inside)), float(np.std(inside)) / _REPLICATES**0.5)


def _answered(
    x: np.ndarray, y: np.ndarray, random: np.random.Generator, position: np.ndarray, step: Step
) -> tuple[np.ndarray, np.ndarray]:
    """The noised gradient and Hessian of a logistic regression of simulated rows."""
    mean = expit(x @ position)
    noise = step.of_hessian * symmetric_noise(random, len(position))[0]
    gradient = x.T @ (y - mean) + step.of_gradient * random.standard_normal(len(position))
    return gradient, (x * (mean * (1.0 - mean))[:, None]).T @ x + noise


@dataclass(frozen=True)
class Private(BySums):
    """Differential privacy for the rows of all agents, with intervals that include the noise.

    Two sums with noise: (epsilon, delta) bounds what they, and so the draws, reveal about any one row. Neighbours
    differ in one row that is replaced, so that numbers of rows are public. Only logistic regressions so far: from a
    formula with ranges, `accord.models.glm(..., ranges={...})`, or `accord.models.logistic_regression`.

    The noise is new in every run, whatever its seed. The guarantee holds for one run. Other runs on the same rows add
    to it, and so does everything else that depends on the rows, such as ranges or columns chosen after a look at them.
    Noise is drawn in double precision and rounded to 2^-16 of its sd.

    Parameters
    ----------
    epsilon, delta
        The guarantee, epsilon > 0 and 0 < delta < 1. A delta below 1 / number of rows is usual.
    ranges
        For `logistic_regression`, the lowest and the highest value of each column, by the names of the coefficients,
        from public knowledge and not from the rows. A column of ones has (1, 1). Rows beyond them count less.
    colluding
        Number of agents that may reveal their noise to others. The noise of the remaining agents hides a row alone.

    Raises
    ------
    ValueError
        A number is out of range. In a run: the posterior is not a logistic regression, a range is missing, or too few
        rows for intervals that cover.
    """

    epsilon: float
    delta: float = 1e-6
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    colluding: int = 1

    noisy = True

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("delta", self.delta)
        if not self.delta < 1.0:
            raise ValueError(f"delta must be below 1, found {self.delta!r}")
        whole_number("colluding", self.colluding, 0)
        if not isinstance(self.ranges, Mapping):
            raise TypeError(f"ranges must be a dict of pairs by name, found {type(self.ranges).__name__}")
        for name, pair in self.ranges.items():
            found = np.asarray(pair)
            numbers = found.shape == (2,) and found.dtype.kind in "biuf"
            # the width must be finite too
            if not (numbers and 0.0 <= float(found[1]) - float(found[0]) < np.inf):
                raise ValueError(f"ranges: {name} needs a lowest and a highest value, found {pair!r}")

    def doubles(self, dim: int) -> int:
        """Numbers per draw: position in both coordinates and as a draw, two densities, weight and index."""
        return 3 * dim + 4

    def title(self, job: Job) -> str:
        """Title of the progress line."""
        return f"Private, epsilon {self.epsilon:g}"

    def check(self, job: Job, engine: Builder) -> None:
        """Raise `ValueError` if the run is impossible, without reading data."""
        super().check(job, engine)
        self.require(job.post)
        if not hasattr(engine, "coarse") or (is_whole(engine) and not is_coarse(engine)):
            raise ValueError('Private() needs engine="local" or a study: other engines add no noise')
        self._budget(job.post.num_agents, masks=job.masks)

    def require(self, post: Posterior) -> None:
        """Raise `ValueError` if this method cannot sample a posterior, without reading data."""
        predictive = post.info.predictive
        # a formula's model follows the rows otherwise: its default priors, levels, means and standard deviations
        declared = isinstance(post, Regression) and bool(post.ranges)
        family = post.family if isinstance(post, Regression) and declared else getattr(predictive, "family", None)
        if not (declared or isinstance(predictive, PairsPredictive)) or not isinstance(family, Bernoulli):
            raise ValueError(
                "Private() needs a logistic regression that depends on no row: accord.models.logistic_regression, or "
                f"a formula with ranges, glm(..., ranges={{...}}), found {post.info.model or 'another model'}"
            )
        self._place(post)

    def likely(self, post: Posterior, *, masks: bool) -> Covered:
        """The simulated coverage for the posterior's numbers of rows and parameters, without reading data."""
        potential = post.potential.within(self._place(post))
        precision = _gaussian(
            jax.grad(potential.log_prior_at), jax.hessian(potential.log_prior_at), np.zeros(post.dim)
        )[1]
        budget = self._budget(post.num_agents, masks=masks)
        return _likely(budget, _rows(post), tuple(map(tuple, precision.tolist())))

    def too_few(self, post: Posterior, likely: Covered) -> str:
        """The reason to refuse a posterior for its simulated coverage."""
        return (
            f"Private(epsilon={self.epsilon:g}, delta={self.delta:g}) with {_rows(post):,} rows and {post.dim} "
            f"parameters: simulated intervals of 90% cover the parameters {likely.share:.0%} of the time only. Use "
            "more rows, a larger epsilon or fewer columns"
        )

    def _budget(self, agents: int, *, masks: bool) -> Budget:
        if agents > 2 and not masks:
            raise ValueError(
                "Private() needs masks for three or more agents, which hide what one agent sends: pass "
                "engine=accord.engines.Local(masks=True)"
            )
        # without masks each agent adds all of the noise
        shares = max(1, agents - self.colluding) if masks else 1
        return Budget(strength(self.epsilon, self.delta), (agents / shares) ** 0.5)

    def _place(self, post: Posterior) -> Coordinates:
        """Coordinates in which every column lies between -1 and 1."""
        names, ranges = post.names, self.ranges
        if isinstance(post, Regression) and post.ranges:
            if ranges:
                raise ValueError("a formula with ranges needs none in Private()")
            ranges = post.ranges
        for name in ranges:
            if name not in names:
                raise unknown_name_error("coefficient in ranges", name, names)
        if missing := [name for name in names if name not in ranges]:
            raise ValueError(
                f"ranges has no entry for {', '.join(missing)}: the lowest and the highest value of the column, from "
                "public knowledge"
            )
        low, high = np.array([ranges[name] for name in names], np.float64).T
        constant = np.flatnonzero((low == high) & (low != 0.0))
        if constant.size == 0:
            raise ValueError("Private() needs an intercept: a column of ones, with the range (1, 1)")
        middle, half = (low + high) / 2.0, np.where(high > low, (high - low) / 2.0, 1.0)
        first = constant[0]
        half[first] = low[first]
        factor = np.diag(1.0 / half)
        # the constant column takes up the middles of all others
        factor[first] -= np.where(np.arange(post.dim) == first, 0.0, middle / half / half[first])
        # the constant column comes first
        return Coordinates(np.zeros(post.dim), factor[:, np.argsort(np.arange(post.dim) != first, kind="stable")])

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Draws of the posterior given two noised sums."""
        job = session.job
        post, place, budget = job.post, self._place(job.post), self._budget(job.post.num_agents, masks=job.masks)
        rows, dim, potential = _rows(post), post.dim, post.potential.within(place)
        log_prior = jax.jit(potential.log_prior_at)
        gaussian = partial(_gaussian, jax.jit(jax.grad(potential.log_prior_at)), jax.jit(jax.hessian(log_prior)))
        session.stage("simulating the coverage")
        likely = self.likely(post, masks=job.masks)
        if not likely.is_enough:
            raise ValueError(f"{self.too_few(post, likely)}. Nothing was released")
        session.stage("summing with noise")

        def answer(position: np.ndarray, step: Step) -> tuple[np.ndarray, np.ndarray]:
            (numbers,) = session.totals(
                clipped_newton,
                np.float64(step.radius),
                np.float64(step.weight),
                points=position[None],
                at_once=1,
                coordinates=place,
                gradients=1 + dim,
                coder=_coder(post.num_agents, step, dim),
            )
            return numbers[:dim], unpacked(numbers[dim:], dim)

        releases, found = budget.released(dim, answer, gaussian, job.seed)
        random = generator(job.seed, "private")
        z = found.draws(int(np.ceil(job.target * _SPARE)), random)
        mean, precision = gaussian(found.centre)
        correction = np.asarray(jax.vmap(log_prior)(z)) + 0.5 * np.einsum("ka,ab,kb->k", z - mean, precision, z - mean)
        positions = place.origin + z @ place.factor.T
        # both densities relative to the mixture
        points = Points(positions, correction, np.zeros(len(z)), positions)
        session.stage("simulating the coverage again")
        # at the first position every row has the weight 1/4
        columns = _gaussian_columns(4.0 * releases[0].hessian / rows)
        after = coverage(budget, rows, precision, lambda random: z[random.integers(len(z))], columns)
        factor = place.factor
        noised, exact = (factor @ cov @ factor.T for cov in (found.spread, _without_noise(releases[-1], precision)))
        wider = np.sqrt(np.diagonal(noised) / np.diagonal(exact))
        steps = [{"gradient": float(one.of_gradient), "hessian": float(one.of_hessian)} for one in releases]
        return Result(
            self,
            positions[points.chains(job.chains, job.draws, job.seed)],
            {},
            Certificate((_effective(points, job.target), _covers(after), _straight(found))),
            settings={
                "private": {
                    "epsilon": self.epsilon,
                    "delta": self.delta,
                    "colluding": self.colluding,
                    "coverage": round(after.share, 3),
                    "noise": steps,
                    "wider": dict(zip(post.names, wider.round(3).tolist(), strict=True)),
                }
            },
        )

    def forecast(self, session: Session) -> SumsForecast:
        """The cost of the two sums. The certificate is expected to hold if simulated intervals cover."""
        job, dim = session.job, session.job.post.dim
        rows, likely = job.post.sizes, self.likely(job.post, masks=job.masks)
        count = len(_SHARES)
        spent = total_traffic(job.network, count * (dim + dim * (dim + 1) // 2), count)
        spent += Traffic(gradient_rows=count * (1 + dim) * rows)
        doubt = "" if likely.is_enough else f"simulated intervals of 90% cover {likely.share:.0%} of the time"
        return SumsForecast(self, Cost.of(spent), "two sums", doubt)


def _rows(post: Posterior) -> int:
    """Rows of all agents, which are public."""
    return sum(post.agreed.rows) if isinstance(post, Regression) else int(post.sizes.sum())


@cache
def _likely(budget: Budget, rows: int, of_prior: tuple[tuple[float, ...], ...]) -> Covered:
    """Simulated coverage for columns and parameters of usual size, or smaller ones if the prior is narrow."""
    precision = np.array(of_prior)
    dim = len(precision)
    # a linear predictor of sd 1 at most
    root = np.linalg.inv(np.linalg.cholesky(precision + (1.0 + (dim - 1) / 3.0) * np.eye(dim)))

    def columns(random: np.random.Generator, count: int) -> np.ndarray:
        return np.column_stack([np.ones(count), random.uniform(-1.0, 1.0, (count, dim - 1))])

    return coverage(budget, rows, precision, lambda random: random.standard_normal(dim) @ root, columns)


def _gaussian_columns(moments: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Draws Gaussian columns, clipped to -1 and 1, from their noised second moments with a constant first column."""
    mean = np.clip(moments[0, 1:], -1.0, 1.0)
    values, vectors = np.linalg.eigh(moments[1:, 1:] - np.outer(mean, mean))
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def columns(random: np.random.Generator, count: int) -> np.ndarray:
        normal = mean + random.standard_normal((count, len(mean))) @ root.T
        return np.column_stack([np.ones(count), np.clip(normal, -1.0, 1.0)])

    return columns


def _coder(num_agents: int, step: Step, size: int) -> Coder:
    """The coder of an agent's share of a noised sum."""
    upper = np.triu_indices(size)
    off = np.where(upper[0] == upper[1], 1.0, 2.0**-0.5)
    noise = np.concatenate([np.full(size, step.of_gradient), step.of_hessian * off]) / num_agents**0.5
    count, no = noise.size, np.zeros(noise.size, bool)
    grid = noise * _GRID
    width = np.full(count, _WIDTH)
    return Coder(num_agents, np.zeros(count, int), noise, grid, width, np.zeros(count), no, no, np.full(count, np.inf))


def _gaussian(
    gradient: Callable[[np.ndarray], Array], hessian: Callable[[np.ndarray], Array], position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of a Gaussian that has the derivatives of a log prior at a position."""
    precision = raised(-np.asarray(hessian(position)), _FLAT)
    return position + np.linalg.solve(precision, np.asarray(gradient(position))), precision


def _without_noise(release: Release, precision: np.ndarray) -> np.ndarray:
    """The posterior's covariance if the sums had no noise."""
    return np.linalg.inv(raised(release.hessian, 0.0) + precision)


def _effective(points: Points, target: int) -> Check:
    """Whether enough draws remain after the Gaussian prior is replaced by the prior."""
    found, allowed = points.effective, _LEAST * target
    holds = found >= allowed
    text = f"{found:,.0f} effective draws from {points.weight.size:,} points (at least {allowed:,.0f} needed)"
    remedy = "" if holds else ": the prior is far from a Gaussian where the data has little information"
    return Check("effective draws", found, allowed, holds, text + remedy)


def _straight(found: Components) -> Check:
    """Whether the correction for curvature, which is computed for artificial columns, is small."""
    holds = found.bent <= _BENT
    text = f"correction for curvature of at most {found.bent:.2g} standard deviations (limit {_BENT:g})"
    remedy = "" if holds else ": the last position was far off, because effects are strong or responses rare"
    return Check("curvature", found.bent, _BENT, holds, text + remedy)


def _covers(found: Covered) -> Check:
    """Whether simulated intervals cover."""
    text = (
        f"intervals of 90% cover {found.share:.1%} +- {found.error:.1%} of the time in simulated studies like this "
        f"one (at least {_COVERAGE:.0%})"
    )
    remedy = "" if found.is_enough else ": use more rows or a larger epsilon"
    return Check("coverage", found.share, _COVERAGE, found.is_enough, text + remedy)
