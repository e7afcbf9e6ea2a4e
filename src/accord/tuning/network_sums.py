"""The potential of the whole posterior up to second order, summed over the network."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.pytree import pytree
from ..engines.engine import Builder
from ..network import Network
from ..posterior import Posterior
from ..samplers.agent import Agent, Inbox, Noise
from ..samplers.protocol import Bound, Needs, Sampler
from .exchange_budget import Budget


class Expansion(NamedTuple):
    """F = sum_i f_i at a position, or the mean over some: its value, gradient (dim,) and Hessian (dim, dim)."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray


class Expansions:
    """Sums over the network, counted in a budget; one message of (d + 1)(d + 2) / 2 numbers an agent and sum.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    budget
        What all sums together may take.
    """

    def __init__(self, post: Posterior, network: Network, budget: Budget, builder: Builder) -> None:
        self.post, self.network, self.budget, self.builder = post, network, budget, builder

    def __call__(self, *positions: np.ndarray) -> Expansion:
        """The mean of F's expansions at some positions, each (dim,)."""
        dim, origin = self.post.dim, positions[0]
        self.budget.sums(1, width=(dim + 1) * (dim + 2) // 2, gradients=len(positions) * (1 + dim))
        engine = self.builder.preliminary(self.post, self.network, Bound(_Sums(np.stack(positions) - origin)))
        carry = engine.start(np.broadcast_to(origin, (self.network.num_agents, dim)), None)
        # the sums are the same at every agent
        sums = np.asarray(engine.states(engine.advance(carry, 1)).sums, np.float64)[0, :, 0]
        hessian = np.zeros((dim, dim))
        hessian[np.triu_indices(dim)] = sums[1 + dim :]
        return Expansion(float(sums[0]), sums[1 : 1 + dim], hessian + np.triu(hessian, 1).T)


class Summing(Sampler):
    """Base of what agents find out by sums over all of them; they hold the same states, so that all draw the same."""

    def needs(self, dim: int) -> Needs:
        """A total, and the same normal numbers for all agents."""
        return Needs("total", common=True)


class _SumsState(NamedTuple):
    position: Float[Array, " dim"]
    sums: Float[Array, " number"]


@pytree
class _Sums(Summing):
    """One round sums the value, the gradient and the upper half of the Hessian: their means over `offsets`."""

    # from the agents' common position, (look, dim)
    offsets: Any

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> _SumsState:
        dim = position.size
        return _SumsState(position, jnp.zeros(1 + dim + dim * (dim + 1) // 2, position.dtype))

    def message(self, agent: Agent, state: _SumsState) -> Float[Array, " number"]:
        def look(offset: Float[Array, " dim"]) -> Float[Array, " number"]:
            x = state.position + offset
            upper = agent.hessian(x)[jnp.triu_indices(x.size)]
            return jnp.concatenate([agent.value(x)[None], agent.gradient(x), upper])

        # one after another: all Hessians at once would take memory
        return jax.lax.map(look, self.offsets).mean(axis=0)

    def update(self, agent: Agent, state: _SumsState, inbox: Inbox, noise: Noise) -> _SumsState:
        return state._replace(sums=inbox.total())

    def needs(self, dim: int) -> Needs:
        return Needs("total", normal=False)
