"""Proximal steps argmin_x f_i(x) + strength |x - center|^2 / 2 of one agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .agent import Agent

# Far more steps, and products for one, than it needs; what is not solved by then reports its error.
MAX_ITERATIONS = 100
# Steps that shrink so quickly, each over the one before it, tell how far the solution is.
_QUICK = 0.5
# Part of its length to which a step is solved for, and part of the tolerance that is close enough: closer costs more
# products than it saves steps.
_PART = 0.05
_ENOUGH = 0.3

Vector = Float[Array, " dim"]


class Proximal(NamedTuple):
    """A proximal point, its error, and the gradients (of all rows) that finding it took.

    A product with the Hessian reads every row once, as a gradient does, and is counted as one.
    """

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
        Where iterations begin, shape (dim,).
    tolerance
        Distance to the solution, in the units of x, at which they stop.

    Returns
    -------
    Proximal
        Its `error` is 0 where the tolerance is met, else a bound on the distance to the solution,
        |gradient| / strength, or what Newton's steps have left to go by how they shrink, if that is smaller.
    """
    if agent.shard.quadratic is not None:
        return _closed_form(agent, center, strength)
    # no iteration gets closer than a few roundings of x
    floor = 64.0 * jnp.finfo(center.dtype).eps * (1.0 + jnp.linalg.norm(center))
    found = _newton(agent, center, strength, start, tolerance + floor)
    return found._replace(error=jnp.where(found.error <= tolerance + floor, 0.0, found.error))


def _closed_form(agent: Agent, center: Vector, strength: Array) -> Proximal:
    form = agent.shard.quadratic
    assert form is not None and form.eigenvectors is not None
    point = form.proximal_point(strength, center)
    return Proximal(point, jnp.zeros((), center.dtype), jnp.int32(1))


def _newton(agent: Agent, center: Vector, strength: Array, start: Vector, tolerance: Array) -> Proximal:
    """Newton's method by conjugate gradients: damped steps, each solved for as closely as the next one makes use of."""
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
        # Steps below the tolerance are taken as they are: rounding decides about their gradients.
        accepted = (norm <= (1.0 - 0.1 * carry.fraction) * carry.norm) | (taken <= tolerance)
        # a step that is halved is not solved for
        target = jnp.where(accepted, -gradient, 0.0)
        solved = _conjugate_gradients(product, preconditioned, target, carry.scale, _ENOUGH * tolerance)
        # where the Hessian is infinite (a power potential at its centre) the gradient alone still descends
        finite = jnp.isfinite(solved.solution).all()
        step = jnp.where(finite, solved.solution, -gradient / strength)
        length = jnp.linalg.norm(step)
        shrunk = jnp.where(finite, carry.fraction * length / taken, jnp.inf)
        # Steps that shrink by a factor q go on for q / (1 - q) times the last one, beside what that one misses.
        left = jnp.where(shrunk <= _QUICK, shrunk / (1.0 - shrunk) * length + solved.error, jnp.inf)
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
    """Where Newton's method is, and which part of its next step is tried."""

    x: Vector
    # of the gradient there
    norm: Float[Array, ""]
    step: Vector
    fraction: Float[Array, ""]
    # the distance to the solution after that step, infinite where steps do not shrink
    left: Float[Array, ""]
    error: Float[Array, ""]
    # of the errors of solutions, infinite where no product has told it
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
    """The solution of H x = target by products with H, to a part of its length, or to an error that is small enough."""
    # without rounding so many products as there are parameters would do
    most = min(2 * target.size, MAX_ITERATIONS)

    def unfinished(carry: _Solved) -> Array:
        allowed = jnp.maximum(_PART * jnp.linalg.norm(carry.solution), enough)
        return (carry.error > allowed) & (carry.products < most)

    def iterate(carry: _Solved) -> _Solved:
        image = product(carry.direction)
        curvature = carry.direction @ image
        # not a number where H is not positive
        length = carry.square / jnp.where(curvature > 0, curvature, jnp.nan)
        residual = carry.residual - length * image
        toward = preconditioned(residual)
        square = residual @ toward
        # P^-1 residual bounds the error where the preconditioner P is at most H; lengths say how much more it is
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
    """How far conjugate gradients are."""

    solution: Vector
    residual: Vector
    direction: Vector
    # residual' P^-1 residual
    square: Float[Array, ""]
    # an estimate of the solution's, so many times |P^-1 residual|
    error: Float[Array, ""]
    scale: Float[Array, ""]
    products: Int[Array, ""]
