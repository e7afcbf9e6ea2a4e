"""Proximal steps argmin_x f_i(x) + strength |x - center|^2 / 2 of one agent."""

from __future__ import annotations

from collections.abc import Callable
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
# Steps that shrink so quickly, each over the one before it, need no new Hessian.
_QUICK = 0.5

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
    """Newton's method, whose factor of a Hessian serves as long as steps by it shrink quickly."""
    eye = strength * jnp.eye(start.size, dtype=start.dtype)

    def slope(x: Vector) -> Vector:
        return agent.gradient(x) + strength * (x - center)

    def unfinished(carry: _Iterate) -> Array:
        return (carry.size > tolerance) & (carry.steps < MAX_ITERATIONS)

    def expanded(carry: _Iterate) -> _Iterate:
        factor, _ = jax.scipy.linalg.cho_factor(agent.hessian(carry.x) + eye, lower=True)

        def toward(gradient: Vector) -> Vector:
            direction = -jax.scipy.linalg.cho_solve((factor, True), gradient)
            # where the Hessian is infinite (a power potential at its centre) the gradient alone still descends
            return jnp.where(jnp.isfinite(direction).all(), direction, -gradient / strength)

        def step(carry: _Iterate) -> _Iterate:
            fraction, x, gradient, evaluations = _damped(slope, carry, tolerance)
            direction = toward(gradient)
            shrunk = jnp.linalg.norm(direction) / jnp.linalg.norm(carry.direction)
            # The next step is taken at the end: steps that shrink by half and more go on for less than its length.
            # Strong convexity: the distance to the solution is at most |gradient| / strength.
            length = jnp.where(
                shrunk <= _QUICK, jnp.linalg.norm(direction), fraction * jnp.linalg.norm(carry.direction)
            )
            size = jnp.minimum(length, jnp.linalg.norm(gradient) / strength)
            return _Iterate(x, gradient, direction, shrunk, size, carry.steps + 1, evaluations)

        def goes_on(carry: _Iterate) -> Array:
            return unfinished(carry) & (carry.shrunk <= _QUICK)

        begun = carry._replace(
            direction=toward(carry.gradient),
            shrunk=jnp.zeros_like(carry.size),
            evaluations=carry.evaluations + _NEWTON_COST,
        )
        return jax.lax.while_loop(goes_on, step, begun)

    infinite = jnp.full((), jnp.inf, start.dtype)
    first = _Iterate(start, slope(start), jnp.zeros_like(start), infinite, infinite, jnp.int32(0), jnp.int32(1))
    found = jax.lax.while_loop(unfinished, expanded, first)
    point = jnp.where(found.shrunk <= _QUICK, found.x + found.direction, found.x)
    return Proximal(point, found.size, found.evaluations)


class _Iterate(NamedTuple):
    """Where Newton's method is, the step that comes next, how it shrank beside the last, and a bound on the error."""

    x: Vector
    gradient: Vector
    direction: Vector
    shrunk: Float[Array, ""]
    size: Float[Array, ""]
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]


def _damped(
    slope: Callable[[Vector], Vector], carry: _Iterate, tolerance: Array
) -> tuple[Array, Vector, Vector, Array]:
    """The step, halved until the gradient shrinks: the fraction of it, the point and its gradient, and evaluations."""
    norm, length = jnp.linalg.norm(carry.gradient), jnp.linalg.norm(carry.direction)

    # Steps below the tolerance are taken as they are: rounding decides about their gradients.
    def too_long(trial: tuple) -> Array:
        fraction, _, new, _ = trial
        return ~(jnp.linalg.norm(new) <= (1.0 - 0.1 * fraction) * norm) & (fraction * length > tolerance)

    def halve(trial: tuple) -> tuple:
        fraction = trial[0] / 2.0
        point = carry.x + fraction * carry.direction
        return fraction, point, slope(point), trial[3] + 1

    full = carry.x + carry.direction
    first = (jnp.ones((), full.dtype), full, slope(full), carry.evaluations + 1)
    return jax.lax.while_loop(too_long, halve, first)


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
