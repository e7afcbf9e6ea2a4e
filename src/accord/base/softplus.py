"""The softplus log(1 + exp(z)), whose derivative is one logistic function."""

from __future__ import annotations

import jax
from jaxtyping import Array


@jax.custom_jvp
def softplus(z: Array) -> Array:
    """log(1 + exp(z)) of an array of any shape, with the values of `jax.nn.softplus`.

    That one's derivative is exp(z - log(1 + exp(z))), which takes the logarithm again: the gradient of a logistic
    regression of few columns spends most of its time there.
    """
    return jax.nn.softplus(z)


@softplus.defjvp
def _slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (along,) = primals, tangents
    return softplus(z), jax.nn.sigmoid(z) * along
