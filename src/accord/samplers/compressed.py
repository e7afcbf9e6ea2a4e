"""Base class of hub Langevin methods whose agents send compressed gradient differences."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import positive, whole_number
from ..base.pytree import static
from ..network import Network
from ..network.spectrum import reciprocal
from .agent import Agent, Inbox, Noise
from .protocol import Langevin, Needs


class CompressedState(NamedTuple):
    # the hub's parameters, the same at all agents
    position: Float[Array, " dim"]
    # the hub's parameters as known to the agents, after compression
    known: Float[Array, " dim"]
    # the agent's next message
    sent: Float[Array, " dim"]
    # memory of this agent's gradients
    memory: Float[Array, " dim"]
    # sum of all agents' memories
    recalled: Float[Array, " dim"]


@dataclass(frozen=True)
class Compressed(Langevin):
    """Base class of hub Langevin methods whose agents send compressed gradient differences.

    The hub updates `x+ = x - step_size (eta + sum_i c_i) + sqrt(2 step_size) w`, eta = sum_i eta_i. From agent i:
    `c_i = C(grad f_i(x) - eta_i)` and `eta_i+ = eta_i + rate c_i`. The hub updates eta in the same way. The first two
    messages, the start and a gradient, are uncompressed. If `rate` is positive, eta_i starts as that gradient.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    """

    step_size: float
    batch_size: int | None = static(default=None, kw_only=True)

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("step_size", self.step_size)
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)

    @abc.abstractmethod
    def compressed(self, difference: Float[Array, " dim"], noise: Noise) -> Float[Array, " dim"]:
        """The compressed form of a gradient difference."""

    @abc.abstractmethod
    def rate(self, dim: int) -> float:
        """The fraction of a message that is added to the memory, from 0 to 1."""

    @abc.abstractmethod
    def message_bits(self, dim: int) -> int:
        """Bits of an encoded message of an agent. Runs send and count uncompressed numbers."""

    def handed_down(self, known: Float[Array, " dim"], position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The hub's position as the agents know it after the hub's message."""
        return position

    def needs(self, dim: int) -> Needs:
        return Needs("total", common=True, batch_size=self.batch_size)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> CompressedState:
        nothing = jnp.zeros_like(position)
        return CompressedState(position, position, position / agent.num_agents, nothing, nothing)

    def message(self, agent: Agent, state: CompressedState) -> Float[Array, " dim"]:
        return state.sent

    def update(self, agent: Agent, state: CompressedState, inbox: Inbox, noise: Noise) -> CompressedState:
        total, begun = inbox.total(), agent.round > 0
        slope = state.recalled + total
        moved = state.position - self.step_size * slope + (2.0 * self.step_size) ** 0.5 * noise.normal
        # round 0 averages the starts, and messages of round 1 are uncompressed gradients, which initialise the memory
        position = jnp.where(begun, moved, total)
        known = jnp.where(begun, self.handed_down(state.known, position), position)
        later = self.rate(position.size)
        rate = jnp.where(agent.round > 1, later, jnp.where(begun, float(later > 0), 0.0))
        memory, recalled = state.memory + rate * state.sent, state.recalled + rate * total
        difference = agent.gradient(known, noise.batch) - memory
        sent = jnp.where(begun, self.compressed(difference, noise), difference)
        return CompressedState(position, known, sent, memory, recalled)

    def langevin_step(self, network: Network) -> float:
        return float(self.step_size)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # an upper bound: compression reduces it
        return 2.0 * reciprocal(float(np.linalg.eigvalsh(hessians.sum(axis=0))[-1]))
