"""Functions that a user hands over, each an object of its own, by which JAX keeps what it compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.tree_util import Partial

from .pytree import pytree


class Given:
    """A user's function, equal to no other object.

    JAX keeps compiled programs by function, with the variables that a function closes over as constants. Every
    `Posterior`, schedule and network wraps its functions anew, so that it gets programs with the present values.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's result."""
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(self.function)


def given(function: Callable[..., Any]) -> Partial:
    """The function as a pytree: a bare one wrapped anew, a `Partial` as it is, whose programs are shared."""
    return function if isinstance(function, Partial) else Partial(Given(function))


@pytree
class Schedule:
    """A user's function of the round, which must be pure."""

    function: Partial

    def __call__(self, k: Any) -> Any:
        """The step of round k."""
        return self.function(k)

    def __repr__(self) -> str:
        return repr(self.function)
