"""Mixing weights: the named rules, a user's own matrix, several exchanges in a step, consensus steps along edges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from .schedules import Step, at
from .spectrum import check_doubly_stochastic, extreme_eigenvalues, largest_entry, off_diagonal

if TYPE_CHECKING:
    from .network import Network


# Rounding of a single-precision matrix; what is left of it is removed after the checks.
_TOLERANCE = 1e-6


class MixingMatrix:
    """A user's mixing matrix, held sparsely, that compares and hashes by its content and prints in a few words.

    Methods keep it as static data: compiled programs are looked up by it, and runs record its text.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix if scipy.sparse.issparse(matrix) else np.asarray(matrix)
        entries = scipy.sparse.csr_array(self.matrix) if self.matrix.ndim == 2 else None
        parts = (self.matrix,) if entries is None else (entries.indptr, entries.indices, entries.data)
        content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        self._digest = hashlib.sha256(repr(self.matrix.shape).encode() + content).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingMatrix) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"<mixing matrix {self.matrix.shape}, sha256 {self._digest[:12]}>"


def _metropolis(network: Network) -> np.ndarray:
    return 1.0 / (1 + network.degrees[network.edges].max(axis=1))


def _max_degree(network: Network) -> np.ndarray:
    return np.full(len(network.edges), 1.0 / (1 + network.max_degree))


def _laplacian(network: Network, delta: float | None = None) -> np.ndarray:
    if delta is None and (network.num_agents == 1 or not network.is_connected):
        return _max_degree(network)
    smallest, largest = network.laplacian_extremes()
    if delta is None:
        delta = 2.0 / (smallest + largest)
    bound = 2.0 / largest if largest > 0 else np.inf
    if not 0 < delta < bound:
        raise ValueError(f"delta must be in (0, 2 / lambda_max(L)) = (0, {bound:.10g}), found {delta!r}")
    return np.full(len(network.edges), float(delta))


def _lazy(network: Network) -> np.ndarray:
    return _metropolis(network) / 2


# The weight of each edge, (edge,); the self weights follow, as rows sum to 1.
RULES: dict[str, Callable[..., np.ndarray]] = {
    "metropolis": _metropolis,
    "max-degree": _max_degree,
    "laplacian": _laplacian,
    "lazy": _lazy,
}


def checked_weights(network: Network, mixing: Any) -> scipy.sparse.csr_array:
    """Return the part of a user's matrix that lies on the edges, after checking all of it."""
    if isinstance(mixing, MixingMatrix):
        mixing = mixing.matrix
    mixing = mixing if scipy.sparse.issparse(mixing) else np.asarray(mixing)
    if mixing.dtype.kind not in "iuf":
        raise ValueError(f"the mixing matrix must hold real numbers, found dtype {mixing.dtype}")
    if mixing.ndim != 2:
        raise ValueError(f"the mixing matrix must have 2 axes, found shape {mixing.shape}")
    W = scipy.sparse.csr_array(mixing, dtype=np.float64)
    check_doubly_stochastic(W, network.num_agents, _TOLERANCE)
    sent = off_diagonal(W)
    on_edges = sent.multiply(network.adjacency).tocsr()
    value, i, j = largest_entry(sent - on_edges)
    if value > _TOLERANCE:
        found = f"W[{i}, {j}] = {W[i, j]:.10g}"
        raise ValueError(f"the mixing matrix must be zero between agents that do not talk, found {found}")
    smallest, second = extreme_eigenvalues(W, _TOLERANCE)
    if smallest <= -1.0 or second > 1.0 + _TOLERANCE:
        wrong = smallest if smallest <= -1.0 else second
        raise ValueError(f"the mixing matrix must not let disagreement grow, found the eigenvalue {wrong:.10g}")
    return (on_edges + on_edges.T) / 2


def chebyshev_coefficients(weights: scipy.sparse.csr_array, rounds: int) -> list[tuple[float, float]]:
    """Coefficients (a_k, b_k) of `y_{k+1} = a_k W y_k - b_k y_{k-1}`, y_0 = x, y_{-1} = 0, that ends in P(W) x.

    P = T_K(W/s) / T_K(1/s), s the second largest absolute eigenvalue of W: the polynomial of degree K = `rounds` with
    P(1) = 1 that is smallest on [-s, s]. The recursion runs on ratios of Chebyshev numbers, which stay near one where
    the numbers themselves overflow.
    """
    coefficients = [(1.0, 0.0)]
    if rounds == 1:
        return coefficients
    smallest, second = extreme_eigenvalues(weights)
    s = max(abs(smallest), abs(second))
    # ratio_k = T_k(1/s) / T_{k+1}(1/s); T_{k+1}(t) = 2 t T_k(t) - T_{k-1}(t), so ratio_k = s / (2 - s ratio_{k-1})
    ratio = s
    for _ in range(rounds - 1):
        following = s / (2.0 - s * ratio)
        # for s = 0 (one exchange averages exactly) the limits are 1 and 0: mixing again changes nothing
        coefficients.append((2.0 * following / s if s > 0 else 1.0, following * ratio))
        ratio = following
    return coefficients


def contraction(weights: scipy.sparse.csr_array, rounds: int) -> float:
    """1 / T_K(1/s): what is left of disagreement, and the bound on every other eigenvalue of P than 1."""
    smallest, second = extreme_eigenvalues(weights)
    s = max(abs(smallest), abs(second))
    return float(1.0 / np.cosh(rounds * np.arccosh(1.0 / s))) if s > 0 else 0.0


def chebyshev(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """The matrix P(W) that `rounds` exchanges apply; W itself for one."""
    previous = scipy.sparse.csr_array(weights.shape)
    present = scipy.sparse.eye_array(weights.shape[0], format="csr")
    for a, b in chebyshev_coefficients(weights, rounds):
        previous, present = present, a * (weights @ present) - b * previous
    return scipy.sparse.csr_array(present)


def even_step(network: Network) -> float:
    """The consensus step 1 / lambda_max(L), half of its bound: no eigenvalue of I - beta L is below 0."""
    _, largest = network.laplacian_extremes()
    return 1.0 / largest if largest > 0 else 1.0


def consensus_weights(network: Network, name: str, step: Step) -> scipy.sparse.csr_array:
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


def identity_plus(weights: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """I + W."""
    return scipy.sparse.csr_array(scipy.sparse.eye_array(weights.shape[0], format="csr") + weights)
