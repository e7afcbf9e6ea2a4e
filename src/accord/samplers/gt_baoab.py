"""GT-BAOAB: split-step kinetic Langevin whose agents track the average gradient and share their noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.checks import positive
from ..base.pytree import checked, pytree, static
from ..network import Network
from .agent import Agent, Inbox, Noise
from .mixing import Gossip, as_mixing
from .protocol import Needs, Tunable
from .schedules import Step, as_step, at, rescaled

# Largest number of exchanges per step that `candidates` tries. Users may set more.
_MOST_EXCHANGES = 256
# Fraction of the stability bound at the stiffest draw of warm-up. On skewed posteriors (logistic regressions of
# breast-cancer, wine and digits) the bias is a few hundredths of a standard deviation up to 0.85 and grows steeply
# above. With unbounded curvature, runs at 1.1 times this fraction make excursions.
_OF_STABLE = 0.75


class GTBAOABState(NamedTuple):
    position: Float[Array, " dim"]
    velocity: Float[Array, " dim"]
    tracker: Float[Array, " dim"]
    gradient: Float[Array, " dim"]


class GTBAOABMessage(NamedTuple):
    position: Float[Array, " dim"]
    velocity: Float[Array, " dim"]
    tracker: Float[Array, " dim"]


@pytree
class GTBAOAB(Gossip, Tunable):
    """Gradient-tracking BAOAB: kinetic Langevin with exact stationary positions on Gaussian targets.

    From agent i, with (x, v, d) mixed over `mix_rounds` exchanges and c = exp(-friction step_size):
    `v' = v - step_size N d`, `y = x + (step_size / 2) v'`,
    `v+ = c v' + sqrt(1 - c^2) xi`, `x+ = y + (step_size / 2) v+`,
    `d+ = d + grad f_i(x_i+) - grad f_i(x_i)`, and at the start v_i = 0 and d_i = grad f_i(x_i).

    Ours: the splitting of Leimkuhler & Matthews (2013) on the network, with d tracking the mean gradient as in GT-DULA.
    The network average follows BAOAB on F, whose positions have the posterior's covariance on Gaussian targets at any
    stable step. With common noise xi (the default) each agent's draws have this covariance too if `mix_rounds` is large
    enough for the step. Too few exchanges first inflate variances and then cause divergence. `accord.law` computes the
    effect. The defaults suit coordinates in which the posterior's covariance is about the identity. W must be
    symmetric, doubly stochastic and on the edges. The average is stable while `step_size^2 sum_i H_i < 4`. At
    `temperature=0` this is gradient tracking with momentum, which converges to the mode.

    Parameters
    ----------
    step_size
        h > 0, a number or a schedule of the round, in units of the posterior's standard deviation. None: chosen from
        the posterior's stiffness at its draws (`Warmup.stiffness`), in whitened coordinates.
    friction
        gamma > 0, per unit of time: velocities decorrelate after 1 / (gamma h) rounds. Lower values give precise means
        sooner, higher values precise standard deviations. 0.3 was good for both on four regressions.
    mix_rounds
        Exchanges K in one step, >= 1. None: the fewest for which, on the posterior's Gaussian approximation, every
        agent's means and standard deviations are within a tenth of the plan's tolerance.
    mixing
        Weights W: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    noise
        "common" (default) or "independent", which makes agents spread around their average.
    batch_size, temperature
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.GTBAOAB(step_size=0.5, friction=1.0, mix_rounds=3)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    friction: float = 0.3
    mixing: Any = static(as_mixing, default="metropolis")
    noise: str = static(default="common", kw_only=True)
    mix_rounds: int | None = static(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("friction", self.friction)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> GTBAOABState:
        gradient = self.tracked(agent, position, noise.batch)
        return GTBAOABState(position, jnp.zeros_like(position), gradient, gradient)

    def message(self, agent: Agent, state: GTBAOABState) -> GTBAOABMessage:
        return GTBAOABMessage(state.position, state.velocity, state.tracker)

    def update(self, agent: Agent, state: GTBAOABState, inbox: Inbox, noise: Noise) -> GTBAOABState:
        x, v, d = inbox.mix()
        assert noise.normal is not None
        step, n = at(self.step_size, agent.round), agent.num_agents
        kept = jnp.exp(-self.friction * step)
        v = v - step * self.force(agent, x, d / inbox.share)
        x = x + step / 2.0 * v
        # noise of one agent moves the average by 1/N of it: variance N gives the average a variance of 1
        v = kept * v + ((1.0 - kept**2) * n) ** 0.5 * noise.normal
        x = x + step / 2.0 * v
        gradient = self.tracked(agent, x, noise.batch)
        return GTBAOABState(x, v, d + gradient - state.gradient, gradient)

    def force(self, agent: Agent, x: Float[Array, " dim"], tracked: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The agent's estimate of the gradient of F, from its estimate of the mean tracked gradient."""
        return agent.num_agents * tracked

    def tracked(self, agent: Agent, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        """The agent's own contribution to the tracked mean."""
        return agent.gradient(x, batch)

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(pushed=("tracker",))

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    tunable: ClassVar[tuple[str, ...]] = ("step_size", "mix_rounds")

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step * self.friction, mix_rounds=1)

    def candidates(self, network: Network, stiffness: float) -> Iterator[Self]:
        # stable below 2 / sqrt(curvature), also at the stiffest draws; on a Gaussian posterior 1 needs fewer exchanges
        step = min(1.0, _OF_STABLE * 2.0 / stiffness**0.5) if self.step_size is None else self.step_size
        if self.mix_rounds is not None:
            yield replace(self, step_size=step)
            return
        if self.relays:
            yield replace(self, step_size=step, mix_rounds=1)
            return
        exchanges = 1
        while exchanges <= _MOST_EXCHANGES:
            yield replace(self, step_size=step, mix_rounds=exchanges)
            exchanges += 1 + exchanges // 6

    def conserved(self, agent: Agent, state: GTBAOABState) -> Float[Array, " dim"]:
        return state.tracker - state.gradient

    def langevin_step(self, network: Network) -> Step:
        # over times longer than 1 / friction, kinetic Langevin is Langevin with time slowed down by the friction
        return rescaled(self.step_size, 1.0 / float(self.friction))

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        """The largest step at which the average is stable. Disagreement may need a smaller step or more exchanges."""
        largest = float(np.linalg.eigvalsh(hessians.sum(axis=0))[-1])
        return 2.0 / largest**0.5 if largest > 0 else np.inf
