"""A short run before the run itself: where the posterior's draws are, and how stiff it is there.

It is one chain for all agents, led from one place: each of its steps takes one sum of the agents' gradients over the
network, so that no disagreement enters what it finds.
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

# Chains of the run; what either half of them tells is compared.
_CHAINS = 32
# Rounds: the fewest, between looks at what they tell, and the most; the first third is burn-in.
_FEWEST, _BETWEEN, _MOST_ROUNDS = 48, 16, 160
# Velocities are forgotten after so much time, in posterior standard deviations.
_FRICTION = 0.3
# Draws whose curvature bounds its steps.
_LOOKED_AT = 16
# Runs with ever halved steps, at most, and how far moments of the halves of its chains may be apart at the end of one:
# chains that steps were too long for are thrown far off, and not all alike. One of 32 that is a hundred standard
# deviations away makes nearly one of it.
_TRIES, _WILD = 3, 0.5
# Lanczos steps for a largest eigenvalue; after the first of them only the draws go on that may be the stiffest.
_STEPS, _FIRST, _MOST = 4, 2, 24
# Share of the draws that count as the stiffest.
_STIFFEST = 0.02


def explore(session: Session, start: Coordinates) -> Whitened | None:
    """Coordinates by a run of BAOAB on F, from draws of the Gaussian that some coordinates stand for.

    It ends when the halves of its chains agree on mean and covariance, as all their positions and gradients tell them
    (`samplers.by_sums.adaptation`): of chains that are not independent draws gradients take most of the noise.

    Parameters
    ----------
    session
        Sums over the network, which count this.
    start
        Coordinates in which the posterior is about standard normal.

    Returns
    -------
    Whitened | None
        None where chains went to infinity or far apart, with shorter steps too.
    """
    looked_at = np.random.default_rng(1).standard_normal((_LOOKED_AT, start.origin.size))
    h = max(1.0, stiffest(session, start, looked_at).max()) ** -0.5
    found = None
    for halved in range(_TRIES):
        whitened, parting = _run(session, start, jnp.asarray(h / 2.0**halved))
        found = whitened or found
        if whitened is not None and not parting:
            break
    return found


def _run(session: Session, start: Coordinates, h: Float[Array, ""]) -> tuple[Whitened | None, bool]:
    """One run with a step, None where that was too long for it; and whether its halves end further apart than before.

    What independent chains tell comes nearer as they go on, unless some of them are thrown ever further off.
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
            told, *kept = _told(positions, gradients)
            if told is None or told.settled:
                break
            first = told.apart if done == _FEWEST else first
        z, v = _baoab(z, v, gradient, _normals(np.int32(round), _CHAINS, dim), h)
    if told is None or told.apart > _WILD:
        return None, True
    return told.whitened(start, *kept), told.apart > first


def _told(positions: list[np.ndarray], gradients: list[np.ndarray]) -> tuple[Estimates | None, np.ndarray, np.ndarray]:
    """What the chains tell after burn-in, of arrays (chain, dim), with positions and gradients; None where infinite."""
    kept = len(positions) // 3
    z, slope = (np.concatenate(rounds[kept:]) for rounds in (positions, gradients))
    if not (np.isfinite(z).all() and np.isfinite(slope).all()):
        return None, z, slope
    return Estimates.by(z, slope, np.zeros(len(z)), np.arange(len(z)) % _CHAINS < _CHAINS // 2), z, slope


def stiffest(session: Session, place: Coordinates, draws: np.ndarray) -> np.ndarray:
    """The largest eigenvalue of F's Hessian in coordinates at some draws, (draw, dim), in size, by Lanczos' method.

    Returns
    -------
    np.ndarray
        Shape (draw,), from below. Those of all but the stiffest 24 are rough.

    Raises
    ------
    ArithmeticError
        A second derivative is not finite at some of the draws.
    """
    z, start = jnp.asarray(draws.T), np.asarray(_normals(np.int32(0), *draws.shape), np.float64)
    # by step, of the draws that are kept: orthonormal directions, and the Hessian among them, tridiagonal
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
                f"no step can be chosen: a second derivative of the potential is not finite at {lost} of {len(kept)} "
                "points that are looked at about the mode. Write the densities so that it is, such as log_ndtr(x) in "
                "place of log(cdf(x)), or give the method its numbers, with whiten=False"
            )
        hessian[:, step, step] = (basis[-1] * product).sum(axis=0)
        # twice: what the first leaves of directions that are known is rounding
        for known in 2 * basis:
            product = product - known * (known * product).sum(axis=0)
        left = np.linalg.norm(product, axis=0)
        values[kept] = np.abs(np.linalg.eigvalsh(hessian[:, : step + 1, : step + 1])).max(axis=1)
        hessian[:, step, step + 1] = hessian[:, step + 1, step] = left
        # where nothing is left the next direction is none, and adds an eigenvalue of zero
        basis.append(product / np.where(left > 0.0, left, 1.0))
    return values


def stiff_draw(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The draw in the middle of the stiffest fiftieth, (dim,), of draws (draw, dim) of some curvatures."""
    order = np.argsort(values)[-max(1, round(_STIFFEST * len(values))) :]
    return np.asarray(draws[order[len(order) // 2]], np.float64)


# --- what agents add up: functions of positions, (dim, chain) ---


@of_rows
def _gradients(potential: Potential, shard: Shard, z: Float[Array, "dim chain"]) -> Float[Array, "dim chain"]:
    return jax.vmap(lambda x: potential.gradient(shard, x), in_axes=-1, out_axes=-1)(z)


@of_rows
def _products(
    potential: Potential, shard: Shard, z: Float[Array, "dim chain"], directions: Float[Array, "dim chain"]
) -> Float[Array, "dim chain"]:
    """An agent's Hessian at each position times a direction."""

    def product(x: Array, direction: Array) -> Array:
        return jax.jvp(lambda x: potential.gradient(shard, x), (x,), (direction,))[1]

    return jax.vmap(product, in_axes=-1, out_axes=-1)(z, directions)


# --- what all agents do alike ---


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
    """The noise that all agents share in a round."""
    everyone = jnp.full((1,), EVERY_AGENT, jnp.uint32)
    words = bits(seed_words(0), chains, round, Stream.NORMAL, everyone, dim)
    return joined(normals(words, jnp.result_type(float)), dim)[0]
