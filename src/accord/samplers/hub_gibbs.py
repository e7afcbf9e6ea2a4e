"""Base class of Gibbs methods that alternate between a hub, which draws theta, and agents, which draw z_i near it."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from ..network import Network
from .protocol import HasLaw, Langevin, Needs, Tunable


class HubGibbs(Tunable, Langevin, HasLaw):
    """Base class of Gibbs methods that alternate between a hub, which draws theta, and agents, which draw z_i near it.

    The tolerance `rho` ties z_i to theta. Any agent can be the hub: all compute the same theta from the total of their
    messages and shared noise.
    """

    rho: Any

    noises: ClassVar[tuple[str, ...]] = ("independent",)
    tunable: ClassVar[tuple[str, ...]] = ("rho",)

    def needs(self, dim: int) -> Needs:
        return Needs("total", common=True)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(rho=step * network.num_agents)
