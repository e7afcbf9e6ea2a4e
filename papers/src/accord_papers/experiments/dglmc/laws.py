"""Closed-form laws of DG-LMC, GCMC and D-SGLD on a Gaussian posterior with equal Hessians at all shards.

`accord.law` computes the law of DG-LMC and GCMC for any shards, but takes a minute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PAPER = (
    "Plassier, Vono, Durmus and Moulines: DG-LMC: A Turn-key and Scalable Synchronous Distributed MCMC Algorithm via "
    "Langevin Monte Carlo within Gibbs (ICML 2021)"
)
STEP = 0.25  # gamma as a share of rho / (1 + rho M), within 0.1 to 0.5 of guideline 3.2.1
LOCAL = 10  # "N = 10", in figures 3 and 4


class Law(NamedTuple):
    """The stationary law of theta along the eigenvectors of the Hessian of F, arrays of shape (direction,).

    The autocovariance at lag k > 0 is kept * factor^k.
    """

    variance: np.ndarray
    kept: np.ndarray
    factor: np.ndarray

    def excess(self, curvature: np.ndarray) -> float:
        """The mean of F - min F, which is half the number of parameters for the posterior itself."""
        return float((curvature * self.variance).sum() / 2.0)

    def rounds(self, curvature: np.ndarray) -> float:
        """The integrated autocorrelation time of F, in rounds."""
        square = self.factor**2
        after = (curvature * self.kept) ** 2 * square / (1.0 - square)
        return float(1.0 + 2.0 * after.sum() / ((curvature * self.variance) ** 2).sum())


def gibbs(curvature: np.ndarray, shards: int, rho: float, step: float | None = None, local_steps: int = 1) -> Law:
    """The law of DG-LMC, or with exact draws (step None) of GCMC: theta = mean of z + noise, then z given theta."""
    precision = curvature / shards + 1.0 / rho
    forgets = 0.0 * precision if step is None else 1.0 - step * precision
    spread = 1.0 / precision if step is None else 2.0 * step / (1.0 - forgets**2)
    own = forgets**local_steps
    pulled = (1.0 - own) / (rho * precision)
    factor = own + pulled
    # variances of the mean of all z, and of the hub's noise
    local, hub = (pulled**2 * rho + spread * (1.0 - own**2)) / shards / (1.0 - factor**2), rho / shards
    return Law(local + hub, local + pulled * hub / factor, factor)


def visits(curvature: np.ndarray, slopes: np.ndarray, shards: int, step: float, local_steps: int) -> Law:
    """The law of D-SGLD, in which a chain takes `local_steps` steps at a random shard in every round.

    `slopes` are the mean squares of the shards' gradients at the mode.
    """
    once = 1.0 - step * curvature
    factor = once**local_steps
    pulled = (shards * (1.0 - factor) / curvature) ** 2 * slopes
    variance = (pulled + 2.0 * step * (1.0 - factor**2) / (1.0 - once**2)) / (1.0 - factor**2)
    return Law(variance, variance, factor)
