"""Whether latents were integrated out well enough, looked at where the draws are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from ...posterior import Posterior
from ...posterior.latents import MOST_NODES
from ...posterior.potential import Potential, Shard
from ...results.certificate import Check
from ..session import Session

# The name of the check; how far F may be off at a draw, and draws at which that is looked at.
INTEGRATION, _OFF, _LOOKED_AT = "integration", 0.01, 50


def some_of(draws: np.ndarray, count: int) -> np.ndarray:
    """Some draws, evenly from the first to the last, (draw, dim), of (chain, draw, dim)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[np.linspace(0, len(flat) - 1, min(count, len(flat))).astype(int)]


def integration_check(session: Session, draws: np.ndarray) -> Check | None:
    """A check of the quadrature, by a finer one at some draws, (chain, draw, dim); one sum. None: there is none."""
    post = session.job.post
    if post.latents is None or post.latents.nodes == 0:
        return None
    found = session.totals(off, points=some_of(draws, _LOOKED_AT), values=3 * _LOOKED_AT)
    most = float(np.max(np.asarray(found)))
    holds = most <= _OFF
    text = f"integrals over latents are off by {most:.2g} in log density at most, {_OFF} is allowed"
    remedy = ""
    if not holds and post.is_coarse:
        remedy = ": sample post.finely(), which integrates by more nodes"
    elif not holds:
        remedy = ": a group's latents are far from normal given the parameters; " + _remedy(post, post.latents.nodes)
    return Check(INTEGRATION, most, _OFF, holds, text + remedy)


def _remedy(post: Posterior, nodes: int) -> str:
    """The remedy where a quadrature with this number of nodes is too coarse."""
    more = min(4 * nodes + 3, MOST_NODES)
    finer = [] if more == nodes else [f"nodes={more}"]
    if not post.info.formula:
        ways = [f"integrate by more, post.finely({name})" for name in finer]
        return " or ".join([*ways, "make them parameters of the posterior"])
    ways = [f"integrate by more, glm(..., {name})" for name in finer]
    keys = [f"nodes = {more}" for _ in finer]
    if post.info.is_whole:
        ways.append('keep them as parameters, glm(..., effects="parameters")')
        keys.append('effects = "parameters"')
    if not ways:
        return "no quadrature of accord is fine enough for them at their sites"
    return f"{', or '.join(ways)} ({' or '.join(keys)} in [model] of a file)"


def off(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Array:
    """How far an agent's log likelihood is off."""
    return potential.quadrature_error(shard, x)
