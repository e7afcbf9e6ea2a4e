"""Digests of the functions of a posterior."""

from __future__ import annotations

import jax
from jax.tree_util import Partial
from jaxtyping import PyTree

from ..base.traced import digest
from .latents import Latents, Local, with_latents


def digests(
    log_likelihood: Partial, log_prior: Partial, local: Local | None, params: PyTree, rows: PyTree | None
) -> dict[str, str]:
    """Digests of the functions of a posterior, by name; of those that see rows where these are told.

    Parameters
    ----------
    log_likelihood, log_prior, local
        As `Posterior` takes them.
    params
        The user's pytree.
    rows
        Some rows of a shard, `jax.ShapeDtypeStruct`, or None.
    """
    found = {"log_prior": digest(log_prior, params)}
    if rows is None:
        return found
    if local is not None:
        log_likelihood = with_latents(local, log_likelihood)
        row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
        found["log_prior of local"] = digest(Latents.of(local).log_prior, params, local.init, row)
    return {**found, "log_likelihood": digest(log_likelihood, params, rows)}
