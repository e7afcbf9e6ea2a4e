"""Puts a posterior, a network and a method on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ..network import Network
from ..network.averaging import chebyshev_coefficients
from ..posterior import Posterior
from ..posterior.potential import Shard
from ..samplers.agent import Facts
from ..samplers.protocol import Bound
from .collectives import Collectives
from .links import linked_exchange
from .noise import seed_words
from .operators import Operator, operator
from .round import Exchange, Problem


def build_problem(
    post: Posterior,
    network: Network,
    bound: Bound,
    seed: int,
    place: Callable[[scipy.sparse.csr_array], Operator] = operator,
    collectives: Collectives | None = None,
    agents: Sequence[int] | None = None,
    shards: Shard | None = None,
) -> Problem:
    """A posterior, a network and a method as arrays on the device.

    Parameters
    ----------
    post, network, seed
        As in `accord.sample`.
    bound
        The method bound to `post` and `network`. Its `own` has a row for each of `agents`.
    place
        Function that turns a sparse matrix over the agents into an `Operator`.
    collectives
        Communication with agents on other devices. By default all agents are on this device.
    agents
        Numbers of the agents on this device, by default all.
    shards
        The shards of these agents, by default read from `post`.
    """
    held = np.arange(network.num_agents) if agents is None else np.asarray(agents)
    degrees = network.degrees.astype(np.float64)
    needs = bound.sampler.needs(post.dim)
    weights = bound.weights if needs.inbox == "mix" else None
    if needs.inbox == "mix" and weights is None:
        raise TypeError(f"{type(bound.sampler).__name__} reads inbox.mix(), but its bind() gives no weights")
    links = linked_exchange(network, weights, needs, held)
    # unreliable links need no operators, whose eigenvalues take time
    mixes, adds = (links is None and needs.inbox == kind for kind in ("mix", "neighbour_sum"))
    exchange = Exchange(
        place(weights) if mixes else None,
        place(network.adjacency) if adds else None,
        jax.device_put(np.array(chebyshev_coefficients(weights, needs.exchanges))) if mixes else None,
        needs.inbox == "total",
        network.num_agents if needs.inbox == "average" else None,
        needs.differences is not None,
    )
    caution = 1.0 if network.unreliable is None else network.unreliable.caution
    known = network.num_agents, degrees.sum(), (degrees**2).sum(), caution
    facts = Facts(*jax.device_put([float(fact) for fact in known]))
    shards = post.stacked(spectral=needs.eigenvectors, agents=agents) if shards is None else shards
    if shards.quadratic is not None and jnp.result_type(float) == np.float32:
        # single precision must resolve the differences between one agent's values
        shards = shards._replace(quadratic=shards.quadratic.from_center())
    return Problem(
        sampler=bound.sampler,
        potential=post.potential,
        shards=shards,
        index=jax.device_put(held.astype(np.uint32)),
        degree=jax.device_put(degrees[held]),
        members=jax.device_put(_turns(network.coloring(), held)) if needs.turns == "by color" else None,
        own=jax.device_put(bound.own),
        facts=facts,
        shared=jax.device_put(bound.shared),
        exchange=exchange,
        links=links,
        seed=seed_words(seed),
        collectives=Collectives() if collectives is None else collectives,
        num_agents=network.num_agents,
    )


def _turns(colors: np.ndarray, held: np.ndarray) -> np.ndarray:
    return by_color(colors[held], held.size, count=int(colors.max()) + 1)


def by_color(colors: np.ndarray, beyond: int, slots: int = 1, count: int | None = None) -> np.ndarray:
    """Indices of each colour, (color, slot), padded with the out-of-range index `beyond` to `slots` or more columns."""
    count = int(colors.max()) + 1 if count is None else count
    classes = [np.flatnonzero(colors == color) for color in range(count)]
    most = max([slots, *map(len, classes)])
    rows = [np.concatenate([places, np.full(most - len(places), beyond)]) for places in classes]
    return np.stack(rows).astype(np.int32)
