"""Density product of fitted Gaussians, each corrected by a kernel estimate."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import scipy.linalg

from accord import Posterior, Run
from accord.samplers.combine import Combination, Moments, moments, one_shot, pooled

from ..base.checks import whole_number
from .components import Components, Offers, bandwidths, draw_components
from .kernels import check_bandwidth, default_bandwidth, effective_shares

# Fewest effective draws of an agent without a warning.
_FEWEST = 25.0


def semiparametric(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    scaled: bool = True,
    sweeps: int = 50,
) -> Run:
    """Density product of fitted Gaussians, each corrected by a kernel estimate.

    From agent i:  draws of `exp(-f_i)`. The hub forms `p_i(x) = N(x | m_i, S_i) (1/T) sum_t N(x | x_it, h^2 K_i) /
    N(x_it | m_i, S_i)`, and draws from the product over agents as in `nonparametric`.

    Neiswanger, Wang and Xing 2014, section 3.3, with the full weights W. For Gaussian shards the estimate is unbiased
    at every h, because the kernel smooths the constant 1, so shrinkage is not needed. The weights
    `1 / N(x_it | m_i, S_i)` have a finite variance only for `h^2 K_i < 2 S_i`, which the paper's `K_i = I` violates for
    parameters with small standard deviations. The default here is `K_i = S_i`, for h <= 1. The correction needs draws
    of each agent near the product. An agent whose posterior is three or more standard deviations away has almost none
    there, at any h, and a warning names it. `nonparametric` and `weierstrass` with shrinkage do not have this problem.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `nonparametric`.
    bandwidth
        As in `nonparametric`, with `scaled` for `shrinkage`.
    scaled
        Whether `K_i = S_i`. False is the paper's kernel, with covariance h^2 I in units of the parameters.
    sweeps
        As in `nonparametric`.

    Returns
    -------
    Run
        The same draws for every agent, with the statistics of `nonparametric`.

    Raises
    ------
    ValueError, ImportError
        As in `nonparametric`.

    Examples
    --------
    >>> import accord
    >>> from accord_papers.combine import semiparametric
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = semiparametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    check_bandwidth(bandwidth, scaled=scaled)
    whole_number("sweeps", sweeps, 1)
    return one_shot(
        post,
        partial(corrected_product, warmup=warmup, bandwidth=bandwidth, scaled=scaled, sweeps=sweeps),
        method=f"semiparametric(bandwidth={bandwidth}, scaled={scaled}, sweeps={sweeps})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def corrected_product(
    subsets: np.ndarray,
    rng: np.random.Generator,
    *,
    warmup: int,
    bandwidth: float | None = None,
    scaled: bool = True,
    sweeps: int = 50,
) -> Combination:
    """Draws from the product of corrected Gaussians of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if scaled else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    # a basis in which the kernels' precisions sum to I, and the Gaussians' precisions to a diagonal matrix
    ratio, basis = scipy.linalg.eigh(fitted.precisions.sum(axis=0), kernels.sum(axis=0))
    centred = points - origin
    weighted = np.einsum("nij,ntj->nti", kernels, centred)
    own = points - fitted.means[:, None]
    offers = Offers(
        sums=weighted @ basis,
        linear=np.zeros(points.shape[:2]),
        square=np.einsum("nti,nti->nt", centred, weighted),
        gain=np.einsum("nti,nij,ntj->nt", own, fitted.precisions, own),
    )
    if bandwidth is None and scaled:
        bandwidth = default_bandwidth(fitted, points.shape[1], shrinkage=False)
    if bandwidth is not None and scaled:
        _warn_of_far_agents(fitted, points.shape[1], bandwidth)
    steps = bandwidths(subsets, bandwidth)
    return draw_components(
        subsets, Components(offers, origin, basis, ratio), steps, np.ones_like(steps), warmup, sweeps, rng
    )


def _warn_of_far_agents(fitted: Moments, points: int, bandwidth: float) -> None:
    effective = points * effective_shares(fitted, bandwidth, shrinkage=False)
    if effective.min() < min(_FEWEST, points / 10.0):
        agent = int(np.argmin(effective))
        warnings.warn(
            f"the draws of agent {agent} lie too far from the product for semiparametric: {points} draws make "
            f"{effective[agent]:.2g} effective draws. Use nonparametric, weierstrass or parametric, or more draws",
            stacklevel=2,
        )
