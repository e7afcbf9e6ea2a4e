"""Checks of the functions of a posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import networkx as nx
import numpy as np
from jax.extend.core import Literal
from jax.tree_util import Partial
from jaxtyping import PyTree

from ..base.compiler import compiled
from ..base.errors import unknown_name_error
from ..base.widths import in_doubles
from .parameters import variables

# Number of rows in the test of their independence.
_LOOKED_AT = 32
# Standard deviations of the distances from the initial parameters in that test.
_DISTANCES = (0.0, 0.1, 1.0)


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


def check_hierarchy(hierarchy: Partial, params: PyTree, transforms: Sequence[Any]) -> tuple[str, ...]:
    """The variables whose locations and scales `hierarchy` returns.

    Raises
    ------
    ValueError
        It does not return locations and scales of unconstrained variables, or one depends on its own variable.
    """
    shapes = dict(variables(params))
    try:
        found = in_doubles(lambda: jax.jit(hierarchy)(params))
    except jax.errors.JAXTypeError:
        returned("hierarchy", hierarchy, params)
        raise
    except TypeError as error:
        raise ValueError(f"hierarchy must return a dict of pairs (location, scale): {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"hierarchy must return a dict of pairs (location, scale), found {type(found).__name__}")
    for name, pair in found.items():
        if name not in shapes:
            raise unknown_name_error("variable in hierarchy", name, list(shapes))
        if transforms[list(shapes).index(name)] is not None:
            raise ValueError(f"hierarchy has {name}, which has a constraint: only unconstrained variables are possible")
        _check_location_and_scale(name, pair, shapes[name])
    depends = nx.DiGraph(_dependencies(hierarchy, params, list(found)))
    for cycle in nx.simple_cycles(depends):
        raise ValueError(
            f"hierarchy: the prior of {' and of '.join(sorted(cycle))} depends on itself: split the variable, or leave "
            "it out"
        )
    return tuple(found)


def _check_location_and_scale(name: str, pair: Any, whole: tuple[int, ...]) -> None:
    """Raise `ValueError` unless a pair has the location and the scale of the prior of a variable of a shape."""
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(np.asarray(own).dtype.kind in "fiu" for own in pair):
        raise ValueError(
            f"hierarchy must return a dict of pairs (location, scale), found {type(pair).__name__} for {name}"
        )
    for what, own in zip(("location", "scale"), pair, strict=True):
        shape = np.shape(own)
        if len(shape) > len(whole) or any(a not in (1, b) for a, b in zip(shape[::-1], whole[::-1], strict=False)):
            raise ValueError(f"hierarchy: the {what} of {name} has shape {shape}, and {name} has {whole}")
        if not np.isfinite(own).all() or (what == "scale" and not (np.asarray(own) > 0.0).all()):
            least = "" if what == "location" else " and positive"
            raise ValueError(
                f"hierarchy: the {what} of {name} must be finite{least}, found "
                f"{np.array2string(np.asarray(own), threshold=5)} at init"
            )


def _dependencies(hierarchy: Partial, params: PyTree, effects: Sequence[str]) -> set[tuple[str, str]]:
    """Pairs of effects of which the second one's location or scale depends on the first one."""
    program = in_doubles(lambda: jax.make_jaxpr(lambda own: [hierarchy(own)[k] for k in effects])(params)).jaxpr
    sources = {var: {name} for var, (name, _) in zip(program.invars, variables(params), strict=True)}
    for equation in program.eqns:
        known = [sources.get(var, set()) for var in equation.invars if not isinstance(var, Literal)]
        sources |= dict.fromkeys(equation.outvars, set().union(*known))
    ends = zip(np.repeat(effects, 2), program.outvars, strict=True)
    found = {(str(k), before) for k, var in ends if not isinstance(var, Literal) for before in sources.get(var, set())}
    return {(before, k) for k, before in found if before in effects}


def check_rows_alone(log_likelihood: Partial, params: PyTree, shard: PyTree, agent: int) -> None:
    """Raise `ValueError` if the value of a row depends on other rows. Padding would then change the likelihood.

    Each half of the first rows is evaluated alone, at the parameters and at two random positions near them: a product
    of a parameter and a mean of rows is zero where the parameter is zero.
    """
    count = min(len(jax.tree.leaves(shard)[0]), _LOOKED_AT)
    if count < 2:
        return
    half = (count + 1) // 2
    noise = np.random.default_rng(0)

    for scale in _DISTANCES:

        def moved(leaf: Any, scale: float = scale) -> np.ndarray:
            leaf = np.asarray(leaf)
            return leaf + (scale * noise.standard_normal(leaf.shape)).astype(leaf.dtype)

        position = jax.tree.map(moved, params)

        def of_rows(start: int, stop: int, position: PyTree = position) -> np.ndarray:
            rows = jax.tree.map(lambda leaf: leaf[start:stop], shard)
            return np.asarray(in_doubles(partial(_of, log_likelihood, position, rows)))

        whole = of_rows(0, count)
        for start in (0, count - half):
            together, alone = whole[start : start + half], of_rows(start, start + half)
            # far above rounding
            if not np.allclose(together, alone, rtol=1e-3, atol=1e-3, equal_nan=True):
                with np.errstate(invalid="ignore"):
                    change = np.nanmax(np.abs(together - alone))
                raise ValueError(
                    "log_likelihood must return for each row a number that does not depend on other rows: at agent "
                    f"{agent} numbers change by up to {change:.3g} without some other rows. Centre or scale columns "
                    "beforehand, or return the sum over rows"
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
