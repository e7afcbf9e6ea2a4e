"""The pilot run of warm-up: a short run that estimates the posterior's mean, covariance and stiffness.

All agents share its chains. Each step takes one sum of the agents' gradients over the network, so that there is no
disagreement between agents.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..engines.noise import EVERY_AGENT, Stream, bits, joined, normals, seed_words
from ..posterior.coordinates import Coordinates
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows
from ..samplers.session import Session
from .whitened import Estimates, Whitened

# Chains, split into two halves for the convergence check.
_CHAINS = 32
# Smallest number of rounds, the first third of which is burn-in.
_FEWEST = 48
# Rounds between convergence checks.
_BETWEEN = 16
# Largest number of rounds.
_MOST_ROUNDS = 160
# Friction per unit of time, in posterior standard deviations.
_FRICTION = 0.3
# Draws at which the largest curvature is computed for the step size.
_LOOKED_AT = 16
# Largest number of runs, each with half the step of the last.
_TRIES = 3
# Divergence of the two halves' moments that marks a diverged run. One outlier chain of 32 at 100 sd gives nearly 1.
_WILD = 0.5
# Lanczos steps for a largest eigenvalue.
_STEPS = 4
# Lanczos steps at all draws. Only the `_MOST` stiffest draws get the other steps.
_FIRST = 2
# Draws that get all Lanczos steps.
_MOST = 24
# Share of the draws that count as the stiffest.
_STIFFEST = 0.02


def explore(session: Session, start: Coordinates) -> Whitened | None:
    """Whitening coordinates from a run of BAOAB on F.

    The chains start at standard normal draws in the coordinates `start`. The run ends when the two halves of its
    chains agree on mean and covariance. Gradients enter these estimates (`samplers.by_sums.adaptation`) and reduce
    the noise of correlated draws.

    Parameters
    ----------
    session
        Sums over the network.
    start
        Coordinates in which the posterior is approximately standard normal.

    Returns
    -------
    Whitened | None
        None if the chains diverged with all steps.
    """
    looked_at = np.random.default_rng(1).standard_normal((_LOOKED_AT, start.origin.size))
    h = max(1.0, stiffest(session, start, looked_at).max()) ** -0.5
    found = None
    for halved in range(_TRIES):
        whitened, diverging = _run(session, start, jnp.asarray(h / 2.0**halved))
        found = whitened or found
        if whitened is not None and not diverging:
            break
    return found


def _run(session: Session, start: Coordinates, h: Float[Array, ""]) -> tuple[Whitened | None, bool]:
    """The result of one run with step h, None if it diverged, and whether the halves' estimates moved apart.

    Estimates of independent chains converge as the run continues unless a chain diverges.
    """
    dim = start.origin.size
    z = jnp.asarray(np.random.default_rng(0).standard_normal((dim, _CHAINS)))
    v, positions, gradients = jnp.zeros_like(z), list[np.ndarray](), list[np.ndarray]()
    first = np.inf
    for round in range(_MOST_ROUNDS):
        gradient = session.totals(_gradients, z, gradients=_CHAINS, coordinates=start)
        positions.append(np.asarray(z, np.float64).T)
        gradients.append(np.asarray(gradient, np.float64).T)
        done = round + 1
        if done >= _FEWEST and done % _BETWEEN == 0:
            estimates, *kept = _estimate(positions, gradients)
            if estimates is None or estimates.settled:
                break
            first = estimates.apart if done == _FEWEST else first
        z, v = _baoab(z, v, gradient, _normals(np.int32(round), _CHAINS, dim), h)
    if estimates is None or estimates.apart > _WILD:
        return None, True
    return estimates.whitened(start, *kept), estimates.apart > first


def _estimate(
    positions: list[np.ndarray], gradients: list[np.ndarray]
) -> tuple[Estimates | None, np.ndarray, np.ndarray]:
    """Estimates, positions and gradients after burn-in, from arrays (chain, dim). Estimates are None if not finite."""
    kept = len(positions) // 3
    z, slope = (np.concatenate(rounds[kept:]) for rounds in (positions, gradients))
    if not (np.isfinite(z).all() and np.isfinite(slope).all()):
        return None, z, slope
    return Estimates.by(z, slope, np.zeros(len(z)), np.arange(len(z)) % _CHAINS < _CHAINS // 2), z, slope


def stiffest(session: Session, place: Coordinates, draws: np.ndarray) -> np.ndarray:
    """The largest absolute eigenvalue of F's Hessian at draws (draw, dim), in coordinates, by the Lanczos method.

    Returns
    -------
    np.ndarray
        Lower bounds, shape (draw,), accurate for the 24 stiffest draws and rough for the others.

    Raises
    ------
    ArithmeticError
        A second derivative is not finite at some of the draws.
    """
    z, start = jnp.asarray(draws.T), np.asarray(_normals(np.int32(0), *draws.shape), np.float64)
    # orthonormal directions and the tridiagonal Hessian in their basis
    basis, hessian = [start / np.linalg.norm(start, axis=0)], np.zeros((len(draws), _STEPS + 1, _STEPS + 1))
    values, kept = np.empty(len(draws)), np.arange(len(draws))
    for step in range(_STEPS):
        if step == _FIRST and len(draws) > _MOST:
            closest = np.argsort(values)[-_MOST:]
            kept, z, hessian, basis = closest, z[:, closest], hessian[closest], [v[:, closest] for v in basis]
        # a product with the Hessian costs two gradients
        product = session.totals(_products, z, jnp.asarray(basis[-1]), gradients=2 * len(kept), coordinates=place)
        product = np.asarray(product, np.float64)
        lost = int((~np.isfinite(product).all(axis=0)).sum())
        if lost:
            raise ArithmeticError(
                f"cannot choose a step size: a second derivative of the potential is not finite at {lost} of "
                f"{len(kept)} points around the mode. Use a numerically stable density, such as log_ndtr(x) for "
                "log(cdf(x)), or pass all numbers of the method and whiten=False"
            )
        hessian[:, step, step] = (basis[-1] * product).sum(axis=0)
        # Gram-Schmidt twice, against rounding errors
        for known in 2 * basis:
            product = product - known * (known * product).sum(axis=0)
        left = np.linalg.norm(product, axis=0)
        values[kept] = np.abs(np.linalg.eigvalsh(hessian[:, : step + 1, : step + 1])).max(axis=1)
        hessian[:, step, step + 1] = hessian[:, step + 1, step] = left
        # a zero remainder ends the basis: the zero direction adds an eigenvalue of zero
        basis.append(product / np.where(left > 0.0, left, 1.0))
    return values


def stiff_draw(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The median draw, (dim,), of the stiffest fiftieth of draws (draw, dim) with largest eigenvalues `values`."""
    order = np.argsort(values)[-max(1, round(_STIFFEST * len(values))) :]
    return np.asarray(draws[order[len(order) // 2]], np.float64)


# --- each agent's terms of a sum: functions of positions (dim, chain) ---


@of_rows
def _gradients(potential: Potential, shard: Shard, z: Float[Array, "dim chain"]) -> Float[Array, "dim chain"]:
    return jax.vmap(lambda x: potential.gradient(shard, x), in_axes=-1, out_axes=-1)(z)


@of_rows
def _products(
    potential: Potential, shard: Shard, z: Float[Array, "dim chain"], directions: Float[Array, "dim chain"]
) -> Float[Array, "dim chain"]:
    """Hessian-vector products of one agent at each position."""

    def product(x: Array, direction: Array) -> Array:
        return jax.jvp(lambda x: potential.gradient(shard, x), (x,), (direction,))[1]

    return jax.vmap(product, in_axes=-1, out_axes=-1)(z, directions)


# --- the step that all agents share ---


@jax.jit
def _baoab(z: Array, v: Array, gradient: Array, normal: Array, h: Array) -> tuple[Array, Array]:
    """One step of BAOAB on F (Leimkuhler & Matthews 2013)."""
    kept = jnp.exp(-_FRICTION * h)
    v = v - h * gradient
    middle = z + h / 2.0 * v
    v = kept * v + (1.0 - kept**2) ** 0.5 * normal
    return middle + h / 2.0 * v, v


@partial(jax.jit, static_argnames=("chains", "dim"))
def _normals(round: Array, chains: int, dim: int) -> Float[Array, "dim chain"]:
    """The shared noise of a round."""
    everyone = jnp.full((1,), EVERY_AGENT, jnp.uint32)
    words = bits(seed_words(0), chains, round, Stream.NORMAL, everyone, dim)
    return joined(normals(words, jnp.result_type(float)), dim)[0]
