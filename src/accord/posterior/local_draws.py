"""Draws of an agent's latents, in the process that holds its data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .parameters import variables
from .posterior import Posterior
from .potential import Potential, Shard

# Batch size over positions.
_AT_ONCE = 32


def latents_of(post: Posterior, positions: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Latents by name, (chain, draw, group, ...), or (chain, draw, ...) if all rows are one group.

    `post` holds one agent only, in the user's parameters. `positions` have shape (chain, draw, dim).
    """
    local = post._local
    assert local is not None
    # seeds are at most 2**64 - 1
    drawn = post.each(_drawn, np.asarray(positions, np.float64), np.uint64(seed))
    found: Any = jax.tree.map(lambda leaf: leaf[0], drawn)
    names = [name for name, _ in variables(local.init)]
    leaves = jax.tree.leaves(found)
    return {n: leaf[:, :, 0] if local.group is None else leaf for n, leaf in zip(names, leaves, strict=True)}


def _drawn(potential: Potential, shard: Shard, positions: Float[Array, "chain draw dim"], seed: Any) -> Any:
    assert potential.latents is not None
    latents, log_likelihood = potential.latents, potential.log_likelihood

    def one(numbered: tuple[Array, Array, Array]) -> Any:
        chain, draw, x = numbered
        # equal positions get different latents, and more draws do not change earlier ones
        key = jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(seed), chain), draw)
        return latents.draw(potential.unravel(x), log_likelihood, shard, key)

    shape = positions.shape[:2]
    chain, draw = jnp.indices(shape).reshape(2, -1)
    flat = positions.reshape(-1, positions.shape[2])
    found = jax.lax.map(one, (chain, draw, flat), batch_size=min(len(flat), _AT_ONCE))
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), found)
