"""What a family of responses is: its domain, its parameters beside the coefficients, and its log density."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array

from ...data.collectives import SiteCollectives
from ..priors import Normal, Prior

# One site's rows as arrays by name; the first axis counts rows.
Rows = dict[str, np.ndarray]
Own = TypeVar("Own", bound="Family")


class Parameter(NamedTuple):
    """A parameter beside the coefficients: where to start, what values it may have, and its prior."""

    init: np.ndarray
    # one of NumPyro's constraints, or the name of one, or None where it is any number
    constraint: Any
    prior: Prior
    # its prior is that of its value at the mean of all columns: plus so many times what the coefficients add there
    sign: float = 0.0
    # names of its numbers, where it has several
    labels: tuple[str, ...] = ()

    def names(self, name: str) -> list[str]:
        """A name for each of its numbers."""
        return [f"{name}[{label}]" for label in self.labels] if self.labels else [name]


class Summary(NamedTuple):
    """What all sites agree on of a response: its mean (a total over a total) and its standard deviation.

    Where rows have an offset, responses that are alike may be explained by it.
    """

    mean: float
    sd: float
    has_offset: bool = False


@dataclasses.dataclass(frozen=True)
class Family(ABC):
    """A family of responses, as a value: two of the same numbers are equal, so that programs are compiled once."""

    name: ClassVar[str]
    # what the left side of a formula must give, by the names of its columns, and how it is written
    columns: ClassVar[tuple[str, ...]] = ("y",)
    left: ClassVar[str] = "a column"
    # what to do where the left side is something else; empty where `left` says it
    instead: ClassVar[str] = ""
    # cutpoints or a baseline stand where an intercept would
    has_intercept: ClassVar[bool] = True
    # the linear predictor is the log of a mean, so that an exposure adds its log
    is_log_linear: ClassVar[bool] = False
    # one number a row; False: rows of one site enter together
    splits: ClassVar[bool] = True
    # a column that tells rows that are `extreme` from all others has a coefficient without bound; False: only where it
    # is the same in all others
    separates: ClassVar[bool] = False
    # what exp(coefficient) is; empty where it is nothing
    ratio: ClassVar[str] = ""
    # responses are whole numbers
    is_whole: ClassVar[bool] = False
    # responses of rows can be drawn anew; times until an event, of which some are cut short, cannot
    replicates: ClassVar[bool] = False

    @abstractmethod
    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        """The response of one site as arrays of numbers.

        Parameters
        ----------
        where
            The left side of the formula and the site, for errors.
        columns
            Arrays of shape (row,), as many as the family's `columns`.

        Raises
        ------
        ValueError
            A response is outside the domain; values are not quoted.
        """

    @abstractmethod
    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        """The log density of each row's response given linear predictors, shape (row,), normalised."""

    @property
    def tells_classes(self) -> bool:
        """Whether sites have to tell the classes that their responses are of."""
        return False

    def settled(self: Own, meeting: SiteCollectives, responses: Sequence[Sequence[np.ndarray]]) -> Own:
        """The family with what the sites have to agree on before any number can be written down.

        `responses` has the columns of each site that is here.
        """
        return self

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        """Parameters beside the coefficients, by name, with priors that fit the scale of the data."""
        return {}

    def amounts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Two numbers a row, shape (row,); the sum of the first over that of the second is the mean of `Summary`."""
        y = rows["y"].astype(np.float64)
        return y, np.exp(rows["offset"]) if self.is_log_linear and "offset" in rows else np.ones(len(y))

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        """Responses drawn from the model given linear predictors, shape (row,), where it `replicates`."""
        raise NotImplementedError(f"responses of the family {self.name} cannot be drawn anew")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that responses are numbered by; empty where they are numbers."""
        return ()

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the linear predictors where there are several; one has no name."""
        return ()

    def start(self, summary: Summary) -> float:
        """The linear predictor of the mean response, to start from."""
        return 0.0

    def unit(self, summary: Summary) -> float:
        """A change of the linear predictor that is large and not absurd, of which default priors are multiples."""
        return 1.0

    def intercept_prior(self, summary: Summary) -> Prior:
        """The default prior of the linear predictor at the mean of all columns."""
        return Normal(self.start(summary), 2.5 * self.unit(summary))

    def extreme(self, rows: Rows) -> np.ndarray:
        """Rows whose response is as far as it can be, shape (row,): those that may pull a coefficient to infinity."""
        return np.zeros(len(rows["design"]), dtype=bool)

    def shard(self, rows: Rows, longest: int) -> Rows:
        """The rows of one site as they are kept; `longest` is the largest number of rows of a site."""
        return rows


class Positive(Family):
    """A family whose mean is exp(eta), a positive number in the units of the response."""

    is_log_linear = True

    def start(self, summary: Summary) -> float:
        if not summary.mean > 0:
            raise ValueError("the response is 0 in all rows of all sites: its log mean has no bound")
        return float(np.log(summary.mean))


def require(where: str, right: np.ndarray, what: str) -> None:
    """Raise `ValueError` where a response is not what it must be."""
    # how many would tell of few of them
    if not right.all():
        raise ValueError(f"some responses of {where} are not {what}")


def require_varied(summary: Summary) -> None:
    """Raise `ValueError` where all responses are the same: a scale or shape of what is left would have no bound."""
    # a mean is rounded, and so is what numbers that are alike differ from it by
    if summary.sd <= 1e-12 * abs(summary.mean) < np.inf and not summary.has_offset:
        raise ValueError("the response is the same number in all rows of all sites: there is nothing to explain")


def numbers(where: str, column: np.ndarray, what: str = "numbers") -> np.ndarray:
    """A column as finite numbers."""
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        # which cell is no number is told by what is caught here
        raise ValueError(f"the response of {where} must hold {what}, found text or categories") from None
    require(where, np.isfinite(values), "finite numbers")
    return values


def log_odds(mean: float) -> float:
    """The log odds of a mean, of one inside (0, 1) where all responses are the same."""
    inside = float(np.clip(mean, 1e-3, 1.0 - 1e-3))
    return float(np.log(inside) - np.log1p(-inside))
