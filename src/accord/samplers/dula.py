"""DULA: the unadjusted Langevin algorithm with a consensus step along the edges."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree
from ..network import Network
from .agent import Agent, Inbox, Noise
from .consensus import consensus_weights, even_step, largest_step
from .mixing import Gossip
from .protocol import Tunable
from .schedules import Step, as_step, at, rescaled


class DULAState(NamedTuple):
    position: Float[Array, " dim"]


@pytree
class DULA(Gossip, Tunable):
    """Decentralised unadjusted Langevin algorithm (D-ULA).

    From agent i:
    `x_i+ = x_i - consensus_step sum_{j in N_i} (x_i - x_j) - step_size N grad f_i(x_i) + sqrt(2 step_size N) w_i`.

    Parayil et al. 2021, eq. 25 of the D-ADMMS paper and the baseline of the GT-DULA paper, alpha_k = `step_size`,
    beta_k = `consensus_step`. Both may decay (`accord.samplers.schedules.Polynomial`). The network average follows
    Langevin on F with `step_size`. One agent's draws are biased and over-dispersed as under DE-SGLD, which is the same
    method with W = I - beta L and the step alpha N. With `mix_rounds` above one, W of round 0 is replaced by its
    Chebyshev polynomial P, and a decaying consensus step scales I - P. Needs beta < 2 / lambda_max(L). Stable on
    quadratic potentials while `step_size N H < I + W`. At `temperature=0` this is decentralised gradient descent.

    Parameters
    ----------
    step_size
        alpha > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    consensus_step
        beta, 0 < beta < 2 / lambda_max(L), a number or a non-increasing schedule. None: half of that bound.
    batch_size, mix_rounds, temperature, noise
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DULA(step_size=0.02, consensus_step=0.3)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    consensus_step: Step | None = checked(as_step, default=None)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DULAState:
        return DULAState(position)

    def message(self, agent: Agent, state: DULAState) -> Float[Array, " dim"]:
        return state.position

    def update(self, agent: Agent, state: DULAState, inbox: Inbox, noise: Noise) -> DULAState:
        step = at(self.step_size, agent.round) * agent.num_agents
        # inbox.mix() applies beta of round 0, the gain applies a schedule's decay
        gain = at(self.consensus_step, agent.round) / at(self.consensus_step, 0)
        gradient = agent.gradient(state.position, noise.batch)
        mixed = state.position - gain * (state.position - inbox.mix())
        return DULAState(mixed - step * gradient + (2.0 * step) ** 0.5 * noise.normal)

    tunable: ClassVar[tuple[str, ...]] = ("step_size", "consensus_step")

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step, consensus_step=even_step(network))

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0)

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return consensus_weights(network, "consensus_step", self.consensus_step)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        return largest_step(network, hessians, self.effective_weights(network))
