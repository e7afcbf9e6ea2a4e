"""The posterior that a formula is made into: its likelihood, its prior, and what it says about itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from ..base.pytree import pytree
from ..posterior import Posterior
from .families import Family
from .priors import Prior, stacked

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

    def __repr__(self) -> str:
        width = max(map(len, self._priors), default=0)
        lines = [f"{name:<{width}}  {_short(prior)}" for name, prior in self._priors.items()]
        return "\n".join([*lines, self._note] if self._note else lines)


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
    """

    def __init__(self, *arguments: Any, formula: str, family: Family, priors: Priors, **options: Any) -> None:
        self.formula, self.family, self.priors = formula, family, priors
        super().__init__(*arguments, **options)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The log likelihood of a family: one number a row, or one a site."""

    family: Family

    def __call__(self, params: dict[str, Array], rows: dict[str, Array]) -> Array:
        """The log density of the rows' responses, times their weights."""
        each = self.family.log_density(params, predictor(self.family, params, rows), rows)
        return each * rows["weight"] if "weight" in rows else each


def predictor(family: Family, params: dict[str, Array], rows: dict[str, Array]) -> Array:
    """The linear predictor of each row, shape (row,) or (row, predictor)."""
    design = rows["design"]
    if COEFFICIENTS in params:
        eta = design @ params[COEFFICIENTS]
    else:
        eta = jnp.zeros((design.shape[0], *(len(family.predictors),) * bool(family.predictors)), design.dtype)
    return eta + rows["offset"] if "offset" in rows else eta


@pytree
class LogPrior:
    """The log prior: of coefficients class by class, and of the other parameters one by one.

    Parameters
    ----------
    centre
        Means of the columns, shape (column,); 0 for the intercept.
    is_intercept
        1 for the column of the intercept, which has its prior at the centre; else 0. Shape (column,).
    coefficients
        Priors of one class each, stacked, with the places of what they are priors of among the flat coefficients.
    others
        By name, the prior and how its value at the centre follows: plus so many times what the coefficients add there.
    """

    centre: np.ndarray
    is_intercept: np.ndarray
    coefficients: tuple[tuple[np.ndarray, Prior], ...]
    others: dict[str, tuple[Prior, float]]

    def __call__(self, params: dict[str, Array]) -> Array:
        """The sum of all log densities."""
        total, shift = jnp.zeros(()), None
        if COEFFICIENTS in params:
            own = params[COEFFICIENTS]
            shift = self.centre @ own
            at_centre = jnp.ravel(own + jnp.multiply.outer(self.is_intercept, shift))
            for places, prior in self.coefficients:
                total = total + jnp.sum(prior.log_density(at_centre[places]))
        for name, (prior, sign) in self.others.items():
            value = params[name] if shift is None else params[name] + sign * shift
            total = total + jnp.sum(prior.log_density(value))
        return total


def by_class(priors: list[Prior]) -> tuple[tuple[np.ndarray, Prior], ...]:
    """Priors of the flat coefficients, those of one class together."""
    places: dict[type[Prior], list[int]] = {}
    for place, prior in enumerate(priors):
        places.setdefault(type(prior), []).append(place)
    return tuple((np.array(own), stacked([priors[place] for place in own])) for own in places.values())


def callable_tree(value: Any) -> Partial:
    """A callable pytree as one that JAX takes for a function."""
    return Partial(_call, value)


def _call(value: Any, params: dict[str, Array]) -> Array:
    return value(params)


def _short(prior: Prior) -> str:
    numbers = ", ".join(f"{name}={value:.3g}" for name, value in vars(prior).items())
    return f"{type(prior).__name__}({numbers})"
