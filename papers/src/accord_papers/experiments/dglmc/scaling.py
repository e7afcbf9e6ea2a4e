"""The largest rho and step, and the first round, at which DG-LMC reaches an accuracy on table 1's Gaussians."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from .laws import gibbs

B, CURVATURE = 10, (1.0, 10.0)
SHARE_RHO, SHARE_STEP = 0.5, 0.75


class Needs(NamedTuple):
    """Settings and costs for an accuracy, as in `theory.dg_lmc.Scaling`."""

    rho: float
    step_size: float
    local_steps: int
    rounds: int
    gradients: int


def curvatures(dim: int) -> np.ndarray:
    """Curvatures of F, shape (direction,)."""
    return B * np.repeat(CURVATURE, dim // 2)


def error(dim: int, rho: float, step: float | None, local_steps: int = 1, rounds: float = np.inf) -> float:
    """W2 of theta_t to the posterior from the start z = mode. step None: with exact draws of z."""
    curvature = curvatures(dim)
    one = gibbs(curvature, B, rho, step, local_steps)
    hub = rho / B
    left = 0.0 if rounds == np.inf else one.factor ** (2.0 * rounds)
    variance = hub + (one.variance - hub) * (1.0 - left)
    return float(np.sqrt(((np.sqrt(variance) - curvature**-0.5) ** 2).sum()))


def needs(dim: int, accuracy: float, guided: bool = False) -> Needs:
    """The largest rho and step, and the first round, with one local step or with the number of guideline 3.2.2."""
    widest = 1e6 / CURVATURE[0]
    rho = float(brentq(lambda r: error(dim, r, None) - SHARE_RHO * accuracy, 1e-12, widest, xtol=1e-18, rtol=1e-12))
    stable = rho / (1.0 + rho * CURVATURE[1])

    def steps(step: float) -> int:
        return int(np.ceil(stable / step - 1e-9)) if guided else 1

    def over(step: float) -> float:
        return error(dim, rho, step, steps(step)) - SHARE_STEP * accuracy

    step = stable if over(stable) < 0 else float(brentq(over, 1e-6 * stable, stable, xtol=1e-18, rtol=1e-10))
    low, high = 0, 1
    while error(dim, rho, step, steps(step), high) > accuracy:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if error(dim, rho, step, steps(step), middle) > accuracy else (low, middle)
    return Needs(rho, step, steps(step), high, high * steps(step))


class Sweep(NamedTuple):
    """`Needs` along d or epsilon, and the logarithm in the printed order of t."""

    at: np.ndarray
    found: list[Needs]
    log: np.ndarray

    def power(self, name: str) -> float:
        """The exponent fitted to a quantity, for rounds and gradients divided by the logarithm."""
        values = np.array([getattr(one, name) for one in self.found], float)
        return slope(self.at, values / self.log if name in ("rounds", "gradients") else values)


def slope(at: np.ndarray, values: np.ndarray) -> float:
    """The exponent of a power law."""
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def sweep(dims: np.ndarray, accuracies: np.ndarray, guided: bool = False) -> Sweep:
    """The sweep along d or epsilon, whichever has several values."""
    pairs = [(int(dim), float(accuracy)) for dim in dims for accuracy in accuracies]
    # the start is too narrow, and rho and gamma make the law too wide, so both errors may add up
    log = [np.log(np.sqrt((1.0 / curvatures(dim)).sum()) / ((1.0 + SHARE_STEP) * accuracy)) for dim, accuracy in pairs]
    at = dims if len(dims) > 1 else accuracies
    return Sweep(at, [needs(*pair, guided) for pair in pairs], np.array(log))
