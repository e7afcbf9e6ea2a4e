"""Gaussian distributions, for exact posteriors, laws of methods and random initial positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The Gaussian N(mean, cov) on R^dim.

    Parameters
    ----------
    mean
        Shape (dim,), or a number for dim = 1.
    cov
        Shape (dim, dim), symmetric positive semi-definite. A number or a vector of variances makes a diagonal.

    Raises
    ------
    ValueError
        The shapes do not fit, a value is not finite, or `cov` is not symmetric positive semi-definite.
    """

    mean: np.ndarray
    cov: np.ndarray

    def __post_init__(self) -> None:
        mean = np.atleast_1d(np.asarray(self.mean, dtype=np.float64))
        cov = np.asarray(self.cov, dtype=np.float64)
        if mean.ndim != 1:
            raise ValueError(f"mean of a Gaussian must have shape (dim,), found {mean.shape}")
        if cov.ndim < 2:
            cov = np.diag(np.broadcast_to(cov, mean.shape))
        if cov.shape != (mean.size, mean.size):
            raise ValueError(f"cov must have shape ({mean.size}, {mean.size}) to fit mean, found {cov.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
            raise ValueError("mean and cov of a Gaussian must be finite, found NaN or infinity")
        scale = max(np.abs(cov).max(), np.finfo(np.float64).tiny)
        asymmetry = np.abs(cov - cov.T).max() / scale
        if asymmetry > 1e-6:
            raise ValueError(f"cov must be symmetric, found a relative asymmetry of {asymmetry:.2g}")
        cov = (cov + cov.T) / 2
        smallest = np.linalg.eigvalsh(cov)[0]
        if smallest < -1e-6 * scale:
            raise ValueError(f"cov must be positive semi-definite, found the eigenvalue {smallest:.3g}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "cov", cov)

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.mean.size

    @property
    def sd(self) -> np.ndarray:
        """Marginal standard deviations, shape (dim,)."""
        return np.sqrt(np.clip(np.diag(self.cov), 0.0, None))

    def factor(self) -> np.ndarray:
        """A matrix R, shape (dim, dim), with R R' = cov, also for singular covariances."""
        values, vectors = np.linalg.eigh(self.cov)
        return vectors * np.sqrt(np.clip(values, 0.0, None))
