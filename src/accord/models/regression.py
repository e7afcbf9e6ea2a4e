"""The posterior of a formula: likelihood, prior and description."""

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

# Name of the variable with all coefficients, shape (column,), or (column, predictor) for several predictors.
COEFFICIENTS = "coefficients"


class Priors(Mapping[str, Prior]):
    """The prior of each parameter by name, printed one line each."""

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
        """A sentence about the priors, or ""."""
        return self._note

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Pairs (name, prior as text)."""
        return tuple((name, _short(prior)) for name, prior in self._priors.items())

    def __repr__(self) -> str:
        width = max(map(len, self._priors), default=0)
        lines = [f"{name:<{width}}  {prior}" for name, prior in self.lines]
        return "\n".join([*lines, self._note] if self._note else lines)


@dataclasses.dataclass(frozen=True)
class RemoteRows:
    """A placeholder for the rows of a site outside this process."""

    site: str

    def __call__(self) -> Any:
        """Raise `DataError`."""
        raise DataError(f"the rows of {self.site} are not in this process")


class Regression(Posterior):
    """The posterior that `accord.models.glm` returns.

    Attributes
    ----------
    formula : str
        The formula.
    family : Family
        The family, with the classes or cuts of all sites.
    priors : Priors
        The prior of each parameter.
    agreed : Agreed
        The columns, levels and row counts that all sites share.
    lines : tuple of sequences of int
        For each site whose table was here, the lines of its rows in the file.
    ranges : dict
        With declared ranges, the lowest and the highest value of each column of the design, by the name of its
        coefficient, and of the response, by "y". Empty otherwise.
    made_up : array, optional
        With declared ranges, the design of rows that are made up in them, (row, column).
    """

    def __init__(
        self,
        *arguments: Any,
        formula: str,
        family: Family,
        priors: Priors,
        agreed: Agreed,
        info: ModelInfo,
        lines: tuple[Sequence[int], ...] = (),
        **options: Any,
    ) -> None:
        self.lines, self.ranges = lines, dict[str, tuple[float, float]]()
        self.made_up: np.ndarray | None = None
        self.formula, self.family, self.priors, self.agreed = formula, family, priors, agreed
        super().__init__(*arguments, **options)
        self.info = info

    def within(
        self, made_up: Mapping[str, np.ndarray], sites: Sequence[str], rows: Sequence[int], shards: Sequence[Any]
    ) -> Regression:
        """The same model with these sites, of which it knows the made-up rows and the numbers of rows only."""
        design, response = made_up["design"], made_up["y"]
        pairs = zip(design.min(axis=0).tolist(), design.max(axis=0).tolist(), strict=True)
        ranges = dict(zip(self.names, pairs, strict=False)) | {"y": (float(response.min()), float(response.max()))}
        agreed = dataclasses.replace(
            self.agreed, sites=tuple(sites), rows=tuple(rows), dropped=(0,) * len(rows), by_site=({},) * len(rows)
        )
        info = dataclasses.replace(self.info, sites=agreed.sites, rows=agreed.rows)
        sources = {place: shard for place, shard in enumerate(shards) if shard is not None}
        changes = {"num_agents": len(rows), "_sources": sources, "_checksums": {}, "lines": ()}
        found = self._with(**changes, ranges=ranges, made_up=design, agreed=agreed, info=info)
        assert isinstance(found, Regression)
        return found


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The log likelihood of a family, one value for each row or one for the site."""

    family: Family

    def __call__(self, params: dict[str, Array], rows: dict[str, Array]) -> Array:
        """The weighted log density of each row's response."""
        return weighted(self.family.log_density(params, predictor(self.family, params, rows), rows), rows)


def weighted(each: Array, rows: dict[str, Array]) -> Array:
    """Log densities of rows times their weights, if any."""
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


class OtherPrior(NamedTuple):
    """The prior of a parameter other than the coefficients."""

    name: str
    prior: Prior
    # the prior applies to value + sign * (linear predictor at the mean of all columns)
    sign: float
    # log of the number of orderings of an ordered vector, see `log_orders`
    log_orders: float


@dataclasses.dataclass(frozen=True)
class LogPrior:
    """The structure of a log prior, with coefficients grouped by the class of their priors.

    Hyperparameters are arguments, so that models of the same structure share compiled programs. `log_prior` binds them.

    Parameters
    ----------
    intercept
        The column of the intercept, or None. Its prior applies to the value at the mean of all columns.
    places
        Indices of the flat coefficients in each class of priors.
    signs
        Pairs (name, sign) of the other parameters, see `OtherPrior`.
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
        """The sum of all log densities, with one stacked prior for each class and one for each other parameter."""
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
            # families with several predictors have no other parameter with a sign
            value = params[name] + sign * shift if sign else params[name]
            total = total + jnp.sum(as_wide(prior, value.dtype).log_density(value)) + jnp.asarray(orders, value.dtype)
        return total


def log_prior(
    centre: Float[np.ndarray, " column"],
    intercept: int | None,
    coefficients: Sequence[Prior],
    others: Sequence[OtherPrior],
) -> Partial:
    """The log prior of the coefficients and of the other parameters.

    Parameters
    ----------
    centre
        Means of the columns.
    intercept
        The column of the intercept, or None.
    coefficients
        The prior of each flat coefficient.
    others
        The priors of the other parameters.
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
