"""D-MAHMC: Hamiltonian Monte Carlo over a network, accepted by tracked gradients and a shared random number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..base.checks import positive, whole_number
from ..base.pytree import pytree, static
from ..network import Network
from ..network.averaging import exchanges_for
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .mixing import as_mixing
from .protocol import Bound, Langevin, Monitored, Needs

Vector = Float[Array, " dim"]

# Disagreement left by a step if `mix_rounds` is omitted. It keeps standard deviations of unlike shards within 1%.
_LEFT = 0.03
# Acceptance rate below which a run warns.
_FEW = 0.2


class DMAHMCState(NamedTuple):
    # the draw, at which the trajectory began
    position: Vector
    # N times the tracked mean gradient at `position`
    slope: Vector
    # the present point of the trajectory
    moving: Vector
    # the momentum, half a step ahead
    momentum: Vector
    # the tracked mean gradient at `moving`
    tracker: Vector
    # the agent's gradient at `moving`
    gradient: Vector
    # this agent's part of the Taylor remainder, None without `remainder`
    remainder: Float[Array, ""] | None
    # leapfrog steps left in the trajectory, the same for all agents; None if a trajectory is one step
    left: Int[Array, ""] | None


class DMAHMCMessage(NamedTuple):
    moving: Vector
    momentum: Vector
    tracker: Vector
    remainder: Float[Array, ""] | None


class DMAHMCInfo(NamedTuple):
    # completed trajectories
    trajectories: Int[Array, ""]
    # rejected trajectories
    rejections: Int[Array, ""]


@pytree
class DMAHMC(Langevin, Monitored):
    """Decentralised Metropolis-adjusted Hamiltonian Monte Carlo.

    From agent i, with (x, v, d) mixed over `mix_rounds` exchanges, g = N d, h = `step_size`: `v+ = v - (h/2) g`. At the
    end of a trajectory it is accepted if `log u < (h^2 / 8) (|g_0|^2 - |g|^2)`, else x and g return to x_0 and g_0 of
    its beginning, and then `v+ ~ N(0, I)`. Then `v' = v+ - (h/2) g`, `x' = x + h v'`,
    `d' = d + grad f_i(x') - grad f_i(old x')`, and at the start d = grad f_i(x). A draw is x_0.

    Kungurtsev, Cobb, Javidi and Jalaian 2023 (Decentralized Bayesian learning with Metropolis-adjusted Hamiltonian
    Monte Carlo, arXiv:2107.07211), derived from the abstract: gradients are tracked, and the acceptance test
    approximates the change of F by a Taylor expansion. The paper expands forward from x_0 with tracked Hessian-vector
    products. This implementation averages the expansions from both ends of each leapfrog step and gets their second
    order from the difference of the tracked gradients, so that a trajectory and its reverse have opposite changes.
    Along leapfrog steps this sum telescopes to the term above. u and v+ are the same for all agents, drawn from the
    shared seed. Each agent tests with its own g. If log u falls between the values of two agents, their positions
    differ until later mixing joins them, and the sum of the d remains the sum of the gradients.

    Every agent's draws follow the posterior up to disagreement, which `mix_rounds` reduces. On a complete network one
    exchange averages exactly and this is exact HMC. The Taylor approximation is exact on Gaussian posteriors, on which
    draws without the test are too wide by `1 / sqrt(1 - h^2 c / 4)`, c the curvature. Elsewhere it omits a term of
    order h^2 times the third derivative of F. This biases draws (the mean of a skewed posterior by 0.03, 0.07 and 0.12
    of its standard deviations at h of 0.5, 1 and 1.4 of them) and does not reject long steps in steep tails.
    `remainder=True` (our extension, the default) lets agents average that term, one number of third order in h per
    agent, as they average gradients. W must be symmetric, doubly stochastic and on the edges.

    Parameters
    ----------
    step_size
        h > 0, in units of the posterior's standard deviation if it is whitened; below 2 / sqrt(largest curvature of F).
    steps
        Mean number of leapfrog steps of a trajectory, each a round, >= 1. The number is uniform on 1 ... 2 steps - 1. A
        draw changes at the end of a trajectory, so that `thin` should be at least `steps`. 1 (default), as in the
        paper's experiments, is MALA.
    remainder
        Whether agents also evaluate and average the remainder of the Taylor approximation (default). False is the
        paper's approximation, with one gradient per round in place of two gradients and two values.
    mix_rounds
        Exchanges K in one step, >= 1, as in `Gossip`. None (default): the fewest that reduce disagreement to 0.03. With
        one exchange on a path of six agents with unlike shards, standard deviations are wrong by up to half.
    mixing
        Weights W: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    noise
        "common" only: with separate momenta the agents have no common trajectory to test.
    temperature
        As in `Sampler`, > 0.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DMAHMC(step_size=0.5, steps=3)
    >>> run = accord.sample(post, accord.Network.ring(3), accord.Rounds(method, thin=3), draws=10, chains=2)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: float
    steps: int = static(default=1)
    remainder: bool = static(default=True)
    mixing: Any = static(as_mixing, default="metropolis")
    noise: str = static(default="common", kw_only=True)
    mix_rounds: int | None = static(default=None, kw_only=True)

    noises: ClassVar[tuple[str, ...]] = ("common",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("step_size", self.step_size)
        positive("temperature", self.temperature)
        whole_number("steps", self.steps, 1)
        if self.mix_rounds is not None:
            whole_number("mix_rounds", self.mix_rounds, 1)

    def needs(self, dim: int) -> Needs:
        # two gradients and two values with the remainder
        gradients = 4 if self.remainder else 1
        exchanges = self.mix_rounds or 1
        return Needs("mix", common=True, key="common", exchanges=exchanges, gradients=gradients, reliable=True)

    def init(self, agent: Agent, position: Vector, noise: Noise) -> DMAHMCState:
        gradient = agent.gradient(position)
        nothing = jnp.zeros_like(position)
        # no trajectory ends in round 0, the first one begins there
        left = None if self.steps == 1 else jnp.zeros((), jnp.int32)
        rest = jnp.zeros((), position.dtype) if self.remainder else None
        return DMAHMCState(position, nothing, position, nothing, gradient, gradient, rest, left)

    def message(self, agent: Agent, state: DMAHMCState) -> DMAHMCMessage:
        return DMAHMCMessage(state.moving, state.momentum, state.tracker, state.remainder)

    def transition(
        self, agent: Agent, state: DMAHMCState, inbox: Inbox, noise: Noise
    ) -> tuple[DMAHMCState, DMAHMCInfo]:
        mixed, n, half = inbox.mix(), agent.num_agents, self.step_size / 2.0
        assert noise.normal is not None
        g = n * mixed.tracker
        # the change of energy by the trapezoid rule telescopes along leapfrog steps
        change = half**2 / 2.0 * (jnp.sum(g**2) - jnp.sum(state.slope**2))
        if self.remainder:
            change = change + n * mixed.remainder
        first, ends = agent.round == 0, jnp.ones((), bool) if state.left is None else state.left == 0
        # round 0 accepts the average of the starts
        kept = self.accepts(noise, change) | first
        x, slope = (
            jnp.where(ends & ~kept, old, new) for old, new in ((state.position, mixed.moving), (state.slope, g))
        )
        momentum = jnp.where(ends, noise.normal, mixed.momentum - half * g) - half * slope
        moved = x + 2.0 * half * momentum
        gradient = agent.gradient(moved)
        rest = None
        if self.remainder:
            trapezoid = jnp.sum((agent.gradient(x) + gradient) * (moved - x)) / 2.0
            rest = jnp.where(ends, 0.0, mixed.remainder) + agent.value(moved) - agent.value(x) - trapezoid
        new = DMAHMCState(
            position=jnp.where(ends, x, state.position),
            slope=jnp.where(ends, slope, state.slope),
            moving=moved,
            momentum=momentum,
            # increments of own gradients keep the sum of trackers, whatever the agents decide
            tracker=mixed.tracker + gradient - state.gradient,
            gradient=gradient,
            remainder=rest,
            left=None if state.left is None else jnp.where(ends, self.length(noise), state.left) - 1,
        )
        # integers, because booleans would not add up
        return new, DMAHMCInfo((ends & ~first).astype(jnp.int32), (ends & ~kept).astype(jnp.int32))

    def length(self, noise: Noise) -> Int[Array, ""]:
        """Steps of the next trajectory, the same for all agents, random to avoid a period of the target."""
        return jax.random.randint(jax.random.fold_in(noise.random_key(), 1), (), 1, 2 * self.steps, jnp.int32)

    def accepts(self, noise: Noise, change: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a trajectory with this change of energy is accepted. NaN is rejected."""
        key = jax.random.fold_in(noise.random_key(), 0)
        # -log of a uniform random number
        return jax.random.exponential(key, dtype=change.dtype) > change / self.temperature

    def common_scale(self, agent: Agent) -> Array:
        # the common momentum has the variance of one agent's
        return jnp.ones_like(agent.num_agents)

    def bind(self, post: Posterior, network: Network) -> Bound:
        weights = network.weights(self.mixing)
        exchanges = exchanges_for(weights, _LEFT) if self.mix_rounds is None else self.mix_rounds
        return Bound(replace(self, mix_rounds=exchanges), weights)

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        # of the agent with the most rejections
        kept = {name: values for name, values in monitored.items() if name not in DMAHMCInfo._fields}
        ended = np.maximum(monitored["trajectories"], 1)
        return {**kept, "acceptance_rate": 1.0 - monitored["rejections"] / ended}

    def warning(self, statistics: dict[str, np.ndarray]) -> str | None:
        rate = float(statistics["acceptance_rate"][:, -1].mean())
        if rate >= _FEW:
            return None
        below = f"{float(self.step_size):.3g}"
        return f"DMAHMC accepted {100 * rate:.2g}% of its trajectories: take a step_size below {below}"

    def langevin_step(self, network: Network) -> float:
        # a trajectory of length t moves as far as a Langevin step of t^2 / 2
        return self.steps * float(self.step_size) ** 2 / 2.0

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        """The largest step at which leapfrog is stable. Disagreement may need a smaller step or more exchanges."""
        largest = float(np.linalg.eigvalsh(hessians.sum(axis=0))[-1])
        return 2.0 / largest**0.5 if largest > 0 else np.inf
