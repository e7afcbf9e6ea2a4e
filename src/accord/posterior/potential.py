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

    `rows` are padded to the longest shard, and `size` is the number of real rows. `quadratic` is the closed form of a
    quadratic potential, `groups` are the groups of rows with latents, and `curvature` is the Hessian at init for
    iterative proximal steps. Each may be None.
    """

    rows: PyTree
    size: Any
    quadratic: Quadratic | None
    groups: Groups | None = None
    curvature: Curvature | None = None


@pytree
class Potential:
    """The potential f_i = -(log likelihood of shard i) - (log prior) / N, a function of a shard and a flat position.

    With `coordinates`, positions are z, which map to x. x holds unconstrained numbers, and the log prior includes the
    log Jacobian of the transform to the user's parameters. The shard's latents are integrated out.
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
        """The user's pytree of parameters at a flat position."""
        return self.parameters(self._placed(x))

    def _placed(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return x if self.coordinates is None else self.coordinates(x)

    def within(self, coordinates: Coordinates) -> Potential:
        """The same potential as a function of coordinates. It must not have coordinates yet."""
        assert self.coordinates is None
        return self._with(coordinates=coordinates)

    def divided(self, parts: int) -> Potential:
        """The potential of one of `parts` parts of an agent's rows, with the same share of the log prior."""
        return self._with(num_agents=parts * self.num_agents)

    def _with(self, **changed: Any) -> Potential:
        return altered(self, **changed)

    def reported(self, x: Float[Array, "agent dim chain"]) -> Float[Array, "agent dim chain"]:
        """Positions in the user's x."""
        return x if self.coordinates is None else jax.vmap(self.coordinates.spread)(x)

    def value(self, shard: Shard, x: Float[Array, " dim"], batch: UInt32[Array, " batch"] | None = None) -> Array:
        """f_i(x), or its unbiased estimate from the rows `batch % n_i`, scaled by n_i / len(batch).

        Without a batch, a quadratic form with a center gives the value and no row is read.
        """
        if batch is None and shard.quadratic is not None and shard.quadratic.center is not None:
            return shard.quadratic.value(x)
        return -self.shard_log_likelihood(shard, x, batch) - self.log_prior_at(x) / self.num_agents

    def log_prior_at(self, x: Float[Array, " dim"]) -> Array:
        """The log density of the whole prior in the unconstrained numbers."""
        params, volume = self.parameters.with_volume(self._placed(x))
        return self.log_prior(params) + volume

    def shard_log_likelihood(
        self,
        shard: Shard,
        x: Float[Array, " dim"],
        batch: UInt32[Array, " batch"] | None = None,
    ) -> Array:
        """The log likelihood of a shard, with its latents integrated out."""
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
        """The error of a shard's log likelihood, estimated by a finer quadrature over its latents."""
        assert self.latents is not None
        return self.latents.quadrature_error(self.unravel(x), self.log_likelihood, shard, x)

    def gradient(self, shard: Shard, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """The gradient of `value`. Without a batch, a quadratic form gives it in closed form."""
        if batch is None and shard.quadratic is not None:
            return shard.quadratic.gradient(x)
        return jax.grad(self.value, argnums=1)(shard, x, batch)

    def slope(self, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
        """f_i and its gradient. Latents are integrated out once for both."""
        if shard.quadratic is not None:
            return self.value(shard, x), self.gradient(shard, x)
        return jax.value_and_grad(self.value, argnums=1)(shard, x)

    def expansion(
        self, shard: Shard, x: Float[Array, " dim"]
    ) -> tuple[Array, Float[Array, " dim"], Float[Array, "dim dim"]]:
        """f_i, its gradient and its Hessian, from one linearisation."""
        if shard.quadratic is not None:
            return self.value(shard, x), self.gradient(shard, x), shard.quadratic.hessian
        found: Any
        found = jax.linearize(lambda x: jax.value_and_grad(self.value, argnums=1)(shard, x), x)
        (value, gradient), along = found
        return value, gradient, jax.vmap(along)(jnp.eye(x.size, dtype=x.dtype))[1]

    def hessian(self, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """The Hessian of f_i."""
        if shard.quadratic is not None:
            return shard.quadratic.hessian
        return jax.hessian(self.value, argnums=1)(shard, x)
