"""Cost of a round, computed from the method's `Needs`: exchanges, messages and rows read."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from ..network import Network
from ..results.traffic import Traffic
from .protocol import Needs


def messages_per_round(needs: Needs, network: Network) -> tuple[int, np.ndarray]:
    """Sequential exchanges of a round, and the messages that each agent sends in them (agent,).

    A total goes up a spanning tree and down again: to the hub and back if one agent is a neighbour of all others.
    """
    if needs.spans_network:
        tree = network.aggregation
        return 2 * tree.height, tree.letters_sent if needs.inbox == "permuted" else tree.sums_sent
    exchanges = int(network.coloring().max()) + 1 if needs.turns == "by color" else needs.exchanges
    return exchanges, needs.exchanges * network.out_degrees


def random_words(needs: Needs, dim: int, num_agents: int) -> int:
    """Random words of a round in each chain, for all agents together."""
    normal = needs.normal * dim * (1 if needs.steps is None else needs.steps)
    local = 0 if needs.local is None else math.prod(needs.local)
    batch = 0 if needs.batch_size is None else needs.batch_size * int(np.max(needs.gradients))
    return (1 if needs.common else num_agents) * normal + num_agents * (local + batch)


def rows_per_gradient(needs: Needs, sizes: np.ndarray) -> np.ndarray:
    """Rows that each agent reads for a gradient (agent,), given the sizes of the shards (agent,)."""
    return sizes if needs.batch_size is None else np.full_like(sizes, needs.batch_size)


def total_traffic(network: Network, numbers: int, count: int = 1) -> Traffic:
    """The traffic of `count` sums over all agents, each of `numbers` numbers."""
    tree, width = network.aggregation, float_bytes()
    sent = tree.sums_sent * numbers * width * count
    return Traffic(exchanges=2 * tree.height * count, bytes_sent=sent, sums=count)


def float_bytes() -> int:
    """Bytes of a number in a message: 4, or 8 with `jax_enable_x64`."""
    return int(np.dtype(jnp.result_type(float)).itemsize)
