"""Event-triggered ULA: D-ULA in which agents broadcast only after they have moved."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from ..base.pytree import checked, pytree
from ..network import Network
from .agent import Agent, Inbox, Noise
from .consensus import consensus_weights, largest_step
from .mixing import Mixing
from .protocol import Monitored
from .schedules import Step, as_step, at, rescaled


class EventTriggeredULAState(NamedTuple):
    position: Float[Array, " dim"]
    # the last broadcast position
    sent: Float[Array, " dim"]
    # 1 if the agent broadcasts in this round, else 0
    is_news: Int[Array, ""]


class EventTriggeredULAInfo(NamedTuple):
    broadcasts: Int[Array, ""]


def as_threshold(name: str, threshold: Any) -> Step:
    """A validated threshold as a pytree: a finite number >= 0, or a schedule."""
    if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real):
        return as_step(name, threshold)
    if not 0 <= float(threshold) < float("inf"):
        raise ValueError(f"{name} must be a finite number >= 0, found {threshold}")
    return float(threshold)


@pytree
class EventTriggeredULA(Monitored, Mixing):
    """Decentralised unadjusted Langevin algorithm with event-triggered communication.

    From agent i, with s_i its last broadcast position:
    `x_i+ = x_i - consensus_step sum_{j in N_i} (s_i - s_j) - step_size N grad f_i(x_i) + sqrt(2 step_size N) w_i`.
    Then `s_i+ = x_i+` if `|x_i+ - s_i| > threshold`, else `s_i+ = s_i`. At the start all agents broadcast.

    Bhar, Bai, George & Busart 2023 (DETULA, Automatica), derived here from the abstract. Consensus terms use the
    agent's own last broadcast in place of its position, so that they cancel, and the network average follows Langevin
    on F with `step_size` and the correct temperature for any threshold. One agent's draws differ from the average by up
    to about the threshold more than D-ULA's. A threshold of 0 is D-ULA. With a threshold that decreases with the steps,
    as in the paper, the law converges to D-ULA's. Rounds are not affine and have no exact law. Needs consensus_step < 2
    / lambda_max(L). Stable on quadratic potentials like D-ULA while `step_size N H < I + W`, W = I - consensus_step L.
    At `temperature=0` with a threshold that decreases to 0 this is decentralised gradient descent.

    The statistic "broadcasts" is the largest number of broadcasts of an agent up to each draw. Engines transmit the
    last broadcast in every round, and `run.traffic` counts these messages. A network that stays silent would save the
    fraction of rounds without a broadcast.

    Parameters
    ----------
    step_size
        alpha > 0, a number or a schedule of the round.
    consensus_step
        beta, 0 < beta < 2 / lambda_max(L), a number or a non-increasing schedule.
    threshold
        >= 0, in units of the parameters, a number or a schedule of the round. On a ring of six with one parameter, a
        threshold equal to the typical noise of a step, sqrt(2 step_size N dim), gives broadcasts in half of the rounds,
        and twice that threshold in 30%. Larger thresholds save little more, because stale differences keep moving the
        agents.
    batch_size, temperature, noise
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.EventTriggeredULA(step_size=0.02, consensus_step=0.3, threshold=0.5)
    >>> rounds = accord.Rounds(method, burn_in=0)
    >>> run = accord.sample(post, accord.Network.ring(3), rounds, draws=10, chains=2, seed=0)
    >>> bool((run.statistics["broadcasts"][:, -1] < 10).all())
    True
    """

    step_size: Step = checked(as_step)
    consensus_step: Step = checked(as_step)
    threshold: Step = checked(as_threshold)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> EventTriggeredULAState:
        return EventTriggeredULAState(position, position, jnp.ones((), jnp.int32))

    def message(self, agent: Agent, state: EventTriggeredULAState) -> Float[Array, " dim"]:
        return state.sent

    def transition(
        self, agent: Agent, state: EventTriggeredULAState, inbox: Inbox, noise: Noise
    ) -> tuple[EventTriggeredULAState, EventTriggeredULAInfo]:
        step = at(self.step_size, agent.round) * agent.num_agents
        # inbox.mix() applies beta of round 0, the gain applies a schedule's decay
        gain = at(self.consensus_step, agent.round) / at(self.consensus_step, 0)
        gradient = agent.gradient(state.position, noise.batch)
        mixed = state.position - gain * (state.sent - inbox.mix())
        position = mixed - step * gradient + (2.0 * step) ** 0.5 * noise.normal
        is_news = jnp.linalg.norm(position - state.sent) > at(self.threshold, agent.round + 1)
        sent = jnp.where(is_news, position, state.sent)
        info = EventTriggeredULAInfo(state.is_news)
        return EventTriggeredULAState(position, sent, is_news.astype(jnp.int32)), info

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0)

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return consensus_weights(network, "consensus_step", self.consensus_step)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # the last broadcast is within the threshold of the position: a bounded disturbance of D-ULA
        return largest_step(network, hessians, self.weights(network))
