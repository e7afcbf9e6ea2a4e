"""The potential of the whole posterior up to second order, summed over the network."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .network import Network
from .posterior import Posterior
from .pytree import pytree
from .sampler import Agent, Inbox, Noise, Randomness, Sampler


class Expansion(NamedTuple):
    """F = sum_i f_i at a position, or the mean over some: its value, gradient (dim,) and Hessian (dim, dim)."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray


class Expansions:
    """Sums over the network, and what they took; one message of (d + 1)(d + 2) / 2 numbers an agent and sum.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    max_exchanges
        Exchanges that all sums together may take.
    """

    def __init__(self, post: Posterior, network: Network, max_exchanges: int) -> None:
        self.post, self.network, self.max_exchanges = post, network, max_exchanges
        self._each, self._messages = _Sums(np.zeros((1, post.dim))).traffic_per_round(network)
        # sums made, positions that each agent looked at for them, and bytes of one message
        self.count, self.looks, self._width = 0, 0, 0

    def __call__(self, *positions: np.ndarray) -> Expansion:
        """The mean of F's expansions at some positions, each (dim,)."""
        self.count += 1
        if self.exchanges > self.max_exchanges:
            raise ArithmeticError(
                f"one sum over this network takes {self._each} exchanges, and {self.count} sums are more than the "
                f"{self.max_exchanges} exchanges that warm-up may take: raise max_exchanges, or add edges"
            )
        self.looks += len(positions)
        dim, origin = self.post.dim, positions[0]
        engine = machine(self.post, self.network, _Sums(np.stack(positions) - origin))
        carry = engine.start(np.broadcast_to(origin, (self.network.num_agents, dim)), None)
        self._width = engine.message_bytes(carry)
        # the sums are the same at every agent
        sums = np.asarray(engine.advance(carry, 1).state.sums, np.float64)[0, :, 0]
        hessian = np.zeros((dim, dim))
        hessian[np.triu_indices(dim)] = sums[1 + dim :]
        return Expansion(float(sums[0]), sums[1 : 1 + dim], hessian + np.triu(hessian, 1).T)

    @property
    def exchanges(self) -> int:
        """Exchanges so far, one after another."""
        return self.count * self._each

    @property
    def bytes_sent(self) -> np.ndarray:
        """Bytes that each agent sent so far, (agent,)."""
        return (self.count * self._width * self._messages).astype(np.int64)

    @property
    def gradients(self) -> int:
        """Gradients that each agent evaluated; a Hessian counts as one for each parameter."""
        return self.looks * (1 + self.post.dim)


def machine(post: Posterior, network: Network, method: Sampler) -> Any:
    """An engine of one chain for what agents find out together, where the data lies."""
    if post.holders is not None:
        return post.holders.machine(post, network, method, chains=1, seed=0)
    from .engines.local import LocalEngine

    return LocalEngine(post, network, method, chains=1, seed=0, keep=np.arange(post.num_agents))


class _SumsState(NamedTuple):
    position: Float[Array, " dim"]
    sums: Float[Array, " number"]


@pytree
class _Sums(Sampler):
    """One round sums the value, the gradient and the upper half of the Hessian: their means over `offsets`."""

    # from the agents' common position, (look, dim)
    offsets: Any

    receives: ClassVar[tuple[str, ...]] = ("total",)

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

    def position(self, state: _SumsState) -> Float[Array, " dim"]:
        return state.position

    def langevin_step(self, network: Network) -> None:
        return None

    def randomness(self, dim: int) -> Randomness:
        return Randomness(normal=False)
