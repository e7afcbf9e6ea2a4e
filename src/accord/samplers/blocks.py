"""Operators A_i of DG-LMC: the part A_i x of the parameters that an agent's potential depends on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from .conditional import curvatures, largest_curvature


def times(A: Any, x: Array) -> Array:
    """A x, where a number A stands for a multiple of the identity."""
    return A * x if jnp.ndim(A) == 0 else A @ x


def as_blocks(
    operators: tuple[np.ndarray, ...] | None, post: Posterior
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, " agent"]]:
    """Operators and their pseudo-inverses, stacked (ones for identities), and the largest curvature of each U_i.

    U_i(z) = f_i(A_i^+ z). Raises what `check_operators` raises.
    """
    if operators is None:
        return np.ones(post.num_agents), np.ones(post.num_agents), curvatures(post)
    check_operators(operators, post)
    A, inverse = padded(operators)
    return A, inverse, post.each(largest_curvature, post.init, own=(inverse,))


def padded(operators: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Operators (agent, width, dim) with rows of zeros below, and pseudo-inverses (agent, dim, width)."""
    width = max(len(A) for A in operators)
    A = np.stack([np.pad(A, ((0, width - len(A)), (0, 0))) for A in operators])
    return A, np.linalg.pinv(A)


def check_operators(operators: tuple[np.ndarray, ...], post: Posterior) -> None:
    """Raise `ValueError` where operators do not fit a posterior.

    They must be one finite matrix an agent with dim columns, sum_i A_i' A_i be invertible (H1 of the DG-LMC paper), and
    every potential depend on A_i x alone.
    """
    if len(operators) != post.num_agents:
        raise ValueError(f"operators must hold one matrix an agent, {post.num_agents}, found {len(operators)}")
    for agent, A in enumerate(operators):
        if A.ndim != 2 or A.shape[1] != post.dim or A.shape[0] == 0 or not np.isfinite(A).all():
            raise ValueError(
                f"the operator of agent {agent} must be finite of shape (d_i, {post.dim}), found {A.shape}"
            )
    values = np.linalg.eigvalsh(sum(A.T @ A for A in operators))
    if not values[0] > 1e-10 * values[-1]:
        raise ValueError(
            f"sum_i A_i' A_i must be invertible (H1 of the DG-LMC paper), found the eigenvalue {values[0]:.3g}"
        )
    A, inverse = padded(operators)
    x = post.init + np.random.default_rng(0).standard_normal(post.dim)
    outside = post.each(_outside, x, own=(np.eye(post.dim) - inverse @ A,))
    if (outside > 1e-6).any():
        agent = int(np.argmax(outside))
        raise ValueError(
            f"the potential of agent {agent} depends on more than A_i x: its gradient has a part of relative size "
            f"{outside[agent]:.3g} outside the rows of its operator (a proper prior does this; "
            "give it to an agent of its own)"
        )


def _outside(potential: Potential, shard: Shard, x: Array, projector: Array) -> Array:
    """The part of an agent's gradient that a projector leaves, relative to the whole."""
    gradient = potential.gradient(shard, x)
    return jnp.abs(projector @ gradient).max() / (1.0 + jnp.abs(gradient).max())
