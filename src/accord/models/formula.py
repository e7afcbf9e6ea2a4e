"""A formula as columns of numbers: parsed once, evaluated at each site on its own rows with what all agreed on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.errors import unknown_name_error
from ..data.collectives import SiteCollectives, means_and_sds
from .grammar import (
    FACTORS,
    STANDARDS,
    WITHOUT_NUMBERS,
    environment,
    evaluated,
    is_call,
    joined_names,
    names_of,
    of_rows,
    parsed,
    parts_of,
    parts_of_term,
    require_columns,
    require_finite,
    require_kinds,
    require_levels,
)

if TYPE_CHECKING:
    import pandas as pd

# What formulas call the site of a row in grouping factors, a column or not.
SITE = "site"


def require_groups_of_sites(text: str) -> None:
    """Raise `ValueError` where a formula has effects of groups whose names sites would have to tell: (1 | ward).

    It needs no table, and so says it before any site is asked.
    """
    grouping = _grouping_of(parsed(text)[0])
    if grouping is not None and grouping.column is not None and not grouping.is_nested:
        raise _untold_groups_error(grouping.column)


def columns_of_formula(text: str) -> frozenset[str]:
    """The columns that a formula needs in a table; names of functions are not among them."""
    model, _ = parsed(text)
    factors = {component.name for term in model.group_terms for component in term.factor.components}
    others = [*model.common_terms, model.response.term, *(term.expr for term in model.group_terms)]
    named = {name for term in others for name in names_of(parts_of_term(term))}
    # behind a bar it is the site itself, a column or not
    return frozenset(named | (factors - {SITE}))


class _Grouping(NamedTuple):
    """The one grouping factor of a formula, as it is written; the column in it, if any, and whether `site` is there."""

    name: str
    column: str | None
    is_nested: bool


def _grouping_of(model: Any) -> _Grouping | None:
    """The grouping factor of terms such as `(1 | ward)`, if any."""
    factors = {term.factor.name: term.factor.components for term in model.group_terms}
    if not factors:
        return None
    if len(factors) > 1:
        raise ValueError(
            f"effects of one grouping factor are possible, found {sorted(factors)}: write the others among the terms, "
            "as in C(column)"
        )
    ((name, components),) = factors.items()
    within = [component.name for component in components if component.name != SITE]
    if len(within) > 1 or not all(hasattr(component, "reference") for component in components):
        raise ValueError(
            f"effects must be grouped by {SITE}, a column, or {SITE}:column; found {name!r}: make one column of several"
        )
    return _Grouping(name, within[0] if within else None, len(components) > len(within))


def _untold_groups_error(column: str) -> ValueError:
    return ValueError(
        f"sites do not tell the names of their groups, so that nobody can say whether {column} names the same ones at "
        f"two of them: write {SITE}:{column}"
    )


# Arrays of shape (row,), each with the term that it is of, as it is written.
Columns = Sequence[tuple[str, np.ndarray]]


class Matrices(NamedTuple):
    """What a formula makes of one site's rows."""

    # (row, column); the intercept, where there is one, is the first column
    design: np.ndarray
    # (row,); None where the formula has none
    offset: np.ndarray | None
    # (row, effect) and (row,) of a grouping factor, numbered from 0; None where there is no such term
    effects: np.ndarray | None
    group: np.ndarray | None


class Formula:
    """A formula whose columns are the same at all sites.

    Parameters
    ----------
    text
        The formula, in the language of `formulae` (that of R).
    meeting
        The sites. All see the formula; sums over them are all that is taken together.
    frames
        One pandas DataFrame for each site that is here.
    columns
        The names of the columns of all frames.
    levels
        By factor, the levels that the sites agreed on; other columns are numbers.
    known
        The names of all columns, for errors, where frames have some of them.
    check
        Raises an error at all sites where one of them refuses its columns, see `accord.data.Study.check_columns`.
    check_size
        Raises an error where a model of at least this number of columns is refused, before any column is made.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    ValueError
        The formula cannot be read, names a column or function that there is not, or something that each site would
        work out otherwise from its own rows.
    """

    def __init__(
        self,
        text: str,
        meeting: SiteCollectives,
        frames: Sequence[pd.DataFrame],
        columns: Sequence[str],
        levels: Mapping[str, Sequence[str]],
        known: Sequence[str],
        check: Callable[[Sequence[Columns]], None],
        check_size: Callable[[int], None],
    ) -> None:
        self.text, self.levels = text, {name: list(own) for name, own in levels.items()}
        self._model, self._spelling = parsed(text)
        self._within: str | None = None
        self._is_nested = False
        # the grouping factor, as it is written
        self.group = self._grouping(columns, known)
        self._require_within_sites(meeting, frames)
        self._require_sites(meeting, frames, columns)
        self._response = self._model.response.term.components[0]
        for part in parts_of(self._response):
            require_columns(part, columns, known)
        own = self._response.name if hasattr(self._response, "reference") else None
        factors = {part.args[0].name for part in self._predictors() if is_call(part) and part.callee == "C"}
        if own is not None and own in {
            *factors,
            *(getattr(component, "name", None) for component in self._components()),
        }:
            raise ValueError(f"the response {own} of the formula {text!r} is among its terms: leave it out there")
        self._environment = environment()
        for part in self._predictors():
            require_columns(part, columns, known)
            require_levels(part, self.levels)
        for part in [*parts_of(self._response), *self._predictors()]:
            require_kinds(part, self.levels, factors)
        check_size(self._least_columns())
        self._standardise(meeting, frames, check)
        self._template = self._rows_of_all_kinds(columns)
        # no row of a site is in it, so that errors quote none
        try:
            with np.errstate(all="ignore"):
                # it adds the terms that interactions need beside them, as h for g:h, and these may need others
                count = 0
                while count != (count := len(self._model.common_terms)):
                    self._model.eval(self._template, self._environment)
        except Exception as error:
            raise ValueError(f"the formula {text!r} cannot be worked out: {error}") from error
        self._read_terms()

    # --- what the parsed formula says ---

    def _predictors(self) -> Iterator[Any]:
        for component in self._components():
            yield from parts_of(component)

    def _components(self) -> Iterator[Any]:
        groups = [term.expr for term in self._model.group_terms]
        for term in [*self._model.common_terms, *groups]:
            yield from getattr(term, "components", ())

    def _grouping(self, columns: Sequence[str], choices: Sequence[str]) -> str | None:
        """The one grouping factor of terms such as `(1 | ward)`, if any; `site` is the site itself."""
        found = _grouping_of(self._model)
        if found is None:
            return None
        if found.column is not None and found.column not in columns:
            raise unknown_name_error("column in the formula", found.column, dict.fromkeys([*choices, SITE]))
        self._within, self._is_nested = found.column, found.is_nested
        return found.name

    def _require_within_sites(self, meeting: SiteCollectives, frames: Sequence[pd.DataFrame]) -> None:
        """Raise `ValueError` where groups of the same name are at several sites, so that they may be one group."""
        if self._within is None or self._is_nested:
            return
        if not meeting.is_whole:
            raise _untold_groups_error(self._within)
        places: dict[Any, list[str]] = {}
        for frame, site in zip(frames, meeting.sites, strict=True):
            for name in frame[self._within].unique():
                places.setdefault(name, []).append(site)
        for several in places.values():
            if len(several) > 1:
                raise ValueError(
                    f"groups of {self._within} have rows of several sites, {several[0]!r} and {several[1]!r} "
                    f"among them, and effects stay at a site: write {SITE}:{self._within} where each site has its own "
                    "groups"
                )

    def _require_sites(self, meeting: SiteCollectives, frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> None:
        """Raise `ValueError` where the table has a column `site` that is none of the sites of the study."""
        is_of_sites = self.group is not None and (self._within is None or self._is_nested)
        if not is_of_sites or SITE not in columns:
            return
        own = [set(frame[SITE]) for frame in frames]
        said = meeting.gathered([len(values) > 1 for values in own])
        if any(said) or (meeting.is_whole and len(set().union(*own)) < len(own)):
            raise ValueError(
                f"effects of {SITE} are those of the sites of the study, {', '.join(meeting.sites)}, and the table has "
                f"a column {SITE} of other groups: rename the column, or leave it out"
            )

    def _standardise(
        self, meeting: SiteCollectives, frames: Sequence[pd.DataFrame], check: Callable[[Sequence[Columns]], None]
    ) -> None:
        """Give `scale` and `center` the mean and standard deviation of their arguments over all sites."""
        from formulae.transforms import TRANSFORMS

        calls = [part for part in self._predictors() if is_call(part) and part.callee in STANDARDS]
        while calls:
            # an argument in which another one is left has to wait for that
            left = {id(call) for call in calls}
            ready = [call for call in calls if left.isdisjoint(id(part) for part in parts_of(call) if part is not call)]
            values = [
                {str(k): evaluated(call.args[0], frame, self._environment, site) for k, call in enumerate(ready)}
                for site, frame in zip(meeting.names_here, frames, strict=True)
            ]
            for site, own in zip(meeting.names_here, values, strict=True):
                for call, numbers in zip(ready, own.values(), strict=True):
                    require_finite(str(call), site, numbers)
            # no mean of a column leaves a site that singles out few of its rows
            names = [self._spelling.of(str(call)) for call in ready]
            check(
                [
                    [
                        (name, x)
                        for name, call, own in zip(names, ready, numbers.values(), strict=True)
                        for x in (own, *self._numbers(call, frame, site))
                    ]
                    for site, frame, numbers in zip(meeting.names_here, frames, values, strict=True)
                ]
            )
            found = means_and_sds(meeting, values)
            for k, call in enumerate(ready):
                transform = TRANSFORMS[call.callee]()
                transform.mean, transform.std = found[str(k)]
                if not transform.std > 0:
                    raise ValueError(f"{call} cannot be had: its argument is the same number in all rows of all sites")
                transform.params_set, call.stateful_transform = True, transform
            done = {id(call) for call in ready}
            calls = [call for call in calls if id(call) not in done]

    def _least_columns(self) -> int:
        """How many columns the terms make at least, by the levels of their factors."""
        return sum(
            prod(max(self._least_of(component), 1) for component in getattr(term, "components", ()))
            for term in self._model.common_terms
        )

    def _least_of(self, component: Any) -> int:
        """How many columns a component makes at least: one a level of a factor, but for the first."""
        call = getattr(component, "call", None)
        is_factor = call.callee in FACTORS if call is not None else getattr(component, "name", None) in self.levels
        names = names_of(parts_of(component)) if is_factor else []
        return len(self.levels[names[0]]) - 1 if names else 1

    def _rows_of_all_kinds(self, columns: Sequence[str]) -> pd.DataFrame:
        """Made-up rows that have every level, by which all sites code alike."""
        import pandas as pd

        count = max([2, *(len(own) for own in self.levels.values())])
        made: dict[str, Any] = {name: np.ones(count) for name in columns}
        factors = dict(self.levels)
        for name in (SITE, self._within):
            if self.group is not None and name is not None and name not in factors:
                factors[name] = ["0", "1"]
        for name, own in factors.items():
            values = [own[row % len(own)] for row in range(count)]
            made[name] = pd.Categorical(values, categories=own, ordered=True)
        return pd.DataFrame(made)

    def _read_terms(self) -> None:
        terms = self._model.common_terms
        self._offsets = [term for term in terms if term.kind == "offset"]
        others = [term for term in terms if term.kind != "offset"]
        # stable, so that the intercept comes first and all others stay in their order
        self._terms = sorted(others, key=lambda term: term.kind != "intercept")
        self.has_intercept = bool(self._terms) and self._terms[0].kind == "intercept"
        names: list[str] = []
        self.terms: dict[str, slice] = {}
        for term in self._terms:
            labels = ["Intercept"] if term.kind == "intercept" else [self._written(term, one) for one in term.labels]
            self.terms[self._written(term, term.name)] = slice(len(names), len(names) + len(labels))
            names += labels
        self.names = tuple(names)
        if twice := [name for name, times in Counter(names).items() if times > 1 and name != "Intercept"]:
            raise ValueError(
                f"two columns of the formula {self.text!r} are {twice[0]}: rename a column of the table, or write the "
                "factors of all interactions in one order, as in g + h + g:h"
            )
        effects = [(term.expr, term.expr.kind == "intercept") for term in self._model.group_terms]
        self.effects = tuple(
            label
            for expr, is_intercept in effects
            for label in (["Intercept"] if is_intercept else [self._written(expr, one) for one in expr.labels])
        )

    def _written(self, term: Any, label: str) -> str:
        """A label of a term, its functions as they were written."""
        for component in getattr(term, "components", ()):
            label = label.replace(component.name, self._spelling.of(component.name))
        return label

    @property
    def responses(self) -> list[str]:
        """The columns on the left."""
        return names_of(parts_of(self._response))

    @property
    def left(self) -> str:
        """The left side, as it is written."""
        return self.text.partition("~")[0].strip()

    def require_other_names(self, taken: Collection[str]) -> None:
        """Raise `ValueError` where a term, the intercept left out, has the name of a parameter of the model."""
        for term in self._terms:
            if term.kind != "intercept" and (name := self._written(term, term.name)) in taken:
                raise ValueError(f"the column {name!r} has the name of a parameter of the model: rename the column")

    @property
    def group_is_site(self) -> bool:
        """Whether all rows of a site are one group."""
        return self.group is not None and self._within is None

    # --- evaluation at a site ---

    def response(self, frame: pd.DataFrame, site: str) -> tuple[np.ndarray, ...]:
        """The columns on the left of the formula, each of shape (row,): one, or those of `prop` and `surv`."""
        component = self._response
        if hasattr(component, "reference"):
            column = frame[component.name]
            if component.reference is None:
                return (column.to_numpy(),)
            known = self.levels.get(component.name)
            if known is None:
                raise ValueError(f"{component.name} holds numbers: leave out [{component.reference!r}]")
            if component.reference not in known:
                raise unknown_name_error(f"level of {component.name}", str(component.reference), known)
            return ((column == component.reference).to_numpy().astype(np.float64),)
        with of_rows(str(component.call), site):
            found = component.call.eval(frame, self._environment)
        several = found if isinstance(found, tuple) else (found,)
        return tuple(np.broadcast_to(np.asarray(column), (len(frame),)) for column in several)

    def _numbers(self, part: Any, frame: pd.DataFrame, site: str) -> Iterator[np.ndarray]:
        """What a part of the formula is made of, as numbers of each row of a site: columns, and functions of them.

        A sum hides its parts, and its mean reveals them: so floors hold for each.
        """
        for piece in parts_of(part):
            if is_call(piece):
                # without its mean, a column that is to be centred is no number yet
                is_open = piece.callee in STANDARDS and piece.stateful_transform is None
                is_number = piece.callee not in WITHOUT_NUMBERS and not is_open
            else:
                is_number = hasattr(piece, "op")
            if is_number:
                yield evaluated(piece, frame, self._environment, site)

    def columns(self, frame: pd.DataFrame, site: str, matrices: Matrices) -> Columns:
        """All columns of numbers that the formula makes of a site's rows, and what these are made of.

        A column of the table that stands on the left as it is is not among them.
        """
        joined = (name for component in self._components() for name in joined_names(component))
        used = dict.fromkeys(name for name in joined if name not in self.levels)
        found = [(name, frame[name].to_numpy()) for name in used]
        found += zip(self.names, matrices.design.T, strict=True)
        if matrices.effects is not None:
            found += zip(self.effects, matrices.effects.T, strict=True)
        for component in (*self._components(), self._response):
            found += [(self._spelling.of(component.name), x) for x in self._numbers(component, frame, site)]
        return found

    def matrices(self, frame: pd.DataFrame, site: str) -> Matrices:
        """What the right of the formula makes of one site's rows.

        Raises
        ------
        ValueError
            A term is no finite number in some rows; term and site are named.
        """
        import pandas as pd

        # Formulae asks columns for all levels: the made-up rows have them, and are left out again.
        made, rows = len(self._template), len(frame)
        used = [name for name in self._template.columns if name in frame.columns]
        both = pd.concat([self._template[used].astype(object), frame[used].astype(object)], ignore_index=True)
        for name in used:
            if name in self.levels:
                both[name] = pd.Categorical(both[name], categories=self.levels[name], ordered=True)
            elif name != self._within and (self.group is None or name != SITE):
                both[name] = both[name].astype(np.float64)

        def of_term(term: Any) -> np.ndarray:
            with of_rows(term.name, site):
                # a constant offset is one number
                values = np.asarray(term.eval_new_data(both), np.float64)
            own = np.broadcast_to(values.reshape(len(values), -1), (made + rows, values.size // len(values)))[made:]
            require_finite(term.name, site, own)
            return own

        design = np.concatenate([np.empty((rows, 0)), *map(of_term, self._terms)], axis=1)
        offsets = [of_term(term)[:, 0] for term in self._offsets]
        offset = np.sum(offsets, axis=0) if offsets else None
        if self.group is None:
            return Matrices(design, offset, None, None)
        effects = np.concatenate([of_term(term.expr) for term in self._model.group_terms], axis=1)
        group = self._grouped(frame)[1]
        return Matrices(design, offset, effects, group.astype(np.int32))

    def groups(self, frame: pd.DataFrame, site: str) -> list[str]:
        """The names of a site's groups, in the order of their numbers; with that of the site for `site:column`."""
        if self._within is None:
            return [site]
        names = map(str, self._grouped(frame)[0])
        return [f"{site}:{name}" for name in names] if self._is_nested else list(names)

    def _grouped(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """The values of a site's groups, sorted, and the number of each row's group among them."""
        found = np.zeros(len(frame)) if self._within is None else frame[self._within].to_numpy()
        return np.unique(found, return_inverse=True)
