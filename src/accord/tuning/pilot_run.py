"""A short run by sums over the network, before the run itself: where the posterior's draws are, and how stiff there.

Every agent adds its gradients to sums that all agents get, and all draw the same noise: they hold the same states, so
that no disagreement enters what they find out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.pytree import pytree
from ..engines.engine import Builder
from ..network import Network
from ..posterior import Posterior
from ..posterior.coordinates import Coordinates
from ..samplers.agent import Agent, Inbox, Noise
from ..samplers.protocol import Bound
from .exchange_budget import Budget
from .network_sums import Summing

# Chains of the run, its rounds before the first draw, draws of each chain and rounds from one to the next.
_CHAINS, _BURN_IN, _DRAWS, _THIN = 64, 50, 12, 8
# Velocities are forgotten after so much time, in posterior standard deviations.
_FRICTION = 0.3
# Power iterations, and the share of draws that count as the stiffest.
_POWERS, _STIFFEST = 7, 0.02


def explore(
    post: Posterior, network: Network, start: Coordinates, step_size: float, budget: Budget, builder: Builder
) -> np.ndarray:
    """Draws of the posterior: BAOAB on F, from draws of the Gaussian that some coordinates stand for.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    start
        Coordinates in which the posterior is about standard normal.
    step_size
        In these coordinates.
    budget
        What this may take, and where it is counted.

    Returns
    -------
    np.ndarray
        In the coordinates, shape (draw, chain, dim); not finite where the step was too long.
    """
    method = _Explorer(step_size)
    z = np.random.default_rng(0).standard_normal((post.dim, _CHAINS))
    budget.sums(_BURN_IN + _DRAWS * _THIN, width=_CHAINS * post.dim, gradients=_CHAINS)
    engine = builder.preliminary(post.transformed(start), network, Bound(method), chains=_CHAINS)
    carry = engine.advance(engine.start(_for_all(network, z), None), _BURN_IN)
    draws = []
    for _ in range(_DRAWS):
        carry = engine.advance(carry, _THIN)
        draws.append(np.asarray(engine.states(carry).position, np.float64)[0].T)
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
    return Coordinates(start.origin + start.factor @ mean, start.factor @ np.linalg.cholesky(shrunk))


def stiffest(
    post: Posterior, network: Network, place: Coordinates, draws: np.ndarray, budget: Budget, builder: Builder
) -> np.ndarray:
    """The largest eigenvalue of F's Hessian in coordinates at some draws, (draw, dim), by power iterations.

    Returns
    -------
    np.ndarray
        Shape (draw,).
    """
    # the round before the first only makes directions
    budget.sums(_POWERS + 1, width=draws.size, gradients=2 * len(draws))
    engine = builder.preliminary(post.transformed(place), network, Bound(_PowerIteration()), chains=len(draws))
    carry = engine.advance(engine.start(_for_all(network, draws.T), None), _POWERS + 1)
    return np.asarray(engine.states(carry).value, np.float64)[0]


def stiffness(values: np.ndarray) -> float:
    """The mean of the largest fiftieth of some curvatures: it is the stiffest draws that bound a step."""
    return float(np.sort(values)[-max(1, round(_STIFFEST * len(values))) :].mean())


def _for_all(network: Network, z: np.ndarray) -> np.ndarray:
    return np.broadcast_to(z, (network.num_agents, *z.shape))


class _ExplorerState(NamedTuple):
    position: Float[Array, " dim"]
    velocity: Float[Array, " dim"]


@pytree
class _Explorer(Summing):
    """BAOAB on F (Leimkuhler & Matthews 2013), at every agent alike."""

    step_size: float

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> _ExplorerState:
        return _ExplorerState(position, jnp.zeros_like(position))

    def message(self, agent: Agent, state: _ExplorerState) -> Float[Array, " dim"]:
        return agent.gradient(state.position)

    def update(self, agent: Agent, state: _ExplorerState, inbox: Inbox, noise: Noise) -> _ExplorerState:
        assert noise.normal is not None
        h, kept = self.step_size, jnp.exp(-_FRICTION * self.step_size)
        v = state.velocity - h * inbox.total()
        middle = state.position + h / 2.0 * v
        v = kept * v + (1.0 - kept**2) ** 0.5 * noise.normal
        return _ExplorerState(middle + h / 2.0 * v, v)


class _PowerState(NamedTuple):
    position: Float[Array, " dim"]
    direction: Float[Array, " dim"]
    value: Float[Array, ""]


@pytree
class _PowerIteration(Summing):
    """One round multiplies a direction by F's Hessian; the first one draws it."""

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> _PowerState:
        return _PowerState(position, jnp.zeros_like(position), jnp.zeros((), position.dtype))

    def message(self, agent: Agent, state: _PowerState) -> Float[Array, " dim"]:
        return jax.jvp(agent.gradient, (state.position,), (state.direction,))[1]

    def update(self, agent: Agent, state: _PowerState, inbox: Inbox, noise: Noise) -> _PowerState:
        assert noise.normal is not None
        product = jnp.where(agent.round == 0, noise.normal, inbox.total())
        value = jnp.linalg.norm(product)
        return _PowerState(state.position, product / value, value)
