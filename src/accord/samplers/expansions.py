"""Quadratic models of the agents' potentials, for methods that leave only the rest to the network."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.memory import require_matrices
from ..network import Network
from ..posterior import Posterior
from ..posterior.newton import Expansion, newton
from ..posterior.potential import Potential, Shard
from ..results.traffic import Traffic
from .costs import total_traffic


class Quadratic(NamedTuple):
    """A quadratic potential by its slope (dim,) at a center that all agents know, and its curvature (dim, dim)."""

    slope: Any
    curvature: Any

    def gradient(self, away: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Its gradient so far away from the center."""
        return self.slope + self.curvature @ away


class Expansions(NamedTuple):
    """Quadratic models of all f_i about one center (dim,): slopes (agent, dim) there, curvatures (agent, dim, dim)."""

    center: Any
    slopes: Any
    curvatures: Any

    @property
    def own(self) -> Quadratic:
        """Those of the agents, arrays with a leading agent axis."""
        return Quadratic(self.slopes, self.curvatures)

    @property
    def whole(self) -> Quadratic:
        """Their sum."""
        return Quadratic(self.slopes.sum(axis=0), self.curvatures.sum(axis=0))


def expanded_at(post: Posterior, center: np.ndarray) -> Expansions:
    """The second-order expansions of all f_i at a point."""
    _require_all(post)
    _, slopes, curvatures = post.each(_expansion, center)
    return Expansions(center, slopes, curvatures)


def expanded_at_mode(post: Posterior, network: Network) -> tuple[Expansions, Traffic]:
    """The expansions of all f_i at the mode of F, and what that took; anywhere on quadratic ones."""
    _require_all(post)
    asked = []

    def expand(x: np.ndarray) -> Expansion:
        asked.append(post.each(_expansion, x))
        value, slope, curvature = (part.sum(axis=0) for part in asked[-1])
        return Expansion(float(value), slope, curvature)

    center = np.asarray(post.init, np.float64)
    if post.quadratic:
        expand(center)
    else:
        center, _ = newton(expand, center, post.unconstrained_names, last_step=1e-6)
        expand(center)
    _, slopes, curvatures = asked[-1]
    return Expansions(center, slopes, curvatures), expansion_traffic(network, post.dim, len(asked))


def expansion_traffic(network: Network, dim: int, count: int = 1) -> Traffic:
    """What it takes to sum so many expansions over the network."""
    return total_traffic(network, (dim + 1) * (dim + 2) // 2, count)


def _require_all(post: Posterior) -> None:
    """Raise `ValueError` unless memory holds a curvature an agent."""
    remedy = "take a method that has no models of its agents, such as GTBAOAB"
    require_matrices("the agents' models", post.dim, post.num_agents, remedy)


def _expansion(potential: Potential, shard: Shard, x: Array) -> tuple[Array, Array, Array]:
    """Value, gradient and Hessian of f_i."""
    return jnp.asarray(potential.value(shard, x)), potential.gradient(shard, x), potential.hessian(shard, x)
