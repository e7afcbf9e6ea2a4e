"""What agents may take to find something out together before a run, and what they took."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..network import Network


class Budget:
    """Counts sums over all agents, which go up a spanning tree and down again, and refuses too many.

    Parameters
    ----------
    network
        A connected network.
    max_exchanges
        Exchanges that all sums together may take, one after another.

    Attributes
    ----------
    exchanges
        Exchanges so far.
    bytes_sent
        Bytes that each agent sent so far, shape (agent,).
    gradients
        Gradients that each agent evaluated so far; a Hessian counts as one for each parameter, its product with a
        vector as two.
    """

    def __init__(self, network: Network, max_exchanges: int) -> None:
        self.max_exchanges = max_exchanges
        self.exchanges, self.gradients = 0, 0
        self.bytes_sent = np.zeros(network.num_agents, np.int64)
        self._each, self._messages = 2 * network.aggregation.height, network.aggregation.sums_sent

    def sums(self, count: int, *, width: int, gradients: int) -> None:
        """Count sums of `width` numbers, for each of which an agent evaluates some gradients.

        Raises
        ------
        ArithmeticError
            They exceed what is allowed.
        """
        self.exchanges += count * self._each
        if self.exchanges > self.max_exchanges:
            raise ArithmeticError(
                f"one sum over this network takes {self._each} exchanges, and {self.exchanges // self._each} sums are "
                f"more than the {self.max_exchanges} exchanges that warm-up may take: raise max_exchanges, or add edges"
            )
        size = count * width * np.dtype(jnp.result_type(float)).itemsize
        self.bytes_sent = self.bytes_sent + (size * self._messages).astype(np.int64)
        self.gradients += count * gradients
