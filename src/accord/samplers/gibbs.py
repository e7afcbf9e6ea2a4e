"""Gibbs sampling on the network: every agent redraws its value given its neighbours', colour by colour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree, static
from ..network import Network
from ..posterior import Posterior
from ..results.traffic import Traffic
from .agent import Agent, Inbox, Noise
from .conditional import Count, as_conditional
from .mixing import as_mixing
from .protocol import Bound, HasLaw, Langevin, Monitored, Needs, Recentred, Tunable
from .proximal import proximal_point
from .schedules import Step, as_step, at, rescaled


class GibbsState(NamedTuple):
    position: Float[Array, " dim"]


class GibbsNumbers(NamedTuple):
    """Parameters of an agent: sum_j sigma_ij, its self weight, the shift of its gradient, its curvature."""

    tie: Any
    self_weight: Any
    shift: Any
    curvature: Any


@pytree
class Gibbs(Tunable, Langevin, HasLaw, Monitored, Recentred):
    """Distributed Gibbs sampler on any connected network.

    From agent i, colour by colour:
    `x_i+ ~ exp(-f_i(x) - sum_{j in N_i} sigma_ij / (2 eta) |x - x_j|^2)`, with the latest x_j of the neighbours.

    Client-only distributed MCMC paper, Algorithm 2, and Algorithm 1 on two agents (`Network.path(2)`). It targets
    `exp(-sum_i f_i(x_i) - sum_{edges ij} sigma_ij / (2 eta) |x_i - x_j|^2)`, eq. 16, with every edge once (eq. 19
    prints each twice). As eta decreases, the agents' marginals tend to the posterior and mixing slows down: the average
    makes Langevin steps of about eta / sum_{edges} sigma_ij on F. One agent's draws are over-dispersed by the order of
    eta. The average has a bias from differences between agents, which also vanishes with eta. Any eta is stable. The
    weights sigma are the off-diagonal entries of a mixing matrix (Assumption 5.2). On bipartite networks the colours
    are the paper's sets A and B. On others any proper colouring has the same stationary law. At `temperature=0` this is
    block coordinate descent on that potential.

    Parameters
    ----------
    eta
        Variance of the ties between neighbours, > 0, in squared units of x, a number or a schedule of the round. None:
        a plan chooses it, in whitened coordinates.
    conditional
        How an agent draws: "exact" (quadratic potentials), "rejection" (convex potentials, few proposals while eta <
        sum_j sigma_ij / (beta_i dim)), "mala" (a few Metropolis-adjusted Langevin steps), or an instance of
        `accord.samplers.conditional.Rejection` or `MALA`.
    mixing
        Weights, >= 0: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    recentre
        Whether to tilt every f_i by its gradient at the common minimiser m, f_i(x) - <grad f_i(m), x>. This leaves the
        posterior unchanged (section 4, before Algorithm 1) and removes the bias from distant minimisers. The agents
        find m by C-ADMM, whose messages are counted.
    temperature
        As in `Sampler`. Gibbs draws use independent noise.

    Raises
    ------
    ValueError
        A parameter out of range, potentials that the conditional cannot draw from, or an agent without a neighbour.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.Gibbs(eta=0.1)
    >>> run = accord.sample(post, accord.Network.path(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    eta: Step | None = checked(as_step, default=None)
    conditional: Any = checked(as_conditional, default="exact")
    mixing: Any = static(as_mixing, default="metropolis")
    recentre: bool = static(default=False)

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def needs(self, dim: int) -> Needs:
        linear = self.conditional.is_linear
        return Needs("mix", "by color", normal=linear, key=not linear, eigenvectors=True)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> GibbsState:
        return GibbsState(position)

    def message(self, agent: Agent, state: GibbsState) -> Float[Array, " dim"]:
        return state.position

    def transition(
        self, agent: Agent, state: GibbsState, inbox: Inbox, noise: Noise
    ) -> tuple[GibbsState, Count | None]:
        own, x = agent.own, state.position
        strength = own.tie / at(self.eta, agent.round)
        # inbox.mix() includes the agent's own value, which is no tie
        center = (inbox.mix() - own.self_weight * x) / own.tie + own.shift / strength
        if self.temperature == 0:
            tolerance = 1e-4 / jnp.sqrt(strength)
            found = proximal_point(agent, center, strength, start=x, tolerance=tolerance)
            return GibbsState(found.point), None
        x, taken = self.conditional.draw(agent, center, strength, x, noise, self.temperature, own.curvature)
        return GibbsState(x), taken

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        """The ties sigma_ij, with a diagonal that makes the rows sum to one."""
        weights = network.weights(self.mixing)
        tied = weights - scipy.sparse.diags_array(weights.diagonal())
        if tied.min() < 0:
            raise ValueError(f"the ties between agents must not be negative, found the weight {tied.min():.4g}")
        return weights

    def bind(self, post: Posterior, network: Network) -> Bound:
        self.conditional.check(post)
        weights = self.weights(network)
        diagonal, shift = weights.diagonal(), np.zeros((post.num_agents, post.dim))
        return Bound(self, weights, GibbsNumbers(1.0 - diagonal, diagonal, shift, self.conditional.curvatures(post)))

    def recentred(self, bound: Bound, gradients: np.ndarray, spent: Traffic) -> Bound:
        return bound._replace(own=bound.own._replace(shift=gradients), spent=bound.spent + spent)

    tunable: ClassVar[tuple[str, ...]] = ("eta",)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(eta=step / float(at(replace(self, eta=1.0).langevin_step(network), 0)))

    def linear(self) -> Self:
        return replace(self, conditional="exact")

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        return self.conditional.summarise(monitored, rounds)

    def explain(self, bound: Bound, agent: int) -> str | None:
        if self.conditional.is_linear or self.temperature == 0:
            return None
        tie, curvature = bound.own.tie[agent], bound.own.curvature[agent]
        dim = bound.own.shift.shape[1]
        limit = f"{tie / (curvature * dim):.6g}" if curvature > 0 else "sum_j sigma_ij / (beta_i dim)"
        return f"{self.conditional.explain()}, or eta is too large; rejection needs few proposals for eta below {limit}"

    def langevin_step(self, network: Network) -> Step:
        # A sweep is Gauss-Seidel on the ties' Laplacian K = L + D + L'. For any colouring its invariant direction
        # 1'(L + D) moves by -(eta / S) sum_i grad f_i with noise of variance 2 eta / S, S the sum of sigma over edges.
        weights = self.weights(network)
        return rescaled(self.eta, 2.0 / float(weights.sum() - weights.diagonal().sum()))
