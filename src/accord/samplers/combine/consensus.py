"""Consensus Monte Carlo: average the subset draws, each weighted by its agent's precision."""

from __future__ import annotations

import numpy as np

from ...posterior import Posterior
from ...results.run import Run
from .pooling import moments, pooled
from .subsets import Combination, one_shot


def consensus(post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, warmup: int = 1000) -> Run:
    """Consensus Monte Carlo.

    From agent i:  draws `x_it` of `exp(-f_i)`. At the hub:  `x_t = (sum_i W_i)^-1 sum_i W_i x_it`.

    Scott et al. 2016 (Bayes and big data: the consensus Monte Carlo algorithm), with W_i the inverse of the sample
    covariance of agent i's draws over all chains. Exact for Gaussian shards up to the error of the estimated W_i.
    Otherwise biased, and the more so the less Gaussian the subset posteriors are. Draw t of the result comes from draw
    t of every agent, so that chains stay chains.

    Parameters
    ----------
    post
        The posterior. Every shard must identify all parameters alone.
    draws, chains
        Draws kept per chain, and chains. Their product must exceed the number of parameters.
    seed
        A whole number >= 0.
    warmup
        Adaptation steps of NUTS before the draws, >= 1.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError
        A number is out of its range, or an agent's subset posterior is improper (the message names agent and rows).
    ImportError
        BlackJAX is not installed.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.consensus(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    return one_shot(post, weighted_average, method="consensus()", draws=draws, chains=chains, seed=seed, warmup=warmup)


def weighted_average(subsets: np.ndarray, rng: np.random.Generator) -> Combination:
    """Combine subset draws (chain, draw, agent, dim). The generator is not used."""
    weights = moments(pooled(subsets)).precisions
    summed = np.einsum("nij,ctnj->cti", weights, subsets)
    return Combination(np.linalg.solve(weights.sum(axis=0), summed[..., None])[..., 0])
