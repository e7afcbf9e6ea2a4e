"""The base class of families: domain of the response, additional parameters, log density."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array

from ...data.collectives import SiteCollectives
from ..priors import Normal, Prior

# Arrays of one site by name, each with the axis of rows first.
Rows = dict[str, np.ndarray]
Own = TypeVar("Own", bound="Family")


class Parameter(NamedTuple):
    """A parameter other than the coefficients: initial value, constraint and prior."""

    init: np.ndarray
    # a constraint of NumPyro, or its name; None for unconstrained
    constraint: Any
    prior: Prior
    # the prior applies to value + sign * (linear predictor at the mean of all columns)
    sign: float = 0.0
    # names of the elements of an array; empty for a scalar
    labels: tuple[str, ...] = ()

    def names(self, name: str) -> list[str]:
        """A name for each element, where `name` is the name of the parameter."""
        return [f"{name}[{label}]" for label in self.labels] if self.labels else [name]


class Summary(NamedTuple):
    """Statistics of the response over all sites: mean (a ratio of totals), standard deviation, and use of an offset."""

    mean: float
    sd: float
    has_offset: bool = False


@dataclasses.dataclass(frozen=True)
class Family(ABC):
    """A family of responses. Families with equal options are equal, so that programs are compiled once."""

    name: ClassVar[str]
    # names of the arrays on the left side of a formula
    columns: ClassVar[tuple[str, ...]] = ("y",)
    # syntax of the left side, for messages
    left: ClassVar[str] = "a column"
    # hint for another left side; empty without one
    instead: ClassVar[str] = ""
    # False: cutpoints or a baseline replace the intercept
    has_intercept: ClassVar[bool] = True
    # the linear predictor is the log of a mean, so an exposure adds its log
    is_log_linear: ClassVar[bool] = False
    # the likelihood is a product over rows; False: one term for each site
    splits: ClassVar[bool] = True
    # any column that separates the `extreme` rows has an unbounded coefficient; False: only if it is constant in the
    # other rows
    separates: ClassVar[bool] = False
    # name of exp(coefficient); empty without one
    ratio: ClassVar[str] = ""
    # responses are integers
    is_whole: ClassVar[bool] = False
    # responses can be drawn from the model; False for censored times
    replicates: ClassVar[bool] = False

    @abstractmethod
    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        """The response of one site as numeric arrays.

        Parameters
        ----------
        where
            The left side of the formula and the site, for errors.
        columns
            One array of shape (row,) for each name in the family's `columns`.

        Raises
        ------
        ValueError
            A response is outside the domain. The message quotes no values.
        """

    @abstractmethod
    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        """The normalised log density of each row's response given the linear predictor `eta`, shape (row,)."""

    @property
    def gathers_classes(self) -> bool:
        """Whether `settled` gathers the classes of the response from all sites."""
        return False

    def settled(self: Own, meeting: SiteCollectives, responses: Sequence[Sequence[np.ndarray]]) -> Own:
        """A copy of the family with classes or cuts that all sites share.

        `responses` has the response columns of each site in this process.
        """
        return self

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        """Parameters other than the coefficients, by name, with default priors for the scale of the data."""
        return {}

    def amounts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of each row, shape (row,). The ratio of their sums is the mean of `Summary`."""
        y = rows["y"].astype(np.float64)
        return y, np.exp(rows["offset"]) if self.is_log_linear and "offset" in rows else np.ones(len(y))

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        """Responses drawn from the model given the linear predictor, shape (row,), if the family `replicates`."""
        raise NotImplementedError(f"responses of the family {self.name} cannot be drawn from the model")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a coded response; empty for numbers."""
        return ()

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the linear predictors; empty if there is only one."""
        return ()

    def start(self, summary: Summary) -> float:
        """The linear predictor of the mean response, the initial intercept."""
        return 0.0

    def unit(self, summary: Summary) -> float:
        """A large but plausible change of the linear predictor, the unit of default priors."""
        return 1.0

    def intercept_prior(self, summary: Summary) -> Prior:
        """The default prior of the linear predictor at the mean of all columns."""
        return Normal(self.start(summary), 2.5 * self.unit(summary))

    def extreme(self, rows: Rows) -> np.ndarray:
        """Mask of rows with an extreme response, shape (row,), which may make a coefficient unbounded."""
        return np.zeros(len(rows["design"]), dtype=bool)

    def shard(self, rows: Rows, longest: int) -> Rows:
        """The rows of one site in the form of a shard; `longest` is the largest number of rows of a site."""
        return rows


class Positive(Family):
    """A family with mean exp(eta), in the units of the response."""

    is_log_linear = True

    def start(self, summary: Summary) -> float:
        if not summary.mean > 0:
            raise ValueError("the response is 0 in all rows of all sites: its log mean has no bound")
        return float(np.log(summary.mean))


def require(where: str, right: np.ndarray, what: str) -> None:
    """Raise `ValueError` if `right` is False in some row."""
    # no number of rows in the message: a small count is private
    if not right.all():
        raise ValueError(f"some responses of {where} are not {what}")


def require_varied(summary: Summary) -> None:
    """Raise `ValueError` if all responses are equal, as the scale or shape of the residuals would be unbounded."""
    # equal numbers have a small nonzero sd from rounding
    if summary.sd <= 1e-12 * abs(summary.mean) < np.inf and not summary.has_offset:
        raise ValueError("the response is the same number in all rows of all sites: there is nothing to explain")


def numbers(where: str, column: np.ndarray, what: str = "numbers") -> np.ndarray:
    """A column as finite numbers."""
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        # the original error quotes a cell
        raise ValueError(f"the response of {where} must hold {what}, found text or categories") from None
    require(where, np.isfinite(values), "finite numbers")
    return values


def log_odds(mean: float) -> float:
    """The log odds of a mean, clipped to [0.001, 0.999]."""
    inside = float(np.clip(mean, 1e-3, 1.0 - 1e-3))
    return float(np.log(inside) - np.log1p(-inside))
