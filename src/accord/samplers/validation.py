"""Checks that a posterior, a network and a method fit together."""

from __future__ import annotations

from typing import get_args

import jax
import numpy as np

from ..network import Network
from ..network.links import Links
from ..network.weights import check_weights
from ..posterior import Posterior
from .costs import random_words
from .protocol import Bound, HasLaw, InboxName, Langevin, Needs, Sampler, Tunable

# Agents times parameters up to which the stability bound is computed, from the extreme eigenvalue of a matrix of that
# size. Above it, a divergent run stops when it diverges.
_BOUND_SIZE = 20_000
# The same if several exchanges make that matrix dense.
_DENSE_BOUND_SIZE = 2_000
# Random numbers of a round and chain: their counters have 32 bits.
_MOST_WORDS = 2**32


def check_compatible(post: Posterior, network: Network, sampler: Sampler) -> None:
    """Raise `ValueError` if posterior, network and method do not fit together.

    The network must be connected, or have no edges: then every agent samples alone. Sums and permutations over all
    agents need a connected network.
    """
    if not isinstance(sampler, Sampler):
        raise TypeError(f"method must be one from accord.samplers, such as DESGLD(0.01), found {sampler!r}")
    if jax.tree_util.all_leaves([sampler]):
        name = type(sampler).__name__
        raise TypeError(f"{name} must be decorated with @pytree from accord.samplers.protocol, as every method is")
    post.require_agents_of(network)
    needs = sampler.needs(post.dim)
    if needs.turns == "by color" or needs.inbox == "neighbour_sum":
        if network.num_agents == 1 or network.is_empty:
            raise ValueError(
                f"{type(sampler).__name__} needs a neighbour for every agent, as it ties draws to the neighbours'"
            )
    words = random_words(needs, post.dim, post.num_agents)
    if words > _MOST_WORDS:
        raise ValueError(
            f"a round of {type(sampler).__name__} takes {words:,} random numbers of {post.num_agents:,} agents in each "
            f"chain, above the limit of {_MOST_WORDS:,}: use fewer local steps, or a smaller batch_size"
        )
    if not network.is_empty or needs.spans_network:
        network.require_connected()
    if network.unreliable is not None:
        _check_links(sampler, needs, network.unreliable)


def _check_links(sampler: Sampler, needs: Needs, links: Links) -> None:
    """Raise `ValueError` with the reason if unreliable or one-way links would make the method incorrect."""
    name = type(sampler).__name__
    if needs.spans_network:
        reason = "it sums the messages of all agents in every round, and a lost message would change the sum"
    elif needs.turns == "by color":
        reason = "its colours take turns, and without a neighbour's message an agent would condition on a stale value"
    elif needs.reliable:
        reason = "its agents take a joint decision in every round, from the messages of all agents"
    elif len(links.one_way) and not needs.pushed and needs.differences is None:
        reason = (
            "some edges carry one way only, so that averages weight agents unequally; use a method with gradient "
            "tracking, such as GTBAOAB, which corrects the weights"
        )
    elif len(links.one_way) and needs.differences is not None:
        reason = "both ends of an edge must receive their difference, and some edges carry one way only"
    elif needs.differences is not None and isinstance(sampler, HasLaw) and not sampler.is_constant():
        reason = "a delayed difference would be multiplied by the step of a later round; use constant steps"
    elif _conserves(sampler) and not needs.pushed and needs.differences is None:
        reason = "it conserves a sum over the agents, and its needs() name no part of the message as pushed"
    elif links.delay[0] >= needs.exchanges and not (isinstance(sampler, Tunable) and sampler.left_out):
        least = links.delay[0] + 1
        reason = (
            f"no message arrives within a step: the least delay is {links.delay[0]} rounds, and a step has "
            f"{needs.exchanges}; set mix_rounds={least} or more, if the method has this field"
        )
    else:
        return
    raise ValueError(f"{name} cannot run on a network with {links}: {reason}")


def _conserves(sampler: Sampler) -> bool:
    return isinstance(sampler, HasLaw) and type(sampler).conserved is not HasLaw.conserved


def check_by_sums(name: str, network: Network) -> None:
    """Raise `ValueError` if a network with unreliable links is used for a sum-based method."""
    if network.unreliable is not None:
        raise ValueError(
            f"{name} cannot run on a network with {network.unreliable}: it sums over all agents, and a lost message "
            "would change the sum; use a round-based method, such as GTBAOAB(), or retransmit lost messages and give "
            "the network without links()"
        )


def is_complete(sampler: Sampler) -> bool:
    """Whether tuning has no field left to choose."""
    return not (isinstance(sampler, Tunable) and sampler.left_out)


def bind(post: Posterior, network: Network, sampler: Sampler) -> Bound:
    """The method bound to a problem, after all checks except `check_step`.

    Raises
    ------
    TypeError, ValueError
        Something does not fit, or a field is omitted that only tuning chooses.
    """
    check_compatible(post, network, sampler)
    check_rows(post, sampler)
    check_complete(sampler)
    bound = sampler.bind(post, network)
    _check_bound(type(sampler).__name__, bound, post, network)
    return bound


def _check_bound(name: str, bound: Bound, post: Posterior, network: Network) -> None:
    """Raise if the results of a method's `bind` and `needs` break the protocol."""
    if not isinstance(bound, Bound):
        raise TypeError(f"{name}.bind() must return a Bound, found {bound!r}")
    needs = bound.sampler.needs(post.dim)
    if needs.inbox not in get_args(InboxName):
        names = ", ".join(map(repr, get_args(InboxName)))
        raise TypeError(f"the inbox that {name} needs must be one of {names}, found {needs.inbox!r}")
    if bound.sampler.noise == "common" and not needs.common:
        raise TypeError(f"{name} has noise='common', but its needs() lack common=True: its noise would be too small")
    if bound.weights is not None:
        check_weights(network.adjacency, bound.weights)
    for leaf in jax.tree.leaves(bound.own):
        if np.shape(leaf)[:1] != (post.num_agents,):
            raise ValueError(
                f"Bound.own of {name}.bind() must have a row for each of {post.num_agents} agents, found shape "
                f"{np.shape(leaf)}"
            )


def check_complete(sampler: Sampler) -> None:
    """Raise `ValueError` if a field is omitted that only tuning chooses."""
    if not isinstance(sampler, Tunable):
        return
    missing = [name for name in sampler.left_out if name not in sampler.chosen_by_bind]
    if missing:
        raise ValueError(
            f"{type(sampler).__name__} has no {' and no '.join(missing)}, which is chosen in whitened coordinates: "
            "set all fields, or sample with accord.Rounds(method, whiten=True)"
        )


def check_rows(post: Posterior, sampler: Sampler) -> None:
    """Raise `ValueError` if the agents' data does not support the method's minibatches."""
    rows = sampler.needs(post.dim).batch_size
    if rows is not None and not post.splits:
        raise ValueError("batch_size needs a log_likelihood that returns one number per row; this one returns a scalar")
    if rows is not None and rows > post.sizes.min():
        agent = int(post.sizes.argmin())
        raise ValueError(
            f"batch_size must be at most the smallest shard, {post.sizes[agent]} rows of agent {agent}; found {rows}"
        )


def check_step(post: Posterior, network: Network, sampler: Sampler) -> None:
    """Raise `ValueError` if the step is known to be unstable: constant steps on Gaussian posteriors.

    Posteriors with remote data are not checked, because this would send Hessians.
    """
    if not post.quadratic or (isinstance(sampler, HasLaw) and not sampler.is_constant()):
        return
    bound, step = cheap_bound(post, network, sampler), getattr(sampler, "step_size", None)
    if bound is not None and step is not None and not callable(step) and not step < bound:
        raise ValueError(
            f"step_size {step:.6g} is not below {bound:.6g}, the stability bound of {type(sampler).__name__} "
            "on this posterior and network"
        )


def cheap_bound(post: Posterior, network: Network, sampler: Sampler) -> float | None:
    """The method's `max_step`, or None if it has none, is slow to compute or needs remote data."""
    needs = sampler.needs(post.dim)
    limit = _BOUND_SIZE if needs.exchanges == 1 and needs.inbox != "average" else _DENSE_BOUND_SIZE
    if not isinstance(sampler, Langevin) or post.is_held_elsewhere or post.num_agents * post.dim > limit:
        return None
    return sampler.max_step(network, post.hessians())
