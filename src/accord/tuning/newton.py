"""Newton's method on sums over the network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .network_sums import Expansion

# Newton steps after which there is said to be no mode.
_MOST_STEPS = 50
# Halvings of one step.
_MOST_HALVINGS = 30
# Length of the last step, in posterior standard deviations: quadratic convergence leaves its square.
_LAST_STEP = 1e-2
# Largest relative change of the curvature on the way to it.
_LAST_CHANGE = 0.1
# Curvature in a direction, relative to the largest, below which it counts as none.
FLAT = 1e-7


def newton(expand: Callable[[np.ndarray], Expansion], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the Hessian there, by Newton's method with steps halved until F falls."""
    here = expand(x)
    at_start = np.linalg.eigvalsh(here.hessian)[-1]
    for _ in range(_MOST_STEPS):
        step, length = _step(here)
        there = expand(x + step)
        for _ in range(_MOST_HALVINGS):
            # written so that NaN counts as a rise; rounding of large sums is none
            if there.value <= here.value + 1e-6 * (1.0 + abs(here.value)):
                break
            step = step / 2.0
            there = expand(x + step)
        else:
            raise ArithmeticError("no mode found: the potential rises along every step that is tried")
        changed = change(here.hessian, there.hessian)
        x, here = x + step, there
        if length <= _LAST_STEP and changed <= _LAST_CHANGE:
            return x, here.hessian
    least = np.linalg.eigvalsh(here.hessian)[0]
    raise ArithmeticError(
        f"no mode found in {_MOST_STEPS} Newton steps: the potential flattens out, its least curvature is {least:.3g} "
        f"from {at_start:.3g} at init (separated labels under a flat prior do this)"
    )


def _step(here: Expansion) -> tuple[np.ndarray, float]:
    """A Newton step, which descends where curvature is negative too, and its length in standard deviations."""
    values, vectors = np.linalg.eigh(here.hessian)
    size = np.maximum(np.abs(values), FLAT * np.abs(values).max() + np.finfo(float).tiny)
    slope = vectors.T @ here.gradient
    return -vectors @ (slope / size), float(np.sqrt((slope**2 / size).sum()))


def change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest relative change of curvature in any direction."""
    values, vectors = np.linalg.eigh(before)
    root = vectors / np.sqrt(np.maximum(np.abs(values), FLAT * np.abs(values).max() + np.finfo(float).tiny))
    return float(np.abs(np.linalg.eigvalsh(root.T @ (after - before) @ root)).max())
