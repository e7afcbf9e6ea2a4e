"""Sums over neighbours on one device: y_i = sum_j A_ij x_j, in the form that the pattern of A makes fastest."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from ..base.pytree import pytree

# Up to this many agents a dense product beats a gather of more than this share of a row,
DENSE_AGENTS, DENSE_SHARE = 256, 0.25
# unless rows have as few entries as those of rings and grids.
FEW = 5


@runtime_checkable
class Operator(Protocol):
    """A matrix over the agents."""

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]: ...


@pytree
class Dense:
    """A matrix in full, or the rows of one."""

    matrix: Float[Array, "agent held"]

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        return self.matrix @ x


@pytree
class Gather:
    """Rows of about equal length, padded with zeros.

    Where neighbours are next to each other, as on rings and grids, this is as fast as sums of slices, whose ends would
    have to be put together.
    """

    columns: Int[Array, "agent slot"]
    values: Float[Array, "agent slot"]

    def __call__(self, x: Float[Array, "held rest"]) -> Float[Array, "agent rest"]:
        slots = range(self.columns.shape[1])
        terms = [self.values[:, k, None] * x.at[self.columns[:, k]].get(mode="promise_in_bounds") for k in slots]
        return sum(terms[1:], start=terms[0])


@pytree
class Segments:
    """Rows of very unequal length (large stars, hubs)."""

    rows: Int[Array, " entry"]
    columns: Int[Array, " entry"]
    values: Float[Array, " entry"]

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        terms = self.values[:, None] * x[self.columns]
        return jax.ops.segment_sum(terms, self.rows, num_segments=x.shape[0], indices_are_sorted=True)


def operator(matrix: scipy.sparse.csr_array) -> Operator:
    """The fastest form of a sparse matrix over the agents, on the default device in the present float width."""
    matrix = scipy.sparse.csr_array(matrix)
    n = matrix.shape[0]
    lengths = np.diff(matrix.indptr)
    crowded = lengths.max() > DENSE_SHARE * n if n <= DENSE_AGENTS else matrix.nnz > 0.1 * n * n
    if crowded and lengths.max() > FEW:
        return dense(matrix)
    return gather(matrix) if lengths.max() <= 4 * lengths.mean() + 8 else segments(matrix)


def dense(matrix: scipy.sparse.csr_array) -> Dense:
    """A sparse matrix in full."""
    return Dense(jax.device_put(matrix.toarray()))


def gather(matrix: scipy.sparse.csr_array) -> Gather:
    """A sparse matrix, of any number of columns, as padded rows."""
    n, lengths = matrix.shape[0], np.diff(matrix.indptr)
    slot = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths)
    longest = max(1, int(lengths.max()))
    columns, values = np.zeros((n, longest), np.int32), np.zeros((n, longest))
    row = np.repeat(np.arange(n), lengths)
    columns[row, slot], values[row, slot] = matrix.indices, matrix.data
    return Gather(jax.device_put(columns), jax.device_put(values))


def segments(matrix: scipy.sparse.csr_array) -> Segments:
    """A sparse square matrix by its entries, row after row."""
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    return Segments(jax.device_put(row), jax.device_put(matrix.indices), jax.device_put(matrix.data))


def over_agents(apply: Operator, messages: Any) -> Any:
    """Apply a matrix to every array of messages, whose first axis is the agent."""
    return jax.tree.map(lambda leaf: apply(leaf.reshape(leaf.shape[0], -1)).reshape(leaf.shape), messages)
