"""Asynchronous ULA: D-ULA in which agents wake at random and exchange with awake neighbours."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from ..base.pytree import checked, pytree
from ..network import Network
from .agent import Agent, Inbox, Noise
from .consensus import consensus_weights, largest_step
from .mixing import Mixing
from .protocol import Monitored, Needs
from .schedules import Step, as_step, at, rescaled


class AsynchronousULAState(NamedTuple):
    position: Float[Array, " dim"]
    # 1 if the agent is awake in the next round, else 0
    awake: Float[Array, ""]


class AsynchronousULAMessage(NamedTuple):
    """Zeros if the agent sleeps."""

    awake: Float[Array, ""]
    position: Float[Array, " dim"]


class AsynchronousULAInfo(NamedTuple):
    updates: Int[Array, ""]


@pytree
class AsynchronousULA(Monitored, Mixing):
    """Asynchronous decentralised unadjusted Langevin algorithm.

    From agent i, with a_j = 1 if agent j is awake in the round and 0 otherwise:
    `x_i+ = x_i - a_i (consensus_step sum_{j in N_i} a_j (x_i - x_j) + step_size N grad f_i(x_i)
    - sqrt(2 step_size N) w_i)`. Each a_j is 1 with probability `awake`, independently in each round.

    After Bhar, Bai, George & Busart 2022 (arXiv 2211.08603) and Bhar, Bai, George & Busart 2023 (2311.03496), derived
    from the abstracts. There pairs of agents wake and average. Here every edge with two awake ends is active. Consensus
    terms cancel in pairs and every step adds its noise, so that the network average follows Langevin on F with the step
    `awake step_size`. The random choice of gradients adds noise as minibatches do: on Gaussian posteriors with one
    parameter the temperature of the average rises by the fraction `step_size (1 - awake) sum_i g_i^2 / 2`, g_i^2 the
    mean square of agent i's gradient over the posterior. One agent's mean is biased as under D-ULA with
    `awake step_size` and `awake^2 consensus_step`, and its draws are somewhat more over-dispersed than under that. With
    `awake=1` this is D-ULA. Rounds with random links have no exact law. Needs consensus_step < 2 / lambda_max(L).
    Stable on quadratic potentials, whichever agents are awake, while `step_size N H < I + W`, W = I - consensus_step L.

    All agents are awake in round 0. The statistic "updates" is the largest number of rounds in which an agent was
    awake, up to each draw. Engines run synchronously: sleeping agents send zeros, and their gradients are counted.

    Parameters
    ----------
    step_size
        alpha > 0, a number or a schedule of the round.
    consensus_step
        beta, 0 < beta < 2 / lambda_max(L), a number or a non-increasing schedule.
    awake
        Probability that an agent is awake in a round, 0 < awake <= 1. Default 1/2.
    noise
        "independent" only. Common noise would be too small, because sleeping agents do not add it.
    batch_size, temperature
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.AsynchronousULA(step_size=0.02, consensus_step=0.3, awake=0.3)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step = checked(as_step)
    consensus_step: Step = checked(as_step)
    awake: float = 0.5

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.awake <= 1:
            raise ValueError(f"awake must be a probability in (0, 1], found {self.awake}")

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(key=True)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> AsynchronousULAState:
        return AsynchronousULAState(position, jnp.ones((), position.dtype))

    def message(self, agent: Agent, state: AsynchronousULAState) -> AsynchronousULAMessage:
        return AsynchronousULAMessage(state.awake, state.awake * state.position)

    def transition(
        self, agent: Agent, state: AsynchronousULAState, inbox: Inbox, noise: Noise
    ) -> tuple[AsynchronousULAState, AsynchronousULAInfo]:
        mixed = inbox.mix()
        step = at(self.step_size, agent.round) * agent.num_agents
        # inbox.mix() applies beta of round 0, the gain applies a schedule's decay
        gain = at(self.consensus_step, agent.round) / at(self.consensus_step, 0)
        gradient = agent.gradient(state.position, noise.batch)
        pull = gain * (mixed.awake * state.position - mixed.position)
        position = state.position - pull - step * gradient + (2.0 * step) ** 0.5 * noise.normal
        position = jnp.where(state.awake > 0, position, state.position)
        wakes = jax.random.bernoulli(noise.random_key(), self.awake).astype(state.awake.dtype)
        return AsynchronousULAState(position, wakes), AsynchronousULAInfo(state.awake.astype(jnp.int32))

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, float(self.awake))

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return consensus_weights(network, "consensus_step", self.consensus_step)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        """The largest step at which differences never grow, whichever agents are awake."""
        return largest_step(network, hessians, self.weights(network))
