"""Distributed stochastic gradient Langevin dynamics with a hub: chains travel between the agents' data."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from ..base.pytree import pytree
from ..network import Network
from ..network.spectrum import reciprocal
from .agent import Agent
from .travelling import Travelling, Visits


@pytree
class HubSGLD(Travelling):
    """Distributed SGLD between workers and a hub (D-SGLD of Ahn et al. 2014).

    N chains travel, and every agent holds one at a time. From agent i, N_i times:
    `x+ = x - step_size / q_i grad f_i(x) + sqrt(2 step_size) w`. Then the hub permutes the chains at random.

    Ahn, Shahbaba and Welling 2014, the baseline of the DG-LMC paper, epsilon = 2 `step_size`. q_i = N_i / sum_j N_j is
    the fraction of its steps that a chain makes at agent i, so that `grad f_i / q_i` is an unbiased estimate of grad F
    for any sizes of shards, visits and minibatches (each f_i here includes a part of the prior). The draws of an agent
    are the chains that arrive there, before they use its data. They target the posterior with a bias of order step_size
    that grows with the length of visits and the differences between shards, because every visit pulls a chain to the
    mode of that shard. `FSGLD` corrects this. Any agent can be the hub. If no agent is a neighbour of all others,
    chains travel along a spanning tree. Stable on quadratic potentials if `step_size H_i < 2 q_i` for every agent.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one per agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    temperature
        As in `Sampler`. Each chain's noise is independent.

    Raises
    ------
    ValueError
        A parameter out of range or of a wrong number.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.HubSGLD(step_size=0.01, local_steps=5)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    def slope(self, agent: Agent, visits: Visits, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        return agent.gradient(x, batch) / visits.share

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        largest = np.linalg.eigvalsh(hessians)[:, -1] / self.planned(network.num_agents).share
        return 2.0 * reciprocal(float(largest.max()))
