"""The parameters of a model from a formula: names, priors and initial values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from scipy.special import gammaln

from ..base.errors import unknown_name_error
from ..data import Study
from .families import Family
from .families.family import Parameter, Summary
from .priors import Flat, Normal, Prior, Uniform
from .regression import COEFFICIENTS
from .spelling import spelt


def names_of(columns: Sequence[str], family: Family) -> list[str]:
    """The names of the flat coefficients."""
    if not family.predictors:
        return list(columns)
    return [f"{column}|{predictor}" for column in columns for predictor in family.predictors]


def defaults_of(columns: Sequence[str], spread: np.ndarray, family: Family, summary: Summary) -> list[Prior]:
    """Default priors of the flat coefficients, scaled by the standard deviations of their columns."""
    found: list[Prior] = []
    for name, sd in zip(columns, spread, strict=True):
        if name == "Intercept":
            prior = family.intercept_prior(summary)
        else:
            # a constant column has no scale
            prior = Normal(0.0, 2.5 * family.unit(summary) / (sd if sd > 0 else 1.0))
        found += [prior] * max(len(family.predictors), 1)
    return found


class UserPriors:
    """The priors of the argument `priors`, by coefficient, column, term, or for all coefficients."""

    def __init__(
        self,
        priors: Mapping[str, Prior],
        terms: Mapping[str, slice],
        columns: Sequence[str],
        predictors: Sequence[str],
    ) -> None:
        for name, prior in priors.items():
            if not isinstance(prior, Prior):
                raise ValueError(f"the prior of {name} must be one of accord.models.priors, found {prior!r}")
        # for each coefficient, the keys that may set its prior, the most specific first
        self._keys: dict[str, tuple[str, ...]] = {}
        for term, places in terms.items():
            for column in columns[places]:
                general = () if column == "Intercept" else (COEFFICIENTS,)
                self._keys[column] = (column, term, *general)
                for predictor in predictors:
                    name = f"{column}|{predictor}"
                    self._keys[name] = (name, column, term, *general)
        known = {key for keys in self._keys.values() for key in keys}
        self._priors = {name if name in known else spelt(name): prior for name, prior in priors.items()}

    def of(self, name: str, default: Prior) -> Prior:
        """The prior of a coefficient."""
        for key in self._keys[name]:
            if key in self._priors:
                prior = self._priors[key]
                _refuse_limits(name, prior)
                if prior.is_positive or prior.is_vector:
                    raise ValueError(f"the prior of {name} must be one of any number, found {prior}")
                return prior
        return default

    def other(self, name: str, parameter: Parameter) -> Prior:
        """The prior of a parameter other than the coefficients."""
        prior = self._priors.get(name, parameter.prior)
        if prior is not parameter.prior:
            _refuse_limits(name, prior)
        # a flat prior fits anything
        if type(prior) is not Flat and prior.is_positive != (parameter.constraint == "positive"):
            kind = "numbers > 0" if parameter.constraint == "positive" else "any number"
            raise ValueError(f"the prior of {name} must be one of {kind}, found {prior}")
        return prior

    def require_all_used(self, names: Sequence[str]) -> None:
        """Raise `ValueError` for a prior of an unknown name."""
        known = list(
            dict.fromkeys([*names, COEFFICIENTS, *(key for name in names for key in self._keys.get(name, ()))])
        )
        for name in self._priors:
            if name not in known:
                raise unknown_name_error("prior of", name, known)


def _refuse_limits(name: str, prior: Prior) -> None:
    """Raise `ValueError` for a prior with bounds, as parameters of formulas have no constraint to enforce them."""
    if isinstance(prior, Uniform):
        raise ValueError(
            f"the prior of {name} cannot be {prior}, as parameters of formulas have no such limits: use Normal or "
            "StudentT of that width, or Flat"
        )


def init_of(
    names: Sequence[str],
    columns: Sequence[str],
    family: Family,
    summary: Summary,
    parameters: Mapping[str, Parameter],
) -> dict[str, np.ndarray]:
    """The initial values: 0 for all coefficients except the intercept."""
    start = family.start(summary) if family.has_intercept else 0.0
    flat = np.where([name == "Intercept" for name in columns], start, 0.0)
    init = {name: parameter.init for name, parameter in parameters.items()}
    if not names:
        return init
    several = len(family.predictors)
    return {COEFFICIENTS: np.repeat(flat[:, None], several, axis=1) if several else flat, **init}


def flat_names(
    init: Mapping[str, np.ndarray], names: Sequence[str], parameters: Mapping[str, Parameter]
) -> tuple[str, ...]:
    """Names of all flat parameters, in the order of JAX's flattening."""
    flat: list[str] = []
    for name in jax.tree.leaves({name: name for name in init}):
        flat += names if name == COEFFICIENTS else parameters[name].names(name)
    return tuple(flat)


def log_orders(prior: Prior, parameter: Parameter) -> float:
    """The log of the number of orderings of an ordered vector, which normalises a prior of independent elements."""
    is_ordered = parameter.constraint == "ordered_vector" and not prior.is_vector
    return float(gammaln(parameter.init.size + 1)) if is_ordered else 0.0


def note_on(columns: Sequence[str], parameters: Mapping[str, Parameter]) -> str:
    """A sentence about the prior that applies at the mean of all columns, or ""."""
    centred = [name for name in columns if name == "Intercept"]
    centred += [name for name, parameter in parameters.items() if parameter.sign]
    return f"The prior of {centred[0]} applies to its value at the mean of all columns." if centred else ""


def notes_beside(study: Study, names: Sequence[str]) -> tuple[str, ...]:
    """Notes for reports: rows left out, filled cells, texts that are 1, reference levels, scaled columns.

    Parameters
    ----------
    study
        The study of the model.
    names
        Names of the coefficients.
    """
    agreed = study.agreed
    columns = agreed.columns
    left_out = [f"{n} at {site}" for site, n in zip(agreed.sites, agreed.dropped, strict=True) if n]
    filled = [
        f"{n if isinstance(n, int) else 'some'} of {name}"
        for name, column in columns.items()
        if (n := column.missing) and not left_out
    ]
    references = [
        f"{name} {level!r}" for name, levels in agreed.levels.items() if (level := _reference(name, levels, names))
    ]
    scaled = [
        f"{name} {column.sd:.3g}"
        for name, column in columns.items()
        if column.sd and any(re.search(rf"\bscale\(`?{re.escape(name)}`?\)", own) for own in names)
    ]
    ones = [f"{name} {' or '.join(map(repr, words))}" for name, words in study.ones.items()]
    sentences = [
        ("Rows left out, as a cell has no value: ", left_out),
        ("Missing cells filled with the mean, or with a new level: ", filled),
        ("Texts that are 1: ", ones),
        ("Reference levels: ", references),
        ("Coefficients are per standard deviation of the column: ", scaled),
    ]
    return tuple(f"{what}{', '.join(parts)}." for what, parts in sentences if parts)


def _reference(name: str, levels: Sequence[str], names: Sequence[str]) -> str | None:
    """The reference level of a factor, the only one without a coefficient; None if there is no such level."""
    own = re.compile(rf"(?:C\(\s*)?`?{re.escape(name)}`?(?:,\s*Treatment\(.*\))?\)?\[(.*)\]")
    shown = {found[1] for one in names if (found := own.fullmatch(one.partition("|")[0]))}
    left = [level for level in levels if level not in shown]
    return left[0] if shown and len(left) == 1 else None
