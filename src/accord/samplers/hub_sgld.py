"""Distributed stochastic gradient Langevin dynamics with a hub: chains travel between the agents' data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import one_an_agent, positive, whole_number, whole_numbers
from ..base.pytree import pytree, static
from ..network import Network
from ..network.spectrum import reciprocal
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .protocol import Bound, Langevin, Needs


class HubSGLDState(NamedTuple):
    # the chain as it arrived, and as it leaves
    arrived: Float[Array, " dim"]
    leaving: Float[Array, " dim"]


@pytree
class HubSGLD(Langevin):
    """Distributed SGLD between workers and a hub (D-SGLD of Ahn et al. 2014).

    N chains travel; every agent holds one of them at a time. From agent i, N_i times:
    `x+ = x - step_size / q_i grad f_i(x) + sqrt(2 step_size) w`; then the hub hands all chains out in random order.

    Ahn, Shahbaba and Welling 2014; the baseline of the DG-LMC paper, epsilon = 2 `step_size`. q_i = N_i / sum_j N_j is
    the share of its steps that a chain makes at agent i, so that `grad f_i / q_i` is an unbiased estimate of grad F
    for shards of any size, visits of any length and minibatches of any size (here the prior, too, comes in shares).
    The draws of an agent are the chains that arrive there, before they meet its data. They target the posterior with
    a bias of the order of step_size that grows with the length of the visits and with the shards' differences, as
    every visit pulls a chain to the mode of that shard. The hub is any agent: on a graph where none is everybody's
    neighbour the chains are passed along a spanning tree. Stable on quadratic potentials where
    `step_size H_i < 2 q_i` for every agent.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one an agent (`accord.balance.balanced_steps` for agents of unequal speed).
    batch_size
        Rows that each gradient reads, drawn with replacement; None reads all.
    temperature
        As in `Sampler`. The noise of a chain's steps is its own.

    Raises
    ------
    ValueError
        A number out of its range, or not one an agent.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.HubSGLD(step_size=0.01, local_steps=5)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
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

    def needs(self, dim: int) -> Needs:
        steps = np.array(self.local_steps)
        return Needs("permuted", normal=False, local=(self._longest, dim), gradients=steps, batch_size=self.batch_size)

    def bind(self, post: Posterior, network: Network) -> Bound:
        steps = one_an_agent("local_steps", self.local_steps, post.num_agents)
        return Bound(replace(self, local_steps=tuple(int(n) for n in steps)), own=(steps, steps / steps.sum()))

    @property
    def _longest(self) -> int:
        return int(np.max(self.local_steps))

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> HubSGLDState:
        return HubSGLDState(position, position)

    def message(self, agent: Agent, state: HubSGLDState) -> Float[Array, " dim"]:
        return state.leaving

    def update(self, agent: Agent, state: HubSGLDState, inbox: Inbox, noise: Noise) -> HubSGLDState:
        arrived, local = inbox.permuted(), noise.local
        steps, share = agent.own
        assert local is not None
        batches = None if noise.batch is None else noise.batch.reshape(self._longest, -1)

        def langevin(k: Array, x: Array) -> Array:
            gradient = agent.gradient(x, None if batches is None else batches[k])
            moved = x - self.step_size / share * gradient + (2.0 * self.step_size) ** 0.5 * local[k]
            return jnp.where(k < steps, moved, x)

        return HubSGLDState(arrived, jax.lax.fori_loop(0, self._longest, langevin, arrived))

    def position(self, state: HubSGLDState) -> Float[Array, " dim"]:
        return state.arrived

    def langevin_step(self, network: Network) -> float:
        # a visit makes N_i of them; on average over the agents
        return float(self.step_size) * float(np.mean(self.local_steps))

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        steps = np.broadcast_to(np.asarray(self.local_steps, np.float64), network.num_agents)
        largest = np.linalg.eigvalsh(hessians)[:, -1] * steps.sum() / steps
        return 2.0 * reciprocal(float(largest.max()))
