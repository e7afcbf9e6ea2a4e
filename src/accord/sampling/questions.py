"""Questions to the agents of a finished run about the log likelihood of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..engines.engine import Builder
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard


@dataclass(frozen=True)
class Questions:
    """The agents of a run, asked where their data lies; `results.reweighting.Agents`.

    Parameters
    ----------
    post, network, builder
        The run's.
    """

    post: Posterior
    network: Network
    builder: Builder

    def log_likelihood(self, positions: np.ndarray, agent: int) -> np.ndarray:
        """The log likelihood of one agent's rows at some positions (point, dim), told by that agent; (point,)."""
        asked = np.arange(self.post.num_agents) == agent
        with jax.enable_x64(True), self.builder.placed(self.post) as placed:
            # the others answer zeros
            return np.asarray(placed.each(_log_likelihood, positions, own=(asked.astype(float),)))[agent]

    def log_likelihood_of(self, rows: dict[int, Any], positions: np.ndarray) -> np.ndarray:
        """The sum of the log likelihoods of new rows of some agents, alike."""
        if not rows:
            return np.zeros(len(positions))
        found = np.zeros(len(positions))
        with jax.enable_x64(True):
            for agent, own in rows.items():
                try:
                    alone = self.post.with_shards([own])
                except ValueError as error:
                    raise ValueError(str(error).replace("agent 0", f"agent {agent}")) from error
                found += alone.each(_log_likelihood, positions, own=(np.ones(1),))[0]
        return found


def _log_likelihood(
    potential: Potential, shard: Shard, positions: Float[Array, "point dim"], asked: Float[Array, ""]
) -> Float[Array, " point"]:
    """An agent's log likelihood at positions, or zeros."""

    def one(x: Float[Array, " dim"]) -> Array:
        return -potential.value(shard, x) - potential.log_prior(potential.unravel(x)) / potential.num_agents

    return asked * jax.lax.map(one, positions, batch_size=min(len(positions), 64))
