"""All agents' states, or the noise of a round, as columns of numbers: a row a number, a column a chain."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def flat(state: Any) -> Float[Array, "number chain"]:
    """The numbers of a pytree of arrays (..., chain), one leaf below the other."""
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(state)])


def unflat(rows: Float[Array, "number chain"], like: Any) -> Any:
    """A pytree with the structure and the shapes of `like` up to the number of chains, which is that of `rows`."""
    leaves: list[Array]
    treedef: Any
    leaves, treedef = jax.tree.flatten(like)
    found, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape[:-1])
        found.append(rows[start:stop].reshape(*leaf.shape[:-1], rows.shape[1]).astype(leaf.dtype))
        start = stop
    return treedef.unflatten(found)
