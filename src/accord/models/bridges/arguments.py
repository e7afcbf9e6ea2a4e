"""A model's keyword arguments, sorted into what belongs to rows, to groups of rows, and to all sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ...base.errors import DataError


def require_numbers(given: Mapping[str, Any], what: str) -> None:
    """Raise `DataError` where an array is of no numbers, or of NaN: errors of other libraries quote its cells."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(given)):
        array = np.asarray(leaf)
        if array.ndim and array.dtype.kind not in "fiubc":
            raise DataError(f"{_name(path)} of {what} must hold numbers, found dtype {array.dtype}")
        if array.ndim and array.dtype.kind in "fc" and (wrong := np.isnan(array)).any():
            raise DataError(
                f"the argument {_name(path)} of {what} holds NaN, first at index {_first(wrong)}: give the mask as an "
                "argument and numbers in place of NaN, or leave these rows out"
            )


def _name(path: tuple[Any, ...]) -> str:
    """The name of an argument, from its place in a tree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _first(wrong: np.ndarray) -> list[int]:
    """The index of the first element of an array that is true."""
    return [int(place) for place in np.argwhere(wrong)[0]]


class Size(NamedTuple):
    """Rows of a site, and its groups: 0 where there are none."""

    rows: int
    groups: int


# What an argument's leaf is.
ROW, GROUP, ROW_COUNT, GROUP_COUNT, SHARED = "rows", "groups", "number of rows", "number of groups", "same everywhere"


@dataclass(frozen=True, eq=False)
class Arguments:
    """How a model's keyword arguments are made of rows, whatever their number.

    Parameters
    ----------
    kinds
        What each leaf of the arguments is.
    shared
        Leaves that are the same at all sites; None where a leaf is another kind.
    like
        Shape after the first axis, and dtype, of leaves of rows and groups.
    treedef
        The structure of the arguments.
    """

    kinds: tuple[str, ...]
    shared: tuple[Any, ...]
    like: tuple[Any, ...]
    treedef: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arguments):
            return NotImplemented
        alike = (self.kinds, self.like, self.treedef) == (other.kinds, other.like, other.treedef)
        return alike and all(map(np.array_equal, self.shared, other.shared))

    def __hash__(self) -> int:
        return hash((self.kinds, self.like))

    @classmethod
    def sorted(
        cls, arguments: Sequence[Mapping[str, Any]], sizes: Sequence[Size], sets_size: Callable[[int], bool]
    ) -> Arguments:
        """Sort the leaves of all sites' arguments.

        `sets_size(leaf)` says whether a number that is as large as a site's rows or groups decides how many there are.

        Raises
        ------
        ValueError
            Sites have other arguments than the first, or a leaf is neither of rows nor of groups nor alike everywhere.
        """
        flat = [jax.tree_util.tree_flatten_with_path(dict(own)) for own in arguments]
        treedef: Any = flat[0][1]
        for site, (_, other) in enumerate(flat):
            if other != treedef:
                raise ValueError(
                    f"sites must have the same arguments: those of site {site} are {sorted(arguments[site])}, those of "
                    f"site 0 {sorted(arguments[0])}"
                )
        kinds, shared, like = [], [], []
        for place, leaves in enumerate(zip(*(leaves for leaves, _ in flat), strict=True)):
            name = _name(leaves[0][0])
            values = [value for _, value in leaves]
            kind = _kind(name, values, sizes, partial(sets_size, place))
            kinds.append(kind)
            shared.append(values[0] if kind == SHARED else None)
            array = np.asarray(values[0]) if kind in (ROW, GROUP) else None
            like.append(None if array is None else (array.shape[1:], array.dtype))
        return cls(tuple(kinds), tuple(shared), tuple(like), treedef)

    def require_finite(self, arguments: Mapping[str, Any], site: int) -> None:
        """Raise `DataError` where an argument of a site's rows or groups is not finite."""
        named: Any = jax.tree_util.tree_leaves_with_path(dict(arguments))
        for kind, (path, leaf) in zip(self.kinds, named, strict=True):
            array = np.asarray(leaf)
            if kind in (ROW, GROUP) and array.dtype.kind in "fc" and (wrong := ~np.isfinite(array)).any():
                raise DataError(
                    f"the argument {_name(path)} of shard {site} holds NaN or infinity, first at index "
                    f"{_first(wrong)}: give finite numbers in its place, or leave these rows out"
                )

    def rows(self, arguments: Mapping[str, Any], group: np.ndarray | None) -> dict[str, Any]:
        """A site's shard: arrays by the number of their leaf, all with an axis of rows; groups' are repeated."""
        found: dict[str, Any] = {} if group is None else {"group": group}
        for place, (kind, leaf) in enumerate(zip(self.kinds, jax.tree.leaves(dict(arguments)), strict=True)):
            if kind == ROW:
                found[str(place)] = np.asarray(leaf)
            elif kind == GROUP:
                found[str(place)] = np.asarray(leaf)[group]
        return found

    def of_rows(self, rows: Mapping[str, Any], size: int) -> dict[str, Any]:
        """The arguments for some rows, as those of a site with as many groups as rows."""
        values = {ROW_COUNT: size, GROUP_COUNT: size}
        leaves = []
        for place, kind in enumerate(self.kinds):
            if kind == GROUP:
                leaves.append(scattered(rows[str(place)], rows["group"]))
            else:
                leaves.append(rows[str(place)] if kind == ROW else values.get(kind, self.shared[place]))
        return dict(self.treedef.unflatten(leaves))

    def of_one_group(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one group, of which one row is known, as those of a site with that row alone."""
        return self.of_rows({**{k: v[None] for k, v in row.items()}, "group": np.zeros(1, np.int32)}, 1)

    def made_up(self) -> dict[str, Any]:
        """Arguments of one row, of which nothing is anybody's."""
        ones: dict[str, Any] = {
            str(k): np.ones((1, *like[0]), like[1]) for k, like in enumerate(self.like) if like is not None
        }
        return self.of_rows({**ones, "group": np.zeros(1, np.int32)}, 1)


def scattered(of_row: Array, group: Array) -> Array:
    """Numbers of groups, of which as many are there as rows, from what each row knows of its own.

    Those of groups that are not there are like those of the first row's: they are allowed, and nothing reads them.
    """
    whole = jax.numpy.broadcast_to(of_row[:1], of_row.shape)
    return whole.at[group].set(of_row)


def _kind(name: str, values: Sequence[Any], sizes: Sequence[Size], sets_size: Callable[[], bool]) -> str:
    """What a leaf is, by all sites' values of it."""
    arrays = [np.asarray(value) for value in values]
    alike = all(array.shape == arrays[0].shape and np.array_equal(array, arrays[0]) for array in arrays)
    if arrays[0].ndim == 0:
        whole = arrays[0].dtype.kind in "iu"
        # a number that is the same everywhere may be as large by chance
        if whole and all(int(array) == size.rows for array, size in zip(arrays, sizes, strict=True)):
            return ROW_COUNT if not alike or sets_size() else SHARED
        if whole and sizes[0].groups and all(int(a) == s.groups for a, s in zip(arrays, sizes, strict=True)):
            return GROUP_COUNT if not alike or sets_size() else SHARED
    elif all(array.shape[:1] == (size.rows,) for array, size in zip(arrays, sizes, strict=True)):
        return ROW
    elif sizes[0].groups and all(a.shape[:1] == (s.groups,) for a, s in zip(arrays, sizes, strict=True)):
        return GROUP
    if alike:
        return SHARED
    shapes = ", ".join(str(array.shape) for array in arrays[:3])
    raise ValueError(
        f"the argument {name} is of rows, of groups, or the same at every site; at sites of {sizes[0].rows} rows, ... "
        f"its shapes are {shapes}, ..., and its values differ"
    )
