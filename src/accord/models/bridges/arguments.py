"""The layout of a model's keyword arguments: which belong to rows, to groups of rows, or to all sites."""

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
    """Raise `DataError` for arrays that are not numeric or have NaN, as errors of other libraries quote cells."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(given)):
        array = np.asarray(leaf)
        if array.ndim and array.dtype.kind not in "fiubc":
            raise DataError(f"{_name(path)} of {what} must hold numbers, found dtype {array.dtype}")
        if array.ndim and array.dtype.kind in "fc" and (wrong := np.isnan(array)).any():
            raise DataError(
                f"the argument {_name(path)} of {what} holds NaN, first at index {_first(wrong)}: pass the mask as an "
                "argument, with numbers in place of NaN, or remove these rows"
            )


def _name(path: tuple[Any, ...]) -> str:
    """The dotted name of an argument, from its tree path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _first(wrong: np.ndarray) -> list[int]:
    """The index of the first true element."""
    return [int(place) for place in np.argwhere(wrong)[0]]


class Size(NamedTuple):
    """The numbers of rows and of groups of a site; 0 groups without local latents."""

    rows: int
    groups: int


# Kinds of leaves.
ROW, GROUP, ROW_COUNT, GROUP_COUNT, SHARED = "rows", "groups", "number of rows", "number of groups", "same everywhere"


@dataclass(frozen=True, eq=False)
class ArgumentLayout:
    """The kinds of a model's keyword arguments, and their construction from any number of rows.

    Parameters
    ----------
    kinds
        The kind of each leaf.
    shared
        The value of each leaf of kind `SHARED`; None for other leaves.
    like
        Trailing shape and dtype of each leaf of rows or groups; None for other leaves.
    treedef
        The tree structure of the arguments.
    """

    kinds: tuple[str, ...]
    shared: tuple[Any, ...]
    like: tuple[Any, ...]
    treedef: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArgumentLayout):
            return NotImplemented
        alike = (self.kinds, self.like, self.treedef) == (other.kinds, other.like, other.treedef)
        return alike and all(map(np.array_equal, self.shared, other.shared))

    def __hash__(self) -> int:
        return hash((self.kinds, self.like))

    @classmethod
    def infer(
        cls, arguments: Sequence[Mapping[str, Any]], sizes: Sequence[Size], sets_size: Callable[[int], bool]
    ) -> ArgumentLayout:
        """Infer the layout from the arguments of all sites.

        `sets_size(leaf)` is whether an integer leaf sets the number of rows or groups.

        Raises
        ------
        ValueError
            Sites have different arguments, or a leaf without an axis of rows or groups differs between sites.
        """
        flat = [jax.tree_util.tree_flatten_with_path(dict(own)) for own in arguments]
        treedef: Any = flat[0][1]
        for site, (_, other) in enumerate(flat):
            if other != treedef:
                raise ValueError(
                    f"all sites must have the same arguments: site {site} has {sorted(arguments[site])}, site 0 has "
                    f"{sorted(arguments[0])}"
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
        """Raise `DataError` if an array of rows or groups is not finite."""
        named: Any = jax.tree_util.tree_leaves_with_path(dict(arguments))
        for kind, (path, leaf) in zip(self.kinds, named, strict=True):
            array = np.asarray(leaf)
            if kind in (ROW, GROUP) and array.dtype.kind in "fc" and (wrong := ~np.isfinite(array)).any():
                raise DataError(
                    f"the argument {_name(path)} of shard {site} holds NaN or infinity, first at index "
                    f"{_first(wrong)}: replace it by finite numbers, or remove these rows"
                )

    def rows(self, arguments: Mapping[str, Any], group: np.ndarray | None) -> dict[str, Any]:
        """The shard of a site: arrays of rows by the index of their leaf, with arrays of groups repeated for rows."""
        found: dict[str, Any] = {} if group is None else {"group": group}
        for place, (kind, leaf) in enumerate(zip(self.kinds, jax.tree.leaves(dict(arguments)), strict=True)):
            if kind == ROW:
                found[str(place)] = np.asarray(leaf)
            elif kind == GROUP:
                found[str(place)] = np.asarray(leaf)[group]
        return found

    def of_rows(self, rows: Mapping[str, Any], size: int) -> dict[str, Any]:
        """The model's arguments for `size` rows, with as many groups as rows."""
        values = {ROW_COUNT: size, GROUP_COUNT: size}
        leaves = []
        for place, kind in enumerate(self.kinds):
            if kind == GROUP:
                leaves.append(scattered(rows[str(place)], rows["group"]))
            else:
                leaves.append(rows[str(place)] if kind == ROW else values.get(kind, self.shared[place]))
        return dict(self.treedef.unflatten(leaves))

    def of_one_group(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The model's arguments for a site with one group and one of its rows."""
        return self.of_rows({**{k: v[None] for k, v in row.items()}, "group": np.zeros(1, np.int32)}, 1)

    def dummy(self) -> dict[str, Any]:
        """The model's arguments for one row of ones."""
        ones: dict[str, Any] = {
            str(k): np.ones((1, *like[0]), like[1]) for k, like in enumerate(self.like) if like is not None
        }
        return self.of_rows({**ones, "group": np.zeros(1, np.int32)}, 1)


def scattered(of_row: Array, group: Array) -> Array:
    """An array of groups from an array of rows, with as many groups as rows.

    Groups without a row get the value of the first row, which is valid and never read.
    """
    whole = jax.numpy.broadcast_to(of_row[:1], of_row.shape)
    return whole.at[group].set(of_row)


def _kind(name: str, values: Sequence[Any], sizes: Sequence[Size], sets_size: Callable[[], bool]) -> str:
    """The kind of a leaf, from its values at all sites."""
    arrays = [np.asarray(value) for value in values]
    alike = all(array.shape == arrays[0].shape and np.array_equal(array, arrays[0]) for array in arrays)
    if arrays[0].ndim == 0:
        whole = arrays[0].dtype.kind in "iu"
        # an integer that is the same at all sites may equal the number of rows by chance
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
        f"the argument {name} differs between sites, with shapes {shapes}, ..., and has no axis of rows "
        f"({sizes[0].rows} at site 0) or groups: remove it if the model does not use it, or name its axis with local"
    )
