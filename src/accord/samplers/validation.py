"""What must fit before a run: posterior, network and method."""

from __future__ import annotations

from ..network import Network
from ..posterior import Posterior
from .protocol import Sampler

# The stability bound needs the extreme eigenvalue of an (agent * dim) matrix; above this size a run that diverges is
# stopped when it does.
_BOUND_SIZE = 20_000
_DENSE_BOUND_SIZE = 2_000


def check_fit(post: Posterior, net: Network, sampler: Sampler) -> None:
    """Raise one clear `ValueError` where posterior, network and method do not fit one another."""
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler must be a method from accord.samplers, such as DESGLD(0.01), found {sampler!r}")
    if net.num_agents != post.num_agents:
        raise ValueError(f"the network has {net.num_agents} agents but the posterior has {post.num_agents} shards")
    sampler.check_network(net)


def check_complete(sampler: Sampler) -> None:
    """Raise `ValueError` where numbers are left out that only a plan chooses."""
    missing = [name for name in sampler.planned if getattr(sampler, name) is None]
    if missing:
        raise ValueError(
            f"{type(sampler).__name__} has no {' and no '.join(missing)}, which is chosen in whitened coordinates: "
            "give all numbers, or sample with whiten=True"
        )


def check_rows(post: Posterior, sampler: Sampler) -> None:
    """Raise `ValueError` where the agents' data does not allow the method's minibatches."""
    rows = sampler.rows_per_gradient()
    if rows is not None and not post.splits:
        raise ValueError("batch_size needs a log_likelihood that returns one number a row; this one returns a scalar")
    if rows is not None and rows > post.sizes.min():
        agent = int(post.sizes.argmin())
        raise ValueError(
            f"batch_size must be at most the smallest shard, {post.sizes[agent]} rows of agent {agent}; found {rows}"
        )


def check_step(post: Posterior, net: Network, sampler: Sampler) -> None:
    """Raise `ValueError` where the step is known to be unstable: constant steps on Gaussian posteriors.

    Hessians do not travel for it: a posterior that is held elsewhere is not checked.
    """
    if not post.quadratic or not sampler.is_constant() or not bound_is_cheap(post, sampler):
        return
    bound, step = sampler.max_step(net, post.hessians()), getattr(sampler, "step_size", None)
    if bound is not None and step is not None and not step < bound:
        raise ValueError(
            f"step_size {step:.6g} is not below {bound:.6g}, the stability bound of {type(sampler).__name__} "
            "on this posterior and network"
        )


def bound_is_cheap(post: Posterior, sampler: Sampler) -> bool:
    """Whether `max_step` is found in no time; where the data is held elsewhere it is not looked for."""
    # several exchanges fill the matrix that the bound factors
    limit = _BOUND_SIZE if sampler.exchanges_per_round() == 1 else _DENSE_BOUND_SIZE
    return not post.is_held_elsewhere and post.num_agents * post.dim <= limit
