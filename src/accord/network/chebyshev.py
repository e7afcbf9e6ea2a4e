"""Several mixing exchanges in one step: a Chebyshev polynomial of the mixing matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from .spectrum import extreme_eigenvalues


def chebyshev_coefficients(weights: scipy.sparse.csr_array, rounds: int) -> list[tuple[float, float]]:
    """Coefficients (a_k, b_k) of `y_{k+1} = a_k W y_k - b_k y_{k-1}`, y_0 = x, y_{-1} = 0, that ends in P(W) x.

    P = T_K(W/s) / T_K(1/s), s the second largest absolute eigenvalue of W: the polynomial of degree K = `rounds` with
    P(1) = 1 that is smallest on [-s, s]. The recursion runs on ratios of Chebyshev numbers, which stay near one where
    the numbers themselves overflow.
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
    """1 / T_K(1/s): what is left of disagreement, and the bound on every other eigenvalue of P than 1."""
    s = _slowest(weights)
    with np.errstate(over="ignore"):  # of many rounds nothing is left
        return float(1.0 / np.cosh(rounds * np.arccosh(1.0 / s))) if s > 0 else 0.0


def exchanges_for(weights: scipy.sparse.csr_array, allowed: float) -> int:
    """The fewest exchanges after which at most a part `allowed` of disagreement is left; 1 where nobody is heard of."""
    s = _slowest(weights)
    return int(np.ceil(np.arccosh(1.0 / allowed) / np.arccosh(1.0 / s) - 1e-9)) if 0 < s < 1 - 1e-12 else 1


def _slowest(weights: scipy.sparse.csr_array) -> float:
    """The second largest absolute eigenvalue: what one exchange leaves of disagreement."""
    smallest, second = extreme_eigenvalues(weights)
    return max(abs(smallest), abs(second))


def chebyshev(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """The matrix P(W) that `rounds` exchanges apply; W itself for one."""
    previous = scipy.sparse.csr_array(weights.shape)
    present = scipy.sparse.eye_array(weights.shape[0], format="csr")
    for a, b in chebyshev_coefficients(weights, rounds):
        previous, present = present, a * (weights @ present) - b * previous
    return scipy.sparse.csr_array(present)


def power(weights: scipy.sparse.csr_array, rounds: int) -> scipy.sparse.csr_array:
    """W^K, what `rounds` plain exchanges apply."""
    present = weights
    for _ in range(rounds - 1):
        present = weights @ present
    return scipy.sparse.csr_array(present)


def lazier(weights: scipy.sparse.csr_array, share: float) -> scipy.sparse.csr_array:
    """(1 - share) I + share W: what W is on average where that share of messages arrives."""
    identity = scipy.sparse.eye_array(weights.shape[0], format="csr")
    return scipy.sparse.csr_array((1.0 - share) * identity + share * weights)


def identity_plus(weights: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """I + W."""
    return scipy.sparse.csr_array(scipy.sparse.eye_array(weights.shape[0], format="csr") + weights)
