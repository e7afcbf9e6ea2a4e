"""Questions to the agents of a finished run about the log likelihood of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..base.memory import require_room
from ..network import Network
from ..posterior import Posterior
from ..posterior.joint import joint
from ..posterior.local_draws import latents_of
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from ..report.told import Histogram
from ..results.loo import RowOwners, RowSums, Sampled
from ..samplers.engine import Builder
from .predictive import checked
from .rows_left_out import row_sums


@dataclass(frozen=True)
class Questions:
    """The agents of a run, asked where their data lies; `results.reweighting.Agents`.

    Parameters
    ----------
    post, network, builder
        The run's.
    masks
        Whether sums are masked.
    here
        The agents with latents whose data lies in this process.
    """

    post: Posterior
    network: Network
    builder: Builder
    masks: bool = False
    here: tuple[int, ...] = ()

    def log_likelihood(self, positions: np.ndarray, agent: int) -> np.ndarray:
        """The log likelihood of one agent's rows at some positions (point, dim), told by that agent; (point,)."""
        with jax.enable_x64(True), self._placed_for_own(self.post) as placed:
            if placed.reads_in_chunks:
                # no row of another agent is read
                return np.asarray(placed.alone(agent).each(log_likelihood_at, positions))[0]
            # the others answer zeros
            asked = (np.arange(self.post.num_agents) == agent).astype(float)
            return np.asarray(placed.each(log_likelihood_at, positions, own=(asked,)))[agent]

    def log_likelihoods(self, positions: np.ndarray) -> np.ndarray:
        """That of every agent, each told by itself; (agent, point)."""
        with jax.enable_x64(True), self._placed_for_own(self.post) as placed:
            return np.asarray(placed.each(log_likelihood_at, positions))

    def of_rows(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """That of each row of every agent, (point, row); `ValueError` where rows are elsewhere or have none."""
        post = self.post.in_parameters()
        if not post.splits:
            why = "rows share latents" if post.has_latents else "the rows of an agent enter together"
            raise ValueError(f"rows have no log likelihoods of their own: {why}")
        with jax.enable_x64(True), self._placed_for_own(post) as placed:
            if placed.is_held_elsewhere or len(placed.held) < post.num_agents:
                raise ValueError("log likelihoods of rows need all rows in this process, and some are in others")
            rows = int(placed.sizes.sum())
            what = f"log likelihoods of {rows:,} rows at {len(positions):,} draws"
            require_room(
                what, 16.0 * rows * len(positions), "draw fewer, or ask run.loo(), which holds a few at a time"
            )
            return tuple(
                np.asarray(placed.alone(agent).each(_of_rows, positions))[0, :, :size]
                for agent, size in enumerate(placed.sizes)
            )

    def log_likelihood_of(self, rows: dict[int, Any], positions: np.ndarray) -> np.ndarray:
        """The sum of the log likelihoods of new rows of some agents, alike."""
        found = np.zeros(len(positions))
        with jax.enable_x64(True):
            for alone in self._alone(rows):
                found += alone.each(log_likelihood_at, positions)[0]
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

    def latent_agents(self) -> tuple[int, ...]:
        """The agents whose latents are drawn in this process; `AttributeError` where there are none."""
        if not self.post.has_latents:
            raise AttributeError("no agent has latents of its own: the posterior was made without local")
        if not self.here:
            raise AttributeError(
                "latents are drawn where the agents' data lies, at the end of a run that keeps draws of agents, and "
                "this run has none"
            )
        return self.here

    def latents(self, agent: int, positions: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Draws of an agent's own latents by name, (chain, draw, group, ...), at positions (chain, draw, dim)."""
        return latents_of(self.post.in_parameters().alone(agent), positions, seed)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """-F of the run's posterior at some positions; (point,), one sum."""
        with jax.enable_x64(True), self._placed(self.post) as placed:
            return -np.asarray(placed.totals(self.network, masks=self.masks)(_value, positions))

    def alone(self, positions: np.ndarray) -> np.ndarray:
        """The log density of the posterior of each agent's data alone, at positions of its own (agent, point, dim)."""
        with jax.enable_x64(True), self._placed_for_own(self.post.in_parameters()) as placed:
            return np.asarray(placed.each(log_density_alone, own=(positions,)))

    def reported(self, positions: np.ndarray) -> np.ndarray:
        """Positions (point, dim) as people read them."""
        return np.asarray(self.post.parameters.reported(positions))

    def predicted(self, positions: np.ndarray, seed: int) -> Histogram | str:
        """A posterior predictive check of some draws (draw, dim), or why there is none."""
        post = self.post.in_parameters()
        about = post.about
        if about.predictive is None:
            return f"No posterior predictive check: {about.why_no_check}."
        with jax.enable_x64(True), self._placed(post) as placed:
            if placed.reads_in_chunks:
                return "No posterior predictive check: it takes all rows at once, and memory does not hold them."
            totals = placed.totals(self.network, masks=self.masks)
            return checked(about.predictive, totals, positions, about.floor, seed, self.masks)

    def row_sums(self, others: Mapping[str, RowOwners], sampled: Sequence[Sampled]) -> RowSums:
        """Sums over rows that are left out one by one; see `results.loo.RowOwners`."""
        posts, masks = {}, False
        for name, other in others.items():
            assert isinstance(other, Questions)
            other.post.require_unchanged()
            posts[name], masks = other.post.in_parameters(), masks or other.masks
        whole, potentials = joint(posts)
        with jax.enable_x64(True), self.builder.placed(whole) as placed:
            return placed.totals(self.network, masks=masks)(row_sums, potentials, tuple(sampled))

    def _placed(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """The run's posterior, in these coordinates, where its data lies, if it still is what was drawn from."""
        self.post.require_unchanged()
        return self.builder.placed(post)

    def _placed_for_own(self, post: Posterior) -> AbstractContextManager[Posterior]:
        """`_placed`, for a question that returns an agent's own numbers."""
        if self.masks:
            raise AttributeError(
                "No site by itself: the sums of this run are masked, and a site's own log likelihood at the points "
                "would reveal its rows; sample without masks if all sites allow that"
            )
        return self._placed(post)

    def _alone(self, rows: dict[int, Any]) -> list[Posterior]:
        """Each agent's new rows as a posterior of one agent; what is wrong with them is named."""
        if rows and not self.post.splits:
            raise ValueError(
                "new rows cannot be added where an agent's log likelihood is no sum over rows, as with latents of a "
                "site or a scalar log likelihood: sample the posterior of all data anew"
            )
        made = []
        for agent, own in rows.items():
            try:
                made.append(self.post.with_shards([own]))
            except ValueError as error:
                raise ValueError(str(error).replace("agent 0", f"agent {agent}")) from error
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"the new rows of agent {agent} are not built as the posterior's shards are: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return made


@of_rows
def _value(potential: Potential, shard: Shard, positions: Float[Array, "point dim"]) -> Float[Array, " point"]:
    return jax.lax.map(lambda x: potential.value(shard, x), positions)


def log_density_alone(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"]
) -> Float[Array, " point"]:
    """The log density of the posterior of an agent's data alone, with the whole prior."""

    def value(x: Float[Array, " dim"]) -> Array:
        return potential.shard_log_likelihood(shard, x) + potential.log_prior_at(x)

    return jax.lax.map(value, positions, batch_size=min(len(positions), 64))


def _of_rows(potential: Potential, shard: Shard, positions: Float[Array, "point dim"]) -> Float[Array, "point row"]:
    """The log likelihood of each row at positions."""

    def at(x: Float[Array, " dim"]) -> Float[Array, " row"]:
        return potential.log_likelihood(potential.unravel(x), shard.rows)

    return jax.lax.map(at, positions, batch_size=min(len(positions), 64))


def _falling(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Float[Array, " number"]:
    """Minus the log likelihood of an agent's rows, and its gradient."""
    value, gradient = jax.value_and_grad(lambda x: -potential.shard_log_likelihood(shard, x))(x)
    return jnp.concatenate([value[None], gradient])


@of_rows
def log_likelihood_at(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"], asked: Float[Array, ""] | float = 1.0
) -> Float[Array, " point"]:
    """An agent's log likelihood at positions; zeros where `asked` is 0."""
    return asked * jax.lax.map(
        partial(potential.shard_log_likelihood, shard), positions, batch_size=min(len(positions), 64)
    )
