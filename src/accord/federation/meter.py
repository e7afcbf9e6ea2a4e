"""The meter of a site: how accurately its answers so far show the cells of one row to someone who has all other rows.

An answer is a sum over rows, so its derivatives with respect to the cells of row i depend on row i only. Let J be the
derivatives of all numbers that the site has sent with respect to these cells, and W = 1 / variance of the noise that
the site has added, rounding included. If all other rows are known, J' W J is the information about row i. No unbiased
estimate of a cell has a smaller sd than the root of the diagonal of (J' W J)^-1 (Cramer-Rao). The unit of a cell is the
sd of its column at this site. The two values of a column with two values differ by d' = sqrt(dv' W dv), where dv is the
difference of the answers to first order. With d' <= 1, they look alike. (J' W J + I)^-1 is an estimate for an attacker
who also knows how the columns spread.

What the meter is not:

- It is no bound for every attacker. Derivatives are taken at the true rows, so it describes small errors. A large sd
  only means that the answers show little.
- It does not count on masks: the attacker has the numbers of this site.
- Cells are columns of the design matrix and of the response. Two functions of one column count as two cells, although
  an attacker knows that they belong together. A column with two values counts as known when other cells are judged.
- It leaves out sums for means, sds and quantiles, whose noise is about one row's number, and counts, which are exact.
- A row of a model with effects of groups counts as a group of its own, which is an approximation.
- Models without a formula, Cox regressions and tables of merged rows are not measured, nor are sites with R.

Information adds up over steps and over studies. The account has the information of at most 1,000 rows, chosen by a
keyed hash of the row. Another version of the file with the same row has the same hash.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from math import floor, log2
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..base.atomic import write_private
from ..base.compiler import compiled
from ..models.regression import Regression
from ..models.tables import family_of
from ..posterior import Posterior
from ..posterior.coarse import Coder, Noise, Question
from ..posterior.coordinates import Coordinates, place_shard
from ..posterior.latents import Groups
from ..posterior.potential import Potential, Shard
from ..samplers.by_sums.evaluations import expansion_at, jet_from, jet_of, mode_of, unpacked, value_of
from .document import StudyDocument
from .ledger import Ledger
from .policy import RefusedError, SitePolicy

# Most rows of the account.
_MOST_ROWS = 1000
# Points of one program.
_POINTS = 128
# Most derivatives in memory at a time.
_NUMBERS = 2**22
# Information that every direction has, relative to the trace of a row's information, so that it has an inverse.
_NONE = 1e-12
# Default draws of a chain of a study.
_DRAWS = 1000
# Default chains of a study.
_CHAINS = 4
# Points of a run before its last batch.
_FIRST = 1000
# Points of the last batch per draw.
_PER_DRAW = 1.4
# Families in which the slope of a row's log likelihood in the linear predictor is bounded.
_BOUNDED = ("bernoulli", "binomial", "categorical", "ordinal")
# Least sd of a cell in other families, relative to a family with a bound.
_STEEP = 0.25
# Sd of the most exposed cell relative to a value's noise and spread, see `forecast`.
_EXPOSED = 0.25


# --- the information of one answer ---


class Cells(NamedTuple):
    """The numbers of rows that may be unknown.

    Parameters
    ----------
    rows
        The rows of a shard, arrays (row, ...).
    kept
        Which numbers of a row are cells, (number,), in the order of the arrays.
    """

    rows: PyTree
    kept: np.ndarray

    @classmethod
    def of(cls, rows: PyTree) -> Cells:
        """All columns of numbers, without constant ones. Whole numbers are codes, such as the class of a response."""
        kept = [
            np.ptp(column, axis=0) > 0.0 if column.dtype.kind == "f" else np.zeros(column.shape[1], bool)
            for column in _columns(rows)
        ]
        return cls(rows, np.flatnonzero(np.concatenate(kept)))

    @property
    def values(self) -> Float[np.ndarray, "row cell"]:
        """The cells."""
        return np.concatenate(_columns(self.rows), axis=1, dtype=np.float64)[:, self.kept]

    def at(self, chosen: np.ndarray) -> Cells:
        """Some rows."""
        return self._replace(rows=jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], self.rows))


def _columns(rows: PyTree) -> list[np.ndarray]:
    """The arrays of rows, each as columns (row, number)."""
    return [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(rows)]


def _with_cells(row: PyTree, kept: np.ndarray, cells: Float[Array, " cell"]) -> PyTree:
    """A row, arrays (...), with other cells, as a shard of one row."""
    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(row)
    found, begin = [], 0
    for leaf in leaves:
        own = (kept >= begin) & (kept < begin + leaf.size)
        flat = jnp.ravel(leaf)
        if own.any():
            flat = flat.at[kept[own] - begin].set(cells[np.flatnonzero(own)])
        found.append(flat.reshape(1, *leaf.shape))
        begin += leaf.size
    return structure.unflatten(found)


def _derivatives(
    function: Callable[..., Array],
    kept: tuple[int, ...],
    relative: bool,
    potential: Potential,
    place: Coordinates | None,
    row: PyTree,
    cells: Float[Array, " cell"],
    points: Float[Array, "point dim"],
    arguments: tuple[Any, ...],
) -> Float[Array, "point number cell"]:
    """Derivatives of a row's numbers at points with respect to the cells of the row."""
    one = np.zeros(1, np.int32)
    groups = Groups(one, one, np.int32(1), np.int32(1), np.int32(0))
    moved = potential if place is None else potential.within(place)

    def numbers(cells: Array, x: Array) -> Array:
        shard = Shard(_with_cells(row, np.array(kept), cells), np.int32(1), None, groups)
        return jnp.ravel(function(moved, shard if place is None else place_shard(shard, place), x, *arguments))

    along: Callable[..., Array] = jax.jacfwd(numbers)
    found = jax.vmap(along, (None, 0))(cells, points)
    return found.at[:, 0].add(-along(cells, jnp.zeros_like(points[0]))[0]) if relative else found


@partial(compiled, static_argnames=("function", "kept", "relative", "at_once"))
def _information(
    function: Callable[..., Array],
    kept: tuple[int, ...],
    relative: bool,
    at_once: int,
    potential: Potential,
    place: Coordinates | None,
    rows: PyTree,
    cells: Float[Array, "row cell"],
    points: Float[Array, "point dim"],
    arguments: tuple[Any, ...],
    root: Float[Array, "point number"],
) -> Float[Array, "row cell cell"]:
    """The information of numbers whose noise has the sds 1 / `root`, without those with `root` 0."""

    def of_row(row: tuple[PyTree, Array]) -> Array:
        found = _derivatives(function, kept, relative, potential, place, *row, points, arguments)
        # derivatives of numbers that were clipped may be infinite
        scaled = jnp.where(root[:, :, None] > 0.0, root[:, :, None] * found, 0.0).reshape(-1, len(kept))
        return scaled.T @ scaled

    return jax.lax.map(of_row, (rows, cells), batch_size=at_once)


@partial(compiled, static_argnames=("kept", "at_once"))
def _information_of_mode(
    kept: tuple[int, ...],
    at_once: int,
    potential: Potential,
    place: Coordinates | None,
    rows: PyTree,
    cells: Float[Array, "row cell"],
    start: Float[Array, " dim"],
    mode: Float[Array, " dim"],
    hessian: Float[Array, "dim dim"],
    third: Float[Array, "dim dim dim"],
    root: Float[Array, " number"],
) -> Float[Array, "row cell cell"]:
    """The information of `mode_of`: value at the start, H x - g and H at the site's own mode x.

    x moves by -H^-1 times the derivatives of the row's gradient, and H with it. The site stops within a tenth of an sd
    of its mode, which is neglected.
    """
    dim, upper = mode.size, np.triu_indices(mode.size)

    def of_row(row: tuple[PyTree, Array]) -> Array:
        known = (potential, place, *row)
        value = _derivatives(value_of, kept, False, *known, start[None], ())[0]
        found = _derivatives(expansion_at, kept, False, *known, mode[None], ())[0]
        gradient = found[1 : 1 + dim]
        bend = jnp.zeros((dim, dim, len(kept))).at[upper].set(found[1 + dim :])
        bend = bend + jnp.swapaxes(jnp.triu(bend.T, 1).T, 0, 1)
        bend = bend - jnp.einsum("ijk,kc->ijc", third, jnp.linalg.solve(hessian, gradient))
        numbers = jnp.concatenate([value, jnp.einsum("ijc,j->ic", bend, mode) - gradient, bend[upper]])
        scaled = root[:, None] * numbers
        return scaled.T @ scaled

    return jax.lax.map(of_row, (rows, cells), batch_size=at_once)


def information(
    model: Posterior,
    cells: Cells,
    question: Question,
    coder: Coder,
    part: Float[np.ndarray, " number"],
    sent: Bool[np.ndarray, " number"],
) -> Float[np.ndarray, "row cell cell"]:
    """The information about the cells of each row, given all other rows, in the answer to a question.

    Parameters
    ----------
    model
        The posterior with the site's rows only.
    cells
        The cells.
    question, coder
        The question, and the coder of the answer, which has the sds of its noise.
    part
        The site's numbers.
    sent
        Which of them leave the site for the first time, and not clipped.
    """
    precision = np.where(sent, 1.0 / np.sqrt(coder.noise**2 + coder.grid**2 / 12.0), 0.0)
    kept, values = tuple(map(int, cells.kept)), cells.values
    place: Coordinates | None = question.options.get("coordinates")
    total, begin = np.zeros((len(values), len(kept), len(kept))), 0

    def add(function: Callable[..., Array], relative: bool, points: np.ndarray, root: np.ndarray, *more: Any) -> None:
        size = min(_POINTS, 1 << max(0, len(points) - 1).bit_length())
        at_once = int(np.clip(_NUMBERS // (size * root.shape[1] * max(1, len(kept))), 1, len(values)))
        for first in range(0, len(points), size):
            some, own = points[first : first + size], root[first : first + size]
            lacking = size - len(some)
            some = np.concatenate([some, np.repeat(some[-1:], lacking, axis=0)])
            own = np.concatenate([own, np.zeros((lacking, own.shape[1]))])
            total[:] += _information(
                function, kept, relative, at_once, model.potential, place, cells.rows, values, some, more, own
            )

    with jax.enable_x64(True):
        for function, some, relative in zip(question.functions, question.points, question.relative, strict=True):
            points = np.asarray(some, np.float64)
            # numbers of one point
            width = int((coder.first[begin:] == begin).sum())
            own = slice(begin, begin + len(points) * width)
            root = precision[own].reshape(len(points), width)
            if function is mode_of:
                total += _of_mode(model, cells, place, points[0], part[own], root[0])
            else:
                add(function, relative, points, root, *question.arguments)
            begin = own.stop
        if question.needs_origin:
            add(value_of, False, np.zeros((1, model.dim)), precision[-1:, None])
    return total


def _of_mode(
    model: Posterior,
    cells: Cells,
    place: Coordinates | None,
    start: np.ndarray,
    numbers: Float[np.ndarray, " number"],
    root: Float[np.ndarray, " number"],
) -> np.ndarray:
    """The information of the numbers of `mode_of`."""
    dim, values = start.size, cells.values
    hessian = unpacked(numbers[1 + dim :], dim)
    mode, *_ = np.linalg.lstsq(hessian, numbers[1 : 1 + dim])
    jet = jet_from(np.asarray(model.totals_here().each(jet_of, points=mode[None], coordinates=place))[0, 0], dim)
    at_once = int(np.clip(_NUMBERS // (root.size * max(1, len(cells.kept))), 1, len(values)))
    kept = tuple(map(int, cells.kept))
    found = _information_of_mode(
        kept, at_once, model.potential, place, cells.rows, values, start, mode, jet.hessian, jet.third, root
    )
    return np.asarray(found)


# --- the account of a site ---


class Reading(NamedTuple):
    """What the answers of a site show of one row to someone who has all other rows.

    Parameters
    ----------
    least, typical
        Least and median sd of a cell over rows and columns, in sds of the column. Infinite without such a cell.
    least_known, typical_known
        The same estimated for an attacker who also knows how the columns spread.
    apart
        The largest d' of a column with two values. 0 without such a column.
    """

    least: float
    typical: float
    least_known: float
    typical_known: float
    apart: float

    def __str__(self) -> str:
        shown = (
            f"someone with all other rows knows the most exposed cell to {self.least:.2g} and a typical one to "
            f"{self.typical:.2g} standard deviations of its column"
        )
        if self.typical_known < 1.0:
            shown += f" (with the spread of the columns: {self.least_known:.2g} and {self.typical_known:.2g})"
        return f"{shown}; two values of a cell differ by up to {self.apart:.2g} standard deviations of the noise (d')"

    @property
    def rounded(self) -> dict[str, float]:
        """The numbers of the audit file: the least and the median sd, rounded down to powers of two."""
        return {"least": rounded_down(self.least), "typical": rounded_down(self.typical)}


def rounded_down(sd: float) -> float:
    """An sd rounded down to a power of two, at most 1. Exact numbers depend on rows too much to be shown to others."""
    return 2.0 ** floor(log2(min(sd, 1.0))) if sd > 0.0 else 0.0


class Measured(NamedTuple):
    """The information about some rows in the answers of one study.

    Parameters
    ----------
    step
        The last step.
    rows
        Keyed hashes of rows, (row,).
    names
        Names of the cells of a row, (cell,).
    two
        Whether a cell has two values, (cell,).
    information
        In units of the column's sd, or of the distance of its two values, (row, cell, cell).
    exact
        Whether answers had no noise.
    """

    step: int
    rows: np.ndarray
    names: np.ndarray
    two: np.ndarray
    information: np.ndarray
    exact: bool


class Account:
    """The information in all answers of a site, by row. It is a folder of one file for each study.

    Parameters
    ----------
    folder
        Folder of the site's policy. Only the site reads it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "meter"

    def _path(self, study: str) -> Path:
        return self.folder / f"{study[:16]}.npz"

    def read(self, study: str) -> Measured | None:
        """The information of a study, by its hash. None before its first answer."""
        return _read(self._path(study)) if self._path(study).is_file() else None

    def write(self, study: str, own: Measured) -> None:
        """Replace the information of a study."""
        content = io.BytesIO()
        np.savez_compressed(content, **own._asdict())
        write_private(self._path(study), content.getvalue())

    def reading(self, study: str, own: Measured) -> Reading:
        """The reading of the rows of a study, over all studies."""
        others = [_read(path) for path in sorted(self.folder.glob("*.npz")) if path != self._path(study)]
        return reading([own, *others])


def _read(path: Path) -> Measured:
    with np.load(path, allow_pickle=False) as found:
        fields = {name: found[name] for name in Measured._fields}
    return Measured(**fields | {"step": int(fields["step"]), "exact": bool(fields["exact"])})


def reading(studies: Sequence[Measured]) -> Reading:
    """The reading of the rows of the first study, over all studies."""
    first = studies[0]
    names = list(dict.fromkeys(str(name) for own in studies for name in own.names))
    two, exact = np.zeros(len(names), bool), np.zeros((len(first.rows), len(names)), bool)
    total = np.zeros((len(first.rows), len(names), len(names)))
    for own in studies:
        _, here, there = np.intersect1d(first.rows, own.rows, return_indices=True)
        cells = np.array([names.index(str(name)) for name in own.names], int)
        total[np.ix_(here, cells, cells)] += own.information[there]
        two[cells] |= own.two
        exact[np.ix_(here, cells)] |= own.exact
    apart = np.sqrt(np.diagonal(total, axis1=1, axis2=2))[:, two]
    numbers = total[:, ~two][:, :, ~two]
    sds = [np.where(exact[:, ~two], 0.0, _sds(numbers + known * np.eye(numbers.shape[1]))) for known in (0.0, 1.0)]
    least, typical, least_known, typical_known = (
        float(f(found)) if found.size else np.inf for found in sds for f in (np.min, np.median)
    )
    most = np.inf if exact[:, two].any() else float(apart.max(initial=0.0))
    return Reading(least, typical, least_known, typical_known, most)


def _sds(information: Float[np.ndarray, "row cell cell"]) -> Float[np.ndarray, "row cell"]:
    """Roots of the diagonal of the inverse. Directions without information get a large sd."""
    least = _NONE * np.maximum(np.trace(information, axis1=1, axis2=2), 1.0)
    inverse = np.linalg.inv(information + least[:, None, None] * np.eye(information.shape[1]))
    return np.sqrt(np.diagonal(inverse, axis1=1, axis2=2))


# --- in a study ---


def forecast(num_sites: int, rows: int, draws: int, *, bounded: bool) -> float:
    """The least sd of a cell that coarse answers leave, from public facts only, in sds of the column.

    A value at a point near the mode has about the information 1 / (rows sd^2) about a cell, with the sd of a site's
    noise: the slope of a row's likelihood and the spread of the points cancel. The most exposed cell has at least a
    fourth of the resulting sd, as measured for logistic regressions with 90 to 5,000 rows and 3 to 12 columns.

    In other families, the slope of a row's likelihood has no bound, and a row with unusual numbers is shown more. The
    forecast is a fourth. It was 2 to 3 times too low for linear and Poisson regressions.

    Parameters
    ----------
    num_sites
        Number of sites.
    rows
        Number of rows of all sites.
    draws
        Number of draws of all chains.
    bounded
        Whether the slope of a row's log likelihood in the linear predictor is bounded.
    """
    noise = float(Noise(num_sites, 1, rows).value(np.zeros(1))[0]) / num_sites**0.5
    found = _EXPOSED * noise * (rows / (_FIRST + _PER_DRAW * draws)) ** 0.5
    return min(1.0, found if bounded else _STEEP * found)


class Meter:
    """Measures the answers of a site in one study, before they leave.

    Parameters
    ----------
    policy
        Policy of the site.
    study
        The study.

    Attributes
    ----------
    fresh
        The reading with the last answer that was measured, None before.
    """

    def __init__(self, policy: SitePolicy, study: StudyDocument) -> None:
        self.policy, self.study, self.account = policy, study, Account(policy.folder)
        self.fresh: Reading | None = None

    def refusals(self, rows: int) -> list[str]:
        """The reason to refuse a study with this number of rows at all sites, from public facts, or none."""
        least, found = self.policy.disclosure, self.forecast(rows)
        if least is None or found is None or found >= least:
            return []
        return [
            f"{self.policy.site}: refused, its policy needs an sd of {least:g} for each cell (disclosure), and the "
            f"answers of this study would leave about {found:.1g} to someone with all other rows"
        ]

    def forecast(self, rows: int) -> float | None:
        """The least sd that the study will leave, from public facts. None for exact answers."""
        run = self.study.run
        draws = run.get("draws", _DRAWS) * run.get("chains", _CHAINS)
        bounded = family_of(self.study.arguments.get("family", "normal")).name in _BOUNDED
        return forecast(len(self.study.sites), rows, draws, bounded=bounded) if self.study.coarse else None

    def reading(self) -> Reading | None:
        """The reading of the answers so far. None without one."""
        own = self.account.read(self.study.hash)
        return None if own is None else self.account.reading(self.study.hash, own)

    def measure(self, model: Posterior, step: int, *answer: Any) -> None:
        """Add the answer of a step to the account: `answer` has the other arguments of `information`.

        Raises
        ------
        RefusedError
            The answer would leave less than the policy's `disclosure`.
        """
        if (found := self._so_far(model)) is not None and found[0].step < step:
            own, cells, unit = found
            more = information(model, cells, *answer) * unit[:, None] * unit
            self._add(own._replace(information=own.information + more, step=step))

    def exact(self, model: Posterior, step: int) -> None:
        """Add an answer without noise to the account, as `measure` otherwise."""
        if (found := self._so_far(model)) is not None and not found[0].exact:
            self._add(found[0]._replace(exact=True, step=step))

    def _add(self, own: Measured) -> None:
        """Write the account of this study, unless the policy refuses the answer."""
        found, least = self.account.reading(self.study.hash, own), self.policy.disclosure
        if least is not None and found.least < least:
            raise RefusedError(
                f"{self.policy.site}: refused, its policy needs an sd of {least:g} for each cell (disclosure), and "
                f"this answer would leave {found.least:.2g} to someone with all other rows"
            )
        self.account.write(self.study.hash, own)
        self.fresh = found

    def _so_far(self, model: Posterior) -> tuple[Measured, Cells, np.ndarray] | None:
        """The information so far, the cells and their units. None for a model that is not measured."""
        if not isinstance(model, Regression) or not model.potential.rowwise:
            return None
        rows, lines = model.source(*model.held), model.lines[0]
        # equal rows may be merged
        if len(lines) != len(rows["design"]):
            return None
        cells, own, hashes = Cells.of(rows), self.account.read(self.study.hash), self._hashes(lines)
        chosen = np.argsort(hashes)[:_MOST_ROWS]
        two = np.array([len(np.unique(column)) == 2 for column in cells.values.T], bool)
        unit = np.where(two, np.ptp(cells.values, axis=0), cells.values.std(axis=0))
        if own is None:
            names = np.array(_names(model, rows), str)[cells.kept]
            own = Measured(-1, hashes[chosen], names, two, np.zeros((len(chosen), len(two), len(two))), exact=False)
        return own, cells.at(chosen), unit

    def _hashes(self, lines: Sequence[int]) -> np.ndarray:
        """Keyed hashes of the rows that end in these lines of the site's file, which no option of the study changes.

        A row without one, in a file in whose encoding the ledger finds no lines, has the number of its line.
        """
        return np.array([self._of_lines.get(line, f"line {line}") for line in lines], "U32")

    @cached_property
    def _of_lines(self) -> dict[int, str]:
        return Ledger(self.policy).hashes(self.study.dialects.at(self.policy.site).header)


def _names(model: Regression, rows: dict[str, np.ndarray]) -> list[str]:
    """A name for each number of a row. `age`, `scale(age)` and `center(age)` are the same cell in their units."""
    several, left = max(len(model.family.predictors), 1), model.formula.partition("~")[0].strip()
    found: list[str] = []
    for key in sorted(rows):
        width = int(np.prod(rows[key].shape[1:], dtype=int))
        if key == "design":
            columns = list(model.priors)[: width * several : several]
            columns = [name.rpartition("|")[0] if model.family.predictors else name for name in columns]
            found += [re.sub(r"(?:scale|center)\((.*)\)", r"\1", name) for name in columns]
        else:
            found += [f"{left}, {key} {k}" for k in range(width)]
    return found
