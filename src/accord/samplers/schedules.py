"""Step sizes: a number, or a function of the round such as an optax schedule."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.checks import positive
from ..base.given import Schedule, given
from ..base.pytree import pytree
from ..base.widths import in_either_width

Step = float | Callable[[Any], Any]


@pytree
class Polynomial:
    """The decaying step `a / (b + k)**chi` in round k = 0, 1, ... (GT-DULA, section 5, and D-ADMMS, eq. 25).

    Parameters
    ----------
    a
        Scale, in units of the step.
    b
        Offset in rounds, > 0.
    chi
        Exponent, >= 0. Condition 1 of the GT-DULA paper requires 1/2 < chi <= 1 for the gradient's step.
    """

    a: float
    b: float
    chi: float

    def __post_init__(self) -> None:
        positive("a", self.a)
        positive("b", self.b)
        if not 0 <= self.chi < float("inf"):
            raise ValueError(f"chi must be a finite number >= 0, found {self.chi}")

    def __call__(self, k: Any) -> Any:
        """The step of round k."""
        return self.a / (self.b + k) ** self.chi


def diminishing(first: float, chi: float = 0.55) -> Polynomial:
    """The diminishing step `first / (1 + k)**chi` of D-ULA (Parayil et al. 2020).

    The baseline "D-SGLD with diminishing step sizes" of the client-only Gibbs paper, section 6, is
    `DESGLD(diminishing(first))` or `DULA(diminishing(first), ...)`.

    Parameters
    ----------
    first
        The step of round 0, > 0.
    chi
        Exponent, >= 0. A gradient's step needs 1/2 < chi <= 1: its sum is infinite, and the sum of its squares is
        finite.
    """
    return Polynomial(first, 1.0, chi)


def at(step: Step | None, k: Any) -> Any:
    """The value of a step in round k."""
    if step is None:
        raise ValueError("a step is None and has no value: set all fields, or sample with whiten=True")
    return step(k) if callable(step) else step


def rescaled(step: Step | None, factor: float) -> Step:
    """The step times a number."""
    return (lambda k: factor * at(step, k)) if callable(step) else factor * at(step, 0)


def as_step(name: str, step: Any) -> Step:
    """A validated step as a pytree: a positive number, or a schedule that is positive and finite in round 0."""
    if isinstance(step, bool) or not (isinstance(step, numbers.Real) or callable(step)):
        raise TypeError(f"{name} must be a number or a function of the round, found {step!r}")
    if not callable(step):
        positive(name, step)
        return float(step)
    positive(f"{name} at round 0", float(step(jnp.zeros((), jnp.int32))))
    # bare functions become pytrees, so that the method can be an argument of compiled code
    return step if isinstance(step, Polynomial | Schedule) else Schedule(in_either_width(given(step), np.int32(0)))
