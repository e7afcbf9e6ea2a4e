"""Warm-up over the network: the posterior's mode, coordinates in which it is about standard normal, its stiffness."""

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

# Draws at a time, and the step at which it is found, of the Gaussian nearest to the posterior: rougher than elsewhere.
_LOOKS, _STILL = 16, 0.5
# Draws of that Gaussian, where there are none of the posterior.
_FEW = 64
# Curvature beyond the mean one at which a posterior counts as Gaussian: it is rounding.
_GAUSSIAN = 1e-3


class Warmup(NamedTuple):
    """The result of a warm-up: mode, scale and stiffness of the posterior, and the traffic it took.

    Parameters
    ----------
    mode
        The minimiser of F, shape (dim,).
    coordinates
        z, in which the posterior is about standard normal: x = origin + factor z.
    curvature
        The smallest and the largest eigenvalue of each agent's Hessian at z = 0, shape (agent, 2).
    stiffness
        The largest eigenvalue of the Hessian of F in z at the stiffest draw, of some at random and of the steepest of
        a thousand: 1 for a Gaussian posterior, and what a step in posterior standard deviations has to be shortened by,
        squared.
    spent
        What finding them took. A Hessian counts as one gradient for each parameter.
    stiff_draw
        One of the stiffest draws, z of shape (dim,); the origin where all are alike or none were looked at.
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
    """Find the mode and whitening coordinates, over the network alone.

    The mode is found by Newton's method on F = sum_i f_i, whose values, gradients and Hessians are summed over a
    spanning tree, with steps halved until F falls. A skewed posterior's mode is not where its draws are, so that where
    it is not Gaussian some hundred points around the mode are weighed, with gradients: the coordinates whiten them.
    Where few of them have all the weight, the Gaussian nearest to the posterior follows (variational; Opper &
    Archambeau 2009), whose mean gradient of F is zero and whose inverse covariance is the mean of F's Hessian, and from
    there a short pilot run, whose gradients are summed over the tree too: the coordinates whiten its draws.

    Above `dense` parameters no Hessian is sent: the mode is found by C-ADMM, and the coordinates whiten by the diagonal
    of the Hessian there only.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    dense
        Most parameters d for which messages of (d + 1)(d + 2) / 2 numbers are sent.
    max_exchanges
        Exchanges that this may take, one after another.
    builder
        Makes the engine of C-ADMM above `dense` parameters; sums are made where the data lies.

    Returns
    -------
    Warmup
        Where the posterior has directions without curvature at its mode, they are scaled by the least curvature that
        there is, and a warning says so.

    Raises
    ------
    ArithmeticError
        The posterior has no mode, or the network takes more than `max_exchanges` to find it.
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
    """Coordinates by the posterior's moments, and draws in them, from those of the Gaussian at the mode."""
    stage("warm-up: points around the mode")
    found = weighed(session, mode)
    if found is not None:
        return found
    stage("warm-up: the Gaussian nearest to the posterior")
    start = nearest_gaussian(session, mode, looks=_LOOKS, still=_STILL)
    stage("warm-up: a pilot run")
    found = explore(session, start)
    if found is not None:
        return found
    warnings.warn("a pilot run diverged: coordinates are those of the Gaussian nearest to the posterior", stacklevel=5)
    draws = np.random.default_rng(1).standard_normal((_FEW, start.origin.size))
    return Whitened(start, draws, draws[:0])


def _by_admm(post: Posterior, network: Network, max_exchanges: int, builder: Builder) -> Warmup:
    """C-ADMM in the scales of the start, and the sum of the Hessians' diagonals, which each agent tells the driver."""
    stage("warm-up: the mode, by C-ADMM")
    at_start = scales(post, post.init)[1].sum(axis=0)
    scaled = Coordinates(post.init, own_scale(at_start))
    found = agree_on_mode(post.transformed(scaled), network, max_exchanges=max_exchanges, builder=builder)
    mode = scaled.origin + scaled.factor * found.position.mean(axis=0)
    diagonal = scales(post, mode)[1].sum(axis=0)
    coordinates = Coordinates.whitening(mode, _definite(diagonal, post.unconstrained_names))
    curvature = _curvature(post, coordinates)
    # no sum of Hessians is known: that of their largest eigenvalues is above its largest
    stiffness = max(1.0, float(curvature[:, 1].sum()))
    # one gradient at least in every exchange; a proximal step takes some
    rows = found.spent.exchanges * post.sizes
    spent = found.spent + Traffic(gradient_rows=rows)
    return Warmup(mode, coordinates, curvature, stiffness, spent, np.zeros(post.dim))


def _definite(hessian: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """A Hessian, or its diagonal, with curvature in every direction; warns where that had to be made up."""
    found = spectrum(np.diag(hessian) if hessian.ndim == 1 else hessian)
    values, enough = found.values, found.enough
    if enough.all():
        return hessian
    if not enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction: nothing can be whitened")
    warnings.warn(
        f"the posterior is not log-concave at its mode: its curvature is {values[0]:.3g} in a direction of which "
        f"{names[found.flattest]} is the largest part, {values[-1]:.3g} at most, each parameter's own taken as 1. A "
        "rank-deficient design under a flat prior does this; such directions are scaled as the flattest of the "
        f"{enough.sum()} others",
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
