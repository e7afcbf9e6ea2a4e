"""Density product of kernel estimates: one mixture of kernels a shard, multiplied and drawn from."""

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

    From agent i:  draws of `exp(-f_i)`, which make a mixture of T equal kernels; at the hub draws of the product of
    the mixtures, itself a mixture of T^N Gaussians, by Metropolis steps over the kernel that stands for each agent.

    Neiswanger, Wang and Xing 2014, Algorithm 1: in sweep t every agent in turn is offered one of its draws at random,
    accepted with probability `min(1, w' / w)`, `w = prod_i N(x_i | mean, h^2 K_i)`, and a draw is made from the
    kernel of the product; the paper anneals the bandwidth, `h = t^(-1/(4 + dim))`. As T grows and h falls it
    approaches the posterior of any shards. At h > 0 the paper's form, `K_i = I`, turns Gaussian shards N(m_i, S_i)
    into `prod_i N(m_i, S_i + h^2 I)`, too wide. With shrinkage, the default here, the centres are moved to their mean
    and `K_i = S_i` (`kernels.shrinkage_factor`): the product of Gaussian shards is then exact at every h, up to the
    error of a finite number of draws, h has no unit, and one h serves all sweeps. Acceptance falls as h^dim, and
    independent draws are more than 2 / h^2 sweeps apart: more than about ten parameters are not for this method.

    Parameters
    ----------
    post, draws, chains, seed
        As in `accord.samplers.combine.consensus`. The kernels are made of the draws of all chains.
    warmup
        As in `accord.samplers.combine.consensus`, and as many sweeps at the first bandwidth before the first draw.
    bandwidth
        One h for all sweeps: in (0, 1], in units of the draws' standard deviations, left out
        `kernels.default_bandwidth`; with `shrinkage=False` > 0, in units of the parameters, left out the paper's
        annealed one.
    shrinkage
        False is the paper's form.
    sweeps
        Sweeps a draw, >= 1; 1 is the paper's number.

    Returns
    -------
    Run
        The same draws for every agent. Statistics: `acceptance`, the share of the agents' offers that were taken
        before a draw, and `bandwidth`.

    Raises
    ------
    ValueError, ImportError
        As in `accord.samplers.combine.consensus`; or a bandwidth out of its range.

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
    """Draws of the product of kernel estimates made of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if shrinkage else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    basis = np.linalg.inv(np.linalg.cholesky(kernels.sum(axis=0))).T
    # from the mean of the agent where that is what centres shrink to, else all that centres have to tell is `points`
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
