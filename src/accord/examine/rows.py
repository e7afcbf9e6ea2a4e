"""Log likelihoods of single rows at the draws of a run, for ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..base.memory import require_room
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from ..results.run import Run
from ..samplers.engine import Builder
from .agents import agents_of

if TYPE_CHECKING:
    import xarray as xr


def log_likelihood(run: Run, post: Posterior, network: Network, *, engine: str | Builder = "local") -> xr.Dataset:
    """The log likelihood of each row at each draw of the average: a group of the tree that ArviZ reads.

    For studies whose rows are all in this process: `tree = run.to_datatree()`, and then
    `tree["log_likelihood"] = accord.log_likelihood(run, post, network)` for `arviz.loo(tree)`.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.

    Returns
    -------
    xarray.Dataset
        Its variable `rows` has (chain, draw, row), and a coordinate `agent` names the agent of each row.

    Raises
    ------
    ValueError
        Rows lie in other processes, enter together or share latents, the sums of the run are masked, or the run is of
        another posterior or network.
    """
    import xarray as xr

    if post.has_latents:
        raise ValueError("rows have no log likelihoods of their own: rows share latents")
    draws = run.moved.average.astype(np.float64)
    chains, count, dim = draws.shape
    with agents_of(run, post, network, engine, single=True) as agents:
        placed = agents.placed
        if placed.is_held_elsewhere or len(placed.held) < placed.num_agents:
            raise ValueError("log likelihoods of rows need all rows in this process, and some are in others")
        if not placed.splits:
            raise ValueError("rows have no log likelihoods of their own: the rows of an agent enter together")
        rows = int(placed.sizes.sum())
        what = f"log likelihoods of {rows:,} rows at {chains * count:,} draws"
        require_room(what, 16.0 * rows * chains * count, "draw fewer, or ask accord.loo, which holds a few at a time")
        found = [
            np.asarray(placed.alone(agent).each(_of_rows, draws.reshape(-1, dim)))[0, :, :size]
            for agent, size in enumerate(placed.sizes)
        ]
    names: Any = run.sites or range(len(found))
    owners = np.repeat(np.array(names), [own.shape[1] for own in found])
    values = np.concatenate(found, axis=1).reshape(chains, count, rows)
    coords = {"agent": ("row", owners), "chain": np.arange(chains), "draw": np.arange(count)}
    return xr.Dataset({"rows": (("chain", "draw", "row"), values)}, coords=coords)


def _of_rows(potential: Potential, shard: Shard, positions: Float[Array, "point dim"]) -> Float[Array, "point row"]:
    """The log likelihood of each row at positions."""

    def at(x: Float[Array, " dim"]) -> Float[Array, " row"]:
        return potential.log_likelihood(potential.unravel(x), shard.rows)

    return jax.lax.map(at, positions, batch_size=min(len(positions), 64))
