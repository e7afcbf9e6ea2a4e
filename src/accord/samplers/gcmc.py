"""Global consensus Monte Carlo: Gibbs sampling between a hub and its agents, which draw by Metropolis steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..base.checks import positive, whole_number
from ..base.pytree import checked, pytree, static
from ..network import Network
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .conditional import Count, as_conditional
from .hub_gibbs import HubGibbs
from .protocol import Bound, Monitored, Needs, Weighted


class GCMCState(NamedTuple):
    # the hub's parameters, the same at all agents
    position: Float[Array, " dim"]
    # the agent's variable z_i
    local: Float[Array, " dim"]


@pytree
class GCMC(HubGibbs, Monitored, Weighted):
    """Global consensus Monte Carlo, with an optional sequence of tolerances (an SMC sampler).

    In each round the hub draws `theta ~ N(mean of z_i, rho / N I)`. From agent i:
    `z_i+ ~ exp(-f_i(z) - |z - theta|^2 / (2 rho))`, by Metropolis steps from z_i, and at the start z_i = x_i.

    Rendell et al. 2020, Algorithm 1, rho = lambda (their prior on theta is part of the potentials here), the baseline
    of the DG-LMC paper. A draw is theta, the same at every agent. It targets the theta-marginal of
    `exp(-sum_i f_i(z_i) - |z_i - theta|^2 / (2 rho))` exactly, because Metropolis steps add no bias. This marginal
    tends to the posterior as rho decreases. Any agent can be the hub. If no agent is a neighbour of all others, sums
    use a spanning tree.

    With `tolerances` the chains are the particles of their Algorithm 2. Each tolerance and then rho is held for
    `rounds_per_tolerance` rounds, and at each change the chains are resampled by the ratio of the two targets. Draws
    start after the last change. Chains that descend from one particle are not independent at first.

    Parameters
    ----------
    rho
        Tolerance > 0, in squared units of x. None: a plan chooses it, in whitened coordinates.
    conditional
        How an agent draws z_i: "mala" (default: a few Metropolis-adjusted Langevin steps), "rejection" or "exact", or
        an instance of `accord.samplers.conditional.MALA` or `Rejection`.
    tolerances
        Decreasing numbers above rho that the run starts with. Default: none.
    rounds_per_tolerance
        Rounds of each tolerance, >= 1.
    temperature
        As in `Sampler`, > 0 unless the conditional is exact. The hub draws one noise for all.

    Raises
    ------
    ValueError
        A parameter out of range, tolerances that do not decrease to rho, or potentials that the conditional cannot draw
        from.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.GCMC(rho=0.1)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    rho: Any = None
    conditional: Any = checked(as_conditional, default="mala")
    tolerances: tuple[float, ...] = static(default=())
    rounds_per_tolerance: int = static(default=10)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho is not None:
            positive("rho", self.rho)
        elif self.tolerances:
            raise ValueError("tolerances need a rho, found none")
        whole_number("rounds_per_tolerance", self.rounds_per_tolerance, 1)
        object.__setattr__(self, "tolerances", tuple(float(t) for t in self.tolerances))
        ladder = np.array(self.tolerances if self.rho is None else [*self.tolerances, self.rho])
        if not (np.isfinite(ladder).all() and (np.diff(ladder) < 0).all()):
            raise ValueError(
                f"tolerances must be finite, decrease, and end above rho = {self.rho}, found {self.tolerances}"
            )
        if self.temperature == 0 and not self.conditional.is_linear:
            raise ValueError(f'temperature 0 needs conditional="exact", found {self.conditional}')

    def needs(self, dim: int) -> Needs:
        linear = self.conditional.is_linear
        local = (1, dim) if linear else None
        return super().needs(dim)._replace(local=local, key=not linear, eigenvectors=True)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> GCMCState:
        return GCMCState(position, position)

    def message(self, agent: Agent, state: GCMCState) -> Float[Array, " dim"]:
        return state.local

    def transition(self, agent: Agent, state: GCMCState, inbox: Inbox, noise: Noise) -> tuple[GCMCState, Count | None]:
        assert noise.normal is not None
        rho, n = self._tolerance(agent.round), agent.num_agents
        theta = inbox.total() / n + jnp.sqrt(rho / n) * noise.normal
        own = noise if noise.local is None else noise._replace(normal=noise.local[0])
        z, taken = self.conditional.draw(agent, theta, 1.0 / rho, state.local, own, self.temperature, agent.own)
        return GCMCState(theta, z), taken

    def log_weight(self, agent: Agent, state: GCMCState) -> Array | None:
        if not self.tolerances:
            return None
        change = 1.0 / self._tolerance(agent.round + 1) - 1.0 / self._tolerance(agent.round)
        return -change * jnp.sum((state.local - state.position) ** 2) / (2.0 * self.temperature)

    def bind(self, post: Posterior, network: Network) -> Bound:
        self.conditional.check(post)
        adapting = len(self.tolerances) * self.rounds_per_tolerance
        return Bound(self, own=self.conditional.curvatures(post), adapting=adapting)

    def linear(self) -> Self:
        return replace(self, conditional="exact")

    def is_constant(self) -> bool:
        return not self.tolerances

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        return self.conditional.summarise(monitored, rounds)

    def explain(self, bound: Bound, agent: int) -> str | None:
        return None if self.conditional.is_linear else f"{self.conditional.explain()}, or rho is too large"

    def langevin_step(self, network: Network) -> float:
        # a round moves theta by -(rho / N) sum_i grad f_i, with the noise of a Langevin step of that size
        return float(self.rho) / network.num_agents

    def _tolerance(self, round: Int[Array, ""]) -> Array:
        ladder = jnp.asarray([*self.tolerances, self.rho])
        return ladder[jnp.minimum(round // self.rounds_per_tolerance, len(self.tolerances))]
