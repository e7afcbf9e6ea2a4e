"""The product of several posteriors of the same rows, so that one call per agent evaluates all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from .posterior import Posterior
from .potential import Potential
from .shards import Source, is_unread, read, row_counts


def joint(posts: Mapping[str, Posterior]) -> tuple[Posterior, tuple[Potential, ...]]:
    """The product of several posteriors, and the potential of each.

    Shards and parameters are tuples, in the order of the posteriors. Each potential is a function of the user's
    parameters and of its own entry of a shard. Shards that are functions or files stay unread.

    Parameters
    ----------
    posts
        Posteriors of the same agents, by name. Row r of an agent must be the same observation in all of them.

    Raises
    ------
    ValueError
        The numbers of agents differ. When a shard is read: an agent's numbers of rows differ, or a log likelihood does
        not return one number per row.
    """
    (first, one), *others = posts.items()
    for name, other in others:
        if other.num_agents != one.num_agents:
            raise ValueError(
                f"runs must have the same agents: {first} has {one.num_agents} agents, {name} has {other.num_agents}"
            )
    agents = range(one.num_agents)
    for post in posts.values():
        post._require(agents)
    sources = [_source([post._sources[agent] for post in posts.values()], agent) for agent in agents]
    likelihoods = tuple(post._log_likelihood for post in posts.values())
    priors = tuple(post._log_prior for post in posts.values())
    models = {name: post._with(_sources={}) for name, post in posts.items()}
    init, check = tuple(post._params for post in posts.values()), partial(_check_rows, models)
    whole = Posterior(Partial(_log_likelihood, likelihoods), Partial(_log_prior, priors), sources, init, check=check)
    potentials = [
        Potential(post._log_likelihood, post._log_prior, None, post.parameters, None, post.num_agents, True)
        for post in posts.values()
    ]
    return whole, tuple(potentials)


def _source(sources: Sequence[Source], agent: int) -> Source:
    """All sources of an agent as one source, unread if one of them is."""
    return partial(_read, tuple(sources), agent) if any(map(is_unread, sources)) else tuple(sources)


def _read(sources: tuple[Source, ...], agent: int) -> PyTree:
    return tuple(read(source, agent) for source in sources)


def _log_likelihood(likelihoods: tuple[Partial, ...], params: tuple[Any, ...], rows: tuple[Any, ...]) -> Array:
    found = [f(own, part) for f, own, part in zip(likelihoods, params, rows, strict=True)]
    return sum(found[1:], found[0])


def _log_prior(priors: tuple[Partial, ...], params: tuple[Any, ...]) -> Array:
    found = [f(own) for f, own in zip(priors, params, strict=True)]
    return sum(found[1:], found[0])


def _check_rows(models: dict[str, Posterior], agent: int, shards: tuple[Any, ...]) -> None:
    """Raise `ValueError` unless an agent's shards have equal numbers of rows and all likelihoods are rowwise."""
    counts = {}
    for (name, model), shard in zip(models.items(), shards, strict=True):
        if model._check is not None:
            model._check(agent, shard)
        if model._local is not None:
            raise ValueError(f"leaving out rows one by one needs rows without shared latents, which {name} has")
        if jax.eval_shape(model._log_likelihood, model._params, shard).shape == ():
            raise ValueError(
                f"leaving out rows needs a log likelihood that returns one number per row; {name} returns one for the "
                "whole shard"
            )
        counts[name] = int(row_counts({agent: shard})[0])
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} in {name}" for name, count in counts.items())
        raise ValueError(f"runs must have the same rows: agent {agent} has {listed}")
