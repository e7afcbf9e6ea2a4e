"""A spanning tree of the network, over which sums over all agents travel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Aggregation(NamedTuple):
    """A spanning tree that sums go up and results come down.

    Parameters
    ----------
    root : int
        The agent where the total is made: the hub, if one is everybody's neighbour.
    height : int
        Exchanges from the farthest agent to the root.
    sums_sent : np.ndarray, (agent,)
        Messages that each agent sends for one total known to all: a sum to its parent, the total to its children.
    letters_sent : np.ndarray, (agent,)
        Messages that each agent sends or passes on if every agent's message goes to the root unsummed, and
        another one comes back.
    """

    root: int
    height: int
    sums_sent: np.ndarray
    letters_sent: np.ndarray
