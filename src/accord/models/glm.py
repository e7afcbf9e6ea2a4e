"""Generalised linear models of tables: a formula, a family and priors into a posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.tree_util import Partial
from scipy.special import gammaln

from ..base.errors import unknown_name_error
from ..data import Study, as_study
from . import effects, families
from .families import Family
from .families.family import Parameter, Rows, Summary
from .formula import Formula, mean_and_sd
from .priors import Flat, Normal, Prior
from .regression import COEFFICIENTS, LogPrior, Other, Predicted, Priors, Regression
from .unidentified import require_identified

if TYPE_CHECKING:
    import pandas as pd

FAMILIES: dict[str, type[Family]] = {
    cls.name: cls for cls in (getattr(families, name) for name in families.__all__) if cls is not Family
}


def glm(
    table: Any,
    formula: str,
    family: str | Family = "normal",
    priors: Mapping[str, Prior] | None = None,
    *,
    weights: str | None = None,
    exposure: str | None = None,
) -> Regression:
    """Generalised linear model of tables that stay with their sites, from a formula.

    Parameters
    ----------
    table
        What `accord.data.as_study` takes: one data frame a site, or a study.
    formula
        `died ~ age + C(smoking) + log(crp)`, in R's language as `formulae` reads it. On the left: a column,
        `column['level']` where text is to be 0 or 1, `prop(successes, trials)`, `surv(time, event)`. On the right:
        `a:b`, `a * b`, `I(x ** 2)`, `scale(x)` and `center(x)` by the figures of all sites, `offset(log(x))`, `0 +`,
        and `(1 | site)`, `(1 + x | ward)`: effects of sites, or of groups of rows within sites, that never leave them.
    family
        normal, student, gamma, beta, bernoulli, binomial, poisson, negative_binomial, categorical, ordinal, weibull,
        piecewise_exponential or cox; or one with numbers of its own, such as `accord.models.families.Student(nu=4)`.
    priors
        By the name of a column, a term, `Intercept`, another parameter (`sigma`), or `coefficients` for all that is not
        named. What is left out has a default that fits the scale of the data; the result's `priors` shows them.
    weights
        A column of weights >= 0, by which each row counts as so many.
    exposure
        A column of numbers > 0 that counts are in proportion to: the same as `offset(log(exposure))`.

    Returns
    -------
    Regression
        A posterior whose coefficients, the intercept too, are on the scale of the columns as they are.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    ValueError
        A term, a prior or a family is unknown; a response is outside the family's domain (site and count are named); or
        data does not identify a coefficient that has a flat prior.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sites = {name: {"age": rng.normal(50, 9, 40), "falls": rng.poisson(2, 40)} for name in ("north", "south")}
    >>> post = glm(sites, "falls ~ age", "poisson")
    >>> post.names
    ('Intercept', 'age')
    """
    study = _study(table, formula, weights, exposure)
    design = Formula(formula, study.frames, study.sites, study.agreed.levels)
    chosen, shards = _settled(_family(family), design, study, weights, exposure)
    if not any(rows["design"].shape[1] for rows in shards) and chosen.has_intercept:
        raise ValueError(f"the formula {formula!r} has no coefficient")
    summary = _summary(chosen, shards)
    columns = design.names if chosen.has_intercept else design.names[1:]
    parameters = chosen.parameters(summary)
    if design.group is not None:
        effects.require_possible(chosen, design)
        parameters |= effects.parameters(chosen, design, summary, shards)
    centre, spread = mean_and_sd([rows["design"] for rows in shards])
    names = _names(columns, chosen)
    own = _Wanted(priors or {}, design.terms, design.names, chosen.predictors)
    defaults = _defaults(columns, spread, chosen, summary)
    found = [own.of(name, default) for name, default in zip(names, defaults, strict=True)]
    others = {name: own.other(name, parameter) for name, parameter in parameters.items()}
    own.require_all_used([*names, *parameters])
    require_identified(chosen, study.sites, shards, columns, found)
    study.check_parameters(len(names) + sum(parameter.init.size for parameter in parameters.values()))
    intercept = columns.index("Intercept") if "Intercept" in columns else None
    log_prior = LogPrior(
        tuple(0.0 if place == intercept else float(mean) for place, mean in enumerate(centre)),
        intercept,
        tuple(found),
        tuple(
            Other(name, prior, parameters[name].sign, _log_orders(prior, parameters[name]))
            for name, prior in others.items()
        ),
    )
    init = _init(names, columns, chosen, summary, parameters)
    longest = max(len(rows["design"]) for rows in shards)
    return Regression(
        Partial(Predicted(chosen) if design.group is None else effects.PredictedInGroups(chosen)),
        Partial(log_prior),
        [chosen.shard(rows, longest) for rows in shards],
        init,
        names=_flat_names(init, names, parameters),
        constraints={
            name: parameter.constraint for name, parameter in parameters.items() if parameter.constraint is not None
        },
        local=None if design.group is None else effects.local(design),
        formula=formula,
        family=chosen,
        priors=Priors({**dict(zip(names, found, strict=True)), **others}, _note(columns, parameters)),
    )


# --- data ---


def _study(table: Any, formula: str, *columns: str | None) -> Study:
    """The table, with the columns that are named."""
    if isinstance(table, Study):
        return table
    named = [name for name in columns if name is not None]
    # the number of trials, a weight or an exposure may well be the same everywhere
    left = formula.partition("~")[0]
    several = [name.strip() for name in left.partition("(")[2].rstrip(" )").split(",")] if "(" in left else []
    return as_study(table, formula=[formula, *named], constant=[*named, *several])


def _family(family: str | Family) -> Family:
    if isinstance(family, Family):
        return family
    if family not in FAMILIES:
        raise unknown_name_error("family", family, FAMILIES)
    return FAMILIES[family]()


def _settled(
    family: Family, design: Formula, study: Study, weights: str | None, exposure: str | None
) -> tuple[Family, list[Rows]]:
    """The family with what the sites agreed on, and the rows of each site as numbers."""
    if weights is not None and not family.splits:
        raise ValueError(f"rows of the family {family.name} cannot be weighted: they enter together")
    if exposure is not None and not (family.is_log_linear and family.columns == ("y",)):
        raise ValueError(f"the family {family.name} has no exposure: its linear predictor is not the log of a mean")
    if not family.has_intercept and not design.has_intercept:
        raise ValueError(
            f"the family {family.name} has a baseline in place of an intercept: take '0 +' out of the formula"
        )
    responses = [design.response(frame) for frame in study.frames]
    if len(responses[0]) != len(family.columns):
        written = {1: "a column", 2: f"{'surv' if 'time' in family.columns else 'prop'}({', '.join(family.columns)})"}
        raise ValueError(f"the family {family.name} needs {written[len(family.columns)]} on the left of the formula")
    family = family.settled(study.sites, responses)
    shards = []
    for site, frame, response in zip(study.sites, study.frames, responses, strict=True):
        matrices = design.matrices(frame, site)
        rows = family.rows(site, response)
        rows["design"] = matrices.design if family.has_intercept else matrices.design[:, 1:]
        offset = matrices.offset
        if exposure is not None:
            log_exposure = np.log(_column(frame, exposure, site, "exposure", least=0.0, strictly=True))
            offset = log_exposure if offset is None else offset + log_exposure
        if matrices.effects is not None and matrices.group is not None:
            rows |= {"effects": matrices.effects, "group": matrices.group}
        if offset is not None:
            rows["offset"] = np.repeat(offset[:, None], max(len(family.predictors), 1), axis=1)
            rows["offset"] = rows["offset"] if family.predictors else offset
        if weights is not None:
            rows["weight"] = _column(frame, weights, site, "weights", least=0.0, strictly=False)
        shards.append(rows)
    return family, shards


def _column(frame: pd.DataFrame, name: str, site: str, what: str, least: float, strictly: bool) -> np.ndarray:
    if name not in frame.columns:
        raise unknown_name_error(f"column of {what}", name, list(frame.columns))
    values = frame[name].to_numpy().astype(np.float64)
    wrong = ~((values > least) if strictly else (values >= least)) | ~np.isfinite(values)
    if wrong.any():
        raise ValueError(
            f"{what} must be finite and {'>' if strictly else '>='} {least:g}: {wrong.sum()} of {len(wrong)} rows of "
            f"{site} are not"
        )
    return values


def _summary(family: Family, shards: Sequence[Rows]) -> Summary:
    amounts = [family.amounts(rows) for rows in shards]
    first, second = (sum(own[part].sum() for own in amounts) for part in (0, 1))
    _, sd = mean_and_sd([own for own, _ in amounts])
    with np.errstate(divide="ignore", invalid="ignore"):
        return Summary(float(np.float64(first) / np.float64(second)), float(sd))


# --- parameters ---


def _names(columns: Sequence[str], family: Family) -> list[str]:
    """A name for each flat coefficient."""
    if not family.predictors:
        return list(columns)
    return [f"{column}|{predictor}" for column in columns for predictor in family.predictors]


def _defaults(columns: Sequence[str], spread: np.ndarray, family: Family, summary: Summary) -> list[Prior]:
    """Default priors of the flat coefficients, by the standard deviations of their columns."""
    found: list[Prior] = []
    for name, sd in zip(columns, spread, strict=True):
        if name == "Intercept":
            prior = family.intercept_prior(summary)
        else:
            # what is the same everywhere has no scale
            prior = Normal(0.0, 2.5 * family.unit(summary) / (sd if sd > 0 else 1.0))
        found += [prior] * max(len(family.predictors), 1)
    return found


class _Wanted:
    """The priors that the user named: by coefficient, by column, by term, or for all coefficients."""

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
        self._priors, self._known = priors, {COEFFICIENTS, *terms, *columns}
        self._keys: dict[str, tuple[str, ...]] = {}
        for term, places in terms.items():
            for column in columns[places]:
                general = () if column == "Intercept" else (COEFFICIENTS,)
                self._keys[column] = (column, term, *general)
                for predictor in predictors:
                    name = f"{column}|{predictor}"
                    self._keys[name] = (name, column, term, *general)

    def of(self, name: str, default: Prior) -> Prior:
        """The prior of a coefficient."""
        for key in self._keys[name]:
            if key in self._priors:
                prior = self._priors[key]
                if prior.is_positive or prior.is_vector:
                    raise ValueError(f"the prior of {name} must be one of any number, found {prior}")
                return prior
        return default

    def other(self, name: str, parameter: Parameter) -> Prior:
        """The prior of another parameter."""
        prior = self._priors.get(name, parameter.prior)
        # a flat prior fits anything
        if type(prior) is not Flat and prior.is_positive != (parameter.constraint == "positive"):
            kind = "numbers > 0" if parameter.constraint == "positive" else "any number"
            raise ValueError(f"the prior of {name} must be one of {kind}, found {prior}")
        return prior

    def require_all_used(self, names: Sequence[str]) -> None:
        """Raise `ValueError` for a prior of what there is not."""
        for name in self._priors:
            if name not in self._known and name not in names:
                raise unknown_name_error("prior of", name, list(dict.fromkeys([*names, *self._known])))


def _init(
    names: Sequence[str],
    columns: Sequence[str],
    family: Family,
    summary: Summary,
    parameters: Mapping[str, Parameter],
) -> dict[str, np.ndarray]:
    start = family.start(summary) if family.has_intercept else 0.0
    flat = np.where([name == "Intercept" for name in columns], start, 0.0)
    init = {name: parameter.init for name, parameter in parameters.items()}
    if not names:
        return init
    several = len(family.predictors)
    return {COEFFICIENTS: np.repeat(flat[:, None], several, axis=1) if several else flat, **init}


def _flat_names(
    init: Mapping[str, np.ndarray], names: Sequence[str], parameters: Mapping[str, Parameter]
) -> tuple[str, ...]:
    """Names of all flat parameters, in the order that JAX has."""
    flat: list[str] = []
    for name in jax.tree.leaves({name: name for name in init}):
        flat += names if name == COEFFICIENTS else parameters[name].names(name)
    return tuple(flat)


def _log_orders(prior: Prior, parameter: Parameter) -> float:
    """The log of how many orders of its numbers a prior has, of which a constraint leaves one."""
    is_ordered = parameter.constraint == "ordered_vector" and not prior.is_vector
    return float(gammaln(parameter.init.size + 1)) if is_ordered else 0.0


def _note(columns: Sequence[str], parameters: Mapping[str, Parameter]) -> str:
    """Which priors are those of values at the mean of all columns."""
    centred = [name for name in columns if name == "Intercept"]
    centred += [name for name, parameter in parameters.items() if parameter.sign]
    return f"The prior of {centred[0]} is that of its value at the mean of all columns." if centred else ""
