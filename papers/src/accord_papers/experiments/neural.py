"""Posteriors of flax modules: flat parameters, a categorical likelihood and a normal prior."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, Float

from accord import Posterior

PIXEL = 255.0  # pictures are bytes in memory, a quarter of single precision


def require() -> None:
    """Raise `ImportError` with the install command if flax is missing."""
    try:
        import flax  # noqa: F401
    except ImportError as error:
        raise ImportError("neural networks need flax: pip install accord-papers") from error


@cache
def lenet() -> Any:
    """LeNet-5 with rectifiers and mean pooling: 61,706 parameters, from pictures to ten logits."""
    from flax import linen as nn

    class LeNet(nn.Module):
        at_once: int | None = 9  # activations for ten agents fit into CPU caches

        @nn.compact
        def __call__(self, pictures: Array) -> Array:
            x = pictures[..., None] / PIXEL
            for features, padding in ((6, "SAME"), (16, "VALID")):
                x = nn.relu(nn.Conv(features, (5, 5), padding=padding, conv_general_dilated=_by_slices, **he)(x))
                x = nn.avg_pool(x, (2, 2), (2, 2))
            x = x.reshape(x.shape[0], -1)
            for width in (120, 84):
                x = nn.relu(nn.Dense(width, **he)(x))
            return nn.Dense(10, **he)(x)

    he: dict[str, Any] = {"kernel_init": nn.initializers.he_uniform()}
    return LeNet()


@cache
def perceptron(hidden: int = 128) -> Any:
    """One hidden layer of sigmoids, from pictures to ten logits."""
    from flax import linen as nn

    class Perceptron(nn.Module):
        at_once: int | None = None

        @nn.compact
        def __call__(self, pictures: Array) -> Array:
            x = pictures.reshape(pictures.shape[0], -1) / PIXEL
            x = nn.sigmoid(nn.Dense(hidden)(x))
            return nn.Dense(10)(x)

    return Perceptron()


def start(module: Any, seed: int) -> Any:
    """Parameters drawn by the module's initialisers."""
    return jax.jit(module.init)(jax.random.key(seed), np.zeros((1, 28, 28), np.uint8))["params"]


def posterior(module: Any, shards: Sequence[tuple[np.ndarray, np.ndarray]], init: Any, prior_sd: Any) -> Posterior:
    """The posterior of a module's parameters under a normal prior with mean 0 and sds `prior_sd`, a number or a pytree.

    `module.at_once` is the number of rows in a chunk of the likelihood, None for all rows.
    """
    sd = ravel_pytree(prior_sd)[0] if not np.isscalar(prior_sd) else prior_sd
    return Posterior(Partial(partial(_log_likelihood, module)), Partial(_log_prior, sd), list(shards), init)


@partial(jax.jit, static_argnames="module")
def log_probabilities(
    module: Any, like: Any, flat: Float[np.ndarray, "draw dim"], pictures: Array
) -> Float[Array, "draw row 10"]:
    """Log probabilities of the ten digits under each flat parameter vector; `like` is a pytree of their shapes."""
    unravel = ravel_pytree(like)[1]
    return jax.lax.map(lambda x: jax.nn.log_softmax(module.apply({"params": unravel(x)}, pictures)), flat)


def _log_likelihood(module: Any, params: Any, rows: tuple[Array, Array]) -> Float[Array, " row"]:
    some = partial(_log_likelihood_of_some, module, params)
    many = len(rows[1])
    if module.at_once is None or many <= module.at_once:
        return some(rows)
    # recomputing activations for the gradient is faster than storing them
    whole = many - many % module.at_once
    pieces = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, module.at_once, *leaf.shape[1:]), rows)
    found = jax.lax.map(jax.checkpoint(some), pieces).reshape(-1)
    return jnp.concatenate([found, some(jax.tree.map(lambda leaf: leaf[whole:], rows))]) if whole < many else found


def _log_likelihood_of_some(module: Any, params: Any, rows: tuple[Array, Array]) -> Float[Array, " row"]:
    pictures, digits = rows
    table = jax.nn.log_softmax(module.apply({"params": params}, pictures))
    return jnp.take_along_axis(table, digits[:, None].astype(jnp.int32), axis=1)[:, 0]


def _log_prior(sd: Array, params: Any) -> Array:
    return -jnp.sum((ravel_pytree(params)[0] / sd) ** 2) / 2.0


def _by_slices(
    x: Array, kernel: Array, window_strides: Any, padding: Any, dimension_numbers: Any = None, **options: Any
) -> Array:
    """A convolution as one matrix product of shifted pictures, for strides of 1 and channels last.

    If every agent has its own kernels, XLA uses a grouped convolution, which is three times as slow on CPUs. Channels
    come first inside, so that whole pictures are copied.
    """
    height, width = kernel.shape[:2]
    if padding == "SAME":
        x = jnp.pad(x, ((0, 0), *[((size - 1) // 2, size // 2) for size in (height, width)], (0, 0)))
    rows, columns = x.shape[1] - height + 1, x.shape[2] - width + 1
    planes = jnp.moveaxis(x, -1, 0)
    shifted = jnp.concatenate(
        [planes[:, :, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    )
    found = kernel.reshape(-1, kernel.shape[-1]).T @ shifted.reshape(len(shifted), -1)
    return jnp.moveaxis(found.reshape(-1, *shifted.shape[1:]), 0, -1)
