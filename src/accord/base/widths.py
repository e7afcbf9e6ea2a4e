"""NumPy arrays as closure variables of users' functions, in single and in double precision.

JAX caches such an array in the float width of its first trace as long as a program uses it. A trace in the other width
then fails with a dtype error (JAX 0.10.1 to 0.12.0). accord therefore clears JAX's caches when a function with such
arrays is traced in a new width.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.tree_util import Partial
from jaxtyping import PyTree

T = TypeVar("T")


class _Width:
    """The float width of the last trace of a function that closes over arrays, or None if unknown."""

    is_wide: bool | None = None

    def enter(self, is_wide: bool) -> None:
        """Clear JAX's caches if the last trace had another width."""
        if is_wide != self.is_wide:
            jax.clear_caches()
            # JAX keeps an array until the last program that uses it is deleted
            gc.collect()
            self.is_wide = is_wide


_width = _Width()


def in_doubles(work: Callable[[], T]) -> T:
    """The result of `work` in double precision, with a retry after clearing caches of single-precision arrays."""
    with jax.enable_x64(True):
        try:
            return work()
        except Exception:
            # the retry is outside of this block, because the exception keeps arrays alive
            pass
        _width.is_wide = None
        _width.enter(is_wide=True)
        return work()


class _InWidth:
    """A function that closes over arrays, compared by the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's result."""
        _width.enter(bool(jax.config.values["jax_enable_x64"]))
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InWidth) and bool(self.function == other.function)

    def __hash__(self) -> int:
        return hash(self.function)


def in_either_width(function: Partial, *arguments: PyTree) -> Partial:
    """Make a function traceable in both float widths. Arguments may be `jax.ShapeDtypeStruct`."""
    if isinstance(function.func, _InWidth):
        return function
    # bound arguments of the Partial are arguments of the trace
    trace = jax.make_jaxpr(lambda function, *arguments: function(*arguments))
    try:
        found = in_doubles(lambda: trace(function, *arguments))
    except Exception:  # user code that fails in double precision runs in single precision only
        return function
    arrays = [array for array in _constants(found) if isinstance(array, np.ndarray) and array.ndim > 0]
    floats = [array for array in arrays if array.dtype.kind == "f"]
    if not floats:
        return function
    # single-precision arrays may stem from an earlier trace
    known = _width.is_wide is not False and all(array.dtype.itemsize == 8 for array in floats)
    _width.is_wide = True if known else None
    return Partial(_InWidth(function.func), *function.args, **function.keywords)


def _constants(value: Any) -> Iterator[Any]:
    """The constants of a jaxpr and of all nested jaxprs."""
    if isinstance(value, ClosedJaxpr):
        yield from value.consts
        value = value.jaxpr
    if isinstance(value, Jaxpr):
        for equation in value.eqns:
            yield from _constants(tuple(equation.params.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _constants(item)
