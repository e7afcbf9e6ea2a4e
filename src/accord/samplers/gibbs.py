"""Gibbs sampling on the network: every agent redraws its own value given its neighbours', colour by colour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import pytree, static
from ..network import Network
from ..posterior import Posterior
from ..schedules import Step, at, rescaled
from ..tuning.mode import agree_on_mode
from .agent import Agent, Inbox, Noise, Prepared, Randomness
from .conditional import Count, as_conditional
from .mixing import static_mixing
from .protocol import Sampler
from .proximal import proximal_point


class GibbsState(NamedTuple):
    position: Float[Array, " dim"]
    # what the draws took, where that is random
    taken: Count | None


class GibbsNumbers(NamedTuple):
    """What an agent knows: sum_j sigma_ij, its own weight in the mixing matrix, its gradient's shift, its curvature."""

    tie: Any
    self_weight: Any
    shift: Any
    curvature: Any


@pytree
class Gibbs(Sampler):
    """Distributed Gibbs sampler on any connected network.

    From agent i, colour by colour:
    `x_i+ ~ exp(-f_i(x) - sum_{j in N_i} sigma_ij / (2 eta) |x - x_j|^2)`, with the neighbours' latest x_j.

    Client-only distributed MCMC paper, Algorithm 2, and Algorithm 1 on two agents (`Network.path(2)`). It targets
    `exp(-sum_i f_i(x_i) - sum_{edges ij} sigma_ij / (2 eta) |x_i - x_j|^2)`, eq. 16, every edge once (eq. 19 prints
    each twice). As eta falls, the agents' marginals tend to the posterior, and mixing slows down: the average makes
    about Langevin steps of size eta / sum_{edges} sigma_ij on F. One agent's draws are over-dispersed by the order of
    eta; the average's bias comes from the agents' differences and vanishes with eta as well. Any eta is stable. The
    weights sigma are those of a mixing matrix off its diagonal (Assumption 5.2). Colours are the paper's sets A and B
    where the network is bipartite; elsewhere any proper colouring has the same stationary law. At `temperature=0` this
    is block coordinate descent on that potential.

    Parameters
    ----------
    eta
        Variance of the ties between neighbours, > 0, in squared units of x; a number or a schedule of the round. None:
        chosen by a plan, in whitened coordinates.
    conditional
        How an agent draws: "exact" (quadratic potentials), "rejection" (convex ones; few tries while
        eta < sum_j sigma_ij / (beta_i dim)), "mala" (a few Metropolis-adjusted Langevin steps), or an instance of
        `accord.conditional.Rejection` or `MALA` with its numbers.
    mixing
        Weights: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix; not negative.
    recentre
        Tilt every f_i by its gradient at the common minimiser m, f_i(x) - <grad f_i(m), x>, which leaves the posterior
        as it is (section 4, before Algorithm 1) and takes the bias away that distant minimisers cause. The minimiser is
        found over the network, by C-ADMM, whose messages are counted.
    temperature
        As in `Sampler`. The noise of Gibbs draws is independent.

    Raises
    ------
    ValueError
        A number out of its range, potentials that the conditional cannot draw from, or an agent without a neighbour.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.Gibbs(eta=0.1)
    >>> run = accord.sample(post, accord.Network.path(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    eta: Step = None  # type: ignore[assignment]
    conditional: Any = "exact"
    mixing: Any = static(default="metropolis")
    recentre: bool = static(default=False)

    receives: ClassVar[tuple[str, ...]] = ("mix",)
    by_color: ClassVar[bool] = True
    proximal: ClassVar[bool] = True
    planned: ClassVar[tuple[str, ...]] = ("eta",)
    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_steps("eta")
        object.__setattr__(self, "conditional", as_conditional(self.conditional))
        object.__setattr__(self, "mixing", static_mixing(self.mixing))

    def check_network(self, network: Network) -> None:
        if network.num_agents == 1 or network.is_empty:
            raise ValueError("Gibbs needs a neighbour for every agent: each draw is tied to the neighbours' values")
        super().check_network(network)

    def filled(self, step: float, network: Network) -> Self:
        if self.is_complete():
            return self
        return replace(self, eta=step / float(at(replace(self, eta=1.0).langevin_step(network), 0)))

    def modelled(self) -> Self:
        return replace(self, conditional="exact")

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        weights = network.weights(self.mixing)
        tied = weights - scipy.sparse.diags_array(weights.diagonal())
        if tied.min() < 0:
            raise ValueError(f"the ties between agents must not be negative, found the weight {tied.min():.4g}")
        return weights

    def prepare(self, post: Posterior, network: Network) -> Prepared:
        self.conditional.check(post)
        diagonal = self.weights(network).diagonal()
        own = GibbsNumbers(
            1.0 - diagonal, diagonal, np.zeros((post.num_agents, post.dim)), self.conditional.curvatures(post)
        )
        if not self.recentre:
            return Prepared(own)
        found = agree_on_mode(post, network)
        return Prepared(own._replace(shift=found.gradients), (), found.exchanges, found.bytes_sent)

    def randomness(self, dim: int) -> Randomness:
        linear = self.conditional.is_linear
        return Randomness(normal=linear, key=not linear)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> GibbsState:
        return GibbsState(position, None if self.conditional.is_linear else Count.zero())

    def message(self, agent: Agent, state: GibbsState) -> Float[Array, " dim"]:
        return state.position

    def update(self, agent: Agent, state: GibbsState, inbox: Inbox, noise: Noise) -> GibbsState:
        own, x = agent.own, state.position
        strength = own.tie / at(self.eta, agent.round)
        # inbox.mix() holds the agent's own value too, which does not tie it
        center = (inbox.mix() - own.self_weight * x) / own.tie + own.shift / strength
        if self.temperature == 0:
            tolerance = 1e-4 / jnp.sqrt(strength)
            found = proximal_point(agent, center, strength, start=x, tolerance=tolerance)
            return state._replace(position=found.point)
        x, taken = self.conditional.draw(agent, center, strength, x, noise, self.temperature, own.curvature)
        return GibbsState(x, None if state.taken is None else state.taken.plus(*taken))

    def position(self, state: GibbsState) -> Float[Array, " dim"]:
        return state.position

    def diagnostics(self, state: GibbsState) -> dict[str, Array]:
        return {} if state.taken is None else state.taken._asdict()

    def report(self, watched: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        return self.conditional.report(watched, rounds)

    def failure(self, prepared: Prepared, agent: int) -> str | None:
        if self.conditional.is_linear or self.temperature == 0:
            return None
        tie, curvature = prepared.own.tie[agent], prepared.own.curvature[agent]
        dim = prepared.own.shift.shape[1]
        bound = f"{tie / (curvature * dim):.6g}" if curvature > 0 else "sum_j sigma_ij / (beta_i dim)"
        return (
            f"{self.conditional} found no draw of its conditional: its potential is not convex, or eta is too large; "
            f"rejection takes few tries for eta below {bound}"
        )

    def langevin_step(self, network: Network) -> Step:
        # A sweep is Gauss-Seidel on the ties' Laplacian K = L + D + L'. For any colouring its invariant direction
        # 1'(L + D) moves by -(eta / S) sum_i grad f_i with noise of variance 2 eta / S, S the sum of sigma over edges.
        weights = self.weights(network)
        return rescaled(self.eta, 2.0 / float(weights.sum() - weights.diagonal().sum()))
