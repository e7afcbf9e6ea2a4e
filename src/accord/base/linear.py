"""Products of matrices and vectors, and linear predictors of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

# Columns up to which products and sums beat a matrix product on CPUs, for one vector.
_FEW = 6
# Vectors from which one matrix product for all of them beats both.
_MANY = 16


def product(A: Float[Array, "row dim"], x: Float[Array, " dim"], few: int) -> Float[Array, " row"]:
    """A x, of up to so few columns by products and sums, which beat a matrix product on CPUs there."""
    return _by_sums(A, x, axis=1) if x.size <= few else A @ x


def linear_predictor(X: Float[Array, "row dim"], x: Float[Array, " dim"]) -> Float[Array, " row"]:
    """X x, where columns are few in whichever way is fastest for as many x at a time as `jax.vmap` makes of it."""
    if x.size > _FEW:
        return X @ x
    dtype = jnp.result_type(X, x)
    return _narrow.bind(X.astype(dtype), x.astype(dtype), axis=1)


def _by_sums(A: Array, x: Array, *, axis: int) -> Array:
    """The sum of A x over an axis of A."""
    return jnp.sum(A * jnp.expand_dims(x, 1 - axis), axis=axis)


def _of_several(operands: Sequence[Array], axes: Sequence[int | None], *, axis: int) -> tuple[Array, int]:
    """Of several vectors: one matrix product where they are many and share a matrix, as chains share rows."""
    (A, x), (of_A, of_x) = operands, axes
    if of_A is None and of_x is not None and x.shape[of_x] >= _MANY:
        return jnp.tensordot(A, x, (axis, 1 - of_x)), 1
    return jax.vmap(partial(_by_sums, axis=axis), in_axes=axes)(A, x), 0


# A primitive, as only its batching rule knows how many vectors there are; the rule holds for gradients too, whose
# products are those of the transpose.
_narrow = Primitive("narrow_product")
_narrow.def_impl(jax.jit(_by_sums, static_argnames="axis"))
_narrow.def_abstract_eval(lambda A, x, axis: jax.core.ShapedArray((A.shape[1 - axis],), A.dtype))
mlir.register_lowering(_narrow, mlir.lower_fun(_by_sums, multiple_results=False))
ad.defbilinear(
    _narrow,
    lambda g, A, x, axis: jnp.outer(g, x) if axis == 1 else jnp.outer(x, g),
    lambda g, A, x, axis: _narrow.bind(A, g, axis=1 - axis),
)
batching.primitive_batchers[_narrow] = _of_several
