"""What agents find out together before they sample: the mode, the curvature there, and coordinates made of both."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .budget import Budget
from .checks import positive, whole_number
from .coordinates import Coordinates
from .expansion import Expansion, Expansions, machine
from .network import Network
from .pilot import explore, stiffest, stiffness, whitening
from .posterior import Posterior, Potential, Shard
from .samplers.d_admms import DADMMS

# Exchanges between two looks at whether the agents agree.
_BLOCK = 50
_MAX_EXCHANGES = 50_000
# Newton steps until it is said that there is no mode, and halvings of one of them.
_MOST_STEPS, _MOST_HALVINGS = 50, 30
# A step of Newton's method, in posterior standard deviations, that is the last one; and how much the curvature may
# have changed on the way to it. Quadratic convergence leaves the square of the first.
_LAST_STEP, _LAST_CHANGE = 1e-2, 0.1
# Draws that a mean over a Gaussian is taken of (pairs z and -z), moves of the Gaussian at most, and the move, in
# standard deviations, after which it stays: a pilot run begins there, nothing else.
_LOOKS, _MOST_MOVES, _STILL = 32, 20, 0.25
# Draws whose curvature tells how long the steps of the pilot run may be, and those of the run itself.
_FEW, _MANY = 64, 448
# Curvature beyond the mean one at which a posterior counts as Gaussian: it is rounding.
_GAUSSIAN = 1e-3
# Curvature in a direction, relative to the largest, below which it counts as none.
_FLAT = 1e-7


class Warmup(NamedTuple):
    """What agents found before they sample, and what that took.

    Parameters
    ----------
    mode
        The minimiser of F, shape (dim,).
    coordinates
        z, in which the posterior is about standard normal: x = origin + factor z.
    curvature
        The smallest and the largest eigenvalue of each agent's Hessian at z = 0, shape (agent, 2).
    stiffness
        The largest eigenvalue of the Hessian of F in z at the stiffest fiftieth of draws, on average: 1 for a Gaussian
        posterior, and what a step in posterior standard deviations has to be shortened by, squared.
    exchanges, bytes_sent, gradient_rows
        Exchanges one after another; bytes that each agent sent and rows that it read, shape (agent,). A Hessian counts
        as one gradient for each parameter.
    """

    mode: np.ndarray
    coordinates: Coordinates
    curvature: np.ndarray
    stiffness: float
    exchanges: int
    bytes_sent: np.ndarray
    gradient_rows: np.ndarray


def warm_up(post: Posterior, network: Network, *, dense: int = 200, max_exchanges: int = 100_000) -> Warmup:
    """Find the mode and whitening coordinates, over the network alone.

    The mode is found by Newton's method on F = sum_i f_i, whose values, gradients and Hessians are summed over a
    spanning tree, with steps halved until F falls. A skewed posterior's mode is not where its draws are, so that where
    it is not Gaussian the mode is followed by the Gaussian nearest to it (variational; Opper & Archambeau 2009), whose
    mean gradient of F is zero and whose inverse covariance is the mean of F's Hessian, and by a short pilot run from
    there, whose gradients are summed over the tree too: the coordinates whiten its draws.

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
    return find(post, network, max_exchanges)


def _by_sums(post: Posterior, network: Network, max_exchanges: int) -> Warmup:
    budget = Budget(network, max_exchanges)
    expand = Expansions(post, network, budget)
    mode, hessian = _newton(expand, post.init)
    coordinates, stiff = Coordinates.whitening(mode, _definite(hessian, post.names)), 1.0
    if not post.quadratic:
        coordinates, stiff = _by_pilot(post, network, _nearest_gaussian(expand, coordinates), budget)
    curvature, rows = _curvature(post, coordinates), budget.gradients * post.sizes
    return Warmup(mode, coordinates, curvature, stiff, budget.exchanges, budget.bytes_sent, rows)


def _by_pilot(post: Posterior, network: Network, start: Coordinates, budget: Budget) -> tuple[Coordinates, float]:
    """Coordinates that whiten the draws of a pilot run, and the stiffness there; a Gaussian posterior needs none."""
    z = np.random.default_rng(1).standard_normal((_FEW, post.dim))
    stiff = max(1.0, stiffness(stiffest(post, network, start, z, budget)))
    if stiff <= 1.0 + _GAUSSIAN:
        return start, 1.0
    draws = explore(post, network, start, stiff**-0.5, budget)
    if not np.isfinite(draws).all():
        warnings.warn(
            "a pilot run diverged: coordinates are those of the Gaussian nearest to the posterior", stacklevel=4
        )
        return start, stiff
    place = whitening(draws, start)
    looked_at = place.inverse(start.origin + draws.reshape(-1, post.dim)[-_MANY:] @ start.factor.T)
    return place, max(1.0, stiffness(stiffest(post, network, place, looked_at, budget)))


def _by_admm(post: Posterior, network: Network, max_exchanges: int) -> Warmup:
    """C-ADMM in the scales of the start, and the sum of the Hessians' diagonals, which each agent tells the driver."""
    at_start = post.each(_scales, post.init)[1].sum(axis=0)
    scaled = Coordinates(post.init, np.maximum(at_start, _FLAT * at_start.max() + np.finfo(float).tiny) ** -0.5)
    found = agree_on_mode(post.transformed(scaled), network, max_exchanges=max_exchanges)
    mode = scaled.origin + scaled.factor * found.position.mean(axis=0)
    diagonal = post.each(_scales, mode)[1].sum(axis=0)
    coordinates = Coordinates.whitening(mode, _definite(diagonal, post.names))
    curvature = _curvature(post, coordinates)
    # no sum of Hessians is known: that of their largest eigenvalues is above its largest
    stiffness = max(1.0, float(curvature[:, 1].sum()))
    # one gradient at least in every exchange; a proximal step takes some
    rows = found.exchanges * post.sizes
    return Warmup(mode, coordinates, curvature, stiffness, found.exchanges, found.bytes_sent, rows)


def _nearest_gaussian(expand: Expansions, start: Coordinates) -> Coordinates:
    """Coordinates of the Gaussian nearest to the posterior, from those of its mode; these where there is none."""
    half = np.random.default_rng(0).standard_normal((_LOOKS // 2, start.origin.size))
    z = np.concatenate([half, -half])
    place, precision = start, np.linalg.inv(start.factor @ start.factor.T)
    for _ in range(_MOST_MOVES):
        mean = expand(*(place.origin + z @ place.factor.T))
        # half the way: the mean Hessian moves with the Gaussian
        following = (precision + mean.hessian) / 2.0
        if not np.isfinite(following).all() or np.linalg.eigvalsh(following)[0] <= 0:
            warnings.warn(
                "the posterior is not log-concave on average where its draws are: coordinates are those of its mode",
                stacklevel=4,
            )
            return start
        step = -np.linalg.solve(following, mean.gradient) / 2.0
        length = float(np.sqrt(step @ following @ step))
        changed = _change(precision, mean.hessian)
        place, precision = Coordinates.whitening(place.origin + step, following), following
        if length <= _STILL and changed <= 2.0 * _STILL:
            break
    return place


def _newton(expand: Expansions, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the Hessian there, by Newton's method with steps halved until F falls."""
    here = expand(x)
    at_start = np.linalg.eigvalsh(here.hessian)[-1]
    for _ in range(_MOST_STEPS):
        step, length = _step(here)
        there = expand(x + step)
        for _ in range(_MOST_HALVINGS):
            # written so that NaN counts as a rise; rounding of large sums is none
            if there.value <= here.value + 1e-6 * (1.0 + abs(here.value)):
                break
            step = step / 2.0
            there = expand(x + step)
        else:
            raise ArithmeticError("no mode found: the potential rises along every step that is tried")
        changed = _change(here.hessian, there.hessian)
        x, here = x + step, there
        if length <= _LAST_STEP and changed <= _LAST_CHANGE:
            return x, here.hessian
    least = np.linalg.eigvalsh(here.hessian)[0]
    raise ArithmeticError(
        f"no mode found in {_MOST_STEPS} Newton steps: the potential flattens out, its least curvature is {least:.3g} "
        f"from {at_start:.3g} at init (separated labels under a flat prior do this)"
    )


def _step(here: Expansion) -> tuple[np.ndarray, float]:
    """A Newton step, which descends where curvature is negative too, and its length in standard deviations."""
    values, vectors = np.linalg.eigh(here.hessian)
    size = np.maximum(np.abs(values), _FLAT * np.abs(values).max() + np.finfo(float).tiny)
    slope = vectors.T @ here.gradient
    return -vectors @ (slope / size), float(np.sqrt((slope**2 / size).sum()))


def _change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest relative change of curvature in any direction."""
    values, vectors = np.linalg.eigh(before)
    root = vectors / np.sqrt(np.maximum(np.abs(values), _FLAT * np.abs(values).max() + np.finfo(float).tiny))
    return float(np.abs(np.linalg.eigvalsh(root.T @ (after - before) @ root)).max())


def _definite(hessian: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """A Hessian, or its diagonal, with curvature in every direction; warns where that had to be made up."""
    values, vectors = (hessian, np.eye(hessian.size)) if hessian.ndim == 1 else np.linalg.eigh(hessian)
    enough = values > _FLAT * np.abs(values).max()
    if enough.all():
        return hessian
    if not enough.any():
        raise ArithmeticError("the posterior has no curvature at its mode in any direction: nothing can be whitened")
    worst = int(np.argmin(values))
    heaviest = names[int(np.argmax(np.abs(vectors[:, worst])))]
    warnings.warn(
        f"the posterior is not log-concave at its mode: its curvature is {values[worst]:.3g} in a direction of which "
        f"{heaviest} is the largest part, {values.max():.3g} at most. A rank-deficient design under a flat prior does "
        f"this; such directions are scaled as the flattest of the {int(enough.sum())} others",
        stacklevel=3,
    )
    lifted = np.where(enough, values, values[enough].min())
    return lifted if hessian.ndim == 1 else (vectors * lifted) @ vectors.T


def _curvature(post: Posterior, coordinates: Coordinates) -> np.ndarray:
    return np.asarray(post.transformed(coordinates).each(_extremes, np.zeros(post.dim)))


def _extremes(potential: Potential, shard: Shard, z: Float[Array, " dim"]) -> Float[Array, 2]:
    """The smallest and the largest eigenvalue of an agent's Hessian."""
    values = jnp.linalg.eigvalsh(potential.hessian(shard, z))
    return jnp.stack([values[0], values[-1]])


class Agreement(NamedTuple):
    """The common minimiser as agents found it, and what that took.

    Parameters
    ----------
    position
        Each agent's own value of it, shape (agent, dim).
    gradients
        Each agent's own gradient there, as its dual variable holds it, shape (agent, dim); their sum is zero up to
        rounding, however far the positions have converged.
    exchanges, bytes_sent
        Exchanges one after another, and bytes that each agent sent, shape (agent,).
    """

    position: np.ndarray
    gradients: np.ndarray
    exchanges: int
    bytes_sent: np.ndarray


def agree_on_mode(
    post: Posterior, network: Network, *, tolerance: float = 0.01, max_exchanges: int = _MAX_EXCHANGES
) -> Agreement:
    """Find the minimiser of sum_i f_i over the network, by C-ADMM (D-ADMMS without noise).

    Its dual variables p_i tend to -grad f_i(m) and always sum to zero, so that tilting every potential by them leaves
    the sum as it is at any time.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    tolerance
        Largest distance of an agent from the minimiser, in units of 1 / sqrt(curvature of the sum), > 0.
    max_exchanges
        Exchanges that it may take.

    Raises
    ------
    ArithmeticError
        The agents did not agree in `max_exchanges`: the posterior may have no mode.
    """
    positive("tolerance", tolerance)
    largest, diagonal = post.each(_scales, post.init)
    # the penalty that weighs an agent's ties as much as its own potential
    rho = max(float(largest.mean()), 1e-6) / (2.0 * float(network.degrees.mean()))
    engine = machine(post, network, DADMMS(rho, temperature=0.0))
    carry = engine.start(np.broadcast_to(post.init, (post.num_agents, post.dim)), None)
    width = engine.message_bytes(carry)
    root = np.sqrt(np.maximum(diagonal.sum(axis=0), np.finfo(float).tiny))
    for exchanges in range(_BLOCK, max(_BLOCK, max_exchanges) + 1, _BLOCK):
        carry = engine.advance(carry, _BLOCK)
        x, p = (np.asarray(part, np.float64)[:, :, 0] for part in (carry.state.position, carry.state.dual))
        mean = x.mean(axis=0)
        # at agreement p_i = -grad f_i(m); what is left of their sum is the distance to the minimiser
        slope = post.gradients(mean)
        apart = np.abs((x - mean) * root).max()
        if apart <= tolerance and np.abs(slope.sum(axis=0) / root).max() <= tolerance:
            return Agreement(x, -p, exchanges, exchanges * width * network.degrees)
    raise ArithmeticError(
        f"the agents found no common minimiser in {exchanges} exchanges: they are still {apart:.3g} apart, in "
        "units of the posterior's scale; does the posterior have a mode?"
    )


def _scales(potential: Potential, shard: Shard, x: Float[Array, " dim"]) -> tuple[Array, Float[Array, " dim"]]:
    """The largest eigenvalue of an agent's Hessian, and its diagonal; entries that are not finite count as 0."""
    hessian = potential.hessian(shard, x)
    hessian = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
    return jnp.linalg.eigvalsh(hessian)[-1], jnp.diagonal(hessian)
