"""Consensus steps along the edges of a network."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from ..network import Network
from ..network.averaging import contraction, identity_plus
from ..network.spectrum import largest_curvature, reciprocal
from .schedules import Step, at


def even_step(network: Network) -> float:
    """The consensus step 1 / lambda_max(L), half of its bound: no eigenvalue of I - beta L is below 0."""
    _, largest = network.laplacian_extremes()
    return 1.0 / largest if largest > 0 else 1.0


def consensus_weights(network: Network, name: str, step: Step | None) -> scipy.sparse.csr_array:
    """W = I - step L with the consensus step of round 0.

    Raises
    ------
    ValueError
        The step is not below 2 / lambda_max(L), above which disagreement grows.
    """
    value = float(at(step, 0))
    if network.edges.size == 0:
        return network.weights("max-degree")
    bound = 2.0 / network.laplacian_extremes()[1]
    if not value < bound:
        raise ValueError(f"{name} must be below 2 / lambda_max(L) = {bound:.6g} on this network, found {value:.6g}")
    return network.weights("laplacian", delta=value)


def largest_step(network: Network, hessians: np.ndarray, weights: scipy.sparse.csr_array) -> float:
    """The largest stable step of D-ULA with these weights: step_size N H < I + W, H of shape (agent, dim, dim)."""
    return reciprocal(network.num_agents * largest_curvature(hessians, identity_plus(weights)))


def check_tracking_step(
    network: Network,
    tracking_step: Step | None,
    consensus_step: Step | None,
    weights: scipy.sparse.csr_array | None,
    exchanges: int,
) -> None:
    """Raise `ValueError` if the trackers of agents would diverge from each other.

    With one exchange the trackers mix by W = I - tracking_step L. With several they mix by I - (gamma / beta)(I - P),
    and no eigenvalue of P is below -contraction.
    """
    consensus_weights(network, "tracking_step", tracking_step)
    if exchanges == 1 or weights is None:
        return
    gamma, beta = float(at(tracking_step, 0)), float(at(consensus_step, 0))
    bound = 2.0 * beta / (1.0 + contraction(weights, exchanges))
    if not gamma < bound:
        raise ValueError(
            f"tracking_step must be below {bound:.6g} with mix_rounds={exchanges} and this consensus_step, "
            f"found {gamma:.6g}"
        )
