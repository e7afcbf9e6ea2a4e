"""Base of the methods that alternate between a hub, which draws theta, and agents, who draw z_i near it."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from ..network import Network
from .protocol import HasLaw, Langevin, Needs, Tunable


class HubGibbs(Tunable, Langevin, HasLaw):
    """Base of the methods that alternate between a hub, which draws theta, and agents, who draw z_i near it.

    The tolerance `rho` ties z_i to theta. The hub is any agent: all draw the same theta from the total of their
    messages and from noise that they share.
    """

    rho: Any

    noises: ClassVar[tuple[str, ...]] = ("independent",)
    tunable: ClassVar[tuple[str, ...]] = ("rho",)

    def needs(self, dim: int) -> Needs:
        return Needs("total", common=True)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(rho=step * network.num_agents)
