"""Checks of the functions of a posterior."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial
from jaxtyping import PyTree

from ..base.compiler import compiled
from ..base.widths import in_doubles

# Number of rows in the test of their independence.
_LOOKED_AT = 32


def returned(name: str, function: Callable[..., Any], *arguments: PyTree) -> PyTree:
    """The shape and dtype of a function's result, `jax.ShapeDtypeStruct`; `TypeError` if JAX cannot trace it."""
    try:
        return in_doubles(lambda: jax.eval_shape(function, *arguments))
    except jax.errors.JAXTypeError as error:
        raise TypeError(
            f"{name} must be written in jax.numpy, so that JAX can trace it: use jnp.exp instead of np.exp or SciPy, "
            f"jnp.where instead of if, and no float() of parameters or rows ({type(error).__name__}, see above)"
        ) from error


@compiled
def _of(function: Partial, params: PyTree, shard: PyTree) -> PyTree:
    return function(params, shard)


def check_prior(log_prior: Partial, params: PyTree) -> None:
    """Raise `ValueError` unless the log prior returns a scalar."""
    shape = getattr(returned("log_prior", log_prior, params), "shape", None)
    if shape != ():
        raise ValueError(f"log_prior must return one number, a scalar; found shape {shape}: sum over parameters")


def check_rows_alone(log_likelihood: Partial, params: PyTree, shard: PyTree, agent: int) -> None:
    """Raise `ValueError` if the value of a row depends on other rows. Padding would then change the likelihood."""
    count = len(jax.tree.leaves(shard)[0])
    if count < 2:
        return
    some = min(count, _LOOKED_AT)

    def of_first(rows: int) -> np.ndarray:
        first = jax.tree.map(lambda leaf: leaf[:rows], shard)
        return np.asarray(in_doubles(partial(_of, log_likelihood, params, first)))

    whole, part = of_first(some), of_first(some - 1)
    # far above rounding
    if not np.allclose(whole[:-1], part, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"log_likelihood must return for each row a number that does not depend on other rows: at agent {agent} "
            f"numbers change by up to {np.nanmax(np.abs(whole[:-1] - part)):.3g} without the last row. Centre or scale "
            "columns beforehand, or return the sum over rows"
        )


def is_rowwise(log_likelihood: Partial, params: PyTree, shard: PyTree) -> bool:
    """Whether a log likelihood returns one number per row, not a scalar; `ValueError` if it returns neither."""
    shape = returned("log_likelihood", log_likelihood, params, shard)
    if not hasattr(shape, "shape"):
        raise ValueError(f"log_likelihood must return one array, found {type(shape).__name__}")
    if shape.shape == ():
        return False
    leading = jax.tree.leaves(shard)[0].shape[:1]
    if len(leading) == 1 and shape.shape == leading:
        return True
    raise ValueError(
        f"log_likelihood must return one number per row, shape {leading}, or a scalar; found shape {shape.shape}"
    )
