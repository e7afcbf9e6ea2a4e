"""Programs that XLA compiles for one vector of numbers, or for several side by side, and threads that run them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

import jax

from .compiler import compiled

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

    It is called from outside of other compiled functions.
    """

    def __init__(self, function: Callable[..., Any], *, static: tuple[str, ...]) -> None:
        self._alone = compiled(function, static_argnames=static)
        self._abreast = compiled(function, static_argnames=static, more=WIDE)

    def of(self, abreast: int) -> Any:
        """The compiled function for so many chains or points side by side."""
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
