"""Generalised linear models: a posterior from tables, a formula, a family and priors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast

import numpy as np
from jax.tree_util import Partial

from ..base.errors import DataError, unknown_name_error
from ..base.memory import require_room
from ..data import Study
from ..data.collectives import ReplayCollectives, SiteCollectives, added, correspond
from ..data.files import Dialects
from ..data.formula_names import FormulaNames
from ..data.policy import Policy
from ..data.ranges import MADE_UP, Fitted, Ranges
from ..data.remote import RemoteStudy
from ..data.sources import sources_in_memory
from ..data.studies import study_of_made_up
from ..posterior.model_info import ModelInfo
from .effects import (
    EFFECTS,
    INTEGRATED,
    PARAMETERS,
    LogPriorOfEffects,
    PredictedByEffects,
    PredictedInGroups,
    as_parameters,
    distinct,
    local,
    require_integrated,
    require_possible,
)
from .effects import parameters as parameters_of_effects
from .families import Family
from .families.family import Rows
from .formula import Formula, columns_of_formula
from .parameters import UserPriors, defaults_of, flat_names, init_of, log_orders, names_of, note_on, notes_beside
from .predictive import FormulaPredictive
from .priors import Prior
from .regression import COEFFICIENTS, LogPrior, OtherPrior, Predicted, Priors, Regression, RemoteRows, log_prior
from .tables import (
    FAMILIES,
    as_table,
    columns_of,
    family_of,
    figures_of,
    needed,
    require_columns_beside,
    require_unfilled,
    require_usual_scales,
    settled,
    warn_of_filled,
    warn_of_levels_apart,
    warn_of_one_response,
)
from .unidentified import require_bounded, require_identified, warn_of_collinear

__all__ = ["FAMILIES", "glm"]

# Number of columns above which sites check their limits before the columns are built.
_MANY = 1000


def glm(
    table: Any,
    formula: str,
    family: str | Family = "normal",
    priors: Mapping[str, Prior] | None = None,
    *,
    weights: str | None = None,
    exposure: str | None = None,
    effects: str = INTEGRATED,
    nodes: int | None = None,
    ranges: Mapping[str, Sequence[Any]] | None = None,
) -> Regression:
    """The posterior of a generalised linear model whose tables stay with their sites.

    Parameters
    ----------
    table
        One data frame for each site, or a study, see `accord.data.as_study`. For files that an engine's agents read,
        the result of `accord.data.study_at_sites`. `dict(list(frame.groupby("site")))` splits one frame of all sites.
    formula
        `died ~ age + C(smoking) + log(crp)`, in R's syntax as `formulae` parses it. On the left: a column,
        `column['level']` (1 for this level of a text column, else 0), `prop(successes, trials)` or
        `surv(time, event)`. On the right: `a:b`, `a * b`, `I(x ** 2)`, `scale(x)` and `center(x)` (by the mean and
        standard deviation over all sites), `offset(log(x))`, `0 +`, and effects of sites or of groups of rows within
        sites, `(1 | site)` and `(1 + x | ward)`.
    family
        normal, student, gamma, beta, bernoulli, binomial, poisson, negative_binomial, categorical, ordinal, weibull,
        piecewise_exponential or cox; or an instance with options, such as `accord.models.families.Student(nu=4)`.
    priors
        Keys are names of columns, terms, `Intercept`, other parameters (`sigma`), or `coefficients` for all remaining
        coefficients. Defaults follow the scale of the data, and the attribute `priors` of the result lists all priors.
    weights
        A column of weights >= 0: the log density of each row is multiplied by its weight.
    exposure
        A column of numbers > 0 that multiply the mean: the same as `offset(log(exposure))`.
    effects : {"integrated", "parameters"}, default "integrated"
        "integrated": each site integrates out the effects of its groups, which never leave the site. "parameters": each
        effect is a parameter of the posterior, in the units of the linear predictor, such as
        `group_effect[Intercept|ward=a]`. The rows of all sites must then be in this process.
    nodes : int, optional
        Quadrature nodes for each effect of a group, from 1 to 100, if effects are integrated out. The default depends
        on the size of the smallest group: 7 to 15 nodes for one effect, 5 to 9 for each of two.
    ranges : mapping, optional
        For differential privacy, see `accord.samplers.Private`: the lowest and the highest number of each column, or
        its levels, from public knowledge: ``{"age": (18, 90), "ward": ("a", "b"), "died": (0, 1)}``. Levels, default
        priors, means and standard deviations then follow from these ranges and not from rows. A number beyond its
        range counts as the end of the range. A row with a missing cell or an unknown level is left out. With the
        range (0, 1), so is a row with another number: write (0.0, 1.0) for shares. If more than a fifth of a table's
        rows are left out, or more than 1% of a column's numbers are beyond their range, a warning says so.

    Returns
    -------
    Regression
        A posterior. Its coefficients, the intercept included, refer to the columns without centring or scaling.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    TypeError
        The formula is not text.
    ValueError
        A term, a prior or a family is unknown. A response is outside the domain of the family (the message names the
        site). The data does not identify a coefficient with a flat prior. `effects` or `nodes` is invalid, or set for
        a formula without effects of groups. `effects="parameters"`, and the rows are not all in this process.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sites = {name: {"age": rng.normal(50, 9, 40), "falls": rng.poisson(2, 40)} for name in ("north", "south")}
    >>> post = glm(sites, "falls ~ age", "poisson")
    >>> post.names
    ('Intercept', 'age')
    """
    if not isinstance(formula, str):
        raise TypeError(
            f"glm needs the tables, then the formula as text: glm(tables, 'y ~ x'). Found {type(table).__name__}, then "
            f"{type(formula).__name__}"
        )
    if effects not in (INTEGRATED, PARAMETERS):
        raise unknown_name_error("effects", effects, (INTEGRATED, PARAMETERS))
    if ranges is not None:
        several = {"weights": weights, "exposure": exposure, "nodes": nodes}
        if given := [name for name, value in several.items() if value is not None]:
            raise ValueError(f"with ranges there can be no {given[0]}")
        used = columns_of_formula(formula) if isinstance(ranges, Mapping) else ()
        ranges = {name: own for name, own in ranges.items() if name in used} if used else ranges
        return _of_tables_within(ranges_of(ranges, formula, family), table, formula, family, priors)
    if isinstance(table, RemoteStudy):
        require_integrated(effects)
        options: dict[str, Any] = {"weights": weights, "exposure": exposure, "effects": effects, "nodes": nodes}
        build = partial(glm, formula=formula, family=family, priors=priors, **options)
        return model_at_sites(ModelAtSites(build, table, needed(formula, weights, exposure)))
    study = as_table(table, formula, weights, exposure)
    known = columns_of(table, study)
    require_columns_beside(known, study, weights, exposure)
    meeting = study.meeting
    design = Formula(
        formula,
        meeting,
        study.frames,
        list(study.agreed.columns),
        study.agreed.levels,
        known,
        study.check_columns,
        partial(_require_possible_size, study),
    )
    require_unfilled(study, design.responses, weights, exposure)
    warn_of_filled(study, formula)
    warn_of_levels_apart(study, formula)
    chosen, shards = settled(family_of(family), design, study, weights, exposure)
    columns = design.names if chosen.has_intercept else design.names[1:]
    figures = figures_of(meeting, chosen, shards)
    require_usual_scales(chosen, design, columns, figures)
    summary, centre, spread, spread_of_effects = figures
    warn_of_one_response(chosen, design.left, summary)
    parameters = chosen.parameters(summary)
    if design.group is not None:
        require_possible(chosen, design, meeting, effects)
        parameters |= parameters_of_effects(chosen, design, summary, spread_of_effects)
    elif effects == PARAMETERS or nodes is not None:
        named = "nodes" if nodes is not None else f'effects = "{PARAMETERS}"'
        raise ValueError(f"{named} needs effects of groups such as (1 | site), and the formula {formula!r} has none")
    if effects == PARAMETERS and nodes is not None:
        raise ValueError(f'nodes needs effects = "{INTEGRATED}": effects that are parameters need no quadrature')
    design.require_other_names({"Intercept", COEFFICIENTS, *parameters})
    if not columns and (chosen.has_intercept or not parameters):
        raise ValueError(f"the formula {formula!r} has no coefficient")
    names = names_of(columns, chosen)
    own = UserPriors(priors or {}, design.terms, design.names, chosen.predictors)
    defaults = defaults_of(columns, spread, chosen, summary)
    found = [own.of(name, default) for name, default in zip(names, defaults, strict=True)]
    others = {name: own.other(name, parameter) for name, parameter in parameters.items()}
    own.require_all_used([*names, *parameters])
    require_identified(meeting, chosen, shards, columns, found)
    warn_of_collinear(meeting, chosen, shards, columns, figures)
    study.check_parameters(len(names) + sum(parameter.init.size for parameter in parameters.values()))
    intercept = columns.index("Intercept") if "Intercept" in columns else None
    beside = [
        OtherPrior(name, prior, parameters[name].sign, log_orders(prior, parameters[name]))
        for name, prior in others.items()
    ]
    prior = log_prior(centre, intercept, found, beside)
    log_likelihood: Any = Predicted(chosen) if design.group is None else PredictedInGroups(chosen)
    if effects == PARAMETERS:
        # `check_parameters` has counted the shared parameters only, as for integrated effects
        frames = dict(zip(meeting.sites, study.frames, strict=True))
        parameters[EFFECTS], shards = as_parameters(design, frames, shards)
        prior = Partial(LogPriorOfEffects(cast(LogPrior, prior.func)), *prior.args)
        log_likelihood = PredictedByEffects(log_likelihood)
    elif design.group is not None:
        shards = distinct(meeting, shards)
    init = init_of(names, columns, chosen, summary, parameters)
    longest = max(study.agreed.rows)
    shown = Priors({**dict(zip(names, found, strict=True)), **others}, note_on(columns, parameters))
    rows_of = {place: chosen.shard(rows, longest) for place, rows in zip(meeting.here, shards, strict=True)}
    post = Regression(
        Partial(log_likelihood),
        prior,
        [rows_of.get(place, RemoteRows(site)) for place, site in enumerate(meeting.sites)],
        init,
        names=flat_names(init, names, parameters),
        constraints={
            name: parameter.constraint for name, parameter in parameters.items() if parameter.constraint is not None
        },
        local=None if design.group is None or effects == PARAMETERS else local(design),
        formula=formula,
        family=chosen,
        agreed=study.agreed,
        priors=shown,
        lines=study.lines,
        info=_info(formula, chosen, shown, study, names, shards, _with_moments(names, found, spread)),
    )
    if nodes is not None:
        post = cast(Regression, post.finely(nodes))
    if meeting.is_whole:
        require_bounded(post, found)
    return post


def ranges_of(ranges: Mapping[str, Sequence[Any]], formula: str, family: str | Family) -> Ranges:
    """The declared ranges of a formula's columns. Raises `ValueError` unless each column has one."""
    own = family_of(family)
    is_count = own.is_whole or own.name in ("categorical", "ordinal")
    found = Ranges(ranges, tuple(columns_of_formula(formula.partition("~")[0] + "~ 1")) if is_count else ())
    found.require(sorted(columns_of_formula(formula)))
    return found


def _of_tables_within(
    ranges: Ranges, table: Any, formula: str, family: str | Family, priors: Mapping[str, Prior] | None
) -> Regression:
    """`glm_within` for tables in memory."""
    if isinstance(table, Study | RemoteStudy):
        raise TypeError("with ranges, pass the tables themselves: the levels and means of a study follow from its rows")
    sources = sources_in_memory(table, Policy.none(), Dialects(), cell_by_cell=True)
    here = {}
    for source in sources:
        try:
            here[source.name] = ranges.within(source.columns, source.dialect)
        except DataError as error:
            raise DataError(f"{source.name}: {error}") from None
        if text := here[source.name].warning:
            warnings.warn(f"{source.name}: {text}", stacklevel=3)
    rows = [own.fits.size for own in here.values()]
    return glm_within(ranges, list(here), rows, here, formula, family, priors)


def glm_within(
    ranges: Ranges,
    sites: Sequence[str],
    rows: Sequence[int],
    here: Mapping[str, Fitted],
    formula: str,
    family: str | Family = "normal",
    priors: Mapping[str, Prior] | None = None,
) -> Regression:
    """The posterior of a formula whose levels, default priors, means and standard deviations follow from ranges.

    A row that does not fit into the ranges has the weight 0.

    Parameters
    ----------
    ranges
        The range of each column of the formula.
    sites, rows
        The names of all sites, and their numbers of rows.
    here
        The rows of each site whose rows are in this process.
    formula, family, priors
        As in `accord.models.glm`.

    Raises
    ------
    ValueError
        As `glm` does for the made-up rows.
    """
    if "|" in formula:
        raise ValueError(f"a formula with ranges cannot have effects of groups, found {formula!r}")
    if re.fullmatch(r"\s*\w+(\[[^\]]*\])?\s*", formula.partition("~")[0]) is None:
        raise ValueError(f"a formula with ranges needs one column on its left, such as died ~ age, found {formula!r}")
    for name in FormulaNames.of(formula).factors:
        if name in ranges.columns and name not in ranges.factors:
            raise ValueError(f'ranges: {name} is a factor in C({name}), so it needs levels, such as ("1", "2")')
    made_up = ranges.made_up()

    def built(tables: Mapping[str, Mapping[str, np.ndarray]]) -> Regression:
        # one made-up row more, as a site may have none that fits
        longer = {
            site: {name: np.append(values, made_up[name][:1]) for name, values in found.items()}
            for site, found in tables.items()
        }
        with warnings.catch_warnings():
            # warnings are about rows
            warnings.simplefilter("ignore")
            return glm(study_of_made_up(ranges, longer, formula), formula, family, priors)

    try:
        post = built({site: own.columns for site, own in here.items()})
    except (ValueError, ArithmeticError):
        # errors of the made-up rows are errors of the document
        try:
            built({})
        except ValueError as error:
            text = _as_range(str(error), ranges, family_of(family).name)
            text = text.replace(f"of site {MADE_UP!r}", "that the declared ranges allow")
            in_numbers = "holds text in ranges: write its lowest and its highest number without quotation marks, or"
            raise type(error)(text.replace("holds text: write", in_numbers)) from None
        # no row may stop the others, nor show itself by an error
        here = {site: _without_errors(site, own, built) for site, own in here.items()}
        post = built({site: own.columns for site, own in here.items()})
    made = cast(dict[str, np.ndarray], post.source(0))
    if "offset" in made:
        raise ValueError(f"a formula with ranges cannot have an offset, found {formula!r}")
    shards: list[Any] = [RemoteRows(site) for site in sites]
    for place, (site, own) in enumerate(here.items(), 1):
        shards[sites.index(site)] = _scattered(post.source(place), own.fits)
    return post.within(made, sites, rows, shards)


def _as_range(text: str, ranges: Ranges, family: str) -> str:
    """An error about the responses of the made-up rows, as one about their range."""
    found = re.match(
        rf"(?:some responses|the response) of (\w+)\S* at site {MADE_UP!r} (?:are not|must hold) (.*)", text
    )
    if found is None:
        return text
    name, rule = found[1], re.split(r": write|, found| \(", found[2])[0]
    whole = ", without decimal points" if rule.startswith(("0", "counts")) else ""
    return (
        f"the range of {name}, {ranges.columns[name]!r}, does not fit the family {family}, whose responses are {rule}: "
        f"declare a range of such numbers only{whole}"
    )


def _without_errors(site: str, own: Fitted, built: Callable[[dict[str, Any]], Regression]) -> Fitted:
    """The rows with which a model can be built, each by itself."""

    def fine(rows: np.ndarray) -> np.ndarray:
        try:
            built({site: {name: values[rows] for name, values in own.columns.items()}})
        except (ValueError, ArithmeticError):
            return rows[:0] if rows.size == 1 else np.concatenate(list(map(fine, np.array_split(rows, 2))))
        return rows

    kept, fits = fine(np.arange(int(own.fits.sum()))), np.zeros_like(own.fits)
    fits[np.flatnonzero(own.fits)[kept]] = True
    return own._replace(columns={name: values[kept] for name, values in own.columns.items()}, fits=fits)


def _scattered(found: dict[str, np.ndarray], fits: np.ndarray) -> dict[str, np.ndarray]:
    """Rows at their places among all rows, others with the weight 0. The last row of `found` is made up."""
    whole = {}
    for name, values in found.items():
        whole[name] = np.zeros((fits.size, *values.shape[1:]), values.dtype)
        whole[name][fits] = values[:-1]
    return whole


def _require_possible_size(study: Study, columns: int) -> None:
    """Raise an error if a model has more columns than sites allow or memory holds."""
    if columns <= _MANY:
        return
    study.check_parameters(columns)
    rows = sum(map(len, study.frames))
    what = f"at least {columns:,} columns of {rows:,} rows, from factors of many levels,"
    require_room(what, 8.0 * columns * (rows + columns), "merge levels, or write effects of groups, (1 | site:column)")


def _with_moments(
    names: Sequence[str], priors: Sequence[Prior], spread: np.ndarray
) -> tuple[tuple[str, float, float, float], ...]:
    """`ModelInfo.coefficients` for all coefficients except the intercept."""
    spreads = np.repeat(spread, len(names) // max(len(spread), 1))
    return tuple(
        (name, float(prior.moments[0]), float(prior.moments[1]), float(sd))
        for name, prior, sd in zip(names, priors, spreads, strict=True)
        if prior.moments is not None and name.partition("|")[0] != "Intercept"
    )


def _info(
    formula: str,
    family: Family,
    priors: Priors,
    study: Study,
    names: list[str],
    shards: list[Rows],
    coefficients: tuple[tuple[str, float, float, float], ...],
) -> ModelInfo:
    """The description of the model in reports."""
    why = ""
    if not family.replicates:
        why = f"the family {family.name} has censored times, and no model for the censoring"
    elif any("weight" in rows or "group" in rows for rows in shards):
        why = "responses cannot be drawn for rows with weights or effects of groups"
    elif not study.meeting.is_whole:
        why = "the floors of sites outside this process are unknown"
    return ModelInfo(
        model=f"{family.name} regression",
        formula=formula,
        priors=(*priors.lines, ("", priors.note)) if priors.note else priors.lines,
        sites=study.sites,
        rows=study.agreed.rows,
        ratio=family.ratio,
        # exp(intercept) is not a ratio
        ratios=tuple(name for name in names if name.partition("|")[0] != "Intercept") if family.ratio else (),
        notes=notes_beside(study, names),
        coefficients=coefficients,
        predictive=None if why else FormulaPredictive(family),
        floor=max((policy.cells for policy in study.policies), default=3),
        why_no_check=why,
        is_whole=study.meeting.is_whole,
    )


@dataclass(frozen=True)
class ModelAtSites:
    """The work of every site: read the table and build the model, with the collectives of the study.

    Parameters
    ----------
    build
        `build(study)` returns the model.
    table
        The files.
    options
        Options of the study that `table` does not set.
    """

    build: Callable[[Any], Regression]
    table: RemoteStudy
    options: dict[str, Any]

    def __call__(self, meeting: SiteCollectives) -> Regression:
        """The model, with the rows of the sites that `meeting` has here."""
        return self.build(self.table.study(meeting, **self.options))


@dataclass(frozen=True)
class SiteRows:
    """Builds the rows of one site where its file is, with the recorded results of the collectives."""

    work: ModelAtSites
    answers: tuple[Any, ...]
    place: int

    def __call__(self) -> Any:
        """The rows, in the form that the model's likelihood reads."""
        meeting = ReplayCollectives(self.work.table.sites, (self.place,), self.answers)
        return self.work(meeting).source(self.place)


def model_at_sites(work: ModelAtSites) -> Regression:
    """The model of all sites, with rows that an engine's agents read."""
    sites = work.table.sites
    with work.table.engine.asking(len(sites)) as ask:

        def together(kind: str, answers: Sequence[Any]) -> Any:
            own = ask(work, sites, answers)
            return reduce(added, own) if kind == "total" else own

        # each answer restarts the work, which repeats its warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            post, answers = correspond(sites, work, together)
    left_out = [f"{count} at {site}" for site, count in zip(sites, post.agreed.dropped, strict=True) if count]
    if left_out:
        warnings.warn(f"rows with a missing cell are left out: {', '.join(left_out)}", stacklevel=3)
    for message, category in dict.fromkeys((str(one.message), one.category) for one in caught):
        warnings.warn(message, category, stacklevel=3)
    found = post.reading([SiteRows(work, tuple(answers), place) for place in range(len(sites))])
    assert isinstance(found, Regression)
    return found
