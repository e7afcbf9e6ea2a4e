"""Whether latents were integrated out well enough, looked at where the draws are."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..fitting.network_sums import NetworkSums
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.certificate import Check

# The name of the check; how far F may be off at a draw, and draws at which that is looked at.
INTEGRATION, _OFF, _LOOKED_AT = "integration", 0.01, 50


def some_of(draws: np.ndarray, count: int) -> np.ndarray:
    """Some draws, evenly from the first to the last, (draw, dim), of (chain, draw, dim)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[np.linspace(0, len(flat) - 1, min(count, len(flat))).astype(int)]


def integration_check(sums: NetworkSums, post: Posterior, draws: np.ndarray) -> Check | None:
    """A check of the quadrature, by a finer one at some draws, (chain, draw, dim); one sum. None: there is none."""
    if post.latents is None or post.latents.nodes == 0:
        return None
    found = sums(off, points=some_of(draws, _LOOKED_AT), values=3 * _LOOKED_AT)
    most = float(np.max(np.asarray(found)))
    holds = most <= _OFF
    text = f"integrals over latents are off by {most:.2g} in log density at most, {_OFF} is allowed"
    remedy = ""
    if not holds and post.is_coarse:
        remedy = ": sample post.finely(), which integrates by more nodes"
    elif not holds:
        remedy = ": a group's latents are far from normal given the parameters; keep them as parameters"
    return Check(INTEGRATION, most, _OFF, holds, text + remedy)


def off(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Array:
    """How far an agent's log likelihood is off."""
    return jnp.abs(potential.shard_log_likelihood(shard, x) - potential.finer().shard_log_likelihood(shard, x))
