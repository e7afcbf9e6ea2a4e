"""The log of the gamma function and of rising factorials, with derivatives that compile fast."""

from __future__ import annotations

from functools import cache
from math import factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .softplus import polynomial

# Numbers below `_SHIFT` are raised by `_SHIFT`. From there on Stirling's series with the Bernoulli numbers B_2 to B_18
# is exact to double precision, for the function and its first four derivatives.
_SHIFT = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)


def log_gamma(x: Array | float) -> Array:
    """The logarithm of Gamma(x), of positive numbers of any shape.

    The derivatives of `jax.scipy.special.gammaln` are powers and quotients by the dozen, each of which XLA compiles by
    itself: with them a regression with an unknown shape compiles twice as long.
    """
    return _gamma(0)(jnp.asarray(x))


def log_rising(x: Array, y: Array) -> Array:
    """The logarithm of Gamma(x + y) / Gamma(x), of positive x and counts y, without differences of large numbers.

    No derivative by y is taken.
    """
    return _rising(0)(x, y)


@cache
def _gamma(order: int) -> Any:
    """The derivative of log Gamma of this order, whose own derivative is the one of the next order."""
    made = jax.custom_jvp(lambda x: _of_gamma(order, x))
    made.defjvps(lambda along, _, x: _gamma(order + 1)(x) * along)
    return made


@cache
def _rising(order: int) -> Any:
    """The derivative of this order, by x, of log Gamma(x + y) - log Gamma(x)."""
    made = jax.custom_jvp(lambda x, y: _of_rising(order, x, y))
    made.defjvps(lambda along, _, x, y: _rising(order + 1)(x, y) * along, None)
    return made


def _of_gamma(order: int, x: Array) -> Array:
    s = _moved(x)
    if order == 0:
        found = (s - 0.5) * jnp.log(s) - s + np.log(2.0 * np.pi) / 2.0
        below = -jnp.log(jnp.prod(_below(x), axis=0))
    else:
        found = jnp.log(s) if order == 1 else _sign(order) * factorial(order - 2) * s ** (1 - order)
        below = _sign(order) * factorial(order - 1) * jnp.sum(_below(x) ** -order, axis=0)
    return found + _tail(order, s) + jnp.where(x < _SHIFT, below, 0.0)


def _of_rising(order: int, x: Array, y: Array) -> Array:
    x = jnp.expand_dims(x, tuple(range(y.ndim - x.ndim)))
    a, low = _moved(x), _below(x)
    b = a + y
    if order == 0:
        # the factors are divided by a and by b, so that no product overflows; x - 0.5 makes up for it
        found = (x - 0.5) * jnp.log1p(y / a) + y * jnp.log(b) - y
        below = jnp.log(jnp.prod(low / a[None], axis=0) / jnp.prod((low + y[None]) / b[None], axis=0))
    else:
        found = jnp.log1p(y / a)
        if order > 1:
            # the factor 1 / b - 1 / a is written as -y / (a b): at a large a the difference would lose its digits
            powers = sum(a**-i * b ** (i + 2 - order) for i in range(order - 1))
            found = _sign(order) * factorial(order - 2) * (-y / (a * b)) * powers
        below = _sign(order) * factorial(order - 1) * jnp.sum((low + y[None]) ** -order - low**-order, axis=0)
    return found + _tail(order, b) - _tail(order, a) + jnp.where(x < _SHIFT, below, 0.0)


def _sign(order: int) -> float:
    return (-1.0) ** order


def _moved(x: Array) -> Array:
    """The numbers, those below `_SHIFT` raised by it."""
    return jnp.where(x < _SHIFT, x + _SHIFT, x)


def _below(x: Array) -> Array:
    """The factors x, x + 1, ..., on a leading axis: XLA would compile ten separate terms one by one."""
    return x[None] + np.arange(float(_SHIFT)).reshape(_SHIFT, *[1] * x.ndim).astype(x.dtype)


def _tail(order: int, s: Array) -> Array:
    """Stirling's series from the term in 1 / s on, and its derivatives."""
    inverse = 1.0 / s
    terms = [number * factorial(2 * j + order - 2) / factorial(2 * j) for j, number in enumerate(_BERNOULLI, 1)]
    total = polynomial(tuple(terms), inverse * inverse)
    if order == 0:
        return total * inverse
    return _sign(order) * (factorial(order - 1) / 2.0 + total * inverse) * inverse**order
