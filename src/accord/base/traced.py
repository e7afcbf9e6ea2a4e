"""Users' functions as JAX traces them: numbers that they have from outside are part of what they are."""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.tree_util import Partial
from jaxtyping import PyTree

T = TypeVar("T")
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
    """The float width in which JAX keeps the NumPy arrays of users' functions.

    JAX keeps such an array in the width of its first trace, as long as a program uses it. A trace in the other width
    then fails with an error about dtypes (JAX 0.10.1 to 0.12.0). So accord clears JAX's caches when a function with
    such arrays is traced in another width than the last one.
    """

    def __init__(self) -> None:
        # digests of functions with such arrays
        self.known: set[str] = set()
        # None: not known, as users may have traced them in either width
        self.is_wide: bool | None = None

    def enter(self, is_wide: bool) -> None:
        """Clear JAX's caches if the last trace had another width."""
        if is_wide != self.is_wide:
            self.begin(is_wide)

    def begin(self, is_wide: bool) -> None:
        """Clear JAX's caches, for traces in a width."""
        jax.clear_caches()
        # JAX keeps an array until the last program that uses it is deleted
        gc.collect()
        self.is_wide = is_wide


_widths = _Widths()


def in_doubles(work: Callable[[], T]) -> T:
    """What `work` returns in double precision; tried again if JAX may have kept arrays in single precision."""
    with jax.enable_x64(True):
        try:
            return work()
        except Exception:
            # the error keeps arrays alive until this block ends
            pass
        _widths.begin(is_wide=True)
        return work()


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
        if self.digest in _widths.known:
            _widths.enter(bool(jax.config.values["jax_enable_x64"]))
        with numbered(self.digest):
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
    work = partial(_trace, function, arguments)
    try:
        found = in_doubles(work)
    except Exception:
        return _digest(work())
    text = _digest(found)
    widths = {array.dtype.itemsize for array in _arrays(found) if _is_outside(array)}
    if not widths:
        return text
    # arrays in single precision may be doubles that were traced in single precision before
    if min(widths) < 8 and text not in _widths.known:
        # a trace keeps its arrays as they are
        del found
        _widths.begin(is_wide=True)
        text = _digest(in_doubles(work))
    _widths.is_wide = True
    _widths.known.add(text)
    return text


def _is_outside(array: Any) -> bool:
    """Whether a constant of a trace is an array of floats that NumPy holds."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.dtype.kind == "f"


def _digest(found: ClosedJaxpr) -> str:
    """The digest of a trace."""
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
