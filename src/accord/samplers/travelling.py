"""Base class of methods whose chains travel between the agents' data."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import one_an_agent, positive, whole_number, whole_numbers
from ..base.pytree import static
from ..network import Network
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .protocol import Bound, Langevin, Needs


class TravellingState(NamedTuple):
    # the chain on arrival
    arrived: Float[Array, " dim"]
    # the chain after the agent's steps
    leaving: Float[Array, " dim"]


class Visits(NamedTuple):
    """An agent's local steps per visit N_i, and their fraction q_i of all agents' steps."""

    steps: Any
    share: Any


@dataclass(frozen=True)
class Travelling(Langevin):
    """Base class of methods with N travelling chains. Every agent holds one at a time and makes Langevin steps with it.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one per agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    """

    step_size: float
    local_steps: int | Sequence[int] = static(default=1)
    batch_size: int | None = static(default=None)

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("step_size", self.step_size)
        object.__setattr__(self, "local_steps", whole_numbers("local_steps", self.local_steps, 1))
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)

    @abc.abstractmethod
    def slope(self, agent: Agent, visits: Visits, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        """An estimate of the gradient of F at x that is unbiased over a chain's steps at all agents."""

    def visits(self, agent: Agent) -> Visits:
        """The agent's visits."""
        return agent.own

    def needs(self, dim: int) -> Needs:
        steps = np.array(self.local_steps)
        return Needs("permuted", normal=False, local=(self._longest, dim), gradients=steps, batch_size=self.batch_size)

    def bind(self, post: Posterior, network: Network) -> Bound:
        visits = self.planned(post.num_agents)
        return Bound(replace(self, local_steps=tuple(int(n) for n in visits.steps)), own=visits)

    def planned(self, num_agents: int) -> Visits:
        """Steps and their fractions for all agents, (agent,)."""
        steps = one_an_agent("local_steps", self.local_steps, num_agents)
        return Visits(steps, steps / steps.sum())

    @property
    def _longest(self) -> int:
        return int(np.max(self.local_steps))

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> TravellingState:
        return TravellingState(position, position)

    def message(self, agent: Agent, state: TravellingState) -> Float[Array, " dim"]:
        return state.leaving

    def update(self, agent: Agent, state: TravellingState, inbox: Inbox, noise: Noise) -> TravellingState:
        arrived, local, visits = inbox.permuted(), noise.local, self.visits(agent)
        assert local is not None
        batches = None if noise.batch is None else noise.batch.reshape(self._longest, -1)

        def langevin(k: Array, x: Array) -> Array:
            slope = self.slope(agent, visits, x, None if batches is None else batches[k])
            moved = x - self.step_size * slope + (2.0 * self.step_size) ** 0.5 * local[k]
            return jnp.where(k < visits.steps, moved, x)

        return TravellingState(arrived, jax.lax.fori_loop(0, self._longest, langevin, arrived))

    def position(self, state: TravellingState) -> Float[Array, " dim"]:
        return state.arrived

    def langevin_step(self, network: Network) -> float:
        # a visit makes N_i steps, on average over the agents
        return float(self.step_size) * float(np.mean(self.local_steps))
