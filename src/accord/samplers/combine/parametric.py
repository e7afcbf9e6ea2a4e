"""Density product of fitted Gaussians: the product of one Gaussian per shard."""

from __future__ import annotations

import numpy as np

from ...posterior import Posterior
from ...results.run import Run
from .pooling import moments, pooled
from .subsets import Combination, one_shot


def parametric(post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, warmup: int = 1000) -> Run:
    """Density product of fitted Gaussians.

    From agent i:  mean m_i and covariance S_i of draws of `exp(-f_i)`. At the hub: independent draws of
    `N(S sum_i S_i^-1 m_i, S)`, `S = (sum_i S_i^-1)^-1`.

    Neiswanger, Wang and Xing 2014 (Asymptotically exact, embarrassingly parallel MCMC), section 3.1, eqs. 3.1 and
    3.2. Exact for Gaussian shards up to the error of the moments. The result is always Gaussian. Agents send only
    moments.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `consensus`.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError, ImportError
        As in `consensus`.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.parametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    return one_shot(post, gaussian_product, method="parametric()", draws=draws, chains=chains, seed=seed, warmup=warmup)


def gaussian_product(subsets: np.ndarray, rng: np.random.Generator) -> Combination:
    """Independent draws of the product of the Gaussians fitted to subset draws (chain, draw, agent, dim)."""
    product = moments(pooled(subsets)).product()
    chains, draws, _, dim = subsets.shape
    normals = rng.standard_normal((chains, draws, dim))
    # a mean and the upper half of a covariance
    return Combination(product.mean + normals @ product.factor().T, numbers_sent=dim + dim * (dim + 1) // 2)
