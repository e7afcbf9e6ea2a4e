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

# With fewer effective draws than this of some agent, the product is noise.
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

    From agent i:  draws of `exp(-f_i)`; at the hub  `p_i(x) = N(x | m_i, S_i) (1/T) sum_t N(x | x_it, h^2 K_i) /
    N(x_it | m_i, S_i)`, multiplied over agents and drawn from as in `nonparametric`.

    Neiswanger, Wang and Xing 2014, section 3.3, with the full weights W. The estimate is unbiased where a shard is
    the fitted Gaussian, at every h, as the kernel then smooths the constant 1: no shrinkage is needed. The weights
    `1 / N(x_it | m_i, S_i)` are heavy: their variance is finite for `h^2 K_i < 2 S_i` only, which the paper's
    `K_i = I` breaks for parameters of small standard deviation; the default here is `K_i = S_i`, for h <= 1. And the
    correction rests on each agent's draws where the product lies: an agent whose posterior is three or more standard
    deviations away has next to none there, at any h, and is named in a warning; `nonparametric` and `weierstrass`
    with shrinkage do not break down in this way.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `nonparametric`.
    bandwidth
        As in `nonparametric`, with `scaled` for `shrinkage`.
    scaled
        False is the paper's kernel, of covariance h^2 I in units of the parameters.
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
    """Draws of the product of corrected Gaussians made of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if scaled else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    # the basis in which the kernels' precisions sum to I and those of the Gaussians to a diagonal matrix
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
    worth = points * effective_shares(fitted, bandwidth, shrinkage=False)
    if worth.min() < min(_FEWEST, points / 10.0):
        agent = int(np.argmin(worth))
        warnings.warn(
            f"the draws of agent {agent} lie too far from the product: for semiparametric all {points} are worth "
            f"{worth[agent]:.2g}; use nonparametric, weierstrass or parametric, or more draws",
            stacklevel=2,
        )
