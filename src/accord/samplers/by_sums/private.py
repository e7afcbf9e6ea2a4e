"""Differential privacy: a few sums with noise, and a posterior whose intervals take the noise into account.

Each step is one message of each agent with sums over its rows, in coordinates in which every column lies between -1
and 1. Each row's contribution is clipped to a norm, so that one row changes a sum by a known amount at most, and
Gaussian noise hides this change. Rows are neighbours if one is replaced. `private_logistic.py`,
`private_linear.py` and `private_families.py` have the sums and the posterior given them.

All releases together are one Gaussian mechanism, so (epsilon, delta) is exact (Dong, Roth and Su 2022, Balle and Wang
2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array

from ...base.checks import positive, whole_number
from ...base.counters import generator
from ...base.errors import unknown_name_error
from ...models.families import Bernoulli, Family, Normal, Poisson, Student
from ...models.predictive import PairsPredictive
from ...models.regression import Regression
from ...posterior import Posterior
from ...posterior.coarse import Coder
from ...posterior.coordinates import Coordinates
from ...results.certificate import Certificate, Check
from ...results.points import Points
from ...results.traffic import Cost, Traffic
from ..costs import total_traffic
from ..engine import Builder, is_coarse, is_whole
from ..session import Job, Session
from .evaluations import raised
from .method import BySums, Result, SumsForecast
from .private_families import OTHERS, FamilyScores
from .private_linear import Linear
from .private_logistic import Logistic
from .private_model import (
    COVERAGE,
    WIDEST,
    Budget,
    Covered,
    PrivateModel,
    Release,
    Step,
    coverage,
    likely,
    similar_columns,
    spent,
    strength,
)
from .start import Start

__all__ = ["Covered", "Private", "spent", "strength"]

# Grid of released numbers, relative to the sd of their noise.
_GRID = 2.0**-16
# Bytes of a released number.
_WIDTH = 6
# Least curvature of a prior.
_FLAT = 1e-6
# Points for each draw, and least share of effective draws.
_SPARE, _LEAST = 1.1, 0.5
# Limits of the guarantee.
_LEAST_EPSILON, _MOST_EPSILON, _LEAST_DELTA, _MOST_DELTA = 1e-4, 1e8, 1e-12, 0.01
# Least share of rows that count, and sd of a column in units of half its range.
COUNTED, _NARROWEST = 0.9, 0.12
# Sds of noise by which too few rows may seem to count, and by which the sd of a column must be above its limit.
_SURE, _BEYOND = 2.0, 1.0
# Variance of a column, relative to two values at the ends of its range with the same mean: the largest one, and the
# largest one of a made-up column that is no factor. A uniform column has 1/3.
_ENDS, _EVEN = 0.75, 0.4
# Name of the response in ranges.
_RESPONSE = "y"


@dataclass(frozen=True)
class Private(BySums):
    """Differential privacy for the rows of all agents, with intervals that include the noise.

    Two or three sums with noise: (epsilon, delta) bounds what they, and so the draws, reveal about any one row.
    Neighbours differ in one row that is replaced, so that numbers of rows are public. It samples logistic regressions,
    linear ones with an unknown residual sd, and Poisson regressions with a log link: from a formula with ranges,
    `accord.models.glm(..., ranges={...})`, or from `accord.models.logistic_regression`, `linear_regression` and
    `poisson_regression`. From a formula with ranges, it also samples the families gamma, negative_binomial, beta and
    `accord.models.families.Student(nu=...)`.

    The noise is new in every run, whatever its seed. The guarantee holds for one run. Other runs on the same rows add
    to it, and so does everything else that depends on the rows, such as ranges or columns chosen after a look at them.
    Noise is drawn in double precision and rounded to 2^-16 of its sd.

    Parameters
    ----------
    epsilon, delta
        The guarantee, epsilon > 0 and 0 < delta < 1. A delta below 1 / number of rows is usual.
    ranges
        For models without a formula, the lowest and the highest value of each column, by the names of the
        coefficients, from public knowledge and not from the rows. A column of ones has (1, 1). A linear or Poisson
        regression also needs the range of its response, under "y". Values beyond a range count as its end, or less in
        a logistic regression.
    colluding
        Number of agents that may reveal their noise to others, at most all but one. The noise of the remaining agents
        hides a row alone.

    Raises
    ------
    ValueError
        A number is out of range. In a run: the posterior is another model, a range is missing, or too few rows for
        intervals that cover.
    """

    epsilon: float
    delta: float = 1e-6
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    colluding: int = 1

    noisy = True

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("delta", self.delta)
        for name, low, high in (("epsilon", _LEAST_EPSILON, _MOST_EPSILON), ("delta", _LEAST_DELTA, _MOST_DELTA)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low:g} and {high:g}, found {getattr(self, name)!r}")
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
        self._place(post)
        most = max(1, post.num_agents - 1)
        if self.colluding > most:
            raise ValueError(
                f"colluding must be at most {most}, the number of all other agents or sites, found {self.colluding}"
            )

    def likely(self, post: Posterior, *, masks: bool) -> Covered:
        """The simulated coverage for the posterior's numbers of rows and parameters, without reading data.

        Columns are uniform. With a formula they are its terms for uniform cells.
        """
        potential = post.potential.within(self._place(post))
        precision = _gaussian(
            jax.grad(potential.log_prior_at), jax.hessian(potential.log_prior_at), np.zeros(post.dim)
        )[1]
        budget = self._budget(post.num_agents, masks=masks)
        of_prior, columns = tuple(map(tuple, precision.tolist())), self._made_up(post)
        made_up = None if columns is None else columns.tobytes()
        return likely(self._with_levels(post, columns), budget, _rows(post), of_prior, made_up)

    def _with_levels(self, post: Posterior, made_up: np.ndarray | None) -> Logistic | Linear | FamilyScores:
        """The model of a posterior, with the columns that have two values in all rows that are made up."""
        found = list[tuple[int, float, float]]()
        for number, column in enumerate([] if made_up is None else made_up.T):
            values = np.unique(column.round(12))
            if len(values) == 2:
                found.append((number, float(values[0]), float(values[1])))
        return replace(self._model(post), levels=tuple(found))

    def _made_up(self, post: Posterior) -> np.ndarray | None:
        """Columns of rows that are made up in declared ranges, between -1 and 1, the first one constant."""
        if not isinstance(post, Regression) or post.made_up is None:
            return None
        count = self._model(post).columns(post.dim)
        columns = post.made_up @ self._place(post).factor[:count, :count]
        # columns of a linear regression are in units of the response
        return np.ascontiguousarray(columns / columns[0, 0])

    def too_few(self, post: Posterior, found: Covered) -> str:
        """The reason to refuse a posterior for its simulated intervals; empty if there is none."""
        if found.is_enough and found.is_narrow:
            return ""
        why = f"cover the parameters {found.share:.0%} of the time only"
        if found.is_enough:
            why = f"are {found.width} (at most {WIDEST:g} times are allowed), so the result would follow the prior"
        return (
            f"Private(epsilon={self.epsilon:g}, delta={self.delta:g}) with {_rows(post):,} rows and {post.dim} "
            f"parameters: simulated intervals of 90% {why}. Use more rows, a larger epsilon or fewer columns"
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

    def _model(self, post: Posterior) -> Logistic | Linear | FamilyScores:
        """The model of a posterior."""
        predictive = post.info.predictive
        of_pairs = predictive if isinstance(predictive, PairsPredictive) else None
        # a formula's model follows the rows otherwise: its default priors, levels, means and standard deviations
        formula = post if isinstance(post, Regression) and post.ranges else None
        family = formula.family if formula else of_pairs and of_pairs.family
        if isinstance(family, Bernoulli):
            return Logistic()
        if isinstance(family, Poisson):
            return _of_family(family, (formula.ranges if formula else self.ranges).get(_RESPONSE))
        if isinstance(family, Normal):
            if of_pairs and of_pairs.noise_scale is not None:
                raise ValueError(
                    "Private() needs a linear regression with an unknown residual sd: leave noise_scale out"
                )
            return Linear(all_count=not formula)
        if formula and formula.family.name in OTHERS:
            return _of_family(formula.family, formula.ranges[_RESPONSE])
        raise ValueError(
            "Private() needs a regression that depends on no row: a formula with ranges, glm(..., ranges={...}), of "
            f"the family bernoulli, normal, poisson, {', '.join(OTHERS)}, or accord.models.logistic_regression, "
            "linear_regression or poisson_regression. For other models, sums of clipped rows have an unknown bias. "
            f"Found {post.info.model or 'another model'}"
        )

    def _ranges(self, post: Posterior) -> Mapping[str, tuple[float, float]]:
        """The declared range of each coefficient's column and of the response."""
        return post.ranges if isinstance(post, Regression) and post.ranges else self.ranges

    def _place(self, post: Posterior) -> Coordinates:
        """Coordinates in which every column lies between -1 and 1."""
        model, ranges = self._model(post), self._ranges(post)
        is_linear = isinstance(model, Linear)
        has_response = is_linear or isinstance(model, FamilyScores)
        if isinstance(post, Regression) and post.ranges:
            if self.ranges:
                raise ValueError("a formula with ranges needs none in Private()")
            ranges = ranges if has_response else {name: ranges[name] for name in post.names}
        names = post.names[: model.columns(post.dim)]
        response = (_RESPONSE,) * has_response
        if set(response) & set(names):
            raise ValueError('Private() needs another name for the coefficient y: ranges has the response under "y"')
        for name in ranges:
            if name not in names + response:
                raise unknown_name_error("coefficient in ranges", name, names + response)
        if missing := [name for name in names + response if name not in ranges]:
            raise ValueError(
                f"ranges has no entry for {', '.join(missing)}: the lowest and the highest value of the column, from "
                "public knowledge"
            )
        low, high = np.array([ranges[name] for name in names], np.float64).T
        constant = np.flatnonzero((low == high) & (low != 0.0))
        if constant.size == 0:
            raise ValueError(
                "Private() needs an intercept: remove 0 + from the formula. For arrays, a column of ones with the "
                "range (1, 1)"
            )
        middle, half = (low + high) / 2.0, np.where(high > low, (high - low) / 2.0, 1.0)
        first, columns = constant[0], np.arange(len(names))
        half[first] = low[first]
        factor = np.diag(1.0 / half)
        # the constant column takes up the middles of all others
        factor[first] -= np.where(columns == first, 0.0, middle / half / half[first])
        # the constant column comes first
        factor = factor[:, np.argsort(columns != first, kind="stable")]
        if isinstance(model, FamilyScores):
            (middle, unit, *other), own = model.origin, np.eye(post.dim - len(names))
            return Coordinates(np.append(factor[:, 0] * middle, other), scipy.linalg.block_diag(unit * factor, own))
        if not is_linear:
            return Coordinates(np.zeros(post.dim), factor)
        low, high = np.array(ranges[_RESPONSE], np.float64)
        if low == high:
            raise ValueError(f"ranges: y, the response, needs a lowest and a highest value, found {(low, high)}")
        # the constant column takes up the middle of the response
        origin = np.append(factor[:, 0] * (low + high) / 2.0, np.log((high - low) / 2.0))
        return Coordinates(origin, scipy.linalg.block_diag((high - low) / 2.0 * factor, 1.0))

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """Draws of the posterior given the noised sums."""
        job, made_up = session.job, self._made_up(session.job.post)
        model = self._with_levels(job.post, made_up)
        post, place, budget = job.post, self._place(job.post), self._budget(job.post.num_agents, masks=job.masks)
        rows, dim, potential = _rows(post), post.dim, post.potential.within(place)
        log_prior = jax.jit(potential.log_prior_at)
        gaussian = partial(_gaussian, jax.jit(jax.grad(potential.log_prior_at)), jax.jit(jax.hessian(log_prior)))
        session.stage("simulating the coverage")
        if self.delta * rows >= 1.0:
            raise ValueError(f"delta must be below 1 / number of rows, found {self.delta:g} and {rows:,} rows")
        before = self.likely(post, masks=job.masks)
        if why := self.too_few(post, before):
            raise ValueError(f"{why}. Nothing was released")
        session.stage("summing with noise")

        def answer(position: np.ndarray, step: Step) -> np.ndarray:
            function, arguments, options = model.message(place, step)
            coder = _coder(post.num_agents, step.noise(dim))
            (numbers,) = session.totals(function, *arguments, points=position[None], at_once=1, coder=coder, **options)
            return np.asarray(numbers)

        releases, found = budget.released(model, dim, rows, answer, gaussian, job.seed)
        random = generator(job.seed, "private")
        z = found.draws(int(np.ceil(job.target * _SPARE)), random)
        mean, precision = gaussian(found.centre)
        correction = np.asarray(jax.vmap(log_prior)(z)) + 0.5 * np.einsum("ka,ab,kb->k", z - mean, precision, z - mean)
        positions = place.origin + z @ place.factor.T
        # both densities relative to the mixture
        points = Points(positions, correction, np.zeros(len(z)), positions)
        session.stage("simulating the coverage again")
        columns = similar_columns(model.moments(releases[0], rows), model.levels)
        prior = mean, precision
        after = coverage(model, budget, rows, prior, lambda random: z[random.integers(len(z))], columns)
        factor = place.factor
        exact = model.without_noise(releases, found, precision, rows)
        noised, exact = (factor @ cov @ factor.T for cov in (found.spread, exact))
        wider = np.sqrt(np.diagonal(noised) / np.diagonal(exact))
        steps = [one.sds for one in releases]
        return Result(
            self,
            positions[points.chains(job.chains, job.draws, job.seed)],
            {},
            Certificate(
                (
                    _effective(points, job.target),
                    _covers(after),
                    *_columns_as_declared(model, releases[0], rows, _other_columns(place, post.names), made_up),
                    *model.checks(found, releases, rows),
                )
            ),
            settings={
                "private": {
                    "epsilon": self.epsilon,
                    "delta": self.delta,
                    "colluding": self.colluding,
                    "coverage": round(after.share, 3),
                    "expected": round(before.wider, 2),
                    "noise": steps,
                    "wider": dict(zip(post.names, wider.round(3).tolist(), strict=True)),
                    "ranges": {name: list(map(float, pair)) for name, pair in self._ranges(post).items()},
                }
            },
        )

    def forecast(self, session: Session) -> SumsForecast:
        """The cost of the sums. The certificate is expected to hold if simulated intervals cover."""
        job, dim = session.job, session.job.post.dim
        model, rows, covered = self._model(job.post), job.post.sizes, self.likely(job.post, masks=job.masks)
        count, step = len(model.shares), model.step(model.start(dim), 1.0, ())
        cost = total_traffic(job.network, count * step.noise(dim).size, count)
        cost += Traffic(gradient_rows=count * model.message(self._place(job.post), step)[2]["gradients"] * rows)
        return SumsForecast(self, Cost.of(cost), f"{count} sums", self.too_few(job.post, covered))


def _rows(post: Posterior) -> int:
    """Rows of all agents, which are public."""
    return sum(post.agreed.rows) if isinstance(post, Regression) else int(post.sizes.sum())


def _of_family(family: Family, ends: tuple[float, float] | None) -> FamilyScores:
    """The regression of a family for a response with this declared range."""
    if ends is None:
        raise ValueError("ranges has no entry for y: the lowest and the highest count, from public knowledge")
    low, high = map(float, ends)
    if isinstance(family, Poisson) and not 0.0 <= low < high:
        raise ValueError(f"ranges: y, the response, needs a lowest and a higher count, 0 or more, found {(low, high)}")
    if isinstance(family, Student) and family.nu is None:
        raise ValueError(
            "Private() needs known degrees of freedom: pass the family accord.models.families.Student(nu=4.0). A "
            "study document has no key for them"
        )
    return FamilyScores(family, (low, high))


def _coder(num_agents: int, noise: np.ndarray) -> Coder:
    """The coder of an agent's share of a noised sum, for the sds of all agents' noise together."""
    noise = noise / num_agents**0.5
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


def _other_columns(place: Coordinates, names: Sequence[str]) -> list[str]:
    """The names of the coefficients of all columns but the constant one, which comes first in these coordinates."""
    constant = int(np.flatnonzero(place.factor[:, 0])[0])
    return [name for k, name in enumerate(names) if k != constant]


def _columns_as_declared(
    model: PrivateModel, first: Release, rows: int, names: Sequence[str], made_up: np.ndarray | None = None
) -> tuple[Check, ...]:
    """Whether rows count, and whether columns fill their ranges, by the first release's noised moments."""
    moments = model.moments(first, rows)
    noise = float(model.moments(first._replace(hessian=np.full_like(first.hessian, first.step.of_hessian)), rows)[0, 0])
    share = float(moments[0, 0])
    counted = share + _SURE * noise >= COUNTED
    text = f"about {min(share, 1.0):.0%} of the rows count (at least {COUNTED:.0%})"
    remedy = (
        "" if counted else ": cells of the others do not fit into the ranges. The owner of the rows can look them up"
    )
    moments = moments / max(share, COUNTED / 2.0)
    mean, square = moments[0, 1:], np.diagonal(moments)[1:]
    # sd of the noise in a variance: of the mean square, of the mean, and of the share of rows
    parts = np.sqrt(1.0 + 2.0 * mean**2 + (2.0 * mean**2 - square) ** 2)
    sds = np.sqrt(np.maximum(square - mean**2 - _BEYOND * noise * parts, 0.0))
    narrowest = int(np.argmin(sds)) if sds.size else 0
    found = float(sds.min(initial=1.0))
    fills = found >= _NARROWEST
    shown = (
        f"the sd of {names[narrowest]} is at least about {found:.2g} of half its range" if sds.size else "no columns"
    )
    advice = ": declare a narrower range, take log(), or look at the unit" if not fills else ""
    checks = (
        Check("rows", share, COUNTED, counted, text + remedy),
        Check("columns", found, _NARROWEST, fills, f"{shown} (limit {_NARROWEST:g}){advice}"),
    )
    if made_up is None or not names:
        return checks
    own = made_up[:, 1:].mean(axis=0)
    is_even = made_up[:, 1:].var(axis=0) < _EVEN * (1.0 - own**2)
    # a least size, as noise may move the mean to an end
    two_values = np.maximum(1.0 - mean**2, 0.1)
    ratio = np.where(is_even, (square - mean**2 - _SURE * noise * parts) / two_values, 0.0)
    most, name = float(np.maximum(ratio, 0.0).max()), names[int(np.argmax(ratio))]
    text = f"the variance of {name} is at least about {most:.0%} of that of two values at the ends of its range"
    remedy = (
        ": declare a wider range. If the column has two values, declare them as levels, or 0 and 1 as whole numbers, "
        "(0, 1) in place of (0.0, 1.0)"
        if most > _ENDS
        else ""
    )
    return *checks, Check("ends", most, _ENDS, most <= _ENDS, f"{text} (limit {_ENDS:.0%}){remedy}")


def _effective(points: Points, target: int) -> Check:
    """Whether enough draws remain after the Gaussian prior is replaced by the prior."""
    found, allowed = points.effective, _LEAST * target
    holds = found >= allowed
    text = f"{found:,.0f} effective draws from {points.weight.size:,} points (at least {allowed:,.0f} needed)"
    remedy = "" if holds else ": the prior is far from a Gaussian where the data has little information"
    return Check("effective draws", found, allowed, holds, text + remedy)


def _covers(found: Covered) -> Check:
    """Whether simulated intervals cover."""
    text = (
        f"intervals of 90% cover {found.share:.1%} +- {found.error:.1%} of the time in simulated studies like this "
        f"one (at least {COVERAGE:.0%}, less two standard errors). They are {found.width}"
    )
    remedy = "" if found.is_enough else ". Use more rows or a larger epsilon"
    return Check("coverage", found.share, COVERAGE, found.is_enough, text + remedy)
