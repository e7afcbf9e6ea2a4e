"""Initial positions: one point for all agents, one per agent, or draws from a Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.gaussian import Gaussian
from .posterior import Posterior


def starting_law(init: Any, post: Posterior) -> tuple[np.ndarray, np.ndarray | None]:
    """Means and covariance factors of the agents' independent starting positions.

    Parameters
    ----------
    init
        None (the posterior's own init), an array of shape (dim,) or (agent, dim), a `Gaussian` from which every agent
        draws independently, or a sequence of one `Gaussian` per agent.
    post
        The posterior.

    Returns
    -------
    means, factors
        Shapes (agent, dim) and (agent, dim, dim), in the coordinates of the posterior. `factors` is None if the start
        is not random.

    Raises
    ------
    ValueError
        The shape does not fit, or a value is not finite.
    """
    n, dim, place = post.num_agents, post.dim, post.coordinates
    if init is None:
        return np.broadcast_to(post.init, (n, dim)), None
    if isinstance(init, Gaussian):
        init = [init] * n
    if isinstance(init, Sequence) and any(isinstance(law, Gaussian) for law in init):
        if len(init) != n or not all(isinstance(law, Gaussian) and law.dim == dim for law in init):
            raise ValueError(f"init must hold one Gaussian on R^{dim} for each of {n} agents, found {init!r}")
        means, factors = np.stack([law.mean for law in init]), np.stack([law.factor() for law in init])
        if place is not None:
            # columns of a factor are directions
            means, factors = place.inverse(means), np.swapaxes(place.unspread(np.swapaxes(factors, 1, 2)), 1, 2)
        return means, factors
    point = np.asarray(init, dtype=np.float64)
    if point.shape not in ((dim,), (n, dim)):
        raise ValueError(
            f"init must have shape (dim,) = ({dim},) or (agent, dim) = ({n}, {dim}), or be a Gaussian; "
            f"found shape {point.shape}"
        )
    if not np.isfinite(point).all():
        raise ValueError("init must be finite, found NaN or infinity")
    return np.broadcast_to(point if place is None else place.inverse(point), (n, dim)), None
