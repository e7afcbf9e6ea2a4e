"""What to expect of a method before it runs, from its exact law on the posterior's Gaussian approximation."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import models
from .network import Network
from .posterior import Posterior, Potential, Shard
from .response import Response, respond
from .sampler import Sampler
from .warmup import Warmup

# Draws that an agent's Hessian is averaged over, and parameters up to which it is looked at whole.
_LOOKS, _DENSE = 16, 200


def gaussian_model(post: Posterior, warmup: Warmup) -> Posterior:
    """The Gaussian posterior that stands for another one in whitened coordinates.

    Its local potentials are quadratic, with each agent's mean Hessian over draws of N(0, I) and its gradient at 0.
    Above 200 parameters it has one parameter only, in which every agent has the largest curvature of its own.
    """
    if post.dim > _DENSE:
        largest = warmup.curvature[:, 1]
        return models.quadratic(largest[:, None, None], np.zeros((post.num_agents, 1)))
    half = np.random.default_rng(2).standard_normal((_LOOKS // 2, post.dim))
    hessians, gradients = post.each(_mean_hessian, np.concatenate([half, -half]))
    # the sums vanish up to the error of warm-up, which is none of the method's
    linear = gradients.mean(axis=0) - gradients
    return models.quadratic(hessians, linear)


def _mean_hessian(
    potential: Potential, shard: Shard, z: Float[Array, "look dim"]
) -> tuple[Float[Array, "dim dim"], Float[Array, " dim"]]:
    zero = jnp.zeros_like(z[0])
    if shard.quadratic is not None:
        return potential.hessian(shard, zero), potential.gradient(shard, zero)
    total = potential.hessian(shard, z[0])
    for x in z[1:]:
        total = total + potential.hessian(shard, x)
    return total / z.shape[0], potential.gradient(shard, zero)


def worst_bias(found: Response, post: Posterior) -> float:
    """The largest error of any agent's mean or standard deviation, in standard deviations of a Gaussian posterior."""
    exact = post.exact()
    mean = np.abs(found.mean - exact.mean) / exact.sd
    return float(max(mean.max(), np.abs(found.sd / exact.sd - 1.0).max()))


def fewest_exchanges(
    make: Callable[[int], Sampler], post: Posterior, network: Network, *, tolerance: float = 0.01, most: int = 256
) -> int:
    """The fewest exchanges a step with which every agent's bias is within a tolerance.

    Parameters
    ----------
    make
        The method, of its `mix_rounds`.
    post
        A Gaussian posterior.
    network
        Who talks to whom.
    tolerance
        As `worst_bias` counts.
    most
        Exchanges that are tried.

    Raises
    ------
    ArithmeticError
        So many are not enough.
    """

    def serves(count: int) -> bool:
        try:
            return worst_bias(respond(post, network, make(count)), post) <= tolerance
        except ArithmeticError:
            # unstable
            return False

    too_few, enough = 0, 1
    while not serves(enough):
        if enough >= most:
            raise ArithmeticError(
                f"{network!r} mixes too slowly: {most} exchanges a step do not bring every agent within {tolerance:g} "
                "standard deviations of the posterior; a smaller step_size or more edges would"
            )
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if serves(middle) else (middle, enough)
    return enough
