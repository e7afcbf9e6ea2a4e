"""XLA on CPUs: compiler options, compiled programs, the compilation cache, faulty jaxlib releases, and forks."""

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

# Releases of jaxlib with silently wrong sums of more than about 32,768 entries (github.com/jax-ml/jax/issues/39103).
_WRONG_SUMS = ("0.10.2", "0.11.0")
_VERSION = tuple(map(int, re.findall(r"\d+", jaxlib.__version__)[:2]))
# Earlier releases log a line of a thousand characters for each program read from the compilation cache.
_READS_QUIETLY = _VERSION >= (0, 12)
# Earlier releases deadlock on two concurrent batches of triangular solves, as in a multivariate normal, on two cores.
# The remedy is a scheduler without concurrent operations.
_WAITS_FOR_EVER = _VERSION < (0, 11)

OPTIONS: dict[str, Any] = {"xla_cpu_enable_concurrency_optimized_scheduler": False} if _WAITS_FOR_EVER else {}


def compiled(
    function: Callable[..., Any] | None = None, /, *, more: dict[str, Any] | None = None, **options: Any
) -> Any:
    """`jax.jit` with the compiler options that the installed jaxlib needs.

    Call the result outside of other compiled functions: JAX accepts compiler options only at the top level.

    Parameters
    ----------
    function
        The function. None: return a decorator.
    more
        Additional compiler options.
    **options
        Options of `jax.jit`, such as `static_argnames`.
    """
    if function is None:
        return partial(compiled, more=more, **options)
    return jax.jit(function, compiler_options={**OPTIONS, **(more or {})} or None, **options)


@cache
def get_ready() -> None:
    """Reject a jaxlib with wrong sums, and enable JAX's persistent compilation cache in the user's cache folder.

    JAX's settings `jax_compilation_cache_dir` and `jax_enable_compilation_cache` take precedence.

    Raises
    ------
    ImportError
        The installed jaxlib computes wrong sums.
    """
    if jaxlib.__version__ in _WRONG_SUMS:
        raise ImportError(
            f"jaxlib {jaxlib.__version__} computes wrong sums of large arrays on CPUs: install another release with "
            "pip install 'jax!=0.10.2,!=0.11.0'"
        )
    values = jax.config.values
    if values["jax_compilation_cache_dir"] is None and values["jax_enable_compilation_cache"] and _READS_QUIETLY:
        jax.config.update("jax_compilation_cache_dir", user_cache_dir("accord", appauthor=False))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        # JAX reads the setting once, at the first program of the process
        compilation_cache.reset_cache()


# 512-bit vectors (AVX-512) instead of LLVM's default of 256. Exponentials of several chains take half of the time, and
# rounds of logistic regressions two thirds to nine tenths. Matrix-vector products for one chain take up to three times
# as long, because remainders of a row are scalar. Processors without AVX-512 ignore the option.
WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}

# JAX settings that change results, and the context manager of each.
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
    """A compiled function in two versions, for one chain or point and for several. Call it at the top level only."""

    def __init__(self, function: Callable[..., Any], *, static: tuple[str, ...]) -> None:
        self._alone = compiled(function, static_argnames=static)
        self._abreast = compiled(function, static_argnames=static, more=WIDE)

    def of(self, abreast: int) -> Any:
        """The compiled function for `abreast` chains or points."""
        # a CPU option
        wide = abreast > 1 and jax.default_backend() == "cpu"
        return self._abreast if wide else self._alone


def as_here(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function to run in any thread with this thread's JAX settings, which are thread-local."""
    own = [(context, getattr(jax.config, name)) for name, context in _CONTEXTS.items()]

    def called(*arguments: P.args, **options: P.kwargs) -> T:
        with ExitStack() as stack:
            for context, value in own:
                stack.enter_context(context(value))
            return function(*arguments, **options)

    return called


_used = _forked = False


def require_no_fork() -> None:
    """Raise `RuntimeError` in a fork of a process that had used accord. The first call registers the fork hook."""
    global _used
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX had started threads, which do not survive a fork, so accord would "
            'hang: start processes with multiprocessing.get_context("spawn")'
        )
    # Windows has no fork
    if not _used and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked_now)
    _used = True


def _forked_now() -> None:
    global _forked
    _forked = True
