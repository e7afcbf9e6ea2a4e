"""The posterior that a formula is made into: its likelihood, its prior, and what it says about itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..base.errors import DataError
from ..base.linear import linear_predictor
from ..data import Agreed
from ..posterior import Posterior
from ..posterior.model_info import ModelInfo
from .families import Family
from .priors import Prior, as_wide, stacked

# The variable that holds all coefficients, shape (column,), or (column, predictor) where there are several.
COEFFICIENTS = "coefficients"


class Priors(Mapping[str, Prior]):
    """The prior of each parameter by name; printed, a line each."""

    def __init__(self, priors: Mapping[str, Prior], note: str) -> None:
        self._priors, self._note = dict(priors), note

    def __getitem__(self, name: str) -> Prior:
        return self._priors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._priors)

    def __len__(self) -> int:
        return len(self._priors)

    @property
    def note(self) -> str:
        """What holds of them besides; "" where nothing does."""
        return self._note

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each name and its prior as text."""
        return tuple((name, _short(prior)) for name, prior in self._priors.items())

    def __repr__(self) -> str:
        width = max(map(len, self._priors), default=0)
        lines = [f"{name:<{width}}  {prior}" for name, prior in self.lines]
        return "\n".join([*lines, self._note] if self._note else lines)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The rows of a site that are not in this process."""

    site: str

    def __call__(self) -> Any:
        """They cannot be read."""
        raise DataError(f"the rows of {self.site} are not here")


class Regression(Posterior):
    """A posterior that says what it was made of; made by `accord.models.glm`.

    Attributes
    ----------
    formula : str
        The formula.
    family : Family
        The family, with what the sites agreed on (classes, cut points).
    priors : Priors
        The prior of each parameter.
    agreed : Agreed
        What the sites agreed on.
    """

    def __init__(
        self,
        *arguments: Any,
        formula: str,
        family: Family,
        priors: Priors,
        agreed: Agreed,
        info: ModelInfo,
        **options: Any,
    ) -> None:
        self.formula, self.family, self.priors, self.agreed = formula, family, priors, agreed
        super().__init__(*arguments, **options)
        self.info = info


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The log likelihood of a family: one number a row, or one a site."""

    family: Family

    def __call__(self, params: dict[str, Array], rows: dict[str, Array]) -> Array:
        """The log density of the rows' responses, times their weights."""
        return weighted(self.family.log_density(params, predictor(self.family, params, rows), rows), rows)


def weighted(each: Array, rows: dict[str, Array]) -> Array:
    """Rows' log densities times their weights, where they have some."""
    return each * rows["weight"] if "weight" in rows else each


def predictor(family: Family, params: dict[str, Array], rows: dict[str, Array]) -> Array:
    """The linear predictor of each row, shape (row,) or (row, predictor)."""
    design = rows["design"]
    if COEFFICIENTS in params:
        coefficients = params[COEFFICIENTS]
        eta = linear_predictor(design, coefficients) if coefficients.ndim == 1 else design @ coefficients
    else:
        eta = jnp.zeros((design.shape[0], *(len(family.predictors),) * bool(family.predictors)), design.dtype)
    if "offset" not in rows:
        return eta
    return eta + (rows["offset"][:, None] if family.predictors else rows["offset"])


class Other(NamedTuple):
    """The prior of a parameter beside the coefficients, and what of it is said at the mean of all columns."""

    name: str
    prior: Prior
    # its value at the centre: plus so many times what the coefficients add there
    sign: float
    # the log of how many orders of its numbers count as one
    log_orders: float


@dataclasses.dataclass(frozen=True)
class LogPrior:
    """The form of a log prior: of all coefficients, those of one class of priors together, and of the others.

    Its numbers are arguments, so that models of one form share their programs; `log_prior` binds them.

    Parameters
    ----------
    intercept
        The place of the intercept among the columns, which has its prior at the centre; None: there is none.
    places
        Of each class of priors, the flat coefficients that have one of it.
    signs
        Names of the other parameters, and how many times what the coefficients add at the centre is added to each.
    """

    intercept: int | None
    places: tuple[tuple[int, ...], ...]
    signs: tuple[tuple[str, float], ...]

    def __call__(
        self,
        centre: Float[Array, " column"],
        coefficients: tuple[Prior, ...],
        others: tuple[Prior, ...],
        log_orders: Float[Array, " other"],
        params: dict[str, Array],
    ) -> Array | float:
        """The sum of all log densities; `coefficients` has an array of each class, `others` one of each parameter."""
        total: Array | float = 0.0
        shift: Array | float = 0.0
        if COEFFICIENTS in params:
            own = params[COEFFICIENTS]
            shift = jnp.asarray(centre, own.dtype) @ own
            at_centre = own
            if self.intercept is not None:
                here = np.arange(len(own)) == self.intercept
                at_centre = own + (jnp.outer(here, shift) if own.ndim > 1 else here * shift)
            flat = jnp.ravel(at_centre)
            for places, prior in zip(self.places, coefficients, strict=True):
                some = flat if len(places) == flat.size else flat[np.array(places)]
                total = total + jnp.sum(as_wide(prior, own.dtype).log_density(some))
        for (name, sign), prior, orders in zip(self.signs, others, log_orders, strict=True):
            # where there are several predictors, no other parameter is said at the centre
            value = params[name] + sign * shift if sign else params[name]
            total = total + jnp.sum(as_wide(prior, value.dtype).log_density(value)) + jnp.asarray(orders, value.dtype)
        return total


def log_prior(
    centre: Float[np.ndarray, " column"], intercept: int | None, coefficients: Sequence[Prior], others: Sequence[Other]
) -> Partial:
    """The log prior of coefficients, one prior each, and of other parameters.

    Parameters
    ----------
    centre
        Means of the columns.
    intercept
        The place of the intercept among the columns; None: there is none.
    coefficients
        The prior of each flat coefficient.
    others
        Those of the other parameters.
    """
    by_class: dict[type[Prior], list[int]] = {}
    for place, prior in enumerate(coefficients):
        by_class.setdefault(type(prior), []).append(place)
    return Partial(
        LogPrior(intercept, tuple(map(tuple, by_class.values())), tuple((other.name, other.sign) for other in others)),
        np.where(np.arange(len(centre)) == intercept, 0.0, centre),
        tuple(stacked([coefficients[place] for place in places]) for places in by_class.values()),
        tuple(other.prior for other in others),
        np.array([other.log_orders for other in others], np.float64),
    )


def _short(prior: Prior) -> str:
    numbers = ", ".join(f"{name}={value:.3g}" for name, value in vars(prior).items())
    return f"{type(prior).__name__}({numbers})"
