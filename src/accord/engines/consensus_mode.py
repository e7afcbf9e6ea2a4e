"""The minimiser of the summed potentials, found over the network by C-ADMM, and methods bound with it."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import positive
from ..base.memory import require_matrices
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.traffic import Traffic
from ..samplers import DADMMS, validation
from ..samplers.engine import Builder
from ..samplers.protocol import Bound, Recentred, Sampler
from .local import LocalEngine

# Exchanges between two convergence checks.
_BLOCK = 50
# Default limit of exchanges.
_MAX_EXCHANGES = 50_000


class ConsensusMode(NamedTuple):
    """The agents' estimates of the minimiser, and their cost.

    Parameters
    ----------
    position
        Each agent's estimate, shape (agent, dim).
    gradients
        Each agent's gradient at the minimiser, from its dual variable, shape (agent, dim). Their sum is zero up to
        rounding at any state of convergence.
    spent
        Communication of the search.
    """

    position: np.ndarray
    gradients: np.ndarray
    spent: Traffic


def bind(post: Posterior, network: Network, sampler: Sampler, builder: Builder = LocalEngine) -> Bound:
    """Check a method, except its step size, and bind it to a problem. Finds the minimiser first if the method needs it.

    Parameters
    ----------
    post, network, sampler
        As in `accord.sample`.
    builder
        Builder of the engine for the search.

    Raises
    ------
    TypeError, ValueError
        The method does not fit the problem, or lacks numbers that only tuning chooses.
    """
    bound = validation.bind(post, network, sampler)
    if not (isinstance(sampler, Recentred) and sampler.recentre):
        return bound
    found = agree_on_mode(post, network, builder=builder)
    return sampler.recentred(bound, found.gradients, found.spent)


def agree_on_mode(
    post: Posterior,
    network: Network,
    *,
    tolerance: float = 0.01,
    max_exchanges: int = _MAX_EXCHANGES,
    builder: Builder = LocalEngine,
) -> ConsensusMode:
    """Find the minimiser of sum_i f_i over the network, by C-ADMM (D-ADMMS without noise).

    The dual variables p_i converge to -grad f_i(m) and sum to zero in every round. Tilting all potentials by them
    therefore leaves the sum unchanged.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    tolerance
        Largest distance of an agent from the minimiser, > 0, in units of 1 / sqrt(curvature of the sum), default 0.01.
    max_exchanges
        Largest number of exchanges, default 50,000.
    builder
        Builder of the engine.

    Raises
    ------
    ArithmeticError
        No consensus after `max_exchanges`. The posterior may have no mode.
    """
    positive("tolerance", tolerance)
    largest, diagonal = scales(post, post.init)
    # penalty with equal weight of an agent's edges and its potential
    rho = max(float(largest.mean()), 1e-6) / (2.0 * float(network.degrees.mean()))
    engine = builder.preliminary(post, network, Bound(DADMMS(rho, temperature=0.0)))
    carry = engine.start(np.broadcast_to(post.init, (post.num_agents, post.dim)), None)
    width = engine.message_bytes(carry)
    root = np.sqrt(np.maximum(diagonal.sum(axis=0), np.finfo(float).tiny))
    for exchanges in range(_BLOCK, max(_BLOCK, max_exchanges) + 1, _BLOCK):
        carry = engine.advance(carry, _BLOCK)
        state = engine.states(carry)
        x, p = (np.asarray(part, np.float64)[:, :, 0] for part in (state.position, state.dual))
        mean = x.mean(axis=0)
        # at consensus p_i = -grad f_i(m), and the sum of gradients measures the distance to the minimiser
        slope = post.gradients(mean)
        apart = np.abs((x - mean) * root).max()
        if apart <= tolerance and np.abs(slope.sum(axis=0) / root).max() <= tolerance:
            return ConsensusMode(x, -p, Traffic(0, exchanges, exchanges * width * network.degrees))
    raise ArithmeticError(
        f"the agents found no common minimiser in {exchanges} exchanges: they still differ by {apart:.3g} posterior "
        "scales. Does the posterior have a mode?"
    )


def scales(post: Posterior, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest eigenvalue, (agent,), and diagonal, (agent, dim), of every agent's Hessian.

    Raises
    ------
    ValueError
        Three matrices of the Hessian's size do not fit into memory.
    """
    remedy = "plans, whiten and recentre need them. Set all numbers of the method, without whiten and recentre"
    require_matrices("an agent's Hessian and its eigenvalues", post.dim, 3, remedy)
    largest, diagonal = post.each(_scales, x)
    return largest, diagonal


def _scales(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
    """Largest eigenvalue and diagonal of an agent's Hessian, with 0 for non-finite entries."""
    hessian = potential.hessian(shard, x)
    hessian = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
    return jnp.linalg.eigvalsh(hessian)[-1], jnp.diagonal(hessian)
