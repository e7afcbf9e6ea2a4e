"""Synthetic rows of a study: columns, true parameters, and responses drawn from the study's model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import data
from ..base.checks import whole_number
from ..base.errors import unknown_name_error
from ..data import Policy
from ..data.formula_names import FormulaNames
from ..data.ranges import Ranges
from ..data.studies import study_of_made_up
from ..models.effects import factor, require_possible
from ..models.effects import parameters as parameters_of_effects
from ..models.families import Family
from ..models.families.family import Rows
from ..models.formula import Formula
from ..models.parameters import UserPriors, defaults_of, names_of
from ..models.priors import Prior
from ..models.regression import COEFFICIENTS, predictor
from ..models.tables import family_of, figures_of, settled
from .document import REHEARSAL, StudyDocument

if TYPE_CHECKING:
    import pandas as pd

# Rows of a site without a given number.
ROWS = 100
# Least number of rows of a site, so that columns vary.
_FEWEST = 3
# Most rows of a site.
_MOST = 1_000_000
# Differences between sites: shift of means in standard deviations, and of the logs of shares.
_APART = 0.3
# Sd of plausible coefficients, as a share of a large change of the linear predictor.
_EFFECT = 0.5
# Sd of the logs of other positive parameters.
_SPREAD = 0.2
# Size of effects and residual sd in a range, relative to a response that is uniform in it.
_INSIDE = 0.35
# Groups of a site.
_GROUPS = 4
# Single precision, in which sites may evaluate the responses.
_SINGLE = np.finfo(np.float32)
# Largest absolute response, of which a study accepts the standard deviation.
_LARGEST = 1e15
# Least and largest response of a family with a bounded support.
_ENDS = {"beta": (_SINGLE.tiny, 1.0 - _SINGLE.epsneg), "gamma": (_SINGLE.tiny, _LARGEST)}
# Largest absolute logarithm of a mean or time.
_LARGEST_LOG = 30.0
# Largest number of draws of parameters and responses until no response is beyond these ends.
_ATTEMPTS = 50
# Start of the warning about responses beyond these ends.
MOVED = "some made-up responses were moved"
# Ways to choose the true parameters.
TRUTHS = ("plausible", "prior")
_NAME = r"`?([^\W\d][\w.]*)`?"
_PLAIN = re.compile(rf"{_NAME}(?:\[['\"]?([^'\"\]]+)['\"]?\])?")
_PAIR = re.compile(rf"\w+\(\s*{_NAME}\s*,\s*(?:{_NAME}|(\d+))\s*\)")


class Column(NamedTuple):
    """How the cells of a column are drawn.

    Parameters
    ----------
    kind
        "number" (normal), "range" (uniform), "whole" (uniform whole numbers), "levels" or "groups".
    numbers
        Mean and sd, or limits.
    shares
        The share of each level or group, in words.
    """

    kind: str
    numbers: tuple[float, float] = (0.0, 1.0)
    shares: Mapping[str, float] = {}

    def __str__(self) -> str:
        if self.kind == "number":
            return f"numbers of mean {self.numbers[0]:g} and sd {self.numbers[1]:g}"
        if self.kind == "range":
            return f"numbers from {self.numbers[0]:g} to {self.numbers[1]:g}"
        if self.kind == "groups":
            return f"{len(self.shares)} groups at each site"
        return ", ".join(f"{share:.0%} {level}" for level, share in self.shares.items())


def column_of(name: str, value: Any) -> Column:
    """A column from a TOML value.

    Parameters
    ----------
    name
        Name of the column, for errors.
    value
        `{mean = 60, sd = 10}`, `{low = 1, high = 9}`, `{groups = 4}`, `["f", "m"]`, or shares by level.

    Raises
    ------
    ValueError
        The value has another form, or a number is out of range.
    """
    wrong = (
        f"column {name} of the rehearsal must be {{mean = ..., sd = ...}}, {{low = ..., high = ...}}, "
        '{groups = ...}, a list of levels as in ["f", "m"], or the share of each level as in {f = 0.4, m = 0.6}, '
        f"found {value!r}"
    )
    if isinstance(value, list) and value and all(isinstance(level, str) and level for level in value):
        value = dict.fromkeys(value, 1.0)
    if not isinstance(value, dict) or not value or not all(_is_number(number) for number in value.values()):
        raise ValueError(wrong)
    if set(value) == {"mean", "sd"}:
        if not value["sd"] > 0:
            raise ValueError(f"sd of column {name} of the rehearsal must be > 0, found {value['sd']}")
        return Column("number", (float(value["mean"]), float(value["sd"])))
    if set(value) == {"low", "high"}:
        if not value["low"] < value["high"]:
            raise ValueError(f"low of column {name} of the rehearsal must be below high, found {value}")
        return Column("range", (float(value["low"]), float(value["high"])))
    if set(value) == {"groups"}:
        count = whole_number(f"groups of column {name} of the rehearsal", value["groups"], 1)
        return Column("groups", shares={f"{number}": 1.0 / count for number in range(1, count + 1)})
    if len(value) < 2 or set(value) & {"mean", "sd", "low", "high", "groups"}:
        raise ValueError(wrong)
    if not all(share > 0 for share in value.values()):
        raise ValueError(f"the shares of column {name} of the rehearsal must be > 0, found {value}")
    total = sum(value.values())
    return Column("levels", shares={level: share / total for level, share in value.items()})


def _within(ranges: Ranges, name: str) -> Column:
    """A column with the levels of a declared range, or uniform in it."""
    own = list(ranges.columns[name])
    if isinstance(own[0], str):
        return column_of(name, own)
    if ranges.is_whole(name):
        values = range(own[0], own[1] + 1)
        return column_of(name, list(map(str, values))) if len(values) == 2 else Column("whole", (own[0], own[1]))
    return Column("range", (float(own[0]), float(own[1])))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


class Made(NamedTuple):
    """Synthetic data: the file of each site, the true value of each parameter, and rows with each response."""

    files: list[Path]
    truth: dict[str, float]
    positives: int | None


@dataclass(frozen=True)
class Synthetic:
    """Draws synthetic rows of a study.

    Parameters
    ----------
    study
        The study, with a formula.
    given
        Keys and values that replace those in [rehearsal]: `rows`, `columns`, `effects`, `apart`.
    truth : {"plausible", "prior"}, default "plausible"
        "prior" draws the true parameters from the prior. "plausible" draws coefficients near the middle of the prior,
        with half of a large effect as standard deviation.

    Raises
    ------
    ValueError
        The study has a NumPyro model, or a key or value is wrong.
    """

    study: StudyDocument
    given: Mapping[str, Any] = field(default_factory=dict)
    truth: str = "plausible"

    def __post_init__(self) -> None:
        if self.study.module is not None:
            raise ValueError(
                "accord rehearse needs a formula: responses of a NumPyro model are not drawn. Simulate tables "
                "with your own program, as in the tutorial of a study between hospitals"
            )
        if self.truth not in TRUTHS:
            raise unknown_name_error("truth", self.truth, TRUTHS)
        for key in self._settings:
            if key not in REHEARSAL:
                raise unknown_name_error("key of [rehearsal]", key, REHEARSAL)
        for key in ("columns", "effects"):
            if not isinstance(self._settings.get(key, {}), dict):
                raise ValueError(f"{key} of [rehearsal] must be a table, found {self._settings[key]!r}")
        if not _is_number(self.apart) or self.apart < 0:
            raise ValueError(f"apart of [rehearsal] must be a number >= 0, found {self.apart!r}")
        for name, value in self.effects.items():
            if not _is_number(value):
                raise ValueError(f"effect {name} of [rehearsal] must be a number, found {value!r}")
        # errors of rows, columns and the left side are raised now
        self.rows, self.columns, self._left  # noqa: B018
        if self.family.columns != ("time", "event") and not self.family.replicates:
            raise ValueError(f"accord rehearse cannot draw responses of the family {self.family.name}")

    @property
    def family(self) -> Family:
        """The family of the study."""
        return family_of(self.study.arguments.get("family", "normal"))

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each site."""
        found, sites = self._settings.get("rows", ROWS), self.study.sites
        listed = list(found) if isinstance(found, list | tuple) else [found] * len(sites)
        if len(listed) != len(sites):
            raise ValueError(f"rows of the rehearsal has {len(listed)} numbers, and the study {len(sites)} sites")
        for site, rows in zip(sites, listed, strict=True):
            whole_number(f"rows of {site} in the rehearsal", rows, _FEWEST)
            if rows > _MOST:
                raise ValueError(f"rows of {site} in the rehearsal must be at most {_MOST:,}, found {rows:,}")
        return tuple(listed)

    @property
    def apart(self) -> float:
        """Differences between sites: shift of means in standard deviations, and of the logs of shares."""
        found: float = self._settings.get("apart", _APART)
        return found

    @cached_property
    def columns(self) -> dict[str, Column]:
        """All columns except the response."""
        given = dict(self._settings.get("columns", {}))
        known = sorted(self.study.needed_columns - set(self._left.names))
        for name in given:
            if name not in known:
                raise unknown_name_error("column of the rehearsal", name, known)
        return {name: column_of(name, given[name]) if name in given else self._usual(name) for name in known}

    @property
    def assumed(self) -> list[str]:
        """Columns that nothing describes."""
        given = self._settings.get("columns", {})
        return [] if self.study.private is not None else [name for name in self.columns if name not in given]

    @property
    def has_assumed_rows(self) -> bool:
        """Whether the number of rows is the default."""
        return "rows" not in self._settings

    def make(self, folder: Path, seed: Sequence[int]) -> Made:
        """Write the files of all sites into a folder.

        Parameters
        ----------
        folder
            An existing folder.
        seed
            Integers >= 0. Equal seeds give equal files.

        Raises
        ------
        ValueError
            The formula does not fit the columns, or an effect of [rehearsal] names no parameter.
        """
        import pandas as pd

        rng = np.random.default_rng([*seed])
        frames = [pd.DataFrame(self._site(rng, rows)) for rows in self.rows]
        files = [folder / f"{site}.csv" for site in self.study.sites]
        for frame, count in zip(frames, self.rows, strict=True):
            frame[list(self._left.names)] = np.transpose(self._placeholder(rng, count))
        self._write(frames, files)
        # rejected together with their responses, parameters of the prior stay calibrated
        for _ in range(_ATTEMPTS if self.truth == "prior" else 1):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                drawn, truth = self._responses(files, rng)
            if not any(str(one.message).startswith(MOVED) for one in caught):
                break
        for one in caught:
            warnings.warn(one.message, stacklevel=2)
        for frame, response in zip(frames, drawn, strict=True):
            for name, values in zip(self._left.names, response, strict=True):
                frame[name] = values
        self._write(frames, files)
        positives = None
        if self.family.name == "bernoulli":
            positives = sum(int((frame[self._left.names[0]].astype(str) == self._words[1]).sum()) for frame in frames)
        return Made(files, truth, positives)

    # --- columns ---

    @property
    def _settings(self) -> dict[str, Any]:
        own = self.study.rehearsal
        columns = {**own.get("columns", {}), **self.given.get("columns", {})}
        return {**own, **self.given} | ({"columns": columns} if columns else {})

    @property
    def effects(self) -> dict[str, Any]:
        """Given true values of parameters by name."""
        return dict(self._settings.get("effects", {}))

    @cached_property
    def _left(self) -> _Left:
        text = str(self.study.arguments["formula"]).partition("~")[0].strip()
        if found := _PLAIN.fullmatch(text):
            return _Left((found[1],), found[2], None)
        if (found := _PAIR.fullmatch(text)) and len(self.family.columns) == 2:
            names = (found[1],) if found[2] is None else (found[1], found[2])
            return _Left(names, None, None if found[3] is None else int(found[3]))
        raise ValueError(
            f"accord rehearse cannot make responses of {text!r}: write a column, column['level'], prop(successes, "
            "trials) or surv(time, event) on the left of the formula"
        )

    @cached_property
    def _words(self) -> tuple[str, str]:
        """The texts of 0 and 1 of a yes-no response."""
        positive = self.study.options.get("positive") or {}
        one = positive.get(self._left.names[0], self._left.level)
        one = one if one is None or isinstance(one, str) else one[0]
        return ("0", "1") if one is None else ("no" if one != "no" else "yes", str(one))

    def _usual(self, name: str) -> Column:
        """A column that nothing describes."""
        if self.study.private is not None:
            return _within(self.study.ranges, name)
        formula, options = str(self.study.arguments["formula"]), self.study.options
        found, strings = FormulaNames.of(formula), options.get("strings") or ()
        if name == self.study.arguments.get("weights"):
            return Column("range", (1.0, 1.0))
        if name in found.groups:
            return column_of(name, {"groups": _GROUPS})
        if isinstance(strings, Mapping) and len(strings.get(name, ())) > 1:
            return column_of(name, [str(level) for level in strings[name]])
        positive = (options.get("positive") or {}).get(name)
        if positive is not None:
            one = positive if isinstance(positive, str) else positive[0]
            return column_of(name, [one, "no" if one != "no" else "yes"])
        if name in found.factors or name in strings:
            return column_of(name, ["a", "b"])
        calls = re.findall(rf"([\w.]+)\(\s*`?{re.escape(name)}\b", formula)
        if name == self.study.arguments.get("exposure") or set(calls) - {"scale", "center", "I", ""}:
            return Column("range", (1.0, 10.0))
        return Column("number")

    def _site(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        """The cells of one site by column, without the response."""
        return {name: self._cells(rng, name, column, rows) for name, column in self.columns.items()}

    def _cells(self, rng: np.random.Generator, name: str, column: Column, rows: int) -> Any:
        shift = self.apart * rng.standard_normal(max(len(column.shares), 1))
        if column.shares:
            share = np.array(list(column.shares.values())) * np.exp(shift)
            return rng.choice(list(column.shares), rows, p=share / share.sum())
        first, second = column.numbers
        if column.kind == "whole":
            return rng.integers(int(first), int(second) + 1, rows)
        if column.kind == "range":
            cells, sd = rng.uniform(first, second, rows), second - first
        else:
            cells, sd = first + second * (shift[0] + rng.standard_normal(rows)), second
        if name in (self.study.options.get("dates") or {}):
            return [date(2020, 1, 1) + timedelta(days=int(day)) for day in rng.integers(0, 730, rows)]
        # three digits of the standard deviation
        return cells.round(int(2 - np.floor(np.log10(sd)))) if sd > 0 else cells

    def _write(self, frames: Sequence[pd.DataFrame], files: Sequence[Path]) -> None:
        dates = self.study.options.get("dates") or {}
        for site, frame, file in zip(self.study.sites, frames, files, strict=True):
            dialect, shown = self.study.dialects.at(site), frame.copy()
            for name in set(dates) & set(frame):
                form = (
                    data.cells.Dates(**dates[name]) if isinstance(dates[name], dict) else data.cells.Dates(dates[name])
                )
                shown[name] = [day.strftime(form.at(site)) for day in frame[name]]
            text = shown.to_csv(index=False, sep=dialect.separator, decimal=dialect.decimal, lineterminator="\n")
            file.write_bytes(("\n" * (dialect.header - 1) + text).encode(dialect.encoding))

    # --- responses ---

    def _placeholder(self, rng: np.random.Generator, rows: int) -> list[Any]:
        """Valid responses of a site, from which only the scale of the data is read."""
        name, size = self.family.name, (rows,)
        if self.study.private is not None:
            return [self._cells(rng, self._left.names[0], _within(self.study.ranges, self._left.names[0]), rows)]
        if self.family.columns == ("time", "event"):
            return [rng.exponential(size=size), (np.arange(rows) % 5 > 0).astype(int)]
        if name == "bernoulli":
            return [np.array(self._words)[np.arange(rows) % 2]]
        if name == "binomial":
            trials = self._trials(rng, rows)
            return [trials // 2, trials][: len(self._left.names)]
        if name in ("categorical", "ordinal"):
            return [np.resize(np.array(self._classes, dtype=object), rows)]
        draw: Any = {"poisson": rng.poisson, "negative_binomial": rng.poisson, "gamma": rng.exponential}.get(name)
        if draw is not None:
            return [draw(2.0, size)]
        return [rng.beta(2.0, 2.0, size) if name == "beta" else rng.standard_normal(size)]

    def _trials(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        known = self._left.trials
        return np.full(rows, known) if known is not None else rng.integers(5, 16, rows)

    @property
    def _classes(self) -> list[str]:
        known = getattr(self.family, "levels", None)
        return ["a", "b", "c"] if known is None else list(map(str, known))

    def _responses(
        self, files: Sequence[Path], rng: np.random.Generator
    ) -> tuple[list[tuple[np.ndarray, ...]], dict[str, float]]:
        """The response columns of each site, and the true parameters by name."""
        arguments, is_private = self.study.arguments, self.study.private is not None
        table = self._within_ranges(files) if is_private else self._as_read(files)
        known = list(table.agreed.columns)
        design = Formula(
            arguments["formula"], table.meeting, table.frames, known, table.agreed.levels, known,
            table.check_columns, lambda columns: None,
        )  # fmt: skip
        beside = (arguments.get("weights"), arguments.get("exposure"))
        family, shards = settled(self.family, design, table, *beside)
        columns = design.names if family.has_intercept else design.names[1:]
        figures = figures_of(table.meeting, family, shards)
        parameters = family.parameters(figures.summary)
        if design.group is not None:
            require_possible(family, design, table.meeting, "integrated")
            parameters |= parameters_of_effects(family, design, figures.summary, figures.effects)
        names = names_of(columns, family)
        own = UserPriors(arguments.get("priors") or {}, design.terms, design.names, family.predictors)
        defaults = defaults_of(columns, figures.spread, family, figures.summary)
        priors = [own.of(name, default) for name, default in zip(names, defaults, strict=True)]
        flat = [one for name, parameter in parameters.items() for one in parameter.names(name)]
        for name in self.effects:
            if name not in (*names, *flat):
                raise unknown_name_error("effect of [rehearsal]", name, [*names, *flat])
        # several predictors have one coefficient for each column and predictor
        width = max(len(family.predictors), 1)
        spread = np.repeat(figures.spread, width)
        unit = _EFFECT * family.unit(figures.summary)
        if is_private and family.name == "normal":
            # responses within their range
            unit *= _INSIDE
        steps = [unit / sd if sd > 0 else unit for sd in spread]
        found = np.array([self._coefficient(rng, prior, step) for prior, step in zip(priors, steps, strict=True)])
        found = found.reshape(len(columns), width)
        if columns and columns[0] == "Intercept":
            found[0] -= figures.centre[1:] @ found[1:]
            if is_private and family.name == "poisson":
                # counts far below the end of their range
                found[0] += np.log(self._usual_count / figures.summary.mean)
        found = np.array([self.effects.get(name, value) for name, value in zip(names, found.ravel(), strict=True)])
        truth = dict(zip(names, found.tolist(), strict=True))
        shift = float(figures.centre @ found) if not family.predictors and not family.has_intercept else 0.0
        params: dict[str, Any] = {COEFFICIENTS: jnp.asarray(found.reshape(-1, width) if family.predictors else found)}
        for name, parameter in parameters.items():
            values = self._other(rng, own.other(name, parameter), parameter.init, parameter.constraint)
            if is_private and parameter.constraint == "positive":
                values = _INSIDE * values
            values = values - parameter.sign * shift
            chosen = [self.effects.get(one, value) for one, value in zip(parameter.names(name), values, strict=True)]
            if name == "log_hazard":
                # cuts differ between data sets, so that times are drawn with a constant hazard
                chosen = [float(np.mean(chosen))] * len(chosen)
                truth[name] = chosen[0]
            truth |= dict(zip(parameter.names(name), map(float, chosen), strict=True))
            params[name] = jnp.asarray(np.reshape(chosen, np.shape(parameter.init)))
        if not columns:
            del params[COEFFICIENTS]
        # the first rows of a study with ranges are made up
        return [self._drawn(family, params, rows, rng) for rows in shards[is_private:]], truth

    def _as_read(self, files: Sequence[Path]) -> data.Study:
        """The study of the files of all sites."""
        return data.study([str(file) for file in files], policy=Policy.none(), **self.study.options)

    def _within_ranges(self, files: Sequence[Path]) -> data.Study:
        """The study of the files of all sites and of made-up rows, from which scales and levels follow."""
        own = {site: self.study.fitted(place, files[place]) for place, site in enumerate(self.study.sites)}
        for site, found in own.items():
            if found.unfit:
                raise ValueError(
                    f"columns of [rehearsal] must lie within the ranges of [model]: at {site}, a cell of "
                    f"{found.most_misfits} does not fit"
                )
        columns = {site: found.columns for site, found in own.items()}
        return study_of_made_up(self.study.ranges, columns, str(self.study.arguments["formula"]))

    @property
    def _usual_count(self) -> float:
        """The geometric middle of the range of a count, shifted by 1, as in `accord.samplers.Private`."""
        low, high = self.study.ranges.columns[self._left.names[0]]
        return float(((1.0 + low) * (1.0 + high)) ** 0.5 - 1.0)

    def _coefficient(self, rng: np.random.Generator, prior: Prior, step: float) -> float:
        if self.truth == "prior":
            return drawn(prior, rng)
        middle, sd = prior.moments or (0.0, np.inf)
        return float(middle + min(step, sd) * rng.standard_normal())

    def _other(self, rng: np.random.Generator, prior: Prior, init: np.ndarray, constraint: Any) -> np.ndarray:
        """The true values of another parameter, flat."""
        flat = np.ravel(np.asarray(init, float))
        if self.truth == "prior" and not prior.is_vector:
            values = np.array([drawn(prior, rng) for _ in flat])
            return np.sort(values) if constraint == "ordered_vector" else values
        return flat * np.exp(_SPREAD * rng.standard_normal()) if constraint == "positive" else flat

    def _drawn(
        self, family: Family, params: dict[str, Any], rows: Rows, rng: np.random.Generator
    ) -> tuple[np.ndarray, ...]:
        """The response columns of one site."""
        with jax.enable_x64(True):
            arrays = {name: jnp.asarray(value) for name, value in rows.items()}
            eta = np.array(predictor(family, params, arrays))
            if "group" in rows:
                latents = rng.standard_normal((int(rows["group"].max()) + 1, rows["effects"].shape[1]))
                own = latents @ np.asarray(factor(params)).T
                eta += (rows["effects"] * own[rows["group"]]).sum(axis=1)
            if family.columns == ("time", "event"):
                return _times(family, params, eta, rng)
            if family.is_log_linear:
                # JAX draws 0 from a Poisson distribution with an infinite mean
                eta = _within_ends(eta, -_LARGEST_LOG, _LARGEST_LOG)
            key = jax.random.key(int(rng.integers(2**31)))
            found = np.asarray(family.replicated(params, jnp.asarray(eta), arrays, key))
        found = _within_ends(found, *_ENDS.get(family.name, (-_LARGEST, _LARGEST)))
        if family.name == "bernoulli":
            return (np.array(self._words)[found.astype(int)],)
        if family.labels:
            return (np.array(family.labels)[found.astype(int)],)
        if family.name == "binomial" and len(self._left.names) == 2:
            return found.astype(int), rows["trials"].astype(int)
        return (found.astype(int) if family.is_whole else found,)


class _Left(NamedTuple):
    """The left side of a formula: its columns, the level that counts as 1, and a number of trials."""

    names: tuple[str, ...]
    level: str | None
    trials: int | None


def _times(family: Family, params: dict[str, Any], eta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Times and events, with random censoring."""
    log_unit = np.log(rng.exponential(size=len(eta)))
    if family.name == "weibull":
        log_time = eta + log_unit / float(params["shape"])
    else:
        # a constant hazard
        log_time = log_unit - eta - float(np.mean(params.get("log_hazard", 0.0)))
    time = np.exp(_within_ends(log_time, -_LARGEST_LOG, _LARGEST_LOG))
    limit = np.median(time) * rng.uniform(0.5, 4.0, len(eta))
    return np.minimum(time, limit), (time <= limit).astype(int)


def _within_ends(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values moved to the nearer end if they are outside, with a warning."""
    found = np.clip(values, low, high)
    if (found != values).any():
        warnings.warn(
            f"{MOVED} into the range that a study accepts: the true parameters are extreme, so give narrower priors in "
            "[model], or effects in [rehearsal]",
            stacklevel=2,
        )
    return found


def drawn(prior: Prior, rng: np.random.Generator) -> float:
    """A draw of a prior.

    Raises
    ------
    ValueError
        The prior has no draws, such as `Flat()`.
    """
    of: dict[str, Any] = vars(prior)
    name = type(prior).__name__
    if name == "Normal":
        return float(rng.normal(of["loc"], of["scale"]))
    if name == "StudentT":
        return float(of["loc"] + of["scale"] * rng.standard_t(of["df"]))
    if name == "Laplace":
        return float(rng.laplace(of["loc"], of["scale"]))
    if name == "Uniform":
        return float(rng.uniform(of["low"], of["high"]))
    if name == "HalfNormal":
        return float(abs(rng.normal(0.0, of["scale"])))
    if name == "HalfCauchy":
        return float(abs(of["scale"] * rng.standard_cauchy()))
    if name == "Exponential":
        return float(rng.exponential(of["scale"]))
    if name == "Gamma":
        return float(rng.gamma(of["shape"], 1.0 / of["rate"]))
    raise ValueError(f"no parameters are drawn from the prior {name}: use --truth plausible, or another prior")
