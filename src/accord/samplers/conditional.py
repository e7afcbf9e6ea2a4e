"""Conditional draws for Gibbs samplers: x ~ exp(-(f_i(x) + strength |x - center|^2 / 2) / temperature)."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..base.checks import positive, whole_number
from ..base.errors import unknown_name_error
from ..base.pytree import pytree, static
from ..posterior import Posterior
from ..posterior.curvature import HESSIAN_DIM
from ..posterior.potential import Potential, Shard
from .agent import Agent, Noise
from .proximal import proximal_point

Vector = Float[Array, " dim"]

_POWER_ITERATIONS = 50


class Count(NamedTuple):
    """Cost of one agent's draw."""

    # Rejected proposals.
    rejections: Int[Array, ""]
    # Evaluations of f_i or its gradient, and Hessian-vector products.
    gradients: Int[Array, ""]


class Conditional(abc.ABC):
    """How an agent draws from its potential with a quadratic tie to a centre."""

    def check(self, post: Posterior) -> None:
        """Raise `ValueError` if the potentials do not support it."""
        return None

    def curvatures(self, post: Posterior) -> np.ndarray:
        """The argument `curvature` of `draw` for each agent, (agent,)."""
        return curvatures(post)

    @property
    def is_linear(self) -> bool:
        """Whether a draw is linear in one vector of normals. Otherwise it uses a random key and counts its cost."""
        return False

    @abc.abstractmethod
    def draw(
        self, agent: Agent, center: Vector, strength: Array, x: Vector, noise: Noise, temperature: float, curvature: Any
    ) -> tuple[Vector, Count | None]:
        """A draw and its cost, given the agent's present position x.

        `curvature` is a bound or estimate of the largest eigenvalue of the Hessian of f_i, 0 if unknown.
        """

    def acceptance_rate(self, rejections: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """The fraction of accepted proposals."""
        return draws / (draws + rejections)

    def summarise(self, monitored: dict[str, np.ndarray], draws: np.ndarray) -> dict[str, np.ndarray]:
        """Statistics of a run, with rejections replaced by the acceptance rate, the lowest of all agents."""
        kept = {name: values for name, values in monitored.items() if name != "rejections"}
        if "rejections" in monitored:
            kept["acceptance_rate"] = self.acceptance_rate(monitored["rejections"], draws)
        return kept

    def explain(self) -> str:
        """Why a draw is NaN, as the beginning of a sentence."""
        return f"{self} could not draw from its conditional: the potential is not convex"


@pytree
class Exact(Conditional):
    """The Gaussian conditional of a quadratic potential, in closed form."""

    def check(self, post: Posterior) -> None:
        if not post.quadratic:
            raise ValueError(
                'conditional="exact" needs quadratic potentials, and this posterior does not declare them: '
                'set quadratic=True on the posterior if they are, else use conditional="rejection" or "mala"'
            )

    def curvatures(self, post: Posterior) -> np.ndarray:
        # draws use the whole Hessian
        return np.zeros(post.num_agents)

    @property
    def is_linear(self) -> bool:
        return True

    def draw(
        self, agent: Agent, center: Vector, strength: Array, x: Vector, noise: Noise, temperature: float, curvature: Any
    ) -> tuple[Vector, None]:
        form = agent.shard.quadratic
        assert form is not None and form.eigenvectors is not None and noise.normal is not None
        mean = form.proximal_point(strength, center)
        return mean + form.spread(strength, noise.normal), None


@pytree
class Rejection(Conditional):
    """Rejection sampling from a Gaussian at the conditional's mode, exact for convex potentials.

    With x* near the mode, convexity bounds the conditional by a Gaussian N(center - grad f(x*) / strength, temperature
    / strength). A proposal x is accepted with probability exp(-D(x, x*) / temperature), where D is the Bregman distance
    of f_i, f(x) - f(x*) - <grad f(x*), x - x*> >= 0. The draw is exact for any x*, and x* closer to the mode needs
    fewer proposals. If f_i is beta-smooth, the acceptance probability is at least (1 + beta / strength)^(-dim / 2).

    Parameters
    ----------
    max_tries
        Largest number of proposals for one draw, >= 1. The run fails if a draw needs more.
    """

    max_tries: int = static(default=1000)

    def __post_init__(self) -> None:
        whole_number("max_tries", self.max_tries, 1)

    def draw(
        self, agent: Agent, center: Vector, strength: Array, x: Vector, noise: Noise, temperature: float, curvature: Any
    ) -> tuple[Vector, Count]:
        spread = jnp.sqrt(temperature / strength)
        # a hundredth of the proposal's width: more precision saves no proposals
        found = proximal_point(agent, center, strength, start=x, tolerance=0.01 * spread)
        peak, slope, value = found.point, agent.gradient(found.point), agent.value(found.point)
        middle, key = center - slope / strength, noise.random_key()
        # rounding error of a sum of many terms: a distance below its negative means that f_i is not convex
        rounding = 64.0 * jnp.finfo(x.dtype).eps * (1.0 + jnp.abs(value))

        def unfinished(carry: tuple) -> Array:
            _, accepted, convex, tries = carry
            return ~accepted & convex & (tries < self.max_tries)

        def attempt(carry: tuple) -> tuple:
            _, _, _, tries = carry
            for_point, for_decision = jax.random.split(jax.random.fold_in(key, tries))
            point = middle + spread * jax.random.normal(for_point, x.shape, x.dtype)
            distance = agent.value(point) - value - slope @ (point - peak)
            accepted = jax.random.exponential(for_decision, (), x.dtype) > distance / temperature
            return point, accepted, distance >= -rounding, tries + 1

        start = (x, jnp.zeros((), bool), jnp.ones((), bool), jnp.int32(0))
        point, accepted, convex, tries = jax.lax.while_loop(unfinished, attempt, start)
        # the run stops at a NaN and calls `explain`
        point = jnp.where(accepted & convex, point, jnp.nan)
        return point, Count(tries - 1, found.evaluations + 2 + tries)


@pytree
class MALA(Conditional):
    """Metropolis-adjusted Langevin steps from the agent's present position, which leave the conditional invariant.

    Parameters
    ----------
    steps
        Steps of one draw, >= 1.
    scale
        Step size, > 0, as a multiple of dim^(-1/3) / (strength + curvature), which keeps the acceptance rate over
        dimensions.
    """

    steps: int = static(default=3)
    scale: float = 1.0

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)
        positive("scale", self.scale)

    def draw(
        self, agent: Agent, center: Vector, strength: Array, x: Vector, noise: Noise, temperature: float, curvature: Any
    ) -> tuple[Vector, Count]:
        step = self.scale * x.size ** (-1.0 / 3.0) / (strength + curvature)
        key = noise.random_key()

        def evaluate(x: Vector) -> tuple[Array, Vector]:
            away = x - center
            value = agent.value(x) + strength * jnp.sum(away**2) / 2.0
            return value / temperature, agent.gradient(x) + strength * away

        def proposal_cost(new: Vector, old: Vector, slope: Vector) -> Array:
            return jnp.sum((new - old + step * slope) ** 2) / (4.0 * step * temperature)

        def move(k: Array, carry: tuple) -> tuple:
            x, (value, slope), rejections = carry
            for_point, for_decision = jax.random.split(jax.random.fold_in(key, k))
            normal = jax.random.normal(for_point, x.shape, x.dtype)
            point = x - step * slope + jnp.sqrt(2.0 * step * temperature) * normal
            there = evaluate(point)
            cost = there[0] - value + proposal_cost(x, point, there[1]) - proposal_cost(point, x, slope)
            # a NaN cost compares as false and rejects the point
            accepted = jax.random.exponential(for_decision, (), x.dtype) > cost
            new = (point, there, rejections)
            old = (x, (value, slope), rejections + 1)
            return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)

        x, _, rejections = jax.lax.fori_loop(0, self.steps, move, (x, evaluate(x), jnp.int32(0)))
        return x, Count(rejections, jnp.int32(2 * (self.steps + 1)))

    def acceptance_rate(self, rejections: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return 1.0 - rejections / (draws * self.steps)


CONDITIONALS: dict[str, type[Conditional]] = {"exact": Exact, "rejection": Rejection, "mala": MALA}


def as_conditional(name: str, conditional: Any) -> Conditional:
    """A conditional by name, or the given instance."""
    if isinstance(conditional, Conditional):
        return conditional
    if conditional not in CONDITIONALS:
        names: Iterable[str] = CONDITIONALS
        raise unknown_name_error(name, conditional, names)
    return CONDITIONALS[conditional]()


def curvatures(post: Posterior) -> np.ndarray:
    """The largest eigenvalue of each potential's Hessian at the posterior's init, (agent,), 0 if not finite.

    This is a global bound for quadratic potentials, and for logistic regression with init 0. With many parameters,
    power iterations estimate it slightly from below. Each agent sends one number.
    """
    many = not post.quadratic and post.dim > HESSIAN_DIM
    return post.each(_by_power_iterations if many else largest_curvature, post.init)


def largest_curvature(potential: Potential, shard: Shard, x: Vector, basis: Array | None = None) -> Array:
    """The largest eigenvalue of an agent's Hessian at x, along the columns of a basis; 0 if not finite."""
    hessian = potential.hessian(shard, x)
    if basis is not None:
        hessian = basis.T @ hessian @ basis
    finite = jnp.isfinite(hessian).all()
    return jnp.maximum(jnp.linalg.eigvalsh(jnp.where(finite, hessian, 0.0))[-1], 0.0)


def _by_power_iterations(potential: Potential, shard: Shard, x: Vector) -> Array:
    def product(v: Vector) -> Vector:
        return jax.jvp(lambda y: potential.gradient(shard, y), (x,), (v,))[1]

    def again(_: Array, v: Vector) -> Vector:
        image = product(v)
        return image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(x.dtype).tiny)

    v = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    v = jax.lax.fori_loop(0, _POWER_ITERATIONS, again, v / jnp.linalg.norm(v))
    found = v @ product(v)
    return jnp.maximum(jnp.where(jnp.isfinite(found), found, 0.0), 0.0)
