"""Reading shards from arrays, functions or files, checking them, and padding them to one shape."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..base.errors import DataError, safe_text

# Rows per chunk in checks and checksums.
_LOOKED_AT = 100_000


class Extent(NamedTuple):
    """Numbers of rows and groups that shards are padded to. None: shards do not split, or have no groups."""

    rows: int | None
    groups: int | None


# A shard as the user gives it: a pytree of arrays, or a function or path to read later.
Source = Any
# Largest float spacing relative to a column's range. At a range of 4 sds it biases effects by (0.04^2)/12 = 1/7,500.
_COARSE = 0.01
# Shards by agent index.
Shards = dict[int, Any]


def is_unread(source: Source) -> bool:
    """Whether a shard is a function or a path, and not arrays."""
    return callable(source) or isinstance(source, str | os.PathLike)


def read(source: Source, agent: int) -> PyTree:
    """A shard as NumPy arrays.

    Raises
    ------
    DataError
        The function or the file failed. The error names the agent and the cause and quotes no data.
    """
    if not is_unread(source):
        return jax.tree.map(_native, source)
    try:
        return jax.tree.map(_native, source() if callable(source) else _npz(Path(source).expanduser()))
    except Exception as error:
        # not chained: the cause's text may quote data
        raise DataError(f"the data of agent {agent} could not be read: {safe_text(error)}") from None


def _native(leaf: Any) -> np.ndarray:
    """A leaf as an array in native byte order, which JAX requires."""
    array = np.asarray(leaf)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _npz(path: Path) -> PyTree:
    """The pair (X, y) of a file with exactly these arrays, else a dict of all its arrays."""
    try:
        # unpickling could run any code
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise DataError(f"{path} must be an .npz file, found a single array")
        with found:
            arrays = dict(found)
    except (DataError, OSError):
        raise
    except Exception as error:
        # the text of other errors may quote data
        raise DataError(f"{path} must be an .npz file of numbers, found {type(error).__name__}") from None
    return (arrays["X"], arrays["y"]) if set(arrays) == {"X", "y"} else arrays


def check_leaves(shards: Shards) -> None:
    """Raise `ValueError` unless all shards hold finite numbers and have the same structure and columns."""
    first, reference = next(iter(shards.items()))
    structure: Any = jax.tree.structure(reference)
    if structure.num_leaves == 0:
        raise ValueError(f"shard of agent {first} holds no array")
    columns = [leaf.shape[1:] for leaf in jax.tree.leaves(reference)]
    for agent, shard in shards.items():
        if jax.tree.structure(shard) != structure:
            raise ValueError(
                f"shards must have one structure: agent {agent} has {jax.tree.structure(shard)}, "
                f"agent {first} has {structure}"
            )
        for leaf, trailing in zip(jax.tree.leaves(shard), columns, strict=True):
            if leaf.ndim > 0 and leaf.shape[0] == 0:
                raise ValueError(f"shard of agent {agent} is empty: an array of it has shape {leaf.shape}")
            if leaf.shape[1:] != trailing:
                raise ValueError(
                    f"shards of different columns: agent {agent} has rows of shape {leaf.shape[1:]}, "
                    f"agent {first} {trailing}"
                )
            if leaf.dtype.kind not in "fiub":
                raise ValueError(f"shard of agent {agent} must hold numbers, found dtype {leaf.dtype}")
            if leaf.dtype.kind in "iu" and max(int(leaf.max()), -int(leaf.min())) > 2**31 - 1:
                raise ValueError(f"shard of agent {agent} holds whole numbers beyond 32 bits; pass them as floats")
            require_finite(agent, leaf)


def require_finite(agent: int, leaf: np.ndarray) -> None:
    """Raise `ValueError` if an array holds NaN or infinity. Rows are checked in chunks to save memory."""
    for place, piece in enumerate(_pieces(np.atleast_1d(leaf))):
        wrong = ~np.isfinite(piece)
        if wrong.any():
            row, *rest = np.argwhere(wrong)[0]
            where = [int(row) + place * _LOOKED_AT, *map(int, rest)][: leaf.ndim]
            raise ValueError(f"shard of agent {agent} holds NaN or infinity, first at index {where}")


def checksum(source: Source) -> int:
    """A checksum of a shard's arrays, or of its file's modification time and size. 0 for functions and missing files.

    It reads no file.
    """
    if is_unread(source):
        return 0 if callable(source) else _written(source)
    found = 0
    for leaf in jax.tree.leaves(source):
        if isinstance(leaf, np.memmap):
            found = zlib.crc32(repr(_written(leaf.filename)).encode(), found)
        elif isinstance(leaf, np.ndarray):
            rows = np.atleast_1d(leaf)
            # in memory order or in chunks, so that large arrays are never copied whole
            pieces = [rows.T] if rows.flags.f_contiguous else _pieces(rows)
            for piece in pieces:
                found = zlib.crc32(np.ascontiguousarray(piece).data, found)
    return found


def _written(path: Any) -> int:
    """A hash of a file's modification time and size. 0 for a missing file."""
    try:
        status = Path(path).expanduser().stat()
    except (OSError, TypeError):
        return 0
    return hash((status.st_mtime_ns, status.st_size))


def _pieces(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[first : first + _LOOKED_AT] for first in range(0, len(rows), _LOOKED_AT))


def row_counts(shards: Shards) -> np.ndarray:
    """The number of rows of each shard; `ValueError` if its arrays differ in rows."""
    sizes = []
    for agent, shard in shards.items():
        if any(leaf.ndim == 0 for leaf in jax.tree.leaves(shard)):
            raise ValueError(f"shard of agent {agent} holds a single number: every array needs an axis of rows")
        lengths = {len(leaf) for leaf in jax.tree.leaves(shard)}
        if len(lengths) > 1:
            raise ValueError(f"arrays in the shard of agent {agent} differ in rows: {sorted(lengths)}")
        sizes.append(lengths.pop())
    return np.array(sizes, dtype=np.int64)


def check_one_shape(shards: Shards) -> None:
    """Raise `ValueError` unless all shards have the same shapes, which shards that do not split need."""
    first, reference = next(iter(shards.items()))
    expected = [leaf.shape for leaf in jax.tree.leaves(reference)]
    for agent, shard in shards.items():
        found = [leaf.shape for leaf in jax.tree.leaves(shard)]
        if found != expected:
            raise ValueError(
                "a scalar log_likelihood needs shards of one shape (return one number per row to allow unequal "
                f"shards): agent {agent} has {found}, agent {first} has {expected}"
            )


def coarse_column(rows: PyTree, width: Any) -> str:
    """A warning about a column of stacked rows that a narrower dtype rounds coarsely relative to its range, or ""."""
    for path, leaf in jax.tree.leaves_with_path(rows):
        if leaf.dtype.kind != "f" or leaf.dtype.itemsize <= np.dtype(width).itemsize or leaf.ndim < 2:
            continue
        low, high = leaf.min(axis=(0, 1)).ravel(), leaf.max(axis=(0, 1)).ravel()
        spacing = np.spacing(np.maximum(-low, high).astype(width)).astype(np.float64)
        share = np.divide(spacing, high - low, where=high > low, out=np.zeros_like(spacing))
        worst = int(share.argmax())
        if share[worst] > _COARSE:
            return (
                f"column {worst} of the rows{jax.tree_util.keystr(path)} has numbers up to {high[worst]:.6g}, which "
                f"{np.dtype(width)} rounds to multiples of {spacing[worst]:.2g}, and a range of only "
                f"{high[worst] - low[worst]:.2g}: draws of round-based methods may be biased. Shift the column towards "
                'zero, or use double precision: jax.config.update("jax_enable_x64", True)'
            )
    return ""


def padded(shards: Shards, rows: int | None) -> PyTree:
    """Shards stacked on a leading agent axis, padded to a number of rows. None: no padding."""
    if rows is None:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *shards.values())

    # padding repeats the last row, at which the likelihood is finite: masked gradients are never 0 * inf
    def pad(*leaves: np.ndarray) -> np.ndarray:
        return np.stack([leaf[np.minimum(np.arange(rows), len(leaf) - 1)] for leaf in leaves])

    return jax.tree.map(pad, *shards.values())
