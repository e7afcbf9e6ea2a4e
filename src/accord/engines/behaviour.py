"""Values of a posterior at two fixed positions, which detect changed data and functions in a resumed run."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..base.compiler import compiled
from ..base.errors import DataError
from ..posterior import Posterior
from ..posterior.evaluate import slope_at
from ..posterior.parameters import Parameters
from .checkpoint import CheckpointStore

# Largest distance of the second position from init in a parameter.
_STEP = 0.1
# Relative tolerance of equal numbers, for the order of additions on another machine.
_SAME = 1e-9
# Tolerance relative to an agent's largest number at the position, for cancellation.
_CANCELLED = 1e-13


def positions(post: Posterior) -> Float[np.ndarray, "2 dim"]:
    """Two positions in unconstrained parameters, `init` and a fixed one near it."""
    init = post.in_parameters().init
    return np.stack([init, init + _STEP * np.cos(np.arange(1.0, 1.0 + init.size))])


def prior_values(post: Posterior) -> Float[np.ndarray, 2]:
    """The log prior at the two positions."""
    with jax.enable_x64(True):
        return np.asarray(_values(post._log_prior, post.parameters, positions(post)))


@compiled
def _values(log_prior: Partial, parameters: Parameters, x: Float[Array, "position dim"]) -> Float[Array, " position"]:
    return jax.lax.map(lambda one: log_prior(parameters(one)), x)


def require_same_posterior(folder: Path, post: Posterior, key: bytes = b"") -> None:
    """Store each agent's potential and gradient at the two positions, or compare them with the stored values.

    Parameters
    ----------
    folder
        Folder of the process with the agents' data. The values depend on the rows and stay there.
    post
        Posterior with the data of some agents.
    key
        Key that signs the file.

    Raises
    ------
    DataError
        The values differ from the stored values.
    """
    store, post = CheckpointStore(folder / "posterior", "posterior", key=key), post.in_parameters()
    found = np.stack([np.column_stack(post.each(slope_at, x)) for x in positions(post)], axis=1)
    if not store.rounds():
        store.write(0, {"slopes": found, "agents": np.array(post.held)})
    stored = store.read(0)
    before = stored["slopes"]
    if before.shape != found.shape or not np.array_equal(stored["agents"], post.held):
        raise DataError(f"cannot resume from {folder}: agents or parameters changed. Use a new checkpoint folder.")
    same = _is_same(found, before).all(axis=(1, 2))
    if not same.all():
        raise DataError(
            f"cannot resume from {folder}: the data of agent {post.held[int(np.argmin(same))]} or a function of the "
            "posterior changed since the run began. Use a new checkpoint folder."
        )


def _is_same(now: Float[np.ndarray, "agent 2 number"], before: Float[np.ndarray, "agent 2 number"]) -> np.ndarray:
    """Whether each number is equal up to rounding."""
    finite = np.isfinite(before)
    largest = np.abs(np.where(finite, before, 0.0)).max(axis=2, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(now - before) <= _SAME * np.abs(before) + _CANCELLED * largest
    # infinite potentials compare exactly
    return np.where(finite, near, np.equal(now, before) | (np.isnan(now) & np.isnan(before)))
