"""Proximal steps argmin_x f_i(x) + strength |x - center|^2 / 2 of one agent."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import optax
from jaxtyping import Array, Float, Int

from .agent import Agent

# Newton forms and factors d x d Hessians; above this many parameters L-BFGS is cheaper.
NEWTON_DIM = 300
# Far more than either method needs; a step that is not solved by then reports its error.
MAX_ITERATIONS = 100
# A Hessian reads every row once, as a gradient does, and is counted as one.
_NEWTON_COST = 1

Vector = Float[Array, " dim"]


class Proximal(NamedTuple):
    """A proximal point, its error, and the gradients (of all rows) that finding it took."""

    point: Vector
    error: Float[Array, ""]
    evaluations: Int[Array, ""]


def proximal_point(
    agent: Agent, center: Vector, strength: Array, *, start: Vector, tolerance: Array | float
) -> Proximal:
    """The proximal point of f_i, and its error where that is above the tolerance.

    Parameters
    ----------
    agent
        Whose potential f_i; convex.
    center, strength
        Of the quadratic |x - center|^2 strength / 2; strength > 0.
    start
        Where iterative solvers begin, shape (dim,).
    tolerance
        Distance to the solution, in the units of x, at which they stop.

    Returns
    -------
    Proximal
        Its `error` is 0 where the tolerance is met, else a bound on the distance to the solution,
        |gradient| / strength, or the size of Newton's last step if that is smaller.
    """
    if agent.shard.quadratic is not None:
        return _closed_form(agent, center, strength)
    solve = _newton if center.size <= NEWTON_DIM else _lbfgs
    # no solver gets closer than a few roundings of x
    floor = 64.0 * jnp.finfo(center.dtype).eps * (1.0 + jnp.linalg.norm(center))
    found = solve(agent, center, strength, start, tolerance + floor)
    return found._replace(error=jnp.where(found.error <= tolerance + floor, 0.0, found.error))


def _closed_form(agent: Agent, center: Vector, strength: Array) -> Proximal:
    form = agent.shard.quadratic
    assert form is not None and form.eigenvalues is not None and form.eigenvectors is not None
    target = form.eigenvectors.T @ (strength * center + form.linear)
    point = form.eigenvectors @ (target / (form.eigenvalues + strength))
    return Proximal(point, jnp.zeros((), center.dtype), jnp.int32(1))


def _newton(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> Proximal:
    def slope(x: Vector) -> Vector:
        return agent.gradient(x) + strength * (x - center)

    def unfinished(carry: tuple) -> Array:
        _, _, size, count, _ = carry
        return (size > tolerance) & (count < MAX_ITERATIONS)

    def step(carry: tuple) -> tuple:
        x, gradient, _, count, evaluations = carry
        curvature = agent.hessian(x) + strength * jnp.eye(x.size, dtype=x.dtype)
        direction = -jax.scipy.linalg.solve(curvature, gradient, assume_a="pos")
        # where the Hessian is infinite (a power potential at its centre) the gradient alone still descends
        direction = jnp.where(jnp.isfinite(direction).all(), direction, -gradient / strength)
        norm, length = jnp.linalg.norm(gradient), jnp.linalg.norm(direction)

        # Damping: halve until the gradient shrinks. Steps below the tolerance are taken as they are: rounding
        # decides about their gradients.
        def too_long(trial: tuple) -> Array:
            fraction, _, new, _ = trial
            return ~(jnp.linalg.norm(new) <= (1.0 - 0.1 * fraction) * norm) & (fraction * length > tolerance)

        def halve(trial: tuple) -> tuple:
            fraction = trial[0] / 2.0
            point = x + fraction * direction
            return fraction, point, slope(point), trial[3] + 1

        full = x + direction
        first = (jnp.ones((), x.dtype), full, slope(full), evaluations + _NEWTON_COST + 1)
        fraction, x, gradient, evaluations = jax.lax.while_loop(too_long, halve, first)
        # strong convexity: the distance to the solution is at most |gradient| / strength
        size = jnp.minimum(fraction * length, jnp.linalg.norm(gradient) / strength)
        return x, gradient, size, count + 1, evaluations

    infinite = jnp.full((), jnp.inf, start.dtype)
    x, _, size, _, evaluations = jax.lax.while_loop(unfinished, step, (start, slope(start), infinite, 0, jnp.int32(1)))
    return Proximal(x, size, evaluations)


def _lbfgs(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> Proximal:
    def objective(x: Vector) -> Array:
        return agent.value(x) + strength * jnp.sum((x - center) ** 2) / 2.0

    optimiser = optax.lbfgs()
    value_and_gradient = optax.value_and_grad_from_state(objective)

    def distance(gradient: Vector) -> Array:
        return jnp.linalg.norm(gradient) / strength

    def unfinished(carry: tuple) -> Array:
        _, gradient, _, count = carry
        # at least one step: a start within the tolerance must not be where an optimiser stays
        return ((distance(gradient) > tolerance) | (count == 0)) & (count < MAX_ITERATIONS)

    def step(carry: tuple) -> tuple:
        x, gradient, state, count = carry
        value, gradient = value_and_gradient(x, state=state)
        updates, state = optimiser.update(gradient, state, x, value=value, grad=gradient, value_fn=objective)
        x = optax.apply_updates(x, updates)
        return x, optax.tree.get(state, "grad"), state, count + 1

    carry = (start, jax.grad(objective)(start), optimiser.init(start), 0)
    x, gradient, _, count = jax.lax.while_loop(unfinished, step, carry)
    # its line search evaluates a few more; how many is not told
    return Proximal(x, distance(gradient), jnp.int32(1) + count)
