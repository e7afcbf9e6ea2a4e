"""Kernels that smooth subset draws: shared by the methods that multiply densities."""

from __future__ import annotations

import numpy as np

from accord.samplers.combine import Moments


def shrinkage_factor(bandwidth: np.ndarray | float) -> np.ndarray:
    """How far centres move to their mean so that kernels of covariance h^2 S keep the covariance S: sqrt(1 - h^2).

    West (1993, "Mixture models, Monte Carlo, Bayesian updating and dynamic models"): an estimate with the centres
    `m + sqrt(1 - h^2) (x_t - m)` and the kernel covariance `h^2 S` has the mean m and the covariance
    `(1 - h^2) S + h^2 S = S` of the draws, where the plain estimate has `(1 + h^2) S`. A Gaussian smoothed in this
    way is the same Gaussian, at every h in (0, 1].
    """
    return np.sqrt(1.0 - np.minimum(np.square(bandwidth), 1.0))


def effective_shares(fitted: Moments, bandwidth: float, *, shrinkage: bool = True) -> np.ndarray:
    """The share of each agent's draws that a product of kernel estimates rests on, shape (agent,), for Gaussian shards.

    Draws of `p = N(m_i, S_i)` stand for the law q that agent i's centre has in the product. Reweighted from p to q
    they are worth the share `1 / E_p[(q / p)^2]` of independent draws of q. With z in units of S_i about m_i, the
    product `N(d, L)` there, and h the bandwidth, q is `N(a d, h^2 I + a^2 L)`, a = sqrt(1 - h^2), for shrunken
    kernels (z the centre over a), and `N(d, h^2 I + L)` for the corrected Gaussians of `semiparametric`. For
    `q = N(u, diag(c))` the share is `prod_k sqrt(c_k (2 - c_k)) exp(-u_k^2 / (2 - c_k))`.
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
    """The h of scaled kernels: Scott's rule, or what gives every agent an effective number of draws sqrt(T).

    Scott's `T^(-1 / (dim + 4))` is for one density at all places. A product rests on the few draws of each agent that
    lie where the agents agree: with shards three standard deviations apart these are none of a thousand. The larger h
    is, the closer are shrunken kernels to the Gaussian with the draws' moments, which needs no draws in the tails;
    h = 1 is that Gaussian. sqrt(T) of T draws is a share that falls to 0, so that h does too as T grows. Where no h
    gives so many draws, which happens without shrinkage only, it is the h that gives most.
    """
    scott = float(points) ** (-1.0 / (fitted.means.shape[1] + 4))
    grid = np.geomspace(scott, 1.0, 40)
    shares = np.array([effective_shares(fitted, h, shrinkage=shrinkage).min() for h in grid])
    enough = shares >= points**-0.5
    return float(grid[np.argmax(enough)] if enough.any() else grid[np.argmax(shares)])


def check_bandwidth(bandwidth: float | None, *, scaled: bool) -> None:
    """Raise `ValueError` unless a bandwidth is left out, or positive, finite and, for scaled kernels, at most 1."""
    high = 1.0 if scaled else float("inf")
    if bandwidth is None or (0 < bandwidth <= high and bandwidth < float("inf")):
        return
    limits = "in (0, 1], in units of the draws' standard deviations" if scaled else "a finite number > 0"
    raise ValueError(f"bandwidth must be {limits}, found {bandwidth}")
