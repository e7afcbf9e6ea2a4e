"""Kernels that smooth subset draws, for the methods that multiply densities."""

from __future__ import annotations

import numpy as np

from accord.samplers.combine import Moments


def shrinkage_factor(bandwidth: np.ndarray | float) -> np.ndarray:
    """The factor sqrt(1 - h^2) of centres about their mean, with which kernels h^2 S keep the covariance S.

    West (1993, "Mixture models, Monte Carlo, Bayesian updating and dynamic models"): an estimate with the centres
    `m + sqrt(1 - h^2) (x_t - m)` and the kernel covariance `h^2 S` has the mean m and the covariance
    `(1 - h^2) S + h^2 S = S` of the draws. The plain estimate has `(1 + h^2) S`. A smoothed Gaussian is then the same
    Gaussian, at every h in (0, 1].
    """
    return np.sqrt(1.0 - np.minimum(np.square(bandwidth), 1.0))


def effective_shares(fitted: Moments, bandwidth: float, *, shrinkage: bool = True) -> np.ndarray:
    """The effective share of each agent's draws in a product of kernel estimates, shape (agent,), for Gaussian shards.

    Let q be the law of agent i's centre in the product. Draws of `p = N(m_i, S_i)`, reweighted to q, have the effective
    share `1 / E_p[(q / p)^2]`. Let z be in units of S_i about m_i, with the product `N(d, L)`, and h the bandwidth. q
    is `N(a d, h^2 I + a^2 L)`, a = sqrt(1 - h^2), for shrunken kernels (z is the centre over a), and `N(d, h^2 I + L)`
    for the corrected Gaussians of `semiparametric`. For `q = N(u, diag(c))` the share is
    `prod_k sqrt(c_k (2 - c_k)) exp(-u_k^2 / (2 - c_k))`.
    """
    product = fitted.product()
    roots = np.linalg.inv(np.linalg.cholesky(fitted.covariances))
    inner, axes = np.linalg.eigh(np.einsum("nij,jk,nlk->nil", roots, product.cov, roots))
    distance = np.einsum("nij,nj->ni", roots, product.mean - fitted.means)
    distance = np.einsum("nik,ni->nk", axes, distance)
    factor = shrinkage_factor(bandwidth) if shrinkage else 1.0
    spread = np.minimum(bandwidth**2 + factor**2 * inner, 2.0 - 1e-12)
    logs = 0.5 * np.log(spread * (2.0 - spread)) - (factor * distance) ** 2 / (2.0 - spread)
    return np.exp(logs.sum(axis=1))


def default_bandwidth(fitted: Moments, points: int, *, shrinkage: bool = True) -> float:
    """The bandwidth h of scaled kernels: Scott's rule, or the least larger h with sqrt(T) effective draws per agent.

    Scott's `T^(-1 / (dim + 4))` is for a single density. A product depends on the few draws of each agent near the
    other agents' draws. With shards three standard deviations apart, a thousand draws have none. A larger h brings
    shrunken kernels closer to the Gaussian with the draws' moments (h = 1), which needs no draws in the tails. The
    share sqrt(T) / T falls with T, and h with it. Without shrinkage, no h may give sqrt(T) effective draws. The result
    is then the h with the most.
    """
    scott = float(points) ** (-1.0 / (fitted.means.shape[1] + 4))
    grid = np.geomspace(scott, 1.0, 40)
    shares = np.array([effective_shares(fitted, h, shrinkage=shrinkage).min() for h in grid])
    enough = shares >= points**-0.5
    return float(grid[np.argmax(enough)] if enough.any() else grid[np.argmax(shares)])


def check_bandwidth(bandwidth: float | None, *, scaled: bool) -> None:
    """Raise `ValueError` unless a bandwidth is None, or positive, finite and, for scaled kernels, at most 1."""
    high = 1.0 if scaled else float("inf")
    if bandwidth is None or (0 < bandwidth <= high and bandwidth < float("inf")):
        return
    limits = "in (0, 1], in units of the draws' standard deviations" if scaled else "a finite number > 0"
    raise ValueError(f"bandwidth must be {limits}, found {bandwidth}")
