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
from ..fitting.network_sums import NetworkSums
from ..posterior.coordinates import Coordinates
from ..posterior.potential import Potential, Shard
from ..posterior.totals import of_rows

# Chains of the run.
_CHAINS = 32
# Rounds before the first draw: after 30 the coordinates found were too wide where rows are few, and standard deviations
# of the runs in them a fifth too large.
_BURN_IN = 90
# Draws of each chain.
_DRAWS = 8
# Rounds from one draw to the next.
_THIN = 8
# Velocities are forgotten after so much time, in posterior standard deviations.
_FRICTION = 0.3
# Power iterations for a largest eigenvalue; after the first of them only the draws go on that may be the stiffest.
_POWERS, _FIRST, _MOST = 7, 2, 24
# Share of the draws that count as the stiffest.
_STIFFEST = 0.02


def explore(sums: NetworkSums, start: Coordinates, step_size: float) -> np.ndarray:
    """Draws of the posterior: BAOAB on F, from draws of the Gaussian that some coordinates stand for.

    Parameters
    ----------
    sums
        Sums over the network, which count this.
    start
        Coordinates in which the posterior is about standard normal.
    step_size
        In these coordinates.

    Returns
    -------
    np.ndarray
        In the coordinates, shape (draw, chain, dim); not finite where the step was too long.
    """
    dim = start.origin.size
    z = jnp.asarray(np.random.default_rng(0).standard_normal((dim, _CHAINS)))
    v, h, draws = jnp.zeros_like(z), jnp.asarray(step_size), []
    for round in range(_BURN_IN + _DRAWS * _THIN):
        gradient = sums(_gradients, z, gradients=_CHAINS, coordinates=start)
        z, v = _baoab(z, v, gradient, _normals(np.int32(round), _CHAINS, dim), h)
        if round >= _BURN_IN and (round - _BURN_IN) % _THIN == _THIN - 1:
            draws.append(np.asarray(z, np.float64).T)
    return np.stack(draws)


def whitening(draws: np.ndarray, start: Coordinates) -> Coordinates:
    """Coordinates in which draws have mean zero and covariance one, as far as their number tells.

    The covariance is shrunk towards a multiple of that of `start` as the oracle approximating shrinkage does
    (Chen, Wiesel, Eldar & Hero 2010), for as many independent draws as the chains' means show.

    Parameters
    ----------
    draws
        In the coordinates `start`, shape (draw, chain, dim).
    start
        Coordinates in which the posterior is about standard normal.
    """
    chains, dim = draws.shape[1:]
    mean, flat = draws.mean(axis=(0, 1)), draws.reshape(-1, dim)
    cov = np.cov(flat.T).reshape(dim, dim)
    count = chains * cov.trace() / draws.mean(axis=0).var(axis=0, ddof=1).sum()
    square, trace = (cov**2).sum(), cov.trace()
    spread = square - trace**2 / dim
    share = min(1.0, ((1.0 - 2.0 / dim) * square + trace**2) / ((count + 1.0 - 2.0 / dim) * spread)) if dim > 1 else 0.0
    shrunk = (1.0 - share) * cov + share * trace / dim * np.eye(dim)
    return start.after(Coordinates(mean, np.linalg.cholesky(shrunk)))


def stiffest(sums: NetworkSums, place: Coordinates, draws: np.ndarray) -> np.ndarray:
    """The largest eigenvalue of F's Hessian in coordinates at some draws, (draw, dim), by power iterations.

    Returns
    -------
    np.ndarray
        Shape (draw,). Those of all but the stiffest 24 are rough, from below.
    """
    z, product = jnp.asarray(draws.T), _normals(np.int32(0), *draws.shape)
    norm = jnp.linalg.norm(product, axis=0)
    values, kept = np.empty(len(draws)), np.arange(len(draws))
    for done in range(_POWERS):
        if done == _FIRST and len(draws) > _MOST:
            kept = np.argsort(values)[-_MOST:]
            z, product, norm = z[:, kept], product[:, kept], norm[kept]
        # a product with the Hessian costs two gradients
        product = sums(_products, z, product / norm[None], gradients=2 * len(kept), coordinates=place)
        norm = jnp.linalg.norm(product, axis=0)
        values[kept] = norm
    return values


def stiffness(values: np.ndarray) -> float:
    """The mean of the largest fiftieth of some curvatures: it is the stiffest draws that bound a step."""
    return float(values[_stiffest(values)].mean())


def stiff_draw(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The draw in the middle of the stiffest fiftieth, (dim,), of draws (draw, dim) of some curvatures."""
    order = _stiffest(values)
    return np.asarray(draws[order[len(order) // 2]], np.float64)


def _stiffest(values: np.ndarray) -> np.ndarray:
    return np.argsort(values)[-max(1, round(_STIFFEST * len(values))) :]


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
