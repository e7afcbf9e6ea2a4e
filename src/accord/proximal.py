"""Proximal steps argmin_x f_i(x) + strength |x - center|^2 / 2 of one agent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import optax
from jaxtyping import Array, Float

from .sampler import Agent

# Newton forms and factors d x d Hessians; above this many parameters L-BFGS is cheaper.
NEWTON_DIM = 300
# Far more than either method needs; a step that is not solved by then reports its error.
MAX_ITERATIONS = 100

Vector = Float[Array, " dim"]


def proximal_point(
    agent: Agent, center: Vector, strength: Array, *, start: Vector, tolerance: Array | float
) -> tuple[Vector, Array]:
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
    point, error
        Shape (dim,) and a number: 0 where the tolerance is met, else a bound on the distance to the solution,
        |gradient| / strength, or the size of Newton's last step if that is smaller.
    """
    if agent.shard.quadratic is not None:
        return _closed_form(agent, center, strength)
    solve = _newton if center.size <= NEWTON_DIM else _lbfgs
    # no solver gets closer than a few roundings of x
    floor = 64.0 * jnp.finfo(center.dtype).eps * (1.0 + jnp.linalg.norm(center))
    point, error = solve(agent, center, strength, start, tolerance + floor)
    return point, jnp.where(error <= tolerance + floor, 0.0, error)


def _closed_form(agent: Agent, center: Vector, strength: Array) -> tuple[Vector, Array]:
    form = agent.shard.quadratic
    assert form is not None and form.eigenvalues is not None and form.eigenvectors is not None
    target = form.eigenvectors.T @ (strength * center + form.linear)
    return form.eigenvectors @ (target / (form.eigenvalues + strength)), jnp.zeros((), center.dtype)


def _newton(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> tuple[Vector, Array]:
    def slope(x: Vector) -> Vector:
        return agent.gradient(x) + strength * (x - center)

    def unfinished(carry: tuple) -> Array:
        _, _, size, count = carry
        return (size > tolerance) & (count < MAX_ITERATIONS)

    def step(carry: tuple) -> tuple:
        x, gradient, _, count = carry
        curvature = agent.hessian(x) + strength * jnp.eye(x.size, dtype=x.dtype)
        direction = -jax.scipy.linalg.solve(curvature, gradient, assume_a="pos")
        # where the Hessian is infinite (a power potential at its centre) the gradient alone still descends
        direction = jnp.where(jnp.isfinite(direction).all(), direction, -gradient / strength)
        norm, length = jnp.linalg.norm(gradient), jnp.linalg.norm(direction)

        # Damping: halve until the gradient shrinks. Steps below the tolerance are taken as they are: rounding
        # decides about their gradients.
        def too_long(trial: tuple) -> Array:
            fraction, _, new = trial
            return ~(jnp.linalg.norm(new) <= (1.0 - 0.1 * fraction) * norm) & (fraction * length > tolerance)

        def halve(trial: tuple) -> tuple:
            fraction = trial[0] / 2.0
            point = x + fraction * direction
            return fraction, point, slope(point)

        full = x + direction
        fraction, x, gradient = jax.lax.while_loop(too_long, halve, (jnp.ones((), x.dtype), full, slope(full)))
        # strong convexity: the distance to the solution is at most |gradient| / strength
        size = jnp.minimum(fraction * length, jnp.linalg.norm(gradient) / strength)
        return x, gradient, size, count + 1

    infinite = jnp.full((), jnp.inf, start.dtype)
    x, _, size, _ = jax.lax.while_loop(unfinished, step, (start, slope(start), infinite, 0))
    return x, size


def _lbfgs(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> tuple[Vector, Array]:
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
    x, gradient, _, _ = jax.lax.while_loop(unfinished, step, carry)
    return x, distance(gradient)
