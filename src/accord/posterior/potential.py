"""The potential f_i of one agent, with gradient and Hessian, evaluated on the agent's shard."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree, UInt32

from ..base.pytree import pytree, static, unchecked
from .coordinates import Coordinates
from .quadratic import Quadratic


class Shard(NamedTuple):
    """The data of one agent: rows padded to the longest shard, their real number, and a quadratic form if any."""

    rows: PyTree
    size: Any
    quadratic: Quadratic | None


def unravel(x: Float[Array, " dim"], shapes: tuple[tuple[int, ...], ...], treedef: Any) -> PyTree:
    """The parameters at a flat position, as a pytree of such a structure."""
    leaves, start = [], 0
    for shape in shapes:
        stop = start + int(np.prod(shape, dtype=int))
        leaves.append(x[start:stop].reshape(shape))
        start = stop
    return treedef.unflatten(leaves)


@pytree
class Potential:
    """The potential f_i = -(log likelihood of shard i) - (log prior) / N, of a shard and a flat position.

    In `coordinates` its positions are z, and the user's parameters are those at x.
    """

    log_likelihood: Partial
    log_prior: Partial
    coordinates: Coordinates | None
    num_agents: int = static()
    splits: bool = static()
    shapes: tuple[tuple[int, ...], ...] = static()
    treedef: Any = static()

    def unravel(self, x: Float[Array, " dim"]) -> PyTree:
        """The parameters, as the user's pytree, at a flat position."""
        return unravel(x if self.coordinates is None else self.coordinates(x), self.shapes, self.treedef)

    def within(self, coordinates: Coordinates) -> Potential:
        """The same potential as a function of coordinates, which must not have any yet."""
        assert self.coordinates is None
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return unchecked(Potential, **{**own, "coordinates": coordinates})

    def reported(self, x: Float[Array, "agent dim chain"]) -> Float[Array, "agent dim chain"]:
        """Positions as people read them."""
        return x if self.coordinates is None else jax.vmap(self.coordinates.spread)(x)

    def value(self, shard: Shard, x: Float[Array, " dim"], batch: UInt32[Array, " batch"] | None = None) -> Array:
        """f_i(x), or its unbiased estimate from the rows `batch % n_i`, scaled by n_i / len(batch)."""
        params = self.unravel(x)
        prior = self.log_prior(params) / self.num_agents
        if not self.splits:
            return -self.log_likelihood(params, shard.rows) - prior
        if batch is None:
            per_row = self.log_likelihood(params, shard.rows)
            return -jnp.sum(jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0)) - prior
        chosen = (batch % shard.size.astype(jnp.uint32)).astype(jnp.int32)
        per_row = self.log_likelihood(params, jax.tree.map(lambda leaf: leaf[chosen], shard.rows))
        return -jnp.mean(per_row) * shard.size - prior

    def gradient(self, shard: Shard, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """Gradient of `value`; two matrix products where the potential is quadratic and the batch is everything."""
        if batch is None and shard.quadratic is not None:
            return shard.quadratic.hessian @ x - shard.quadratic.linear
        return jax.grad(self.value, argnums=1)(shard, x, batch)

    def hessian(self, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        if shard.quadratic is not None:
            return shard.quadratic.hessian
        return jax.hessian(self.value, argnums=1)(shard, x)
