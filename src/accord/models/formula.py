"""A formula as columns of numbers: parsed once, evaluated at each site with levels and means of all sites."""

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

# The name of a row's site in grouping factors. The table needs no such column.
SITE = "site"


def require_groups_of_sites(text: str) -> None:
    """Raise `ValueError` if grouping needs the names of groups at other sites, as (1 | ward) does.

    The check reads no table, so it runs before any request to a site.
    """
    grouping = _grouping_of(parsed(text)[0])
    if grouping is not None and grouping.column is not None and not grouping.is_nested:
        raise _group_names_error(grouping.column)


def columns_of_formula(text: str) -> frozenset[str]:
    """The columns of a table that a formula reads."""
    model, _ = parsed(text)
    factors = {component.name for term in model.group_terms for component in term.factor.components}
    others = [*model.common_terms, model.response.term, *(term.expr for term in model.group_terms)]
    named = {name for term in others for name in names_of(parts_of_term(term))}
    # as a grouping factor, `site` is the site itself and needs no column
    return frozenset(named | (factors - {SITE}))


class _Grouping(NamedTuple):
    """The grouping factor of a formula: its text, its column or None, and whether it contains `site`."""

    name: str
    column: str | None
    is_nested: bool


def _grouping_of(model: Any) -> _Grouping | None:
    """The grouping factor of terms such as `(1 | ward)`, or None."""
    factors = {term.factor.name: term.factor.components for term in model.group_terms}
    if not factors:
        return None
    if len(factors) > 1:
        raise ValueError(
            f"a formula can have one grouping factor, found {sorted(factors)}: write the others as terms, as in "
            "C(column)"
        )
    ((name, components),) = factors.items()
    within = [component.name for component in components if component.name != SITE]
    if len(within) > 1 or not all(hasattr(component, "reference") for component in components):
        raise ValueError(
            f"effects must be grouped by {SITE}, a column, or {SITE}:column; found {name!r}: combine several columns "
            "into one"
        )
    return _Grouping(name, within[0] if within else None, len(components) > len(within))


def _group_names_error(column: str) -> ValueError:
    return ValueError(
        f"names of groups stay at their sites, so accord cannot check that no group of {column} has rows at two sites: "
        f"write {SITE}:{column}"
    )


# Pairs (text of a term, array of shape (row,)).
Columns = Sequence[tuple[str, np.ndarray]]


class Matrices(NamedTuple):
    """The right side of a formula, evaluated on the rows of one site."""

    # shape (row, column), the intercept first if there is one
    design: np.ndarray
    # shape (row,); None without an offset
    offset: np.ndarray | None
    # columns with effects of groups, shape (row, effect); None without a grouping factor
    effects: np.ndarray | None
    # index of each row's group, from 0, shape (row,); None without a grouping factor
    group: np.ndarray | None

    @property
    def together(self) -> np.ndarray:
        """All columns with a coefficient, of all rows or of each group, shape (row, column)."""
        return self.design if self.effects is None else np.concatenate([self.design, self.effects], axis=1)


class Formula:
    """A formula whose columns are the same at all sites.

    Parameters
    ----------
    text
        The formula, in R's syntax as `formulae` parses it.
    meeting
        The collectives of the sites: sums for `scale` and `center`, and checks.
    frames
        One pandas DataFrame for each site in this process.
    columns
        The names of the columns of all frames.
    levels
        The levels of each factor, the same at all sites. Columns without levels are numeric.
    known
        The names of all columns of the table, for error messages. `columns` may be a part of them.
    check
        Raises an error at all sites if one site refuses its columns, see `accord.data.Study.check_columns`.
    check_size
        Raises an error if the least number of columns is too large, before any column is computed.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    ValueError
        The formula cannot be parsed. It names an unknown column or function, or a function of the rows of one site,
        whose result would differ between sites.
    """

    def __init__(
        self,
        text: str,
        meeting: SiteCollectives,
        frames: Sequence[pd.DataFrame],
        columns: Sequence[str],
        levels: Mapping[str, Sequence[str]],
        known: Sequence[str],
        check: Callable[[Sequence[Columns], Sequence[np.ndarray]], None],
        check_size: Callable[[int], None],
    ) -> None:
        self.text, self.levels = text, {name: list(own) for name, own in levels.items()}
        self._model, self._spelling = parsed(text)
        self._within: str | None = None
        self._is_nested = False
        self.group = self._grouping(columns, known)
        self._unheard = meeting.unheard
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
            raise ValueError(f"the response {own} of the formula {text!r} is also among its terms: remove it there")
        self._environment = environment()
        for part in self._predictors():
            require_columns(part, columns, known)
            require_levels(part, self.levels)
        for part in [*parts_of(self._response), *self._predictors()]:
            require_kinds(part, self.levels, factors)
        check_size(self._min_columns())
        self._standardise(meeting, frames, check)
        self._template = self._template_rows(columns)
        # the template has no rows of a site, so the error message may quote it
        try:
            with np.errstate(all="ignore"):
                # evaluation adds terms that interactions need, such as h for g:h, which may need further terms
                count = 0
                while count != (count := len(self._model.common_terms)):
                    self._model.eval(self._template, self._environment)
        except Exception as error:
            raise ValueError(f"the formula {text!r} cannot be evaluated: {error}") from error
        self._read_terms()

    # --- the parsed formula ---

    def _predictors(self) -> Iterator[Any]:
        for component in self._components():
            yield from parts_of(component)

    def _components(self) -> Iterator[Any]:
        groups = [term.expr for term in self._model.group_terms]
        for term in [*self._model.common_terms, *groups]:
            yield from getattr(term, "components", ())

    def _grouping(self, columns: Sequence[str], choices: Sequence[str]) -> str | None:
        """The text of the grouping factor, or None; sets its column and whether it contains `site`."""
        found = _grouping_of(self._model)
        if found is None:
            return None
        if found.column is not None and found.column not in columns:
            raise unknown_name_error("column in the formula", found.column, dict.fromkeys([*choices, SITE]))
        self._within, self._is_nested = found.column, found.is_nested
        return found.name

    def _require_within_sites(self, meeting: SiteCollectives, frames: Sequence[pd.DataFrame]) -> None:
        """Raise `ValueError` if several sites have a group of the same name, which could be one group."""
        if self._within is None or self._is_nested:
            return
        if not meeting.is_whole:
            raise _group_names_error(self._within)
        places: dict[Any, list[str]] = {}
        for frame, site in zip(frames, meeting.sites, strict=True):
            for name in frame[self._within].unique():
                places.setdefault(name, []).append(site)
        for several in places.values():
            if len(several) > 1:
                raise ValueError(
                    f"a group of {self._within} has rows at several sites, {several[0]!r} and {several[1]!r} among "
                    f"them, and its effect belongs to one site: write {SITE}:{self._within} if each site has its own "
                    "groups"
                )

    def _require_sites(self, meeting: SiteCollectives, frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> None:
        """Raise `ValueError` if the table has a column `site` that does not match the sites of the study."""
        is_of_sites = self.group is not None and (self._within is None or self._is_nested)
        if not is_of_sites or SITE not in columns:
            return
        own = [set(frame[SITE]) for frame in frames]
        is_mixed = meeting.gathered([len(values) > 1 for values in own])
        if any(is_mixed) or (meeting.is_whole and len(set().union(*own)) < len(own)):
            raise ValueError(
                f"{SITE} in a grouping factor means the sites of the study, {', '.join(meeting.sites)}, and the table "
                f"has a column {SITE} with other groups: rename or remove the column"
            )

    def _standardise(
        self,
        meeting: SiteCollectives,
        frames: Sequence[pd.DataFrame],
        check: Callable[[Sequence[Columns], Sequence[np.ndarray]], None],
    ) -> None:
        """Set the mean and standard deviation of `scale` and `center` calls from sums over all sites."""
        from formulae.transforms import TRANSFORMS

        calls = [part for part in self._predictors() if is_call(part) and part.callee in STANDARDS]
        while calls:
            # a call is ready once the calls in its argument are done
            left = {id(call) for call in calls}
            ready = [call for call in calls if left.isdisjoint(id(part) for part in parts_of(call) if part is not call)]
            values = [
                {str(k): evaluated(call.args[0], frame, self._environment, site) for k, call in enumerate(ready)}
                for site, frame in zip(meeting.names_here, frames, strict=True)
            ]
            for site, own in zip(meeting.names_here, values, strict=True):
                for call, numbers in zip(ready, own.values(), strict=True):
                    if site not in self._unheard:
                        require_finite(str(call), site, numbers)
            # no site sends the mean of a column that singles out a few of its rows
            names = [self._spelling.of(str(call)) for call in ready]
            check(
                [
                    [
                        (name, x)
                        for name, call, own in zip(names, ready, numbers.values(), strict=True)
                        for x in (own, *self._numbers(call, frame, site))
                    ]
                    for site, frame, numbers in zip(meeting.names_here, frames, values, strict=True)
                ],
                [np.column_stack(list(numbers.values())) for numbers in values],
            )
            found = means_and_sds(meeting, values)
            for k, call in enumerate(ready):
                transform = TRANSFORMS[call.callee]()
                transform.mean, transform.std = found[str(k)]
                if not transform.std > 0:
                    raise ValueError(f"{call} is undefined: its argument is the same number in all rows of all sites")
                transform.params_set, call.stateful_transform = True, transform
            done = {id(call) for call in ready}
            calls = [call for call in calls if id(call) not in done]

    def _min_columns(self) -> int:
        """A lower bound of the number of columns, from the levels of the factors."""
        return sum(
            prod(max(self._min_columns_of(component), 1) for component in getattr(term, "components", ()))
            for term in self._model.common_terms
        )

    def _min_columns_of(self, component: Any) -> int:
        """A lower bound of the columns of a component: one for each level of a factor except the first."""
        call = getattr(component, "call", None)
        is_factor = call.callee in FACTORS if call is not None else getattr(component, "name", None) in self.levels
        names = names_of(parts_of(component)) if is_factor else []
        return len(self.levels[names[0]]) - 1 if names else 1

    def _template_rows(self, columns: Sequence[str]) -> pd.DataFrame:
        """Artificial rows with every level, so that formulae codes factors alike at all sites."""
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
        # the intercept first, the other terms in their order
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
                f"the formula {self.text!r} makes two columns named {twice[0]}: rename a column of the table, or write "
                "the factors of all interactions in one order, as in g + h + g:h"
            )
        effects = [(term.expr, term.expr.kind == "intercept") for term in self._model.group_terms]
        self.effects = tuple(
            label
            for expr, is_intercept in effects
            for label in (["Intercept"] if is_intercept else [self._written(expr, one) for one in expr.labels])
        )

    def _written(self, term: Any, label: str) -> str:
        """A label of a term, with functions spelt as in the formula."""
        for component in getattr(term, "components", ()):
            label = label.replace(component.name, self._spelling.of(component.name))
        return label

    @property
    def responses(self) -> list[str]:
        """Names of the columns on the left side."""
        return names_of(parts_of(self._response))

    @property
    def left(self) -> str:
        """The text of the left side."""
        return self.text.partition("~")[0].strip()

    def require_other_names(self, taken: Collection[str]) -> None:
        """Raise `ValueError` if a term other than the intercept has the name of a parameter of the model."""
        for term in self._terms:
            if term.kind != "intercept" and (name := self._written(term, term.name)) in taken:
                raise ValueError(f"the column {name!r} has the name of a parameter of the model: rename the column")

    @property
    def group_is_site(self) -> bool:
        """Whether all rows of a site are one group."""
        return self.group is not None and self._within is None

    # --- evaluation at a site ---

    def response(self, frame: pd.DataFrame, site: str) -> tuple[np.ndarray, ...]:
        """The left side of the formula: arrays of shape (row,), two for `prop` and `surv`, else one."""
        component = self._response
        if hasattr(component, "reference"):
            column = frame[component.name]
            if component.reference is None:
                return (column.to_numpy(),)
            known = self.levels.get(component.name)
            if known is None:
                raise ValueError(f"{component.name} is numeric and has no levels: remove [{component.reference!r}]")
            if component.reference not in known:
                raise unknown_name_error(f"level of {component.name}", str(component.reference), known)
            return ((column == component.reference).to_numpy().astype(np.float64),)
        with of_rows(str(component.call), site):
            found = component.call.eval(frame, self._environment)
        several = found if isinstance(found, tuple) else (found,)
        return tuple(np.broadcast_to(np.asarray(column), (len(frame),)) for column in several)

    def _numbers(self, part: Any, frame: pd.DataFrame, site: str) -> Iterator[np.ndarray]:
        """The values of each sub-expression of a part of the formula, shape (row,) each.

        The floors of a site apply to each of them, as the mean of a sum reveals the means of its summands.
        """
        for piece in parts_of(part):
            if is_call(piece):
                # `scale` and `center` without a mean cannot be evaluated yet
                is_open = piece.callee in STANDARDS and piece.stateful_transform is None
                is_number = piece.callee not in WITHOUT_NUMBERS and not is_open
            else:
                is_number = hasattr(piece, "op")
            if is_number:
                yield evaluated(piece, frame, self._environment, site)

    def columns(self, frame: pd.DataFrame, site: str, matrices: Matrices) -> Columns:
        """All numeric columns of the formula at a site: table columns, design, effects, and their sub-expressions.

        A response that is a plain column of the table is not included.
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
        """The right side of the formula, evaluated on the rows of one site.

        Raises
        ------
        ValueError
            A term is not finite in some rows (the message names term and site).
        """
        import pandas as pd

        # formulae needs all levels in the data: the template rows have them, and are cut off afterwards
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
            if site not in self._unheard:
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
        """The names of a site's groups by index; for `site:column` they start with the name of the site."""
        if self._within is None:
            return [site]
        names = map(str, self._grouped(frame)[0])
        return [f"{site}:{name}" for name in names] if self._is_nested else list(names)

    def _grouped(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """The sorted values of a site's groups, and the index of each row's group."""
        found = np.zeros(len(frame)) if self._within is None else frame[self._within].to_numpy()
        return np.unique(found, return_inverse=True)
