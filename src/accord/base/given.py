"""Wrappers that give each user function its own entry in JAX's compilation cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.tree_util import Partial

from .pytree import pytree


class Given:
    """A user's function, compared by identity.

    JAX caches compiled programs by function, with closure variables as constants. Every `Posterior`, schedule and
    network therefore creates a new wrapper, so that its programs use the current values.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's result."""
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(self.function)


def given(function: Callable[..., Any]) -> Partial:
    """A plain function in a new wrapper, as a `Partial`. A `Partial` is returned unchanged and shares its programs."""
    return function if isinstance(function, Partial) else Partial(Given(function))


@pytree
class Schedule:
    """A user's pure function of the round."""

    function: Partial

    def __call__(self, k: Any) -> Any:
        """The step of round k."""
        return self.function(k)

    def __repr__(self) -> str:
        return repr(self.function)
