"""Sums by gossip alone: averages over neighbours, as often as a stated precision needs."""

from __future__ import annotations

import numpy as np

from .chebyshev import chebyshev_coefficients, contraction
from .network import Network

# Exchanges at most, beyond which a network is too slow for it.
_MOST = 100_000


class Averaging:
    """Chebyshev-accelerated averaging with Metropolis weights, in which nobody relays what others say.

    Every agent ends with a sum of its own, within `precision * num_agents * v` of the exact one, v the largest number
    in size that an agent adds.

    Parameters
    ----------
    network
        A connected one.
    precision
        Above 0 and at most 1e-3; rounding allows about 1e-14.

    Attributes
    ----------
    exchanges
        Exchanges of one sum.
    messages
        Messages that each agent sends for it, shape (agent,).

    Raises
    ------
    ValueError
        A precision out of its range, or a network that needs more than 100,000 exchanges for it.
    """

    def __init__(self, network: Network, precision: float) -> None:
        if not 0 < precision <= 1e-3:
            raise ValueError(f"consensus must be a precision above 0 and at most 0.001, found {precision}")
        network.require_connected()
        self.precision = precision
        self._weights = network.weights("metropolis")
        # by norms: what one agent is off is at most what all are, and that is what is left of sqrt(N) v
        allowed = precision / np.sqrt(network.num_agents)
        self.exchanges = 1
        while contraction(self._weights, self.exchanges) > allowed:
            self.exchanges *= 2
            if self.exchanges > _MOST:
                raise ValueError(
                    f"consensus to {precision:g} takes more than {_MOST} exchanges a sum on this network: sums over a "
                    f"tree take {2 * network.aggregation.height}; leave consensus out, or add edges"
                )
        low, high = self.exchanges // 2, self.exchanges
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if contraction(self._weights, middle) <= allowed else (middle, high)
        self.exchanges, self.messages = high, high * network.degrees
        self._coefficients = chebyshev_coefficients(self._weights, high)

    def sums(self, own: np.ndarray) -> np.ndarray:
        """Each agent's sum of all agents' numbers; both (agent, number)."""
        previous, present = np.zeros_like(own), own
        for a, b in self._coefficients:
            previous, present = present, a * (self._weights @ present) - b * previous
        return len(own) * present
