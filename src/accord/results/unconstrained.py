"""Draws in the user's parameters and in the unconstrained coordinates of the sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.model_info import ModelInfo

# Largest number of agents in a network that reports draw.
_MOST_DRAWN = 200


class Unconstrained(NamedTuple):
    """Draws in unconstrained coordinates.

    Names (dim,), draws of the average (chain, draw, dim) and draws of kept agents (chain, draw, kept, dim).
    """

    names: tuple[str, ...]
    average: np.ndarray
    kept: np.ndarray


def for_all(draws: np.ndarray, count: int) -> np.ndarray:
    """Draws (chain, draw, dim) repeated for `count` agents, (chain, draw, agent, dim), as a view."""
    return np.broadcast_to(draws[:, :, None], (*draws.shape[:2], count, draws.shape[2]))


def in_both_scales(
    post: Posterior, average: np.ndarray, kept: np.ndarray | int, network: Network | None = None
) -> dict[str, Any]:
    """The fields of a `Run` with draws, names of parameters and the description of the model.

    Parameters
    ----------
    post
        The sampled posterior.
    average, kept
        Positions, shapes (chain, draw, dim) and (chain, draw, kept, dim). An integer `kept` is the number of kept
        agents, which all have the draws of the average.
    network
        The network of the run, or None.
    """
    parameters = post.parameters
    values = parameters.reported(average)
    if isinstance(kept, int):
        own, own_values = for_all(average, kept), for_all(values, kept)
    else:
        own, own_values = kept, parameters.reported(kept)
    free = Unconstrained(post.unconstrained_names, average, own) if parameters.constrained else None
    return {
        "average": values,
        "kept": own_values,
        "names": post.names,
        "variables": post.variables,
        "unconstrained": free,
        "info": info_of(post, network),
    }


def info_of(post: Posterior, network: Network | None) -> ModelInfo:
    """The model description that runs of a posterior store, with the network's edges if it has at most 200 agents."""
    edges = None
    if network is not None and network.num_agents <= _MOST_DRAWN:
        edges = tuple((int(i), int(j)) for i, j in network.edges)
    return replace(post.info, rows=post.info.rows or post.counted_rows, edges=edges, predictive=None)
