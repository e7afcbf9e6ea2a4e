"""WASP: the Wasserstein barycentre of the subset posteriors."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...base.checks import whole_number
from ...posterior import Posterior
from ...results.run import Run
from .pooling import pooled
from .subsets import Combination, one_shot

# Assignments repeat themselves exactly once they are found, far before this.
_ITERATIONS = 200


def wasp(
    post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, warmup: int = 1000, support: int = 500
) -> Run:
    """Wasserstein posterior.

    From agent i:  draws of `exp(-N f_i)`, the posterior as if all data were like its own; at the hub the law nearest
    to all of them, `argmin_q sum_i W_2(q, q_i)^2`.

    Srivastava, Cevher, Dinh and Dunson 2015 (WASP: scalable Bayes via barycenters of subset posteriors). In one
    dimension the barycentre is exact: its quantiles are the averages of the subsets' quantiles. Otherwise the draws
    are dealt into batches of `support`, and each batch gets the barycentre of as many equal atoms with free positions
    (Cuturi and Doucet 2014, algorithm 2, of POT). Their mean is exact; draws that are matched but not the same average
    to a covariance too small by O(k^(-2 / dim)) for k atoms, measured for Gaussians in the worst direction as 3% in two
    dimensions and 8% in three at k = 500. The barycentre is not the posterior: each exp(-N f_i) has the posterior's
    width but its own place, and the average of N places is right to first order in 1 / rows, for shards that are
    random parts of the data. It does not weigh agents by their rows.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `consensus`. The draws of all chains are combined together; draws of the result are exchangeable.
    support
        Atoms of a batch in more than one dimension, >= 2; the time of a batch grows as its cube.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError
        As in `consensus`; or `support` out of its range.
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
    """The combination of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    found = _quantiles(points) if points.shape[2] == 1 else _free_support(points, rng, support)
    # a new order: sorted or matched atoms are no chain
    return Combination(rng.permutation(found).reshape(*subsets.shape[:2], subsets.shape[3]))


def _quantiles(points: np.ndarray) -> np.ndarray:
    return np.sort(points, axis=1).mean(axis=0)


def _free_support(points: np.ndarray, rng: np.random.Generator, support: int) -> np.ndarray:
    ot = _require_pot()
    count = points.shape[1]
    dealt = np.array_split(rng.permutation(count), -(-count // support))
    # in units of the draws' spread, so that "no more movement" does not depend on the parameters' units
    scale = np.sqrt(points.var(axis=1).sum(axis=1).mean())
    centre = points.mean(axis=(0, 1))
    batches: list[np.ndarray] = []
    for chosen in dealt:
        own = [(x[chosen] - centre) / scale for x in points]
        equal = np.full(len(chosen), 1.0 / len(chosen))
        # agents in turn give the atoms' first positions, moved to where the barycentre's mean is sure to be
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
