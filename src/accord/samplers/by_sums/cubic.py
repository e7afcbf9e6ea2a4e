"""The beginning of a run in two sums: a position from the modes of all agents, and F around it from derivatives.

Third derivatives show how the curvature changes. A cubic polynomial has no lower bound, so along each ray from the
position the second derivative is continued as an exponential, q'' exp(a t), with the value and slope it has there. For
q(d) = d' H d / 2 and the cubic term c(d) this is q h(c / q), with h(a) = 2 (exp(3 a) - 1 - 3 a) / (3 a)^2. For a
Poisson likelihood with one parameter it is exact. The prior is not expanded.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ...base.compiler import compiled
from ...base.memory import memory_bytes
from ...posterior.coordinates import Coordinates
from ...posterior.newton import NotFiniteAtInitError
from ...posterior.potential import Potential
from ..session import Session
from .adaptation import Main, Proposals, adapted
from .evaluations import NOWHERE, Jet, UndeterminedError, combined, jet
from .laplace import laplace
from .noisy_mode import rise_of_noise, whitened
from .weighing import Batch, Weighing

# Most parameters. Third derivatives have dim (dim + 1) (dim + 2) / 6 numbers.
_MOST_DIM = 100
# Batches of the fit to a closure, points of the first one per dimension, and the fewest. Each batch has twice as many.
_BATCHES, _POINTS, _FEWEST = 4, 32, 1024
# Most jets, each at the minimum of the closure of the one before.
_MOST_JETS = 3
# Largest distance of such a minimum, relative to that of usual points.
_TOO_FAR = 5.0
# Number of the first of these batches. Batches of the run have lower ones.
_FIRST = 1 << 20
# Least efficiency of a fit to a closure that is used.
_LEAST_EFFICIENCY = 0.05
# Growth of the efficiency for which another batch is drawn.
_GROWTH = 1.05

# Largest exponent of the closure.
_MOST = 40.0
# Exponent below which the closure is computed by its series.
_SMALL = 1e-3
# Least curvature of the likelihood along a ray, relative to the whole, in the closure's denominator.
_LEAST = 1e-9
# Most Newton steps to the minimum, and halvings of each.
_MOST_STEPS, _MOST_HALVINGS = 60, 12
# Largest last step, in standard deviations.
_LAST_STEP = 1e-4
# Step of finite differences of gradients, in standard deviations.
_DIFFERENCE = 1e-4
# Positions at which the prior is evaluated at once.
_AT_ONCE = 1024


class Closure:
    """F near a position, in coordinates in which it is about standard normal: the prior, and a closed jet of the rest.

    Parameters
    ----------
    potential
        The posterior's potential, of which only the prior is used.
    place
        The coordinates.
    jet
        The jet of F at their origin.
    """

    def __init__(self, potential: Potential, place: Coordinates, jet: Jet) -> None:
        self.potential, self.place = potential, place
        origin = np.zeros(place.origin.size)
        value, *others = _prior_jet(potential, place, origin)
        prior = Jet(float(value), *map(np.asarray, others))
        rest = jet.minus(prior)
        # without curvature of its own along some ray, the likelihood cannot be closed
        self.has_prior = bool(np.linalg.eigvalsh(rest.hessian)[0] > _LEAST * np.abs(np.diagonal(jet.hessian)).max())
        self.jet = rest if self.has_prior else jet

    def slopes(self, z: Float[np.ndarray, "point dim"]) -> tuple[np.ndarray, np.ndarray]:
        """The closure and its gradient at points, shapes (point,) and (point, dim)."""
        of_h = z @ self.jet.hessian
        of_t = np.tensordot(z, self.jet.third, 1)
        of_t = np.einsum("pj,pjk->pk", z, of_t)
        q, c = np.einsum("pi,pi->p", of_h, z) / 2.0, np.einsum("pi,pi->p", of_t, z) / 6.0
        safe = np.maximum(q, np.finfo(float).tiny)
        # callers do not use numbers that are not finite
        with np.errstate(over="ignore", invalid="ignore"):
            h, slope = _closed(c / safe)
            value = self.jet.value + z @ self.jet.gradient + q * h
            gradient = self.jet.gradient + (h - c / safe * slope)[:, None] * of_h + slope[:, None] * of_t / 2.0
        if not self.has_prior:
            return value, gradient
        prior, of_prior = self._prior(z)
        return value + prior, gradient + of_prior

    def _prior(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Minus the log prior and its gradient at points."""
        blocks = -(-len(z) // _AT_ONCE)
        padded = np.concatenate([z, np.repeat(z[-1:], blocks * _AT_ONCE - len(z), axis=0)])
        found = [_prior_slopes(self.potential, self.place, part) for part in padded.reshape(blocks, _AT_ONCE, -1)]
        value, gradient = (np.concatenate(list(map(np.asarray, parts))) for parts in zip(*found, strict=True))
        return value[: len(z)], gradient[: len(z)]

    def hessian(self, z: np.ndarray) -> np.ndarray:
        """The Hessian at a position, by central differences of gradients."""
        dim = z.size
        steps = _DIFFERENCE * np.concatenate([np.eye(dim), -np.eye(dim)])
        gradient = self.slopes(z + steps)[1]
        # the caller rejects numbers that are not finite
        with np.errstate(invalid="ignore"):
            found = (gradient[:dim] - gradient[dim:]) / (2.0 * _DIFFERENCE)
            return np.asarray((found + found.T) / 2.0)

    def minimum(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The minimum, (dim,), and the Hessian there; None if there is none."""
        z = np.zeros(self.place.origin.size)
        (value,), (gradient,) = self.slopes(z[None])
        for _ in range(_MOST_STEPS):
            hessian = self.hessian(z)
            if not np.isfinite(hessian).all() or not hessian.any():
                return None
            values, vectors = np.linalg.eigh(hessian)
            size = np.maximum(np.abs(values), _LEAST * np.abs(values).max())
            step = -vectors @ ((vectors.T @ gradient) / size)
            trials = z + step * 0.5 ** np.arange(_MOST_HALVINGS)[:, None]
            value_there, gradient_there = self.slopes(trials)
            lower = np.flatnonzero(value_there < value)
            if np.linalg.norm(step) < _LAST_STEP or not lower.size:
                is_minimum = values[0] > 0.0 and np.linalg.norm(step) < np.sqrt(_LAST_STEP)
                return (z, hessian) if is_minimum else None
            best = lower[0]
            z, value, gradient = trials[best], value_there[best], gradient_there[best]
        return None


def _closed(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The function h(a) = 2 (exp(3 a) - 1 - 3 a) / (3 a)^2 and its derivative."""
    x = np.clip(3.0 * a, -1.0 / np.finfo(float).eps, _MOST)
    small = np.abs(x) < _SMALL
    usual = np.where(small, 1.0, x)
    grown = np.expm1(usual)
    h = 2.0 * (grown - usual) / usual**2
    slope = 2.0 * (grown / usual**2 - 2.0 * (grown - usual) / usual**3)
    return np.where(small, 1.0 + x / 3.0 + x**2 / 12.0, h), 3.0 * np.where(small, 1.0 / 3.0 + x / 6.0, slope)


def _minus_prior(potential: Potential, place: Coordinates, z: Float[Array, " dim"]) -> Array:
    return -potential.within(place).log_prior_at(z)


@compiled
def _prior_slopes(potential: Potential, place: Coordinates, z: Array) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(lambda one: _minus_prior(potential, place, one)))(z)


@compiled
def _prior_jet(potential: Potential, place: Coordinates, z: Array) -> tuple[Array, Array, Array, Array]:
    def prior(one: Array) -> Array:
        return _minus_prior(potential, place, one)

    hessian = jax.hessian(prior)
    return prior(z), jax.grad(prior)(z), hessian(z), jax.jacfwd(hessian)(z)


class Beginning(NamedTuple):
    """The place of a posterior's mass, and a proposal.

    Parameters
    ----------
    place
        Coordinates in which the posterior is about standard normal at its mode.
    main, proposals
        The main component, fitted to the closed jet, and the shares of all components. None: unknown.
    """

    place: Coordinates
    main: Main | None = None
    proposals: Proposals | None = None


def beginning(session: Session) -> Beginning:
    """The place of the posterior's mass: two sums if the agents' modes lead near it, else Newton's method.

    With coarse answers a sum before them finds the scale of the parameters, as their noise is relative to it.

    Raises
    ------
    NotIdentifiedError
        F is flat along a direction, so the posterior is improper.
    ArithmeticError
        There is no mode.
    """
    post, noise, start = session.job.post, session.noise, None
    large = post.dim > _MOST_DIM or 8 * post.num_agents * post.dim**3 > memory_bytes() / 8
    if not large:
        try:
            frame = None if noise is None else whitened(session)
            at_init, position, hessian = combined(session, frame)
            place = Coordinates.whitening(position, hessian)
            place = place if frame is None else frame.after(place)
            least_value = at_init + (0.0 if noise is None else rise_of_noise(noise))
            for _ in range(_MOST_JETS):
                found = jet(session, place)
                if not found.value < min(NOWHERE, least_value):
                    break
                start, least_value, closure = place, found.value, Closure(post.potential, place, found)
                minimum = closure.minimum()
                if minimum is None:
                    break
                z, curvature = minimum
                inner, near = Coordinates.whitening(z, curvature), 1.0 + post.dim**0.5
                # by the curvatures at the position and at the minimum
                away = max(float(np.linalg.norm(z)), float(np.sqrt(z @ curvature @ z)))
                if away <= near:
                    fit = _fitted(closure, inner, session.job.seed)
                    if fit is None:
                        break
                    return Beginning(place.after(inner), *fit)
                if away > _TOO_FAR * near:
                    break
                place = place.after(inner)
        except (UndeterminedError, NotFiniteAtInitError, np.linalg.LinAlgError):
            start = None
    return Beginning(laplace(session, start))


def _fitted(closure: Closure, inner: Coordinates, seed: int) -> tuple[Main, Proposals] | None:
    """The main component and the proposals fitted to a closure in the coordinates `inner`; None if none fits it.

    No sum is needed. A closure that no component fits, such as one with a long arm, says little about F.
    """
    dim = inner.origin.size
    main, proposals = Main.first(dim), Proposals([], None)
    at_origin = float(closure.slopes(inner.origin[None])[0][0])
    found: Weighing | None = None
    best, before = None, _LEAST_EFFICIENCY
    for batch in range(_BATCHES):
        proposal = proposals.around(main)
        points = proposal.draw(max(_FEWEST, _POINTS * dim) << batch, seed, _FIRST + batch)
        value, gradient = closure.slopes(inner.origin + points @ inner.factor.T)
        usual = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
        rise = np.where(usual, value - at_origin, np.inf)
        gradient = np.where(usual[:, None], gradient @ inner.factor, 0.0)
        new = Batch(proposal, points, rise, gradient)
        found = Weighing(new) if found is None else found.with_batch(new)
        proposals = proposals.shared(found, main)
        main, efficiency = adapted(found, main, proposals)
        if efficiency > before:
            best = main, proposals
        if 0.0 < efficiency < _GROWTH * before:
            break
        before = max(before, efficiency)
    return best
