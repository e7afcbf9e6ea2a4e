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
    """The log likelihood of each row at each draw of the average, as a group of ArviZ's tree.

    All rows must be in this process. For `arviz.loo(tree)`, set `tree = run.to_datatree()` and
    `tree["log_likelihood"] = accord.log_likelihood(run, post, network)`.

    Parameters
    ----------
    run, post, network, engine
        As in `accord.loo`.

    Returns
    -------
    xarray.Dataset
        A dataset with the variable `rows`, (chain, draw, row). Its coordinate `agent` is the agent of each row.

    Raises
    ------
    ValueError
        Rows are in other processes, have no separate log likelihoods or share latents, the sums of the run are
        masked, or the run is of another posterior or network.
    """
    import xarray as xr

    if post.has_latents:
        raise ValueError("rows have no separate log likelihoods: they share latents")
    draws = run.moved.average.astype(np.float64)
    chains, count, dim = draws.shape
    with agents_of(run, post, network, engine, single=True) as agents:
        placed = agents.placed
        if placed.is_held_elsewhere or len(placed.held) < placed.num_agents:
            raise ValueError("log_likelihood needs all rows in this process, and some are in other processes")
        if not placed.splits:
            raise ValueError("rows have no separate log likelihoods: log_likelihood returns one number per shard")
        rows = int(placed.sizes.sum())
        what = f"log likelihoods of {rows:,} rows at {chains * count:,} draws"
        require_room(what, 16.0 * rows * chains * count, "draw fewer, or use accord.loo, which needs less memory")
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
