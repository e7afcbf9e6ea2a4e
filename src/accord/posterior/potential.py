"""The potential f_i of one agent, with gradient and Hessian, evaluated on the agent's shard."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree, UInt32

from ..base.linear import sum_of_rows
from ..base.pytree import altered, pytree, static
from .coordinates import Coordinates
from .curvature import Curvature
from .latents import Groups, Latents
from .parameters import Parameters
from .quadratic import Quadratic


class Shard(NamedTuple):
    """The data of one agent.

    Rows are padded to the longest shard, and `size` is their real number; a quadratic form, and the groups of rows,
    where there are some; and where proximal steps are solved by iterations, the curvature at init.
    """

    rows: PyTree
    size: Any
    quadratic: Quadratic | None
    groups: Groups | None = None
    curvature: Curvature | None = None


@pytree
class Potential:
    """The potential f_i = -(log likelihood of shard i) - (log prior) / N, of a shard and a flat position.

    In `coordinates` its positions are z, and the user's parameters are those at x. Of constrained parameters the prior
    is that of the unconstrained numbers that x is; latents of the shard are integrated out.
    """

    log_likelihood: Partial
    log_prior: Partial
    coordinates: Coordinates | None
    parameters: Parameters
    latents: Latents | None
    num_agents: int = static()
    rowwise: bool = static()

    @property
    def dim(self) -> int:
        """Number of flat parameters."""
        return self.parameters.dim

    def unravel(self, x: Float[Array, " dim"]) -> PyTree:
        """The parameters, as the user's pytree, at a flat position."""
        return self.parameters(self._placed(x))

    def _placed(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return x if self.coordinates is None else self.coordinates(x)

    def within(self, coordinates: Coordinates) -> Potential:
        """The same potential as a function of coordinates, which must not have any yet."""
        assert self.coordinates is None
        return self._with(coordinates=coordinates)

    def divided(self, parts: int) -> Potential:
        """The same potential of a part of an agent's rows, which has as large a part of the prior."""
        return self._with(num_agents=parts * self.num_agents)

    def _with(self, **changed: Any) -> Potential:
        return altered(self, **changed)

    def reported(self, x: Float[Array, "agent dim chain"]) -> Float[Array, "agent dim chain"]:
        """Positions as people read them."""
        return x if self.coordinates is None else jax.vmap(self.coordinates.spread)(x)

    def value(self, shard: Shard, x: Float[Array, " dim"], batch: UInt32[Array, " batch"] | None = None) -> Array:
        """f_i(x), or its unbiased estimate from the rows `batch % n_i`, scaled by n_i / len(batch).

        By the closed form, which reads no row, where f_i is quadratic, of well determined parameters, and the batch is
        everything.
        """
        if batch is None and shard.quadratic is not None and shard.quadratic.center is not None:
            return shard.quadratic.value(x)
        return -self.shard_log_likelihood(shard, x, batch) - self.log_prior_at(x) / self.num_agents

    def log_prior_at(self, x: Float[Array, " dim"]) -> Array:
        """The log of the whole prior's density in the unconstrained numbers."""
        params, volume = self.parameters.with_volume(self._placed(x))
        return self.log_prior(params) + volume

    def shard_log_likelihood(
        self,
        shard: Shard,
        x: Float[Array, " dim"],
        batch: UInt32[Array, " batch"] | None = None,
    ) -> Array:
        """The log likelihood of a shard, latents integrated out."""
        params = self.unravel(x)
        if self.latents is not None:
            return self.latents.log_marginal(params, self.log_likelihood, shard, x)
        if not self.rowwise:
            return self.log_likelihood(params, shard.rows)
        if batch is None:
            per_row = self.log_likelihood(params, shard.rows)
            return sum_of_rows(jnp.where(jnp.arange(per_row.shape[0]) < shard.size, per_row, 0.0))
        chosen = (batch % jnp.asarray(shard.size, jnp.uint32)).astype(jnp.int32)
        rows = jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="promise_in_bounds"), shard.rows)
        per_row = self.log_likelihood(params, rows)
        return jnp.mean(per_row) * shard.size

    def quadrature_error(self, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, ""]:
        """How far the log likelihood of a shard is off, as a finer quadrature over its latents finds."""
        assert self.latents is not None
        return self.latents.quadrature_error(self.unravel(x), self.log_likelihood, shard, x)

    def gradient(self, shard: Shard, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """Gradient of `value`; that of the closed form where it is quadratic and the batch is everything."""
        if batch is None and shard.quadratic is not None:
            return shard.quadratic.gradient(x)
        return jax.grad(self.value, argnums=1)(shard, x, batch)

    def slope(self, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
        """f_i and its gradient, found together: what is integrated out is so once."""
        if shard.quadratic is not None:
            return self.value(shard, x), self.gradient(shard, x)
        return jax.value_and_grad(self.value, argnums=1)(shard, x)

    def expansion(
        self, shard: Shard, x: Float[Array, " dim"]
    ) -> tuple[Array, Float[Array, " dim"], Float[Array, "dim dim"]]:
        """f_i, its gradient and its Hessian, found together."""
        if shard.quadratic is not None:
            return self.value(shard, x), self.gradient(shard, x), shard.quadratic.hessian
        found: Any
        found = jax.linearize(lambda x: jax.value_and_grad(self.value, argnums=1)(shard, x), x)
        (value, gradient), along = found
        return value, gradient, jax.vmap(along)(jnp.eye(x.size, dtype=x.dtype))[1]

    def hessian(self, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        if shard.quadratic is not None:
            return shard.quadratic.hessian
        return jax.hessian(self.value, argnums=1)(shard, x)
