"""XLA's compiler for CPUs: its options, compiled programs, the releases of jaxlib whose sums are wrong, and forks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

import jax
import jaxlib
from jax.experimental.compilation_cache import compilation_cache
from platformdirs import user_cache_dir

# Their sums of arrays above some 32,768 entries are wrong, without a word: https://github.com/jax-ml/jax/issues/39103.
_WRONG_SUMS = ("0.10.2", "0.11.0")
_VERSION = tuple(map(int, re.findall(r"\d+", jaxlib.__version__)[:2]))
# Earlier ones write a line of a thousand letters to standard error for each program that they read from a file.
_READS_QUIETLY = _VERSION >= (0, 12)
# Batches of triangular solves, as those of a multivariate normal, wait for threads of the pool that they run on. Two of
# them at a time, on two processors, wait for ever (jaxlib 0.10.1; 0.11.1 and later do not). One operation after another
# there are no two.
_WAITS_FOR_EVER = _VERSION < (0, 11)

OPTIONS: dict[str, Any] = {"xla_cpu_enable_concurrency_optimized_scheduler": False} if _WAITS_FOR_EVER else {}


def compiled(
    function: Callable[..., Any] | None = None, /, *, more: dict[str, Any] | None = None, **options: Any
) -> Any:
    """A function as `jax.jit` compiles it, with the options that the installed jaxlib needs.

    Call it outside of other compiled functions: JAX takes compiler options only there.

    Parameters
    ----------
    function
        The function; left out, what is returned is a decorator.
    more
        Options of the compiler beside these.
    **options
        Other options of `jax.jit`, such as `static_argnames`.
    """
    if function is None:
        return partial(compiled, more=more, **options)
    return jax.jit(function, compiler_options={**OPTIONS, **(more or {})} or None, **options)


@cache
def get_ready() -> None:
    """Prepare for the first program: refuse a jaxlib whose sums are wrong, and switch JAX's compile cache on.

    The cache is in the user's cache folder. JAX's own settings come first: another folder
    (`jax_compilation_cache_dir`), or no cache (`jax_enable_compilation_cache`).

    Raises
    ------
    ImportError
        The installed jaxlib adds wrongly.
    """
    if jaxlib.__version__ in _WRONG_SUMS:
        raise ImportError(
            f"jaxlib {jaxlib.__version__} adds large arrays wrongly on CPUs: install another one, as by "
            "pip install 'jax!=0.10.2,!=0.11.0'"
        )
    values = jax.config.values
    if values["jax_compilation_cache_dir"] is None and values["jax_enable_compilation_cache"] and _READS_QUIETLY:
        jax.config.update("jax_compilation_cache_dir", user_cache_dir("accord", appauthor=False))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        # it is looked at once, at the first program of the process
        compilation_cache.reset_cache()


# LLVM takes half of the widest vectors (AVX-512) unless told, as some processors slow down for whole ones. With these
# softplus and exponentials of several chains or points take half of the time, and rounds of logistic regressions two
# thirds to nine tenths. Products of a matrix and one vector take up to three times as long: a row's last columns, fewer
# than such a vector holds, are taken one by one. Processors that have none take no notice.
WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}

# Settings that what programs compute depends on, and what sets each for a thread.
_CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_device": jax.default_device,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_debug_nans": jax.debug_nans,
}

P = ParamSpec("P")
T = TypeVar("T")


class Program:
    """A function as `jax.jit` compiles it, with some static arguments, for numbers of one chain or point or of several.

    No other compiled function calls it.
    """

    def __init__(self, function: Callable[..., Any], *, static: tuple[str, ...]) -> None:
        self._alone = compiled(function, static_argnames=static)
        self._abreast = compiled(function, static_argnames=static, more=WIDE)

    def of(self, abreast: int) -> Any:
        """The compiled function for `abreast` chains or points side by side."""
        # what compiles for other devices may not know the option
        wide = abreast > 1 and jax.default_backend() == "cpu"
        return self._abreast if wide else self._alone


def as_here(function: Callable[P, T]) -> Callable[P, T]:
    """The function, called in any thread as it would be in this one: JAX's contexts are each thread's own."""
    own = [(context, getattr(jax.config, name)) for name, context in _CONTEXTS.items()]

    def called(*arguments: P.args, **options: P.kwargs) -> T:
        with ExitStack() as stack:
            for context, value in own:
                stack.enter_context(context(value))
            return function(*arguments, **options)

    return called


_used = _forked = False


def require_no_fork() -> None:
    """Notice forks from now on; raise `RuntimeError` in one of a process that had used accord."""
    global _used
    if _forked:
        raise RuntimeError(
            "this process was forked from one that had used JAX, whose threads are gone here, so that accord would "
            'hang: start processes by multiprocessing.get_context("spawn")'
        )
    # not on Windows
    if not _used and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked_now)
    _used = True


def _forked_now() -> None:
    global _forked
    _forked = True
