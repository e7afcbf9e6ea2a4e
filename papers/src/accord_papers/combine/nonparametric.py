"""Density product of kernel estimates: the product of one mixture of kernels per shard."""

from __future__ import annotations

from functools import partial

import numpy as np

from accord import Posterior, Run
from accord.samplers.combine import Combination, moments, one_shot, pooled

from ..base.checks import whole_number
from .components import Components, Offers, bandwidths, draw_components
from .kernels import check_bandwidth, default_bandwidth, shrinkage_factor


def nonparametric(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    shrinkage: bool = True,
    sweeps: int = 50,
) -> Run:
    """Density product of kernel estimates.

    From agent i:  draws of `exp(-f_i)`, which form a mixture of T equal kernels. The hub draws from the product of the
    mixtures, a mixture of T^N Gaussians, by Metropolis steps over each agent's kernel.

    Neiswanger, Wang and Xing 2014, Algorithm 1: in sweep t, each agent in turn gets a random one of its draws as a
    proposal, accepted with probability `min(1, w' / w)`, `w = prod_i N(x_i | mean, h^2 K_i)`. A draw then comes from
    the kernel of the product. The paper anneals the bandwidth, `h = t^(-1/(4 + dim))`. As T grows and h falls, the
    product approaches the posterior of any shards. At h > 0 the paper's form, `K_i = I`, turns Gaussian shards
    N(m_i, S_i) into `prod_i N(m_i, S_i + h^2 I)`, which is too wide. With shrinkage, the default here, centres move
    towards their mean and `K_i = S_i` (`kernels.shrinkage_factor`). The product of Gaussian shards is then exact at
    every h, up to Monte Carlo error, h has no unit, and all sweeps use one h. Acceptance falls as h^dim, and
    independent draws are more than 2 / h^2 sweeps apart: use this method for up to about ten parameters.

    Parameters
    ----------
    post, draws, chains, seed
        As in `accord.samplers.combine.consensus`. The kernels use the draws of all chains.
    warmup
        As in `accord.samplers.combine.consensus`, and the number of sweeps before the first draw.
    bandwidth
        One h for all sweeps, in (0, 1], in units of the draws' standard deviations. Default:
        `kernels.default_bandwidth`. With `shrinkage=False` h > 0 is in units of the parameters. Default: the paper's
        annealed bandwidth.
    shrinkage
        Whether to shrink centres. False is the paper's form.
    sweeps
        Sweeps per draw, >= 1. The paper has 1.

    Returns
    -------
    Run
        The same draws for every agent. Statistics: `acceptance`, the share of proposals accepted before a draw, and
        `bandwidth`.

    Raises
    ------
    ValueError, ImportError
        As in `accord.samplers.combine.consensus`, or the bandwidth is out of range.

    Examples
    --------
    >>> import accord
    >>> from accord_papers.combine import nonparametric
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = nonparametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    check_bandwidth(bandwidth, scaled=shrinkage)
    whole_number("sweeps", sweeps, 1)
    return one_shot(
        post,
        partial(kernel_product, warmup=warmup, bandwidth=bandwidth, shrinkage=shrinkage, sweeps=sweeps),
        method=f"nonparametric(bandwidth={bandwidth}, shrinkage={shrinkage}, sweeps={sweeps})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def kernel_product(
    subsets: np.ndarray,
    rng: np.random.Generator,
    *,
    warmup: int,
    bandwidth: float | None = None,
    shrinkage: bool = True,
    sweeps: int = 50,
) -> Combination:
    """Draws from the product of kernel estimates of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if shrinkage else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    basis = np.linalg.inv(np.linalg.cholesky(kernels.sum(axis=0))).T
    # relative to the agent's mean if centres shrink to it, else to the origin
    means = fitted.means if shrinkage else np.broadcast_to(origin, fitted.means.shape)
    centred = points - means[:, None]
    scaled = np.einsum("nij,ntj->nti", kernels, centred)
    offers = Offers(
        sums=scaled @ basis,
        linear=np.einsum("ni,nti->nt", means - origin, scaled),
        square=np.einsum("nti,nti->nt", centred, scaled),
        gain=np.zeros(points.shape[:2]),
    )
    if bandwidth is None and shrinkage:
        bandwidth = default_bandwidth(fitted, points.shape[1])
    steps = bandwidths(subsets, bandwidth)
    factors = shrinkage_factor(steps) if shrinkage else np.ones_like(steps)
    product = Components(offers, origin, basis, np.zeros(len(basis)))
    return draw_components(subsets, product, steps, factors, warmup, sweeps, rng)
