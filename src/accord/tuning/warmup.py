"""Warm-up over the network: the posterior's mode, whitening coordinates and stiffness."""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import whole_number
from ..base.progress import stage
from ..engines.consensus_mode import agree_on_mode, scales
from ..engines.local import LocalEngine
from ..network import Network
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..posterior.newton import newton, own_scale, spectrum
from ..posterior.potential import Potential, Shard
from ..results.traffic import Traffic
from ..samplers.by_sums.evaluations import expand
from ..samplers.by_sums.laplace import nearest_gaussian
from ..samplers.engine import Builder
from ..samplers.session import Job, Session
from .pilot_run import explore, stiff_draw, stiffest
from .whitened import Whitened, weighed

# Draws per iteration of the variational Gaussian fit.
_LOOKS = 16
# Convergence tolerance of the variational fit, in standard deviations.
_STILL = 0.5
# Draws of the variational Gaussian if the pilot run diverged.
_FEW = 64
# Excess of the largest whitened eigenvalue over 1 that counts as rounding error of a Gaussian posterior.
_GAUSSIAN = 1e-3


class Warmup(NamedTuple):
    """The result of a warm-up.

    Parameters
    ----------
    mode
        The minimiser of F, shape (dim,).
    coordinates
        Whitening coordinates: the posterior is approximately standard normal in z, x = origin + factor z.
    curvature
        The smallest and the largest eigenvalue of each agent's Hessian at z = 0, shape (agent, 2).
    stiffness
        The largest eigenvalue of the Hessian of F in z over random draws and the draws with the largest gradients,
        1 for a Gaussian posterior. Stable steps shrink with its square root.
    spent
        The traffic of the warm-up. A Hessian counts as one gradient per parameter.
    stiff_draw
        A draw with nearly the largest Hessian eigenvalue, z of shape (dim,). Zero if the posterior is Gaussian or no
        draws were made.
    """

    mode: np.ndarray
    coordinates: Coordinates
    curvature: np.ndarray
    stiffness: float
    spent: Traffic
    stiff_draw: np.ndarray


def warm_up(
    post: Posterior,
    network: Network,
    *,
    dense: int = 200,
    max_exchanges: int = 100_000,
    builder: Builder = LocalEngine,
) -> Warmup:
    """Find the posterior's mode and whitening coordinates by sums over the network.

    Newton's method with step halving finds the mode of F = sum_i f_i. The agents' values, gradients and Hessians are
    summed over a spanning tree. If the posterior is not Gaussian, its mean and covariance are then estimated by
    importance sampling: a few hundred points of a t distribution around the mode, with gradients. If too few points
    carry the weight, warm-up fits the variational Gaussian (Opper & Archambeau 2009) and estimates the moments from a
    short pilot run that starts there.

    Above `dense` parameters no Hessian is sent: C-ADMM finds the mode, and the coordinates scale each parameter by the
    diagonal of the Hessian there.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    dense
        Largest number of parameters d for which messages of (d + 1)(d + 2) / 2 numbers are sent.
    max_exchanges
        Largest number of consecutive exchanges.
    builder
        Builds the engine of C-ADMM above `dense` parameters.

    Returns
    -------
    Warmup
        If directions have no curvature at the mode, warm-up scales them by the smallest other curvature and warns.

    Raises
    ------
    ArithmeticError
        The posterior has no mode, or the mode needs more than `max_exchanges` exchanges.
    """
    dense, max_exchanges = whole_number("dense", dense, 0), whole_number("max_exchanges", max_exchanges, 1)
    network.require_connected()
    find = _by_sums if post.dim <= dense else _by_admm
    return find(post, network, max_exchanges, builder)


def _by_sums(post: Posterior, network: Network, max_exchanges: int, builder: Builder) -> Warmup:
    stage("warm-up: the mode")
    session = Session(Job(post, network), most_exchanges=max_exchanges)
    mode, hessian = newton(partial(expand, session), post.init, post.unconstrained_names, remedy=post.remedy_at_init)
    place = Coordinates.whitening(mode, _definite(hessian, post.unconstrained_names))
    stiff, stiff_at = 1.0, np.zeros(post.dim)
    if not post.quadratic:
        place, draws, steep = _whitened(session, place)
        values = stiffest(session, place, np.concatenate([draws, steep]))
        if values.max() > 1.0 + _GAUSSIAN:
            stiff, stiff_at = float(values.max()), stiff_draw(values[: len(draws)], draws)
    return Warmup(mode, place, _curvature(post, place), stiff, session.traffic, stiff_at)


def _whitened(session: Session, mode: Coordinates) -> Whitened:
    """Whiten by moments: importance sampling first, a pilot run as the fallback."""
    stage("warm-up: points around the mode")
    found = weighed(session, mode)
    if found is not None:
        return found
    stage("warm-up: a Gaussian approximation")
    start = nearest_gaussian(session, mode, looks=_LOOKS, still=_STILL)
    stage("warm-up: a pilot run")
    found = explore(session, start)
    if found is not None:
        return found
    warnings.warn("the warm-up's pilot run diverged: falling back to the coordinates of a Gaussian fit", stacklevel=5)
    draws = np.random.default_rng(1).standard_normal((_FEW, start.origin.size))
    return Whitened(start, draws, draws[:0])


def _by_admm(post: Posterior, network: Network, max_exchanges: int, builder: Builder) -> Warmup:
    """Find the mode by C-ADMM in the scales at init, and whiten by the sum of the Hessians' diagonals."""
    stage("warm-up: the mode, by C-ADMM")
    at_start = scales(post, post.init)[1].sum(axis=0)
    scaled = Coordinates(post.init, own_scale(at_start))
    found = agree_on_mode(post.transformed(scaled), network, max_exchanges=max_exchanges, builder=builder)
    mode = scaled.origin + scaled.factor * found.position.mean(axis=0)
    diagonal = scales(post, mode)[1].sum(axis=0)
    coordinates = Coordinates.whitening(mode, _definite(diagonal, post.unconstrained_names))
    curvature = _curvature(post, coordinates)
    # an upper bound: the largest eigenvalue of a sum is at most the sum of the largest eigenvalues
    stiffness = max(1.0, float(curvature[:, 1].sum()))
    # lower bound: a proximal step takes several gradients
    rows = found.spent.exchanges * post.sizes
    spent = found.spent + Traffic(gradient_rows=rows)
    return Warmup(mode, coordinates, curvature, stiffness, spent, np.zeros(post.dim))


def _definite(hessian: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """The Hessian, or its diagonal, with flat directions lifted to the smallest other curvature and a warning."""
    found = spectrum(np.diag(hessian) if hessian.ndim == 1 else hessian)
    values, enough = found.values, found.enough
    if enough.all():
        return hessian
    if not enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction: cannot whiten it")
    warnings.warn(
        f"the posterior is not log-concave at its mode: the Hessian, scaled to a unit diagonal, has eigenvalues from "
        f"{values[0]:.3g} to {values[-1]:.3g}, and {names[found.flattest]} is the largest part of the flattest "
        "direction. A rank-deficient design under a flat prior is a common cause. Warm-up scales flat directions like "
        f"the flattest of the {enough.sum()} others",
        stacklevel=3,
    )
    lifted = found.hessian(np.where(enough, values, values[enough].min()))
    return np.diagonal(lifted) if hessian.ndim == 1 else lifted


def _curvature(post: Posterior, coordinates: Coordinates) -> np.ndarray:
    return np.asarray(post.transformed(coordinates).each(_extremes, np.zeros(post.dim)))


def _extremes(potential: Potential, shard: Shard, z: Float[Array, " dim"]) -> Float[Array, 2]:
    """The smallest and the largest eigenvalue of an agent's Hessian."""
    values = jnp.linalg.eigvalsh(potential.hessian(shard, z))
    return jnp.stack([values[0], values[-1]])
