"""Users' functions as JAX traces them: numbers that they have from outside are part of what they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.tree_util import Partial
from jaxtyping import PyTree

# JAX keeps traces of what users' functions call (what they jit, bodies of loops) by function too, and by this: it is
# another one for every digest, so that these have no old numbers either.
_numbers = jax.make_user_context(default_value=None)
# The round that schedules are traced with.
ROUND = np.int32(0)
# Where an object lies in memory, which is elsewhere in every process.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def numbered(digest: str) -> AbstractContextManager[Any]:
    """While it is entered, JAX traces what is called anew where it was traced under another digest; "": as it is."""
    return _numbers(digest) if digest else nullcontext()


class _Widths:
    """Float widths of arrays of NumPy that functions have from outside.

    JAX keeps such an array in the width that it was traced in first, for as long as any program has it, and the other
    width then ends in an error about dtypes (0.10.1 to 0.12.0). So all that JAX keeps is dropped where the width
    changes and there are such arrays.
    """

    def __init__(self) -> None:
        self.looked_at: set[str] = set()
        self.are_there = False
        # None: users may have traced them in either
        self.was_wide: bool | None = None

    def enter(self, function: Traced, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Make ready for a trace in the present width."""
        is_wide = bool(jax.config.values["jax_enable_x64"])
        if function.digest not in self.looked_at:
            self.looked_at.add(function.digest)
            self.are_there |= _has_arrays(partial(function.function, **keywords), arguments)
        if self.are_there and is_wide != self.was_wide:
            jax.clear_caches()
        self.was_wide = is_wide


_widths = _Widths()


def _has_arrays(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether a trace has floats in arrays of NumPy, which come from outside."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf)), arguments)
    try:
        found = jax.make_jaxpr(function)(*shapes)
    except TypeError:
        # a derivative within it meets both widths
        return True
    return any(isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.ndim > 0 for array in _arrays(found))


class Traced:
    """A function with the digest of what JAX traces of it.

    JAX keeps compiled code by function, and what a function has from outside (of its module, its closure, an object)
    are constants in that code. Two of these are equal where both function and digest are, so that no code is taken in
    which these were others.
    """

    def __init__(self, function: Callable[..., Any], digest: str) -> None:
        self.function, self.digest = function, digest

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        with numbered(self.digest):
            _widths.enter(self, arguments, keywords)
            return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(self.function)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Traced):
            return NotImplemented
        if self.digest != other.digest:
            return False
        try:
            return bool(self.function == other.function)
        except ValueError:  # of objects that hold arrays, which NumPy compares number by number
            return False

    def __hash__(self) -> int:
        return hash(self.digest)


def traced(function: Partial, digest: str) -> Partial:
    """The function with its digest, bound to what it was bound to."""
    return Partial(Traced(plain(function).func, digest), *function.args, **function.keywords)


def traced_now(function: Partial, *arguments: PyTree) -> Partial:
    """The function with the digest that it has now, whatever it had before; arguments as `digest` has them."""
    return traced(function, digest(plain(function), *arguments))


def plain(function: Partial) -> Partial:
    """The function without the digest that it has, if any."""
    if not isinstance(function.func, Traced):
        return function
    return Partial(function.func.function, *function.args, **function.keywords)


def require_as_traced(name: str, function: Partial, *arguments: PyTree) -> None:
    """Raise `ValueError` where a function with a digest would have another one now."""
    if isinstance(function.func, Traced) and digest(plain(function), *arguments) != function.func.digest:
        raise ValueError(
            f"{name} is not what it was when it was given: a number or array changed that it has from outside. Give it "
            "anew, or bind what changes with jax.tree_util.Partial"
        )


def digest(function: Partial, *arguments: PyTree) -> str:
    """A digest of what JAX traces of a function now; arguments may be `jax.ShapeDtypeStruct`.

    What is bound to the function is traced as an argument, so that its numbers do not count. In double precision, in
    which sums are, so that no digit is lost; functions that do not run in that are traced in the present one.
    """
    try:
        with jax.enable_x64(True):
            found = _trace(function, arguments)
    except Exception:
        found = _trace(function, arguments)
    content = hashlib.sha256(ADDRESS.sub("", str(found)).encode())
    for array in _arrays(found):
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        array = np.asarray(array)
        content.update(str((array.dtype, array.shape)).encode() + array.tobytes())
    return content.hexdigest()


def _trace(function: Partial, arguments: tuple[PyTree, ...]) -> ClosedJaxpr:
    # of numbers alone: JAX compares the functions that trees hold, and some cannot be
    tree: Any
    leaves, tree = jax.tree.flatten((function, arguments))

    def of_leaves(*leaves: Any) -> Any:
        function, arguments = tree.unflatten(leaves)
        return function(*arguments)

    # everything anew
    with _numbers(object()):
        return jax.make_jaxpr(of_leaves)(*leaves)


def _arrays(value: Any) -> Iterator[Any]:
    """The constants of a trace and of all traces within it, of which its text shows few digits or none."""
    if isinstance(value, ClosedJaxpr):
        yield from value.consts
        value = value.jaxpr
    if isinstance(value, Jaxpr):
        for equation in value.eqns:
            yield from (np.asarray(v.val) for v in equation.invars if isinstance(v, Literal))
            yield from _arrays(tuple(equation.params.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, np.ndarray | jax.Array):
        yield value
