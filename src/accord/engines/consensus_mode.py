"""The common minimiser of the potentials, which agents find over the network by C-ADMM; methods bound with its help."""

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

# Exchanges between two looks at whether the agents agree.
_BLOCK = 50
_MAX_EXCHANGES = 50_000


class ConsensusMode(NamedTuple):
    """The common minimiser as agents found it, and what that took.

    Parameters
    ----------
    position
        Each agent's own value of it, shape (agent, dim).
    gradients
        Each agent's own gradient there, as its dual variable holds it, shape (agent, dim); their sum is zero up to
        rounding, however far the positions have converged.
    spent
        What finding it took.
    """

    position: np.ndarray
    gradients: np.ndarray
    spent: Traffic


def bind(post: Posterior, network: Network, sampler: Sampler, builder: Builder = LocalEngine) -> Bound:
    """The method on a problem, after all checks but that of its step; a minimiser that it asks for is found first.

    Parameters
    ----------
    post, network, sampler
        As in `accord.sample`.
    builder
        Makes the engine that the agents find it by.

    Raises
    ------
    TypeError, ValueError
        Something does not fit, or numbers are left out that only tuning chooses.
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
    builder
        Makes the engine that it runs on.

    Raises
    ------
    ArithmeticError
        The agents did not agree in `max_exchanges`: the posterior may have no mode.
    """
    positive("tolerance", tolerance)
    largest, diagonal = scales(post, post.init)
    # the penalty that weighs an agent's ties as much as its own potential
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
        # at agreement p_i = -grad f_i(m); what is left of their sum is the distance to the minimiser
        slope = post.gradients(mean)
        apart = np.abs((x - mean) * root).max()
        if apart <= tolerance and np.abs(slope.sum(axis=0) / root).max() <= tolerance:
            return ConsensusMode(x, -p, Traffic(0, exchanges, exchanges * width * network.degrees))
    raise ArithmeticError(
        f"the agents found no common minimiser in {exchanges} exchanges: they are still {apart:.3g} apart, in "
        "units of the posterior's scale; does the posterior have a mode?"
    )


def scales(post: Posterior, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every agent's Hessian the largest eigenvalue, (agent,), and the diagonal, (agent, dim).

    Raises
    ------
    ValueError
        Memory does not hold an agent's Hessian, its finite part, and what its eigenvalues take.
    """
    remedy = "plans, whiten and recentre need them; sample without, by a method with all its numbers"
    require_matrices("an agent's Hessian and its eigenvalues", post.dim, 3, remedy)
    largest, diagonal = post.each(_scales, x)
    return largest, diagonal


def _scales(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
    """The largest eigenvalue of an agent's Hessian, and its diagonal; entries that are not finite count as 0."""
    hessian = potential.hessian(shard, x)
    hessian = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
    return jnp.linalg.eigvalsh(hessian)[-1], jnp.diagonal(hessian)
