"""Special functions with cheap derivatives: softplus, log Gamma, and log ratios of Gammas.

The derivative of JAX's softplus computes a logarithm again, and JAX's trigamma is a zeta function with 20 powers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

# Chebyshev interpolation polynomials, lowest power first, computed in extended precision.
# (atanh(s) / s - 1) / s^2 as a function of s^2 in [0, 1/9], with relative errors of atanh(s) of 2e-16 and 2e-8.
_ATANH = (
    0.33333333333333487,
    0.19999999999780063,
    0.14285714338330902,
    0.11111106278940441,
    0.09091130554927587,
    0.07686637426659541,
    0.0675117133925182,
    0.051613341476602195,
    0.08435351272885278,
)
_ATANH_SINGLE = (0.33333320168349617, 0.20003780322455603, 0.14118309902655235, 0.13425749011418592)
# (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2, with a relative error of exp(r) of 2e-17.
_EXP = (
    0.5000000000000001,
    0.16666666666666669,
    0.041666666666624115,
    0.00833333333332995,
    0.0013888888917216865,
    0.00019841269863359563,
    2.4801521292293022e-05,
    2.755726814399026e-06,
    2.7620089896279967e-07,
    2.5100495644207082e-08,
)
# log(2) in two parts. Multiples of the first part up to 2^20 are exact.
_LOG2, _LOG2_REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Largest a for which exp(-a) is a normal number in double precision.
_LARGEST = 708.0


def softplus(z: Array) -> Array:
    """log(1 + exp(z)) of an array of any shape, with a logistic function as the derivative."""
    return _softplus.bind(z)


def logistic(z: Array) -> Array:
    """1 / (1 + exp(-z)) of an array of any shape, with the exponential of `softplus` in double precision."""
    return _logistic.bind(z)


def _value(z: Array) -> Array:
    """The softplus max(z, 0) + log(1 + t) with t = exp(-|z|).

    log(1 + t) is 2 atanh(s) with s = t / (2 + t), a polynomial. CPUs compute a logarithm one number at a time, which
    takes several times as long.
    """
    t = _falling(jnp.abs(z))
    return _above(z, t / (2.0 + t))


def _value_beside(z: Array, p: Array) -> Array:
    """The softplus from the logistic function p = 1 / (1 + exp(-z)), without another exponential.

    With t as in `_value`, the smaller of p and 1 - p is t / (1 + t).
    """
    smaller = jnp.where(z < 0.0, p, 1.0 - p)
    return _above(z, smaller / (2.0 - smaller))


def _above(z: Array, s: Array) -> Array:
    """max(z, 0) + 2 atanh(s), 0 <= s <= 1/3."""
    square = s * s
    tail = polynomial(_ATANH_SINGLE if z.dtype.itemsize <= 4 else _ATANH, square)
    return jnp.maximum(z, 0.0) + 2.0 * (s + s * (square * tail))


def _slope(z: Array) -> Array:
    """The logistic function."""
    if z.dtype.itemsize <= 4:
        return jax.nn.sigmoid(z)
    t = _falling(jnp.abs(z))
    return jnp.where(z >= 0.0, 1.0, t) / (1.0 + t)


def _falling(a: Array) -> Array:
    """exp(-a) of a >= 0, without derivative.

    In double precision it is 2^k exp(r) with integer k and |r| <= log(2) / 2. XLA's exponential, which also handles
    other signs and subnormal results, takes a third longer.
    """
    if a.dtype.itemsize <= 4:
        return jnp.exp(-a)
    k = jnp.round(jnp.minimum(a, _LARGEST) * (-1.0 / _LOG2))
    r = -a - k * _LOG2 - k * _LOG2_REST
    # adds k to the exponent, which starts at bit 52
    bits = jax.lax.bitcast_convert_type(1.0 + (r + r * r * polynomial(_EXP, r)), jnp.int64)
    scaled = bits + (k.astype(jnp.int32).astype(jnp.int64) << 52)
    return jnp.where(a > _LARGEST, 0.0, jax.lax.bitcast_convert_type(scaled, a.dtype))


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """The polynomial with these coefficients, lowest power first, by Horner's rule."""
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _elementwise(name: str, function: Callable[..., Array]) -> Primitive:
    """An elementwise primitive, for which `jax.vmap` keeps its axis in place instead of moving it to the front."""
    made = Primitive(name)
    made.def_impl(jax.jit(function))
    made.def_abstract_eval(lambda z, *_: jax.core.ShapedArray(z.shape, z.dtype))
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    batching.defvectorized(made)
    return made


def _with_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (along,) = primals, tangents
    p = logistic(z)
    return _softplus_beside.bind(z, p), p * along


_softplus, _logistic = _elementwise("softplus", _value), _elementwise("logistic_function", _slope)
_softplus_beside = _elementwise("softplus_beside_logistic", _value_beside)
ad.primitive_jvps[_softplus] = _with_slope
# p is a function of z, so that the derivative by z is the total derivative
ad.defjvp(_softplus_beside, lambda along, z, p: p * along, None)
ad.defjvp2(_logistic, lambda along, found, z: found * (1.0 - found) * along)


# Numbers below `_SHIFT` are raised by `_SHIFT`. Stirling's series with the Bernoulli numbers B_2 to B_18 is then exact
# to double precision, for the function and its first four derivatives.
_SHIFT = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)


def log_gamma(x: Array | float) -> Array:
    """The logarithm of Gamma(x) for positive numbers of any shape.

    The derivatives of `jax.scipy.special.gammaln` have dozens of operations that XLA compiles separately. With them, a
    regression with an unknown shape parameter takes twice as long to compile.
    """
    return _gamma(0)(jnp.asarray(x))


def log_rising(x: Array, y: Array) -> Array:
    """The logarithm of Gamma(x + y) / Gamma(x) for positive x and counts y, without cancellation.

    It has no derivative by y.
    """
    return _rising(0)(x, y)


@cache
def _gamma(order: int) -> Any:
    """The derivative of log Gamma of a given order."""
    made = jax.custom_jvp(lambda x: _of_gamma(order, x))
    made.defjvps(lambda along, _, x: _gamma(order + 1)(x) * along)
    return made


@cache
def _rising(order: int) -> Any:
    """The derivative by x, of a given order, of log Gamma(x + y) - log Gamma(x)."""
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
        # factors divided by a and b against overflow, which x - 0.5 in place of a - 0.5 compensates
        found = (x - 0.5) * jnp.log1p(y / a) + y * jnp.log(b) - y
        below = jnp.log(jnp.prod(low / a[None], axis=0) / jnp.prod((low + y[None]) / b[None], axis=0))
    else:
        found = jnp.log1p(y / a)
        if order > 1:
            # 1 / b - 1 / a as -y / (a b), because the difference cancels at large a
            powers = sum(a**-i * b ** (i + 2 - order) for i in range(order - 1))
            found = _sign(order) * factorial(order - 2) * (-y / (a * b)) * powers
        below = _sign(order) * factorial(order - 1) * jnp.sum((low + y[None]) ** -order - low**-order, axis=0)
    return found + _tail(order, b) - _tail(order, a) + jnp.where(x < _SHIFT, below, 0.0)


def _sign(order: int) -> float:
    return (-1.0) ** order


def _moved(x: Array) -> Array:
    """The numbers, raised by `_SHIFT` if below `_SHIFT`."""
    return jnp.where(x < _SHIFT, x + _SHIFT, x)


def _below(x: Array) -> Array:
    """The factors x, x + 1, ..., on a leading axis, because XLA would compile ten separate terms one by one."""
    return x[None] + np.arange(float(_SHIFT)).reshape(_SHIFT, *[1] * x.ndim).astype(x.dtype)


def _tail(order: int, s: Array) -> Array:
    """Stirling's series from the term in 1 / s on, and its derivatives."""
    inverse = 1.0 / s
    terms = [number * factorial(2 * j + order - 2) / factorial(2 * j) for j, number in enumerate(_BERNOULLI, 1)]
    total = polynomial(tuple(terms), inverse * inverse)
    if order == 0:
        return total * inverse
    return _sign(order) * (factorial(order - 1) / 2.0 + total * inverse) * inverse**order
