"""Chebyshev polynomials of mixing weights, and sums by gossip to a given precision."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from .network import Network
from .spectrum import extreme_eigenvalues

# Limit of exchanges of one sum.
_MOST = 100_000


class Averaging:
    """Chebyshev-accelerated averaging with Metropolis weights, in which agents only exchange averages with neighbours.

    Every agent ends with its own approximation of the sum, with an error of at most `precision * num_agents * v`. v is
    the largest absolute value that an agent adds.

    Parameters
    ----------
    network
        A connected network.
    precision
        Above 0 and at most 1e-3. Rounding allows about 1e-14.

    Attributes
    ----------
    exchanges
        Exchanges of one sum.
    messages
        Messages that each agent sends for one sum, shape (agent,).

    Raises
    ------
    ValueError
        A precision out of range, or one that takes more than 100,000 exchanges on this network.
    """

    def __init__(self, network: Network, precision: float) -> None:
        if not 0 < precision <= 1e-3:
            raise ValueError(f"consensus must be a precision above 0 and at most 0.001, found {precision}")
        network.require_connected()
        self.precision = precision
        self._weights = network.weights("metropolis")
        # one agent's error is at most the norm of all errors, and the initial norm is at most sqrt(N) v
        allowed = precision / np.sqrt(network.num_agents)
        self.exchanges = 1
        while contraction(self._weights, self.exchanges) > allowed:
            self.exchanges *= 2
            if self.exchanges > _MOST:
                raise ValueError(
                    f"consensus to {precision:g} takes more than {_MOST} exchanges per sum on this network, a spanning "
                    f"tree takes {2 * network.aggregation.height}: omit consensus, or add edges"
                )
        low, high = self.exchanges // 2, self.exchanges
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if contraction(self._weights, middle) <= allowed else (middle, high)
        self.exchanges, self.messages = high, high * network.degrees
        self._coefficients = chebyshev_coefficients(self._weights, high)

    def sums(self, own: np.ndarray) -> np.ndarray:
        """Each agent's approximation of the sum of all agents' numbers, (agent, number) to (agent, number)."""
        previous, present = np.zeros_like(own), own
        for a, b in self._coefficients:
            previous, present = present, a * (self._weights @ present) - b * previous
        return len(own) * present


def chebyshev_coefficients(weights: scipy.sparse.csr_array, rounds: int) -> list[tuple[float, float]]:
    """Coefficients (a_k, b_k) of `y_{k+1} = a_k W y_k - b_k y_{k-1}`, y_0 = x, y_{-1} = 0, that ends in P(W) x.

    P = T_K(W/s) / T_K(1/s) with K = `rounds` and s the second largest absolute eigenvalue of W. P is the polynomial of
    degree K with P(1) = 1 and the smallest maximum on [-s, s]. The recursion uses ratios of Chebyshev numbers, which
    stay near one when the numbers overflow.
    """
    coefficients = [(1.0, 0.0)]
    if rounds == 1:
        return coefficients
    s = _slowest(weights)
    # ratio_k = T_k(1/s) / T_{k+1}(1/s); T_{k+1}(t) = 2 t T_k(t) - T_{k-1}(t), so ratio_k = s / (2 - s ratio_{k-1})
    ratio = s
    for _ in range(rounds - 1):
        following = s / (2.0 - s * ratio)
        # for s = 0 (one exchange averages exactly) the limits are 1 and 0: mixing again changes nothing
        coefficients.append((2.0 * following / s if s > 0 else 1.0, following * ratio))
        ratio = following
    return coefficients


def contraction(weights: scipy.sparse.csr_array, rounds: int) -> float:
    """1 / T_K(1/s): the contraction of disagreement, a bound on every eigenvalue of P except 1."""
    s = _slowest(weights)
    with np.errstate(over="ignore"):  # cosh overflows for many rounds, and the result is 0
        return float(1.0 / np.cosh(rounds * np.arccosh(1.0 / s))) if s > 0 else 0.0


def exchanges_for(weights: scipy.sparse.csr_array, allowed: float) -> int:
    """The fewest exchanges that reduce disagreement to a fraction `allowed`, and 1 if agents have no edges."""
    s = _slowest(weights)
    return int(np.ceil(np.arccosh(1.0 / allowed) / np.arccosh(1.0 / s) - 1e-9)) if 0 < s < 1 - 1e-12 else 1


def _slowest(weights: scipy.sparse.csr_array) -> float:
    """The second largest absolute eigenvalue, the factor of disagreement in one exchange."""
    smallest, second = extreme_eigenvalues(weights)
    return max(abs(smallest), abs(second))


def chebyshev(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """The matrix P(W) that `rounds` exchanges apply, W itself for one exchange."""
    previous = scipy.sparse.csr_array(weights.shape)
    present = scipy.sparse.eye_array(weights.shape[0], format="csr")
    for a, b in chebyshev_coefficients(weights, rounds):
        previous, present = present, a * (weights @ present) - b * previous
    return scipy.sparse.csr_array(present)


def power(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """W^K, the matrix of `rounds` plain exchanges."""
    present = weights
    for _ in range(rounds - 1):
        present = weights @ present
    return scipy.sparse.csr_array(present)


def lazier(weights: scipy.sparse.csr_array, share: float) -> scipy.sparse.csr_array:
    """(1 - share) I + share W, the mean of W if that fraction of messages arrives."""
    identity = scipy.sparse.eye_array(weights.shape[0], format="csr")
    return scipy.sparse.csr_array((1.0 - share) * identity + share * weights)


def identity_plus(weights: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """I + W."""
    return scipy.sparse.csr_array(scipy.sparse.eye_array(weights.shape[0], format="csr") + weights)
