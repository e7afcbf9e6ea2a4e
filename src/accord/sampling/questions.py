"""Questions to the agents of a finished run about the log likelihood of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from ..engines.engine import Builder
from ..network import Network
from ..posterior import Posterior
from ..posterior.joint import joint
from ..posterior.potential import Potential, Shard
from ..results.diagnostics import without_a_row
from ..results.loo import RowOwners, RowSums, Sampled

# Log likelihoods of rows at draws that the agents of a process hold at the same time.
_NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Questions:
    """The agents of a run, asked where their data lies; `results.reweighting.Agents`.

    Parameters
    ----------
    post, network, builder
        The run's.
    masks
        Whether sums are masked.
    """

    post: Posterior
    network: Network
    builder: Builder
    masks: bool = False

    def log_likelihood(self, positions: np.ndarray, agent: int) -> np.ndarray:
        """The log likelihood of one agent's rows at some positions (point, dim), told by that agent; (point,)."""
        asked = np.arange(self.post.num_agents) == agent
        with jax.enable_x64(True), self.builder.placed(self.post) as placed:
            # the others answer zeros
            return np.asarray(placed.each(_log_likelihood, positions, own=(asked.astype(float),)))[agent]

    def log_likelihood_of(self, rows: dict[int, Any], positions: np.ndarray) -> np.ndarray:
        """The sum of the log likelihoods of new rows of some agents, alike."""
        found = np.zeros(len(positions))
        with jax.enable_x64(True):
            for alone in self._alone(rows):
                found += alone.each(_log_likelihood, positions, own=(np.ones(1),))[0]
        return found

    def optima_of(self, rows: dict[int, Any], starts: np.ndarray) -> np.ndarray:
        """Where these are largest near some positions, (start, dim)."""
        with jax.enable_x64(True):
            parts = self._alone(rows)

            def falling(x: np.ndarray) -> tuple[float, np.ndarray]:
                found = [part.each(_falling, x)[0] for part in parts]
                numbers = np.sum(found, axis=0) if found else np.zeros(1 + x.size)
                return float(numbers[0]), numbers[1:]

            return np.stack([scipy.optimize.minimize(falling, x, jac=True, method="L-BFGS-B").x for x in starts])

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """-F of the run's posterior at some positions; (point,), one sum."""
        with jax.enable_x64(True), self.builder.placed(self.post) as placed:
            return -np.asarray(placed.totals(self.network, masks=self.masks)(_value, positions))

    def row_sums(self, others: Mapping[str, RowOwners], sampled: Sequence[Sampled]) -> RowSums:
        """Sums over rows that are left out one by one; see `results.loo.RowOwners`."""
        posts, masks = {}, False
        for name, other in others.items():
            assert isinstance(other, Questions)
            posts[name], masks = other.post.in_parameters(), masks or other.masks
        whole, potentials = joint(posts)
        with jax.enable_x64(True), self.builder.placed(whole) as placed:
            return placed.totals(self.network, masks=masks)(_row_sums, potentials, tuple(sampled))

    def _alone(self, rows: dict[int, Any]) -> list[Posterior]:
        """Each agent's new rows as a posterior of one agent; what is wrong with them is named."""
        made = []
        for agent, own in rows.items():
            try:
                made.append(self.post.with_shards([own]))
            except ValueError as error:
                raise ValueError(str(error).replace("agent 0", f"agent {agent}")) from error
        return made


def _value(potential: Potential, shard: Shard, positions: Float[Array, "point dim"]) -> Float[Array, " point"]:
    return jax.lax.map(lambda x: potential.value(shard, x), positions)


def _falling(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Minus the log likelihood of an agent's rows, and its gradient."""
    value, gradient = jax.value_and_grad(lambda x: -_one(potential, shard, x))(x)
    return jnp.concatenate([value[None], gradient])


def _one(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Array:
    return -potential.value(shard, x) - potential.log_prior(potential.unravel(x)) / potential.num_agents


def _log_likelihood(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"], asked: Float[Array, ""]
) -> Float[Array, " point"]:
    """An agent's log likelihood at positions, or zeros."""
    return asked * jax.lax.map(partial(_one, potential, shard), positions, batch_size=min(len(positions), 64))


def _row_sums(potential: Potential, shard: Shard, models: tuple[Potential, ...], asked: tuple[Sampled, ...]) -> RowSums:
    """What an agent says of its rows; shard and models are those of a joint posterior."""

    def without(row: Array) -> Float[Array, "model 3"]:
        one = jax.tree.map(lambda leaf: leaf[row][None], shard.rows)
        return jnp.stack([_without_a_row(*each) for each in zip(models, one, asked, strict=True)])

    count, draws = len(jax.tree.leaves(shard.rows)[0]), max(len(one.positions) for one in asked)
    at_once = max(1, min(count, _NUMBERS_AT_ONCE // (draws * potential.num_agents)))
    elpd, p, k = jnp.moveaxis(jax.lax.map(without, jnp.arange(count), batch_size=at_once), -1, 0)
    real = (jnp.arange(count) < shard.size)[:, None]
    finite = jnp.isfinite(elpd) & jnp.isfinite(p)
    elpd, p = (jnp.where(real & finite, x, 0.0) for x in (elpd, p))
    columns = jnp.concatenate([elpd[:, :1], elpd[:, 1:] - elpd[:, :1]], axis=1)
    levels = jnp.stack([one.levels for one in asked])
    return RowSums(
        rows=real.sum().astype(float),
        elpd=columns.sum(axis=0),
        products=columns.T @ columns,
        p=p.sum(axis=0),
        above=(real[..., None] & (k[..., None] > levels[None])).sum(axis=0).astype(float),
        infinite=(real & ~finite).sum(axis=0).astype(float),
    )


def _without_a_row(model: Potential, row: Any, asked: Sampled) -> Float[Array, " 3"]:
    """The figures of one row, on a leading axis of one, in one model."""

    def value(x: Float[Array, " dim"]) -> Array:
        return model.log_likelihood(model.unravel(x), row)[0]

    found = jax.lax.map(value, asked.positions, batch_size=min(len(asked.positions), 64))
    # as words: a callback may be made in a thread where JAX rounds what is in double precision
    shape = jax.ShapeDtypeStruct((3, 2), jnp.uint32)
    words = jax.pure_callback(_smoothed, shape, _words(found), _words(asked.efficiency), vmap_method="expand_dims")
    return jax.lax.bitcast_convert_type(words, jnp.float64)


def _words(numbers: Any) -> Array:
    return jax.lax.bitcast_convert_type(jnp.asarray(numbers, jnp.float64), jnp.uint32)


def _smoothed(log_likelihood: Any, efficiency: Any) -> np.ndarray:
    """The figures of many rows, (..., 3), from their log likelihoods (..., draw); all as words."""
    values, share = (np.ascontiguousarray(words).view(np.float64)[..., 0] for words in (log_likelihood, efficiency))
    found = [without_a_row(own, float(share.flat[0])) for own in values.reshape(-1, values.shape[-1])]
    return np.array(found).reshape(*values.shape[:-1], 3, 1).view(np.uint32)
