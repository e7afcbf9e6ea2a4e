"""The common minimiser, which agents find over the network by C-ADMM."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import positive
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..samplers.d_admms import DADMMS
from .network_sums import machine

# Exchanges between two looks at whether the agents agree.
_BLOCK = 50
_MAX_EXCHANGES = 50_000


class Agreement(NamedTuple):
    """The common minimiser as agents found it, and what that took.

    Parameters
    ----------
    position
        Each agent's own value of it, shape (agent, dim).
    gradients
        Each agent's own gradient there, as its dual variable holds it, shape (agent, dim); their sum is zero up to
        rounding, however far the positions have converged.
    exchanges, bytes_sent
        Exchanges one after another, and bytes that each agent sent, shape (agent,).
    """

    position: np.ndarray
    gradients: np.ndarray
    exchanges: int
    bytes_sent: np.ndarray


def agree_on_mode(
    post: Posterior, network: Network, *, tolerance: float = 0.01, max_exchanges: int = _MAX_EXCHANGES
) -> Agreement:
    """Find the minimiser of sum_i f_i over the network, by C-ADMM (D-ADMMS without noise).

    Its dual variables p_i tend to -grad f_i(m) and always sum to zero, so that tilting every potential by them leaves
    the sum as it is at any time.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    tolerance
        Largest distance of an agent from the minimiser, in units of 1 / sqrt(curvature of the sum), > 0.
    max_exchanges
        Exchanges that it may take.

    Raises
    ------
    ArithmeticError
        The agents did not agree in `max_exchanges`: the posterior may have no mode.
    """
    positive("tolerance", tolerance)
    largest, diagonal = post.each(scales, post.init)
    # the penalty that weighs an agent's ties as much as its own potential
    rho = max(float(largest.mean()), 1e-6) / (2.0 * float(network.degrees.mean()))
    engine = machine(post, network, DADMMS(rho, temperature=0.0))
    carry = engine.start(np.broadcast_to(post.init, (post.num_agents, post.dim)), None)
    width = engine.message_bytes(carry)
    root = np.sqrt(np.maximum(diagonal.sum(axis=0), np.finfo(float).tiny))
    for exchanges in range(_BLOCK, max(_BLOCK, max_exchanges) + 1, _BLOCK):
        carry = engine.advance(carry, _BLOCK)
        x, p = (np.asarray(part, np.float64)[:, :, 0] for part in (carry.state.position, carry.state.dual))
        mean = x.mean(axis=0)
        # at agreement p_i = -grad f_i(m); what is left of their sum is the distance to the minimiser
        slope = post.gradients(mean)
        apart = np.abs((x - mean) * root).max()
        if apart <= tolerance and np.abs(slope.sum(axis=0) / root).max() <= tolerance:
            return Agreement(x, -p, exchanges, exchanges * width * network.degrees)
    raise ArithmeticError(
        f"the agents found no common minimiser in {exchanges} exchanges: they are still {apart:.3g} apart, in "
        "units of the posterior's scale; does the posterior have a mode?"
    )


def scales(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
    """The largest eigenvalue of an agent's Hessian, and its diagonal; entries that are not finite count as 0."""
    hessian = potential.hessian(shard, x)
    hessian = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
    return jnp.linalg.eigvalsh(hessian)[-1], jnp.diagonal(hessian)
