"""Draws from a product of mixtures, one per agent, by Metropolis steps over the components (Algorithm 1)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accord.samplers.combine import Combination


class Offers(NamedTuple):
    """Terms of each agent's draws in the log weight of a component.

    A component has one draw c_i per agent. With the product Gaussian's mean as origin, kernel precisions P_i / h^2
    and Gaussian precisions A_i (none in `nonparametric`), V' (sum_i P_i) V = I and V' (sum_i A_i) V = diag(ratio),
    completing the square in x of `prod_i N(x | c_i, h^2 P_i^-1) N(x | m_i, A_i^-1) / N(c_i | m_i, A_i^-1)` gives

        log w = -1/2 [ sum_i c_i' P_i c_i / h^2 - |(V' sum_i P_i c_i) / sqrt(1 + h^2 ratio)|^2 / h^2
                       - sum_i (c_i - m_i)' A_i (c_i - m_i) ]

    and the kernel `x = V y, y ~ N((V' sum_i P_i c_i) / (1 + h^2 ratio), h^2 / (1 + h^2 ratio))`. Shrinkage replaces c_i
    by `m_i + factor (c_i - m_i)`. With P_i = A_i, sum_i P_i m_i = 0 at this origin, so that all terms are powers of the
    factor times sums that do not depend on h.
    """

    # V' P_i c, shape (agent, point, dim)
    sums: np.ndarray
    # m_i' P_i c, c' P_i c and (c - m_i)' A_i (c - m_i), shapes (agent, point), with c relative to m_i under shrinkage
    linear: np.ndarray
    square: np.ndarray
    gain: np.ndarray


class Components(NamedTuple):
    """A product of mixtures, see `Offers`: the offers, the origin (dim,), V (dim, dim) and the ratios (dim,)."""

    offers: Offers
    origin: np.ndarray
    basis: np.ndarray
    ratio: np.ndarray


def bandwidths(subsets: np.ndarray, bandwidth: float | None) -> np.ndarray:
    """One bandwidth per draw, by default the paper's annealed bandwidths."""
    draws, dim = subsets.shape[1], subsets.shape[3]
    if bandwidth is not None:
        return np.full(draws, float(bandwidth))
    return np.arange(1.0, draws + 1.0) ** (-1.0 / (4.0 + dim))


def draw_components(
    subsets: np.ndarray,
    product: Components,
    bandwidths: np.ndarray,
    factors: np.ndarray,
    warmup: int,
    sweeps: int,
    rng: np.random.Generator,
) -> Combination:
    """Draws in the number of the subset draws (chain, draw, agent, dim), with bandwidths and factors (draw,)."""
    chains, draws = subsets.shape[:2]
    # double precision: weights are differences of squares over h^2
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(int(rng.integers(2**62))), chains)
        inputs = (product.offers, product.ratio, bandwidths, factors)
        found = _sweeps(keys, *jax.tree.map(jnp.asarray, inputs), warmup=warmup, sweeps=sweeps)
        positions, acceptance = (np.asarray(part) for part in found)
    return Combination(
        product.origin + positions @ product.basis.T,
        statistics={"acceptance": acceptance, "bandwidth": np.broadcast_to(bandwidths, (chains, draws))},
    )


@partial(jax.jit, static_argnames=("warmup", "sweeps"))
def _sweeps(
    keys: jax.Array,
    offers: Offers,
    ratio: jax.Array,
    bandwidths: jax.Array,
    factors: jax.Array,
    *,
    warmup: int,
    sweeps: int,
) -> tuple[jax.Array, jax.Array]:
    """Algorithm 1 in every chain: coordinates in the basis (chain, draw, dim), acceptance (chain, draw)."""
    agents, points, dim = offers.sums.shape

    def gather(indices: jax.Array) -> tuple[jax.Array, jax.Array]:
        own = jnp.arange(agents)
        terms = (offers.linear[own, indices], offers.square[own, indices], offers.gain[own, indices])
        return offers.sums[own, indices], jnp.stack(terms, axis=1)

    def sweep(chosen: jax.Array, key: jax.Array, h: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        offer_key, accept_key = jax.random.split(key)
        offered = jax.random.randint(offer_key, (agents,), 0, points)
        luck = jnp.log(jax.random.uniform(accept_key, (agents,)))
        narrowed = h**2 * (1.0 + h**2 * ratio)

        def log_weight(sums: jax.Array, terms: jax.Array) -> jax.Array:
            rest = jnp.sum(jnp.square(factor * sums) / narrowed)
            linear, square, gain = terms
            return -0.5 * ((2.0 * factor * linear + factor**2 * square) / h**2 - rest - gain)

        old, new = gather(chosen), gather(offered)
        change = jax.tree.map(jnp.subtract, new, old)
        # fresh sums in every sweep, so that rounding errors do not accumulate
        state = jax.tree.map(lambda parts: jnp.sum(parts, axis=0), old)

        def turn(carry: tuple[jax.Array, ...], own: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], jax.Array]:
            sums, terms, weight = carry
            moved = (sums + own[0], terms + own[1])
            moved_weight = log_weight(*moved)
            accept = own[2] < moved_weight - weight
            kept = (jnp.where(accept, a, b) for a, b in zip((*moved, moved_weight), carry, strict=True))
            return tuple(kept), accept

        accepted = jax.lax.scan(turn, (*state, log_weight(*state)), (*change, luck))[1]
        return jnp.where(accepted, offered, chosen), jnp.mean(accepted)

    def several(chosen: jax.Array, key: jax.Array, h: jax.Array, factor: jax.Array, count: int) -> Any:
        keys = jax.random.split(key, count)
        return jax.lax.scan(lambda state, key: sweep(state, key, h, factor), chosen, keys)

    def one_chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start_key, warm_key, draw_key = jax.random.split(key, 3)
        start = jax.random.randint(start_key, (agents,), 0, points)
        chosen, _ = several(start, warm_key, bandwidths[0], factors[0], warmup)

        def draw(chosen: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            key, h, factor = inputs
            sweep_key, kernel_key = jax.random.split(key)
            chosen, accepted = several(chosen, sweep_key, h, factor, sweeps)
            narrower = 1.0 + h**2 * ratio
            mean = factor * jnp.sum(gather(chosen)[0], axis=0) / narrower
            return chosen, (mean + h * jax.random.normal(kernel_key, (dim,)) / jnp.sqrt(narrower), jnp.mean(accepted))

        keys = jax.random.split(draw_key, len(bandwidths))
        return jax.lax.scan(draw, chosen, (keys, bandwidths, factors))[1]

    return jax.vmap(one_chain)(keys)
