"""Several posteriors of the same rows as one, so that each agent can be asked about all of them at once."""

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
    """The product of several posteriors, whose agents hold the shards of all of them, and the potential of each.

    A shard is the tuple of the agent's shards, in the order of the posteriors; so are the parameters. The potentials
    are those of the user's parameters, each to be evaluated with its own part of a shard. Nothing is read that is not
    arrays already.

    Parameters
    ----------
    posts
        By name, of the same agents; row r of an agent is the same observation in all of them.

    Raises
    ------
    ValueError
        They are of different numbers of agents, or, where a shard is read, an agent does not hold as many rows of each,
        or a log likelihood does not give one number a row.
    """
    (first, one), *others = posts.items()
    for name, other in others:
        if other.num_agents != one.num_agents:
            raise ValueError(
                f"runs must be of the same agents: {first} is of {one.num_agents} agents, {name} of {other.num_agents}"
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
    """All sources of an agent as one, unread where one of them is."""
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
    """Raise `ValueError` unless an agent's shards are of as many rows each, of which each model says a number."""
    counts = {}
    for (name, model), shard in zip(models.items(), shards, strict=True):
        if model._check is not None:
            model._check(agent, shard)
        if model._local is not None:
            raise ValueError(
                f"rows can be left out one by one where they have no latents in common; those of {name} do"
            )
        if jax.eval_shape(model._log_likelihood, model._params, shard).shape == ():
            raise ValueError(
                f"rows can be left out where the log likelihood gives one number a row; that of {name} gives one for "
                "the whole shard"
            )
        counts[name] = int(row_counts({agent: shard})[0])
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} in {name}" for name, count in counts.items())
        raise ValueError(f"runs must be of the same rows: agent {agent} has {listed}")
