"""GT-BAOAB split: agents know the Gaussian part of F, and the network tracks the remaining gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Array, Float

from ..base.pytree import pytree
from ..network import Network
from ..posterior import Posterior
from ..results.traffic import Traffic
from .agent import Agent
from .expansions import Expansions, Quadratic, expanded_at, expanded_at_mode, expansion_traffic
from .gt_baoab import GTBAOAB
from .protocol import Bound, Expanding


class SplitShared(NamedTuple):
    """Parameters that all agents know: the center, and the sum of all expansions."""

    center: Any
    whole: Quadratic


@pytree
class SplitGTBAOAB(GTBAOAB, Expanding):
    """GT-BAOAB whose network tracks only the gradient that a quadratic model of F leaves over.

    As `GTBAOAB` from agent i, with `v' = v - step_size (grad Q(x) + N d)` and d tracking the mean of
    `grad f_i - grad Q_i`. Q_i is a quadratic model of f_i, and Q = sum_i Q_i.

    Ours: the splitting of a Hamiltonian into a Gaussian part and a remainder (Shahbaba, Lan, Johnson & Neal 2014,
    arXiv:1106.5941), with gradient tracking of the remainder. On Gaussian posteriors the remainder is constant, and
    every agent's draws are exact with one exchange per step. `GTBAOAB` needs more exchanges there if the agents'
    curvatures differ. On other posteriors `mix_rounds` must suffice for the remainder. The method pays off with much
    data, but not if the posterior's curvature varies by its own size. A plan chooses the cheaper of the two. To find
    the Q_i the agents sum one Hessian each over the network, (dim + 1)(dim + 2) / 2 numbers, and each agent keeps its
    own.

    Parameters
    ----------
    step_size, friction, mixing, noise, batch_size, temperature
        As in `GTBAOAB`.
    mix_rounds
        Exchanges K in one step, >= 1. None: the fewest for which every agent's means and standard deviations are within
        the plan's tolerance with the agents' curvatures at one of the posterior's stiffest draws.
    expansions
        The Q_i, an `accord.samplers.expansions.Expansions`, in the coordinates of the method. None: the expansions of
        the f_i at the mode of F, or, in whitened coordinates, at the origin, the mean of the draws.

    Raises
    ------
    ValueError
        A parameter out of range, or expansions whose shapes do not match the posterior.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.SplitGTBAOAB(step_size=0.5, friction=1.0, mix_rounds=1)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    expansions: Any = None

    def force(self, agent: Agent, x: Float[Array, " dim"], tracked: Float[Array, " dim"]) -> Float[Array, " dim"]:
        center, whole = agent.shared
        return whole.gradient(x - center) + agent.num_agents * tracked

    def tracked(self, agent: Agent, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        return agent.gradient(x, batch) - agent.own.gradient(x - agent.shared.center)

    def bind(self, post: Posterior, network: Network) -> Bound:
        found, spent = self._expanded(post, network)
        shared = SplitShared(found.center, found.whole)
        return super().bind(post, network)._replace(own=found.own, shared=shared, spent=spent)

    def _expanded(self, post: Posterior, network: Network) -> tuple[Expansions, Traffic]:
        if self.expansions is None:
            if post.coordinates is None:
                return expanded_at_mode(post, network)
            return expanded_at(post, np.zeros(post.dim)), expansion_traffic(network, post.dim)
        shapes = tuple(np.shape(part) for part in self.expansions)
        wanted = (post.dim,), (post.num_agents, post.dim), (post.num_agents, post.dim, post.dim)
        if shapes != wanted:
            raise ValueError(f"expansions must be center, slopes and curvatures of shapes {wanted}, found {shapes}")
        return Expansions(*self.expansions), Traffic()

    def expanded(self, post: Posterior) -> Self:
        return replace(self, expansions=expanded_at(post, np.zeros(post.dim)))
