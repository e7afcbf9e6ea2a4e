"""Sums over neighbours on one device, y_i = sum_j A_ij x_j, in the fastest form for the sparsity pattern of A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from ..base.pytree import pytree, static

# Number of agents up to which `DENSE_SHARE` decides.
DENSE_AGENTS = 256
# Share of nonzero entries in a row above which a dense product is faster than a gather.
DENSE_SHARE = 0.25
# Number of diagonals of `Shifts`, and of entries per row of a sparse form, that is always faster than a dense product.
FEW = 5
# Numbers per agent over all chains, from which on `Shifts` gather rows.
_MANY_NUMBERS = 16


@runtime_checkable
class Operator(Protocol):
    """A matrix A over the agents."""

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        """sum_j A_ij x_j."""

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        """sum_j A_ij (own_i - x_j), with rounding errors relative to the differences."""


@pytree
class Dense:
    """A dense matrix or some of its rows."""

    matrix: Float[Array, "agent held"]

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        return self.matrix @ x

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        common = x[:1]
        return self.matrix.sum(axis=1, keepdims=True) * (own - common) - self.matrix @ (x - common)


@pytree
class Shifts:
    """A matrix with few cyclic diagonals, as of rings and grids.

    Shifts of whole arrays take a fifth to a quarter less of a round's time than a gather if agents have few numbers,
    and up to a quarter more if they have many.
    """

    values: Float[Array, "shift agent"]
    # columns to the right of the main diagonal
    offsets: tuple[int, ...] = static()

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        if x.shape[1] >= _MANY_NUMBERS:
            return _gathered(self._columns(), self.values.T, x)
        return self._summed(lambda rows: rows, x)

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        if x.shape[1] >= _MANY_NUMBERS:
            return _gathered(self._columns(), self.values.T, x, own)
        return self._summed(lambda rows: own - rows, x)

    def _summed(self, term: Callable[[Array], Array], x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        terms = [
            values[:, None] * term(jnp.roll(x, -offset, axis=0) if offset else x)
            for values, offset in zip(self.values, self.offsets, strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    def _columns(self) -> Int[Array, "agent shift"]:
        agents = self.values.shape[1]
        columns = jnp.arange(agents, dtype=jnp.int32)[:, None] + np.array([self.offsets], np.int32) % agents
        return jnp.where(columns < agents, columns, columns - agents)


@pytree
class Gather:
    """A matrix with rows of about equal length, padded with zeros."""

    columns: Int[Array, "agent slot"]
    values: Float[Array, "agent slot"]

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        return _gathered(self.columns, self.values, x)

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        return _gathered(self.columns, self.values, x, own)


def _gathered(
    columns: Int[Array, "agent slot"],
    values: Float[Array, "agent slot"],
    x: Float[Array, "held rest"],
    own: Float[Array, "agent rest"] | None = None,
) -> Float[Array, "agent rest"]:
    """sum_k values_ik x[columns_ik] for each row i, or with `own` sum_k values_ik (own_i - x[columns_ik]).

    The result is concatenated from two halves. XLA computes a concatenation once, and other sums again for each use
    with an array in memory for every slot.
    """
    half = columns.shape[0] // 2

    def of(part: slice) -> Array:
        def term(k: int) -> Array:
            rows = x.at[columns[part, k]].get(mode="promise_in_bounds")
            return values[part, k, None] * (rows if own is None else own[part] - rows)

        return sum(map(term, range(1, columns.shape[1])), start=term(0))

    return jnp.concatenate([of(slice(half)), of(slice(half, None))])


@pytree
class Segments:
    """A matrix with rows of very unequal length (large stars, hubs)."""

    rows: Int[Array, " entry"]
    columns: Int[Array, " entry"]
    values: Float[Array, " entry"]

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        terms = self.values[:, None] * x[self.columns]
        return self._summed(terms, x.shape[0])

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        return self._summed(self.values[:, None] * (own[self.rows] - x[self.columns]), own.shape[0])

    def _summed(self, terms: Float[Array, "entry rest"], agents: int) -> Float[Array, "agent rest"]:
        return jax.ops.segment_sum(terms, self.rows, num_segments=agents, indices_are_sorted=True)


def operator(matrix: scipy.sparse.csr_array) -> Operator:
    """The fastest form of a sparse matrix over the agents, on the default device in the default precision."""
    matrix = scipy.sparse.csr_array(matrix)
    n = matrix.shape[0]
    lengths = np.diff(matrix.indptr)
    # offsets within a row are distinct, so longer rows need more diagonals
    if 0 < lengths.max() <= FEW and np.unique(_offsets(matrix)).size <= FEW:
        return shifts(matrix)
    crowded = lengths.max() > DENSE_SHARE * n if n <= DENSE_AGENTS else matrix.nnz > 0.1 * n * n
    if crowded and lengths.max() > FEW:
        return dense(matrix)
    return gather(matrix) if lengths.max() <= 4 * lengths.mean() + 8 else segments(matrix)


def shifts(matrix: scipy.sparse.csr_array) -> Shifts:
    """A sparse square matrix as `Shifts`."""
    offsets = _offsets(matrix)
    distinct = np.unique(offsets)
    values = np.zeros((distinct.size, matrix.shape[0]))
    values[np.searchsorted(distinct, offsets), scipy.sparse.coo_array(matrix).row] = matrix.data
    return Shifts(jax.device_put(values), tuple(map(int, distinct)))


def _offsets(matrix: scipy.sparse.csr_array) -> np.ndarray:
    """Cyclic offset of each entry to the right of the diagonal, from -n/2 to below n/2."""
    n, entries = matrix.shape[0], scipy.sparse.coo_array(matrix)
    return (entries.col.astype(np.int64) - entries.row + n // 2) % n - n // 2


def dense(matrix: scipy.sparse.csr_array) -> Dense:
    """A sparse matrix as `Dense`."""
    return Dense(jax.device_put(matrix.toarray()))


def gather(matrix: scipy.sparse.csr_array) -> Gather:
    """A sparse matrix, with any number of columns, as `Gather`."""
    n, lengths = matrix.shape[0], np.diff(matrix.indptr)
    slot = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)
    longest = max(1, int(lengths.max()))
    columns, values = np.zeros((n, longest), np.int32), np.zeros((n, longest))
    row = np.repeat(np.arange(n), lengths)
    columns[row, slot], values[row, slot] = matrix.indices, matrix.data
    return Gather(jax.device_put(columns), jax.device_put(values))


def segments(matrix: scipy.sparse.csr_array) -> Segments:
    """A sparse square matrix as `Segments`."""
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    return Segments(jax.device_put(row), jax.device_put(matrix.indices), jax.device_put(matrix.data))


def over_agents(apply: Callable[[Array], Array], messages: Any) -> Any:
    """Apply a function of arrays (agent, rest) to every array (agent, ...) of messages."""
    return jax.tree.map(lambda leaf: apply(leaf.reshape(leaf.shape[0], -1)).reshape(leaf.shape), messages)
