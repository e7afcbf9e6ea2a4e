"""The check of the quadrature over latents, at draws."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from ...posterior import Posterior
from ...posterior.coarse import coarse
from ...posterior.latents import MOST_NODES
from ...posterior.potential import Potential, Shard
from ...results.certificate import Check
from ..session import Session

# Name of the check.
INTEGRATION = "integration"
# Largest error of F at a draw.
_OFF = 0.01
# Draws at which the error is checked.
_CHECKED_DRAWS = 50


def some_of(draws: np.ndarray, count: int) -> np.ndarray:
    """At most `count` evenly spaced draws, (draw, dim), from draws of shape (chain, draw, dim)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[np.linspace(0, len(flat) - 1, min(count, len(flat))).astype(int)]


def integration_check(session: Session, draws: np.ndarray) -> Check | None:
    """Compare the quadrature with a finer one at some draws, (chain, draw, dim); one sum. None without quadrature."""
    post = session.job.post
    if post.latents is None or post.latents.nodes == 0:
        return None
    session.stage("checking integrals over latents")
    found = session.totals(off, points=some_of(draws, _CHECKED_DRAWS), values=3 * _CHECKED_DRAWS)
    most = float(np.max(np.asarray(found)))
    holds = most <= _OFF
    text = f"integrals over latents are off by at most {most:.2g} in log density (limit {_OFF})"
    remedy = ""
    if not holds and post.is_coarse:
        remedy = ": sample post.finely(), which uses more nodes"
    elif not holds:
        remedy = ": a group's latents are far from normal given the parameters; " + _remedy(post, post.latents.nodes)
    return Check(INTEGRATION, most, _OFF, holds, text + remedy)


def _remedy(post: Posterior, nodes: int) -> str:
    """The remedy if a quadrature with this number of nodes is too coarse."""
    more = min(4 * nodes + 3, MOST_NODES)
    finer = [] if more == nodes else [f"nodes={more}"]
    if not post.info.formula:
        ways = [f"use more nodes, post.finely({name})" for name in finer]
        return " or ".join([*ways, "make them parameters of the posterior"])
    ways = [f"use more nodes, glm(..., {name})" for name in finer]
    keys = [f"nodes = {more}" for _ in finer]
    if post.info.is_whole:
        ways.append('keep them as parameters, glm(..., effects="parameters")')
        keys.append('effects = "parameters"')
    if not ways:
        return "no quadrature of accord is accurate enough for these latents"
    return f"{', or '.join(ways)} ({' or '.join(keys)} in [model] of a file)"


@coarse("error")
def off(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> Array:
    """Error of the quadrature in an agent's log likelihood."""
    return potential.quadrature_error(shard, x)
