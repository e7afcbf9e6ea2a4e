"""Consensus steps along the edges of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import scipy.sparse

from ..schedules import Step, at

if TYPE_CHECKING:
    from ..network import Network


def even_step(network: Network) -> float:
    """The consensus step 1 / lambda_max(L), half of its bound: no eigenvalue of I - beta L is below 0."""
    _, largest = network.laplacian_extremes()
    return 1.0 / largest if largest > 0 else 1.0


def consensus_weights(network: Network, name: str, step: Step | None) -> scipy.sparse.csr_array:
    """W = I - step L at round 0 of a consensus step along the edges.

    Raises
    ------
    ValueError
        The step is not below 2 / lambda_max(L), beyond which disagreement grows; the bound is printed.
    """
    value = float(at(step, 0))
    if network.edges.size == 0:
        return network.weights("max-degree")
    bound = 2.0 / network.laplacian_extremes()[1]
    if not value < bound:
        raise ValueError(f"{name} must be below 2 / lambda_max(L) = {bound:.6g} on this network, found {value:.6g}")
    return network.weights("laplacian", delta=value)
