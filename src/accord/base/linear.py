"""Matrix-vector products, linear predictors and sums over rows that are fast under `jax.vmap` on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

# Largest number of columns for which elementwise products and sums beat a matrix-vector product on CPUs.
_FEW = 6
# Smallest number of vectors for which one matrix product is faster.
_MANY = 16


def product(A: Float[Array, "row dim"], x: Float[Array, " dim"], few: int) -> Float[Array, " row"]:
    """A x, by elementwise products and sums if A has at most `few` columns."""
    return jnp.sum(A * x[None], axis=1) if x.size <= few else A @ x


def linear_predictor(X: Float[Array, "row dim"], x: Float[Array, " dim"]) -> Float[Array, " row"]:
    """X x, in the fastest way for the number of x that `jax.vmap` batches."""
    dtype = jnp.result_type(X, x)
    return _predictor.bind(X.astype(dtype), x.astype(dtype), axis=1)


def sum_of_rows(numbers: Float[Array, " row"]) -> Float[Array, ""]:
    """The sum over rows, in the fastest way for the number of x that `jax.vmap` batches."""
    return _row_sum.bind(numbers)


def _alone(A: Array, x: Array, *, axis: int) -> Array:
    """The sum of A x over an axis of A, for one x."""
    if A.shape[1] <= _FEW:
        return jnp.sum(A * jnp.expand_dims(x, 1 - axis), axis=axis)
    return A @ x if axis == 1 else x @ A


def _of_several(operands: Sequence[Array], axes: Sequence[int | None], *, axis: int) -> tuple[Array, int]:
    """Batching rule: one matrix product for many vectors that share a matrix, as chains share rows."""
    (A, x), (of_A, of_x) = operands, axes
    if of_A is not None or of_x is None or x.shape[of_x] < _MANY:
        return jax.vmap(partial(_alone, axis=axis), in_axes=axes)(A, x), 0
    if axis == 1 and 0 < A.shape[1] <= _FEW:
        # elementwise, so that XLA fuses it with the operations on the result
        columns = zip(A.T[:, :, None], jnp.moveaxis(x, of_x, -1)[:, None], strict=True)
        return reduce(jnp.add, [own * numbers for own, numbers in columns]), 1
    # XLA has a fast product only for a contraction over the second axis of the first factor. The barrier keeps XLA from
    # moving the transpose into the product.
    first = A if axis == 1 else jax.lax.optimization_barrier(A.T)
    return jnp.tensordot(first, x, (1, 1 - of_x)), 1


def _sums_of_several(operands: Sequence[Array], axes: Sequence[int]) -> tuple[Array, int]:
    """Batching rule: sum along the first axis, with one column per x as in `_of_several`.

    Without the barrier XLA transposes first and sums along the last axis, one number at a time.
    """
    (numbers,), (of,) = operands, axes
    columns = jnp.moveaxis(numbers, of, -1)
    return jnp.sum(jax.lax.optimization_barrier(columns) if columns.shape[1] >= _MANY else columns, axis=0), 0


# Primitives, because only their batching rules see the number of vectors. Gradients use the same primitive with the
# transpose.
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
