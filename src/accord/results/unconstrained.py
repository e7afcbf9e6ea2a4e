"""Draws in the user's scale, and in the unconstrained numbers that methods move in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..network import Network
from ..posterior import Posterior
from ..posterior.model_info import ModelInfo

# Larger networks are not drawn in reports.
_MOST_DRAWN = 200


class Unconstrained(NamedTuple):
    """Draws as methods move: names of the numbers (dim,), the average (chain, draw, dim), (chain, draw, kept, dim)."""

    names: tuple[str, ...]
    average: np.ndarray
    kept: np.ndarray


def for_all(draws: np.ndarray, count: int) -> np.ndarray:
    """Draws (chain, draw, dim) as those of so many agents, (chain, draw, agent, dim), and not copied for each."""
    return np.broadcast_to(draws[:, :, None], (*draws.shape[:2], count, draws.shape[2]))


def in_both_scales(
    post: Posterior, average: np.ndarray, kept: np.ndarray | int, network: Network | None = None
) -> dict[str, Any]:
    """The fields of a `Run` that hold draws and name their numbers, and what was asked.

    Parameters
    ----------
    post
        Whose parameters they are.
    average, kept
        Positions, shapes (chain, draw, dim) and (chain, draw, kept, dim); a number of agents whose draws are those of
        the average.
    network
        Whom they talked over; None: over none.
    """
    parameters = post.parameters
    told = parameters.reported(average)
    if isinstance(kept, int):
        own, own_told = for_all(average, kept), for_all(told, kept)
    else:
        own, own_told = kept, parameters.reported(kept)
    free = Unconstrained(post.unconstrained_names, average, own) if parameters.constrained else None
    return {
        "average": told,
        "kept": own_told,
        "names": post.names,
        "variables": post.variables,
        "unconstrained": free,
        "info": info_of(post, network),
    }


def info_of(post: Posterior, network: Network | None) -> ModelInfo:
    """The description of a posterior's model that its runs keep, with the edges of a network of at most 200 agents."""
    edges = None
    if network is not None and network.num_agents <= _MOST_DRAWN:
        edges = tuple((int(i), int(j)) for i, j in network.edges)
    return replace(post.info, rows=post.info.rows or post.counted_rows, edges=edges, predictive=None)
