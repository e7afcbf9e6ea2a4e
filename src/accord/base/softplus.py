"""The softplus log(1 + exp(z)), whose derivative is one logistic function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

# Terms of the series of atanh(s) / s in s^2 that double and single precision take, up to s = 1/3: what is left out is
# below 2e-17, and below 2e-8.
_TERMS, _SINGLE = 16, 7


@jax.custom_jvp
def softplus(z: Array) -> Array:
    """log(1 + exp(z)) of an array of any shape, to the last digits.

    That is max(z, 0) + log(1 + t) with t = exp(-|z|), and log(1 + t) = 2 atanh(t / (2 + t)) by its series: a
    logarithm, of which CPUs make one number at a time, takes twice as long as all of this. The derivative of
    `jax.nn.softplus` takes that logarithm again; this one's is a logistic function.
    """
    t = jnp.exp(-jnp.abs(z))
    s = t / (2.0 + t)
    square, series = s * s, jnp.zeros_like(s)
    for power in reversed(range(_SINGLE if z.dtype.itemsize <= 4 else _TERMS)):
        series = series * square + 1.0 / (2 * power + 1)
    return jnp.maximum(z, 0.0) + 2.0 * s * series


@softplus.defjvp
def _slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (along,) = primals, tangents
    return softplus(z), jax.nn.sigmoid(z) * along
