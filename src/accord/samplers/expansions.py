"""Quadratic models of the agents' potentials, for methods that send only the remainder over the network."""

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
    """A quadratic potential, given by its slope (dim,) at a common center and its curvature (dim, dim)."""

    slope: Any
    curvature: Any

    def gradient(self, away: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient at center + away."""
        return self.slope + self.curvature @ away


class Expansions(NamedTuple):
    """Quadratic models of all f_i about a center (dim,): slopes (agent, dim) there and curvatures (agent, dim, dim)."""

    center: Any
    slopes: Any
    curvatures: Any

    @property
    def own(self) -> Quadratic:
        """The agents' models, arrays with a leading agent axis."""
        return Quadratic(self.slopes, self.curvatures)

    @property
    def whole(self) -> Quadratic:
        """The sum of the agents' models."""
        return Quadratic(self.slopes.sum(axis=0), self.curvatures.sum(axis=0))


def expanded_at(post: Posterior, center: np.ndarray) -> Expansions:
    """The second-order expansions of all f_i at a point."""
    _require_all(post)
    _, slopes, curvatures = post.each(_expansion, center)
    return Expansions(center, slopes, curvatures)


def expanded_at_mode(post: Posterior, network: Network) -> tuple[Expansions, Traffic]:
    """The expansions of all f_i at the mode of F (of quadratic ones: at the init), and their traffic."""
    _require_all(post)
    found = []

    def expand(x: np.ndarray) -> Expansion:
        found.append(post.each(_expansion, x))
        value, slope, curvature = (part.sum(axis=0) for part in found[-1])
        return Expansion(float(value), slope, curvature)

    center = np.asarray(post.init, np.float64)
    if post.quadratic:
        expand(center)
    else:
        center, _ = newton(expand, center, post.unconstrained_names, last_step=1e-6)
        expand(center)
    _, slopes, curvatures = found[-1]
    return Expansions(center, slopes, curvatures), expansion_traffic(network, post.dim, len(found))


def expansion_traffic(network: Network, dim: int, count: int = 1) -> Traffic:
    """Traffic of `count` sums of a value, gradient and Hessian over the network."""
    return total_traffic(network, (dim + 1) * (dim + 2) // 2, count)


def _require_all(post: Posterior) -> None:
    """Raise `ValueError` if memory does not hold one curvature per agent."""
    remedy = "use a method without models of its agents, such as GTBAOAB"
    require_matrices("the agents' models", post.dim, post.num_agents, remedy)


def _expansion(potential: Potential, shard: Shard, x: Array) -> tuple[Array, Array, Array]:
    """Value, gradient and Hessian of f_i."""
    return jnp.asarray(potential.value(shard, x)), potential.gradient(shard, x), potential.hessian(shard, x)
