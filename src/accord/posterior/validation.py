"""Checks of the functions that a posterior is declared by."""

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

# Rows that are looked at to tell whether they depend on one another.
_LOOKED_AT = 32


def returned(name: str, function: Callable[..., Any], *arguments: PyTree) -> PyTree:
    """What a user's function returns, `jax.ShapeDtypeStruct`; `TypeError` where it is none that JAX can trace."""
    try:
        return in_doubles(lambda: jax.eval_shape(function, *arguments))
    except jax.errors.JAXTypeError as error:
        raise TypeError(
            f"{name} must be written in jax.numpy, for JAX to trace it: jnp.exp and not np.exp or SciPy, jnp.where and "
            f"not if, no float() of parameters or rows ({type(error).__name__}, whose line is above)"
        ) from error


@compiled
def _of(function: Partial, params: PyTree, shard: PyTree) -> PyTree:
    return function(params, shard)


def check_prior(log_prior: Partial, params: PyTree) -> None:
    """Raise `ValueError` unless the log prior is one number."""
    shape = getattr(returned("log_prior", log_prior, params), "shape", None)
    if shape != ():
        raise ValueError(f"log_prior must return one number, a scalar; found shape {shape}: sum over parameters")


def check_rows_alone(log_likelihood: Partial, params: PyTree, shard: PyTree, agent: int) -> None:
    """Raise `ValueError` where numbers of rows change when another is left out: shards are padded with rows."""
    count = len(jax.tree.leaves(shard)[0])
    if count < 2:
        return
    some = min(count, _LOOKED_AT)

    def of_first(rows: int) -> np.ndarray:
        first = jax.tree.map(lambda leaf: leaf[:rows], shard)
        return np.asarray(in_doubles(partial(_of, log_likelihood, params, first)))

    whole, part = of_first(some), of_first(some - 1)
    # rounding of another order of additions is far below this
    if not np.allclose(whole[:-1], part, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"log_likelihood must give each row a number that depends on no other row: of agent {agent} they change by "
            f"up to {np.nanmax(np.abs(whole[:-1] - part)):.3g} when the last row is left out. Centre or scale columns "
            "before, or return their sum"
        )


def is_rowwise(log_likelihood: Partial, params: PyTree, shard: PyTree) -> bool:
    """Whether a log likelihood gives one number a row; `ValueError` where it gives neither that nor one number."""
    shape = returned("log_likelihood", log_likelihood, params, shard)
    if not hasattr(shape, "shape"):
        raise ValueError(f"log_likelihood must return one array, found {type(shape).__name__}")
    if shape.shape == ():
        return False
    leading = jax.tree.leaves(shard)[0].shape[:1]
    if len(leading) == 1 and shape.shape == leading:
        return True
    raise ValueError(
        f"log_likelihood must return one number a row, shape {leading}, or a scalar; found shape {shape.shape}"
    )
