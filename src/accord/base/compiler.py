"""Options of XLA's compiler for CPUs, and the releases of jaxlib whose sums are wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

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
