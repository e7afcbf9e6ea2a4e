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

    N chains travel; every agent holds one of them at a time. From agent i, N_i times:
    `x+ = x - step_size / q_i grad f_i(x) + sqrt(2 step_size) w`; then the hub hands all chains out in random order.

    Ahn, Shahbaba and Welling 2014; the baseline of the DG-LMC paper, epsilon = 2 `step_size`. q_i = N_i / sum_j N_j is
    the share of its steps that a chain makes at agent i, so that `grad f_i / q_i` is an unbiased estimate of grad F
    for shards of any size, visits of any length and minibatches of any size (here the prior, too, comes in shares).
    The draws of an agent are the chains that arrive there, before they meet its data. They target the posterior with
    a bias of the order of step_size that grows with the length of the visits and with the shards' differences, as
    every visit pulls a chain to the mode of that shard; `FSGLD` corrects it. The hub is any agent: on a graph where
    none is everybody's neighbour the chains are passed along a spanning tree. Stable on quadratic potentials where
    `step_size H_i < 2 q_i` for every agent.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one an agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
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

    def slope(self, agent: Agent, visits: Visits, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        return agent.gradient(x, batch) / visits.share

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        largest = np.linalg.eigvalsh(hessians)[:, -1] / self.planned(network.num_agents).share
        return 2.0 * reciprocal(float(largest.max()))
