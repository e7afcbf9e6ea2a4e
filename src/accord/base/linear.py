"""Products of matrices and vectors, linear predictors of rows, and sums over rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

# Columns up to which products and sums beat a matrix product on CPUs, for one vector.
_FEW = 6
# Vectors from which all of them are better taken as one matrix.
_MANY = 16


def product(A: Float[Array, "row dim"], x: Float[Array, " dim"], few: int) -> Float[Array, " row"]:
    """A x, of up to so few columns by products and sums, which beat a matrix product on CPUs there."""
    return jnp.sum(A * x[None], axis=1) if x.size <= few else A @ x


def linear_predictor(X: Float[Array, "row dim"], x: Float[Array, " dim"]) -> Float[Array, " row"]:
    """X x, in whichever way is fastest for as many x at a time as `jax.vmap` makes of it."""
    dtype = jnp.result_type(X, x)
    return _predictor.bind(X.astype(dtype), x.astype(dtype), axis=1)


def sum_of_rows(numbers: Float[Array, " row"]) -> Float[Array, ""]:
    """The sum of a number a row, of as many x at a time as `jax.vmap` makes of it."""
    return _row_sum.bind(numbers)


def _alone(A: Array, x: Array, *, axis: int) -> Array:
    """The sum of A x over an axis of A."""
    if A.shape[1] <= _FEW:
        return jnp.sum(A * jnp.expand_dims(x, 1 - axis), axis=axis)
    return A @ x if axis == 1 else x @ A


def _of_several(operands: Sequence[Array], axes: Sequence[int | None], *, axis: int) -> tuple[Array, int]:
    """Of several vectors; where they are many and share a matrix, as chains share rows, as columns of one matrix."""
    (A, x), (of_A, of_x) = operands, axes
    if of_A is not None or of_x is None or x.shape[of_x] < _MANY:
        return jax.vmap(partial(_alone, axis=axis), in_axes=axes)(A, x), 0
    if axis == 1 and 0 < A.shape[1] <= _FEW:
        # written out, so that it is part of the loop that takes what comes out
        columns = zip(A.T[:, :, None], jnp.moveaxis(x, of_x, -1)[:, None], strict=True)
        return reduce(jnp.add, [own * numbers for own, numbers in columns]), 1
    # sums along the second axis of the first factor: XLA has no fast product for others, and left to itself would put
    # the transpose back into the product
    first = A if axis == 1 else jax.lax.optimization_barrier(A.T)
    return jnp.tensordot(first, x, (1, 1 - of_x)), 1


def _sums_of_several(operands: Sequence[Array], axes: Sequence[int]) -> tuple[Array, int]:
    """Of many x: down the columns of a matrix that has one for each x, as products leave them.

    XLA would have it transposed first, and along its last axis adds one number at a time.
    """
    (numbers,), (of,) = operands, axes
    columns = jnp.moveaxis(numbers, of, -1)
    return jnp.sum(jax.lax.optimization_barrier(columns) if columns.shape[1] >= _MANY else columns, axis=0), 0


# Primitives, as only their batching rules know how many vectors there are; the rules hold for gradients too, whose
# products are those of the transpose.
_predictor = Primitive("linear_predictor")
_predictor.def_impl(jax.jit(_alone, static_argnames="axis"))
_predictor.def_abstract_eval(lambda A, x, axis: jax.core.ShapedArray((A.shape[1 - axis],), A.dtype))
mlir.register_lowering(_predictor, mlir.lower_fun(_alone, multiple_results=False))
ad.defbilinear(
    _predictor,
    lambda g, A, x, axis: jnp.outer(g, x) if axis == 1 else jnp.outer(x, g),
    lambda g, A, x, axis: _predictor.bind(A, g, axis=1 - axis),
)
batching.primitive_batchers[_predictor] = _of_several

_row_sum = Primitive("sum_of_rows")
_row_sum.def_impl(jax.jit(jnp.sum))
_row_sum.def_abstract_eval(lambda numbers: jax.core.ShapedArray((), numbers.dtype))
mlir.register_lowering(_row_sum, mlir.lower_fun(jnp.sum, multiple_results=False))
ad.deflinear2(_row_sum, lambda g, numbers: (jnp.broadcast_to(g, numbers.aval.shape),))
batching.primitive_batchers[_row_sum] = _sums_of_several
