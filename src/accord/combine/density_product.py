"""Density products: estimate every subset density from its draws, multiply the estimates, draw from the product."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from ..checks import whole_number
from ..posterior import Posterior
from ..run import Run
from .kernels import Moments, check_bandwidth, default_bandwidth, effective_shares, moments, pooled, shrinkage_factor
from .subsets import Combination, one_shot

# With fewer effective draws than this of some agent, the semiparametric product is noise.
_FEWEST = 25.0


def parametric(post: Posterior, *, draws: int = 1000, chains: int = 4, seed: int = 0, warmup: int = 1000) -> Run:
    """Density product of fitted Gaussians.

    From agent i:  mean m_i and covariance S_i of draws of `exp(-f_i)`; at the hub independent draws of
    `N(S sum_i S_i^-1 m_i, S)`, `S = (sum_i S_i^-1)^-1`.

    Neiswanger, Wang and Xing 2014 (Asymptotically exact, embarrassingly parallel MCMC), section 3.1, eqs. 3.1 and
    3.2. Exact for Gaussian shards up to the error of the moments, Gaussian always. Only moments are sent.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `consensus`.

    Returns
    -------
    Run
        The same draws for every agent.

    Raises
    ------
    ValueError, ImportError
        As in `consensus`.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.combine.parametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    return one_shot(post, gaussian_product, method="parametric()", draws=draws, chains=chains, seed=seed, warmup=warmup)


def nonparametric(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    shrinkage: bool = True,
    sweeps: int = 50,
) -> Run:
    """Density product of kernel estimates.

    From agent i:  draws of `exp(-f_i)`, which make a mixture of T equal kernels; at the hub draws of the product of
    the mixtures, itself a mixture of T^N Gaussians, by Metropolis steps over the kernel that stands for each agent.

    Neiswanger, Wang and Xing 2014, Algorithm 1: in sweep t every agent in turn is offered one of its draws at random,
    accepted with probability `min(1, w' / w)`, `w = prod_i N(x_i | mean, h^2 K_i)`, and a draw is made from the
    kernel of the product; the paper anneals the bandwidth, `h = t^(-1/(4 + dim))`. As T grows and h falls it
    approaches the posterior of any shards. At h > 0 the paper's form, `K_i = I`, turns Gaussian shards N(m_i, S_i)
    into `prod_i N(m_i, S_i + h^2 I)`, too wide. With shrinkage, the default here, the centres are moved to their mean
    and `K_i = S_i` (`kernels.shrinkage_factor`): the product of Gaussian shards is then exact at every h, up to the
    error of a finite number of draws, h has no unit, and one h serves all sweeps. Acceptance falls as h^dim, and
    independent draws are more than 2 / h^2 sweeps apart: more than about ten parameters are not for this method.

    Parameters
    ----------
    post, draws, chains, seed
        As in `consensus`. The kernels are made of the draws of all chains.
    warmup
        As in `consensus`, and as many sweeps at the first bandwidth before the first draw.
    bandwidth
        One h for all sweeps: in (0, 1], in units of the draws' standard deviations, left out
        `kernels.default_bandwidth`; with `shrinkage=False` > 0, in units of the parameters, left out the paper's
        annealed one.
    shrinkage
        False is the paper's form.
    sweeps
        Sweeps a draw, >= 1; 1 is the paper's number.

    Returns
    -------
    Run
        The same draws for every agent. Statistics: `acceptance`, the share of the agents' offers that were taken
        before a draw, and `bandwidth`.

    Raises
    ------
    ValueError, ImportError
        As in `consensus`; or a bandwidth out of its range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.combine.nonparametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    check_bandwidth(bandwidth, scaled=shrinkage)
    whole_number("sweeps", sweeps, 1)
    return one_shot(
        post,
        partial(kernel_product, warmup=warmup, bandwidth=bandwidth, shrinkage=shrinkage, sweeps=sweeps),
        method=f"nonparametric(bandwidth={bandwidth}, shrinkage={shrinkage}, sweeps={sweeps})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def semiparametric(
    post: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    warmup: int = 1000,
    bandwidth: float | None = None,
    scaled: bool = True,
    sweeps: int = 50,
) -> Run:
    """Density product of fitted Gaussians, each corrected by a kernel estimate.

    From agent i:  draws of `exp(-f_i)`; at the hub  `p_i(x) = N(x | m_i, S_i) (1/T) sum_t N(x | x_it, h^2 K_i) /
    N(x_it | m_i, S_i)`, multiplied over agents and drawn from as in `nonparametric`.

    Neiswanger, Wang and Xing 2014, section 3.3, with the full weights W. The estimate is unbiased where a shard is
    the fitted Gaussian, at every h, as the kernel then smooths the constant 1: no shrinkage is needed. The weights
    `1 / N(x_it | m_i, S_i)` are heavy: their variance is finite for `h^2 K_i < 2 S_i` only, which the paper's
    `K_i = I` breaks for parameters of small standard deviation; the default here is `K_i = S_i`, for h <= 1. And the
    correction rests on each agent's draws where the product lies: an agent whose posterior is three or more standard
    deviations away has next to none there, at any h, and is named in a warning; `nonparametric` and `weierstrass`
    with shrinkage do not break down in this way.

    Parameters
    ----------
    post, draws, chains, seed, warmup
        As in `nonparametric`.
    bandwidth
        As in `nonparametric`, with `scaled` for `shrinkage`.
    scaled
        False is the paper's kernel, of covariance h^2 I in units of the parameters.
    sweeps
        As in `nonparametric`.

    Returns
    -------
    Run
        The same draws for every agent, with the statistics of `nonparametric`.

    Raises
    ------
    ValueError, ImportError
        As in `nonparametric`.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> run = accord.combine.semiparametric(post, draws=50, chains=2, warmup=200)
    >>> run.draws.shape
    (2, 50, 3, 1)
    """
    check_bandwidth(bandwidth, scaled=scaled)
    whole_number("sweeps", sweeps, 1)
    return one_shot(
        post,
        partial(corrected_product, warmup=warmup, bandwidth=bandwidth, scaled=scaled, sweeps=sweeps),
        method=f"semiparametric(bandwidth={bandwidth}, scaled={scaled}, sweeps={sweeps})",
        draws=draws,
        chains=chains,
        seed=seed,
        warmup=warmup,
    )


def gaussian_product(subsets: np.ndarray, rng: np.random.Generator) -> Combination:
    """Independent draws of the product of the Gaussians fitted to subset draws (chain, draw, agent, dim)."""
    product = moments(pooled(subsets)).product()
    chains, draws, _, dim = subsets.shape
    normals = rng.standard_normal((chains, draws, dim))
    # a mean and the upper half of a covariance
    return Combination(product.mean + normals @ product.factor().T, numbers_sent=dim + dim * (dim + 1) // 2)


def kernel_product(
    subsets: np.ndarray,
    rng: np.random.Generator,
    *,
    warmup: int,
    bandwidth: float | None = None,
    shrinkage: bool = True,
    sweeps: int = 50,
) -> Combination:
    """Draws of the product of kernel estimates made of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if shrinkage else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    basis = np.linalg.inv(np.linalg.cholesky(kernels.sum(axis=0))).T
    # from the mean of the agent where that is what centres shrink to, else all that centres have to tell is `points`
    means = fitted.means if shrinkage else np.broadcast_to(origin, fitted.means.shape)
    centred = points - means[:, None]
    scaled = np.einsum("nij,ntj->nti", kernels, centred)
    offers = Offers(
        sums=scaled @ basis,
        linear=np.einsum("ni,nti->nt", means - origin, scaled),
        square=np.einsum("nti,nti->nt", centred, scaled),
        gain=np.zeros(points.shape[:2]),
    )
    if bandwidth is None and shrinkage:
        bandwidth = default_bandwidth(fitted, points.shape[1])
    steps = _bandwidths(subsets, bandwidth)
    factors = shrinkage_factor(steps) if shrinkage else np.ones_like(steps)
    product = Components(offers, origin, basis, np.zeros(len(basis)))
    return _metropolis(subsets, product, steps, factors, warmup, sweeps, rng)


def corrected_product(
    subsets: np.ndarray,
    rng: np.random.Generator,
    *,
    warmup: int,
    bandwidth: float | None = None,
    scaled: bool = True,
    sweeps: int = 50,
) -> Combination:
    """Draws of the product of corrected Gaussians made of subset draws (chain, draw, agent, dim)."""
    points = pooled(subsets)
    fitted = moments(points)
    kernels = fitted.precisions if scaled else np.broadcast_to(np.eye(points.shape[2]), fitted.precisions.shape)
    origin = fitted.product().mean
    # the basis in which the kernels' precisions sum to I and those of the Gaussians to a diagonal matrix
    ratio, basis = scipy.linalg.eigh(fitted.precisions.sum(axis=0), kernels.sum(axis=0))
    centred = points - origin
    weighted = np.einsum("nij,ntj->nti", kernels, centred)
    own = points - fitted.means[:, None]
    offers = Offers(
        sums=weighted @ basis,
        linear=np.zeros(points.shape[:2]),
        square=np.einsum("nti,nti->nt", centred, weighted),
        gain=np.einsum("nti,nij,ntj->nt", own, fitted.precisions, own),
    )
    if bandwidth is None and scaled:
        bandwidth = default_bandwidth(fitted, points.shape[1], shrinkage=False)
    if bandwidth is not None and scaled:
        _warn_of_far_agents(fitted, points.shape[1], bandwidth)
    steps = _bandwidths(subsets, bandwidth)
    return _metropolis(
        subsets, Components(offers, origin, basis, ratio), steps, np.ones_like(steps), warmup, sweeps, rng
    )


def _warn_of_far_agents(fitted: Moments, points: int, bandwidth: float) -> None:
    worth = points * effective_shares(fitted, bandwidth, shrinkage=False)
    if worth.min() < min(_FEWEST, points / 10.0):
        agent = int(np.argmin(worth))
        warnings.warn(
            f"the draws of agent {agent} lie too far from the product: for semiparametric all {points} are worth "
            f"{worth[agent]:.2g}; use nonparametric, weierstrass or parametric, or more draws",
            stacklevel=2,
        )


class Offers(NamedTuple):
    """What the log weight of a component needs of each agent's draws.

    A component picks one draw c of each agent. With the product Gaussian's mean as origin, kernel precisions P_i / h^2
    and Gaussian precisions A_i (none in `nonparametric`), V' (sum_i P_i) V = I and V' (sum_i A_i) V = diag(ratio),
    completing the square in x of `prod_i N(x | c_i, h^2 P_i^-1) N(x | m_i, A_i^-1) / N(c_i | m_i, A_i^-1)` gives

        log w = -1/2 [ sum_i c_i' P_i c_i / h^2 - |(V' sum_i P_i c_i) / sqrt(1 + h^2 ratio)|^2 / h^2
                       - sum_i (c_i - m_i)' A_i (c_i - m_i) ]

    and the kernel `x = V y, y ~ N((V' sum_i P_i c_i) / (1 + h^2 ratio), h^2 / (1 + h^2 ratio))`. Shrinkage puts
    `m_i + factor (c_i - m_i)` for c_i; with P_i = A_i, sum_i P_i m_i = 0 at this origin, so that all terms are
    powers of the factor times sums that do not depend on h.
    """

    # V' P_i c, shape (agent, point, dim)
    sums: np.ndarray
    # m_i' P_i c, c' P_i c and (c - m_i)' A_i (c - m_i), shapes (agent, point); c from m_i under shrinkage
    linear: np.ndarray
    square: np.ndarray
    gain: np.ndarray


class Components(NamedTuple):
    """A product as `Offers` describes it: the offers, the origin (dim,), V (dim, dim) and the ratios (dim,)."""

    offers: Offers
    origin: np.ndarray
    basis: np.ndarray
    ratio: np.ndarray


def _bandwidths(subsets: np.ndarray, bandwidth: float | None) -> np.ndarray:
    """One bandwidth a draw: the paper's annealed ones unless a number is given."""
    draws, dim = subsets.shape[1], subsets.shape[3]
    if bandwidth is not None:
        return np.full(draws, float(bandwidth))
    return np.arange(1.0, draws + 1.0) ** (-1.0 / (4.0 + dim))


def _metropolis(
    subsets: np.ndarray,
    product: Components,
    bandwidths: np.ndarray,
    factors: np.ndarray,
    warmup: int,
    sweeps: int,
    rng: np.random.Generator,
) -> Combination:
    chains, draws = subsets.shape[:2]
    # in double precision: weights are differences of squares over h^2
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
        # summed anew in every sweep, so that rounding does not pile up
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
