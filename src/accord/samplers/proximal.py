"""Proximal steps argmin_x f_i(x) + strength |x - center|^2 / 2 of one agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .agent import Agent

# Limit of Newton steps, and of products in one of them. A failure reports its error.
MAX_ITERATIONS = 100
# Largest ratio of successive steps from which the distance to the solution is extrapolated.
_MAX_RATIO = 0.5
# Relative tolerance of a Newton step's linear system. A smaller one costs more products than it saves steps.
_RELATIVE = 0.05
# Absolute tolerance of that system, as a fraction of the proximal point's tolerance.
_ABSOLUTE = 0.3

Vector = Float[Array, " dim"]


class Proximal(NamedTuple):
    """A proximal point, its error, and the number of full gradients that finding it took.

    A Hessian-vector product counts as one gradient, because it also reads every row once.
    """

    point: Vector
    error: Float[Array, ""]
    evaluations: Int[Array, ""]


def proximal_point(
    agent: Agent, center: Vector, strength: Array, *, start: Vector, tolerance: Array | float
) -> Proximal:
    """The proximal point of f_i, and its error if that is above the tolerance.

    Parameters
    ----------
    agent
        The agent, whose potential f_i is convex.
    center, strength
        Parameters of the quadratic strength |x - center|^2 / 2, strength > 0.
    start
        Initial point, shape (dim,).
    tolerance
        Distance to the solution, in the units of x, at which iterations stop.

    Returns
    -------
    Proximal
        `error` is 0 if the tolerance is met. Otherwise it is a bound on the distance to the solution, |gradient| /
        strength, or the distance extrapolated from Newton's steps if that is smaller.
    """
    if agent.shard.quadratic is not None:
        return _closed_form(agent, center, strength)
    # iterations reach a few rounding errors of x at best
    floor = 64.0 * jnp.finfo(center.dtype).eps * (1.0 + jnp.linalg.norm(center))
    found = _newton(agent, center, strength, start, tolerance + floor)
    return found._replace(error=jnp.where(found.error <= tolerance + floor, 0.0, found.error))


def _closed_form(agent: Agent, center: Vector, strength: Array) -> Proximal:
    form = agent.shard.quadratic
    assert form is not None and form.eigenvectors is not None
    point = form.proximal_point(strength, center)
    return Proximal(point, jnp.zeros((), center.dtype), jnp.int32(1))


def _newton(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> Proximal:
    """Newton's method by conjugate gradients, with damped steps that are solved only as precisely as needed."""
    known = agent.shard.curvature

    def slope(x: Vector) -> Vector:
        return agent.gradient(x) + strength * (x - center)

    def preconditioned(residual: Vector) -> Vector:
        return residual / strength if known is None else known.solve(strength, residual)

    def unfinished(carry: _Iterate) -> Array:
        return (carry.error > tolerance) & (carry.steps < MAX_ITERATIONS)

    def iterate(carry: _Iterate) -> _Iterate:
        x, taken = carry.x + carry.step, jnp.linalg.norm(carry.step)
        gradient, product = jax.linearize(slope, x)
        norm = jnp.linalg.norm(gradient)
        # Steps below the tolerance are accepted, because rounding dominates their gradients.
        accepted = (norm <= (1.0 - 0.1 * carry.fraction) * carry.norm) | (taken <= tolerance)
        # a halved step needs no new solution
        target = jnp.where(accepted, -gradient, 0.0)
        solved = _conjugate_gradients(product, preconditioned, target, carry.scale, _ABSOLUTE * tolerance)
        # with an infinite Hessian (a power potential at its centre) step along the gradient
        finite = jnp.isfinite(solved.solution).all()
        step = jnp.where(finite, solved.solution, -gradient / strength)
        length = jnp.linalg.norm(step)
        shrunk = jnp.where(finite, carry.fraction * length / taken, jnp.inf)
        # If steps shrink by a factor q, the remaining ones sum to q / (1 - q) times the last one, whose error is added.
        left = jnp.where(shrunk <= _MAX_RATIO, shrunk / (1.0 - shrunk) * length + solved.error, jnp.inf)
        # Strong convexity: the distance to the solution is at most |gradient| / strength.
        moved = carry._replace(
            x=x,
            norm=norm,
            step=step,
            fraction=jnp.ones_like(norm),
            left=left,
            error=jnp.minimum(left, norm / strength),
            scale=jnp.where(finite, solved.scale, jnp.inf),
        )
        halved = carry._replace(
            step=carry.step / 2.0,
            fraction=carry.fraction / 2.0,
            left=jnp.full_like(norm, jnp.inf),
            error=carry.norm / strength,
        )
        found = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), moved, halved)
        return found._replace(steps=carry.steps + 1, evaluations=carry.evaluations + 1 + solved.products)

    infinite, none = jnp.full((), jnp.inf, start.dtype), jnp.int32(0)
    at_start = _Iterate(
        start, infinite, jnp.zeros_like(start), jnp.ones((), start.dtype), infinite, infinite, infinite, none, none
    )
    found = jax.lax.while_loop(unfinished, iterate, at_start)
    point = jnp.where(jnp.isfinite(found.left), found.x + found.step, found.x)
    return Proximal(point, found.error, found.evaluations)


class _Iterate(NamedTuple):
    """State of Newton's method: a point, and a `fraction` of the next step that is tried."""

    x: Vector
    # norm of the gradient at x
    norm: Float[Array, ""]
    step: Vector
    fraction: Float[Array, ""]
    # extrapolated distance to the solution after that step, infinite if steps do not shrink
    left: Float[Array, ""]
    error: Float[Array, ""]
    # factor of error estimates, infinite before the first product
    scale: Float[Array, ""]
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]


def _conjugate_gradients(
    product: Callable[[Vector], Vector],
    preconditioned: Callable[[Vector], Vector],
    target: Vector,
    scale: Array,
    enough: Array,
) -> _Solved:
    """The solution of H x = target by products with H, up to a relative or an absolute error."""
    # without rounding, as many products as parameters suffice
    most = min(2 * target.size, MAX_ITERATIONS)

    def unfinished(carry: _Solved) -> Array:
        allowed = jnp.maximum(_RELATIVE * jnp.linalg.norm(carry.solution), enough)
        return (carry.error > allowed) & (carry.products < most)

    def iterate(carry: _Solved) -> _Solved:
        image = product(carry.direction)
        curvature = carry.direction @ image
        # NaN if H is not positive definite
        length = carry.square / jnp.where(curvature > 0, curvature, jnp.nan)
        residual = carry.residual - length * image
        toward = preconditioned(residual)
        square = residual @ toward
        # P^-1 residual bounds the error if the preconditioner P is at most H, else scale corrects the bound
        scale = jnp.maximum(length, 1.0)
        return _Solved(
            solution=carry.solution + length * carry.direction,
            residual=residual,
            direction=toward + square / carry.square * carry.direction,
            square=square,
            error=scale * jnp.linalg.norm(toward),
            scale=scale,
            products=carry.products + 1,
        )

    toward = preconditioned(target)
    size = jnp.linalg.norm(toward)
    error = jnp.where(size > 0, scale * size, 0.0)
    first = _Solved(jnp.zeros_like(target), target, toward, target @ toward, error, scale, jnp.int32(0))
    return jax.lax.while_loop(unfinished, iterate, first)


class _Solved(NamedTuple):
    solution: Vector
    residual: Vector
    direction: Vector
    # residual' P^-1 residual
    square: Float[Array, ""]
    # estimated error of the solution, scale times |P^-1 residual|
    error: Float[Array, ""]
    scale: Float[Array, ""]
    products: Int[Array, ""]
