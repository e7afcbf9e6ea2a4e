"""WASP: Wasserstein barycentre of the subset posteriors."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...base.checks import whole_number
from ...posterior import Posterior
from ...results.run import Run
from .pooling import pooled
from .subsets import Combination, one_shot

# Largest number of iterations. The assignments become constant long before.
_ITERATIONS = 200


def wasp(
    post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, warmup: int = 1000, support: int = 500
) -> Run:
    """Wasserstein posterior.

    From agent i:  draws of `exp(-N f_i)`, with agent i's data repeated N times. At the hub: their barycentre
    `argmin_q sum_i W_2(q, q_i)^2`.

    Srivastava, Cevher, Dinh and Dunson 2015 (WASP: scalable Bayes via barycenters of subset posteriors). In one
    dimension the barycentre is exact: its quantiles are the averages of the subsets' quantiles. Otherwise the draws are
    split into batches of `support`, and each batch becomes the barycentre with as many equal atoms at free positions
    (Cuturi and Doucet 2014, algorithm 2, from POT). Its mean is exact. Averaging matched draws makes the covariance too
    small by O(k^(-2 / dim)) for k atoms. For Gaussians at k = 500 this is 3% in two and 8% in three dimensions, in the
    worst direction. The barycentre is not the posterior: each exp(-N f_i) has the posterior's width but a different
    location. The average location is right to first order in 1 / rows if shards are random parts of the data. Agents
    are not weighted by their rows.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `consensus`. All chains are combined together, and the resulting draws are exchangeable.
    support
        Atoms of a batch in more than one dimension, >= 2. The time of a batch grows as the cube.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError
        As in `consensus`, or `support` is out of its range.
    ImportError
        BlackJAX or POT is not installed.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.samplers.combine.wasp(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    whole_number("support", support, 2)
    if post.dim > 1:
        _require_pot()
    return one_shot(
        post,
        partial(barycentre, support=support),
        method=f"wasp(support={support})",
        likelihood_power=post.num_agents,
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def barycentre(subsets: np.ndarray, rng: np.random.Generator, *, support: int = 500) -> Combination:
    """Combine subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    found = _quantiles(points) if points.shape[2] == 1 else _free_support(points, rng, support)
    # shuffled, because sorted or matched atoms are not a chain
    return Combination(rng.permutation(found).reshape(*subsets.shape[:2], subsets.shape[3]))


def _quantiles(points: np.ndarray) -> np.ndarray:
    return np.sort(points, axis=1).mean(axis=0)


def _free_support(points: np.ndarray, rng: np.random.Generator, support: int) -> np.ndarray:
    ot = _require_pot()
    count = points.shape[1]
    dealt = np.array_split(rng.permutation(count), -(-count // support))
    # in units of the draws' spread, so that the stopping rule does not depend on the parameters' units
    scale = np.sqrt(points.var(axis=1).sum(axis=1).mean())
    centre = points.mean(axis=(0, 1))
    batches: list[np.ndarray] = []
    for chosen in dealt:
        own = [(x[chosen] - centre) / scale for x in points]
        equal = np.full(len(chosen), 1.0 / len(chosen))
        # start from the atoms of one agent, in turn, shifted to the barycentre's exact mean
        start = own[len(batches) % len(own)]
        start = start - start.mean(axis=0) + np.mean(own, axis=(0, 1))
        atoms = ot.lp.free_support_barycenter(own, [equal] * len(own), start, numItermax=_ITERATIONS, stopThr=1e-12)
        batches.append(centre + scale * atoms)
    return np.concatenate(batches)


def _require_pot():  # type: ignore[no-untyped-def]
    try:
        import ot
    except ImportError as error:
        raise ImportError("Wasserstein barycentres need POT: pip install 'accord[metrics]'") from error
    return ot
