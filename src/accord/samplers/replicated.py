"""Exact NUTS, HMC and MALA at a hub with gradients summed over agents, the baseline of the other methods."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, Int

from ..base.checks import positive, whole_number
from ..base.errors import unknown_name_error
from ..base.pytree import checked, pytree, static
from ..network import Network
from ..posterior import Posterior
from ..posterior.reference import require_blackjax
from .agent import Agent, Inbox, Noise
from .protocol import Bound, Monitored, Needs

Vector = Float[Array, " dim"]


class Transition(NamedTuple):
    """The result of one transition of a kernel."""

    position: Vector
    logdensity: Float[Array, ""]
    gradient: Vector
    acceptance_rate: Float[Array, ""]
    # evaluations of the log density with its gradient
    evaluations: Int[Array, ""]
    diverged: Any


class Kernel(abc.ABC):
    """A Metropolis kernel of BlackJAX with a unit metric."""

    # Target acceptance rate of warm-up.
    target_rate: ClassVar[float]

    @abc.abstractmethod
    def move(self, key: Array, start: tuple, logdensity: Callable[[Vector], Array], step_size: Array) -> Transition:
        """One transition from (position, logdensity, gradient)."""


@pytree
class NUTS(Kernel):
    """The no-U-turn sampler, with at most 2^max_doublings steps per draw."""

    max_doublings: int = static(default=10)
    target_rate: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        whole_number("max_doublings", self.max_doublings, 1)

    def move(self, key: Array, start: tuple, logdensity: Callable[[Vector], Array], step_size: Array) -> Transition:
        from blackjax.mcmc import hmc, nuts

        metric = jnp.ones_like(start[0])
        state, info = nuts.build_kernel()(
            key, hmc.HMCState(*start), logdensity, step_size, metric, max_num_doublings=self.max_doublings
        )
        return Transition(
            state.position,
            state.logdensity,
            state.logdensity_grad,
            info.acceptance_rate,
            info.num_integration_steps,
            info.is_divergent,
        )


@pytree
class HMC(Kernel):
    """Hamiltonian Monte Carlo. The steps of a draw are uniform on 1 ... 2 steps - 1 to avoid periodic trajectories."""

    steps: int = static(default=6)
    target_rate: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)

    def move(self, key: Array, start: tuple, logdensity: Callable[[Vector], Array], step_size: Array) -> Transition:
        from blackjax.mcmc import hmc

        for_length, for_move = jax.random.split(key)
        length = jax.random.randint(for_length, (), 1, 2 * self.steps)
        metric = jnp.ones_like(start[0])
        state, info = hmc.build_kernel()(for_move, hmc.HMCState(*start), logdensity, step_size, metric, length)
        return Transition(
            state.position, state.logdensity, state.logdensity_grad, info.acceptance_rate, length, info.is_divergent
        )


@pytree
class MALA(Kernel):
    """The Metropolis-adjusted Langevin algorithm, one step per draw."""

    target_rate: ClassVar[float] = 0.574

    def move(self, key: Array, start: tuple, logdensity: Callable[[Vector], Array], step_size: Array) -> Transition:
        from blackjax.mcmc import mala

        state, info = mala.build_kernel()(key, mala.MALAState(*start), logdensity, step_size)
        rate = info.acceptance_rate
        # an acceptance rate of zero or NaN, which Hamiltonian kernels call a divergence
        diverged = ~(rate > 0)
        return Transition(state.position, state.logdensity, state.logdensity_grad, rate, jnp.int32(1), diverged)


KERNELS: dict[str, type[Kernel]] = {"nuts": NUTS, "hmc": HMC, "mala": MALA}


def as_kernel(name: str, kernel: Any) -> Kernel:
    """A kernel by name, or the given instance."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in KERNELS:
        raise unknown_name_error(name, kernel, KERNELS)
    return KERNELS[kernel]()


class Evaluation(NamedTuple):
    """An agent's answer to a query: its potential and its gradient at the position."""

    value: Float[Array, ""]
    gradient: Vector


class ReplicatedState(NamedTuple):
    position: Vector
    # log density at `position`
    logdensity: Float[Array, ""]
    # its gradient
    gradient: Vector
    step_size: Float[Array, ""]
    # scale of the kernel's coordinates y, x = x_0 + scale y
    scale: Any
    # BlackJAX's dual averaging and mass matrix
    adaptation: Any


class ReplicatedInfo(NamedTuple):
    # sums over all agents of the log density and its gradient
    evaluations: Int[Array, ""]
    # evaluations by each agent for these sums
    gradients: Int[Array, ""]
    # transitions that diverged after warm-up
    divergences: Int[Array, ""]


@pytree
class Replicated(Monitored):
    """Exact Markov chain on the posterior, with a sum over all agents for every gradient.

    From agent i: return f_i(x) and grad f_i(x) for every position x that the hub requests. The hub moves x by a
    Metropolis kernel of BlackJAX for `exp(-sum_i f_i)` and sends it to all agents.

    A baseline that is not in the papers. All agents have the draws of one chain, without bias for any step and network.
    It needs many exchanges: one total per gradient, tens for a draw of NUTS. If no agent is a neighbour of all others,
    totals use a spanning tree. Warm-up is Stan's (step size and metric in windows), runs over the same network and is
    counted. Chains start at agent 0's start.

    Parameters
    ----------
    kernel
        "nuts" (default), "hmc" (6 steps per draw on average), "mala", or an instance of `NUTS`, `HMC` or `MALA` of this
        module.
    step_size
        Initial step of warm-up, > 0, in coordinates of unit metric. With `warmup=0` the step of the run.
    warmup
        Rounds that adapt step and metric, >= 0. They are part of the burn-in, which must not be shorter.
    dense
        Whether the metric is the full covariance (dim x dim at the hub) or its diagonal.
    temperature
        As in `Sampler`, > 0.

    Raises
    ------
    ValueError
        A parameter out of range.
    ImportError
        BlackJAX is not installed.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.Replicated(kernel="mala", warmup=100)
    >>> rounds = accord.Rounds(method, burn_in=100)
    >>> run = accord.sample(post, accord.Network.star(3), rounds, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    kernel: Any = checked(as_kernel, default="nuts")
    step_size: float = 0.5
    warmup: int = static(default=500)
    dense: bool = static(default=True)

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("step_size", self.step_size)
        positive("temperature", self.temperature)
        whole_number("warmup", self.warmup, 0)

    def needs(self, dim: int) -> Needs:
        # the info counts gradients
        return Needs("query", "at the hub", normal=False, key=True, gradients=0)

    def init(self, agent: Agent, position: Vector, noise: Noise) -> ReplicatedState:
        averaging, metric = self._adaptation()
        scale = jnp.eye(position.size, dtype=position.dtype) if self.dense else jnp.ones_like(position)
        step = jnp.asarray(self.step_size, position.dtype)
        return ReplicatedState(
            position,
            logdensity=jnp.zeros((), position.dtype),
            gradient=jnp.zeros_like(position),
            step_size=step,
            scale=scale,
            adaptation=(averaging[0](step), metric[0](position.size)),
        )

    def message(self, agent: Agent, state: ReplicatedState) -> Evaluation:
        return Evaluation(agent.value(state.position), agent.gradient(state.position))

    def transition(
        self, agent: Agent, state: ReplicatedState, inbox: Inbox, noise: Noise
    ) -> tuple[ReplicatedState, ReplicatedInfo]:
        def evaluate(x: Vector) -> tuple[Array, Vector]:
            total = inbox.query(state._replace(position=x))
            return -total.value / self.temperature, -total.gradient / self.temperature

        # BlackJAX differentiates the log density, and agents have sent the gradient with the value
        @jax.custom_vjp
        def logdensity(x: Vector) -> Array:
            return evaluate(x)[0]

        logdensity.defvjp(evaluate, lambda gradient, cotangent: (cotangent * gradient,))

        first = (agent.round == 0).astype(jnp.int32)
        known = (state.logdensity, state.gradient)
        value, gradient = jax.lax.cond(first, evaluate, lambda x: known, state.position)
        x, scale = state.position, state.scale
        start = (jnp.zeros_like(x), value, _transposed(scale, gradient))
        moved = self.kernel.move(noise.random_key(), start, lambda y: logdensity(x + _times(scale, y)), state.step_size)
        state = state._replace(
            position=x + _times(scale, moved.position),
            logdensity=moved.logdensity,
            gradient=_solve_transposed(scale, moved.gradient),
        )
        evaluations = moved.evaluations + first
        # integers, because booleans would not add up
        divergences = jnp.where(agent.round < self.warmup, 0, moved.diverged).astype(jnp.int32)
        info = ReplicatedInfo(evaluations, evaluations, divergences)
        if self.warmup == 0:
            return state, info
        adapted = lambda state: self._adapted(agent, state, moved.acceptance_rate)  # noqa: E731
        return jax.lax.cond(agent.round < self.warmup, adapted, lambda state: state, state), info

    def _adaptation(self) -> tuple[tuple, tuple]:
        """(init, update, final) of the step size and of the metric."""
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
        from blackjax.adaptation.step_size import dual_averaging_adaptation

        return dual_averaging_adaptation(self.kernel.target_rate), mass_matrix_adaptation(not self.dense)

    def _adapted(self, agent: Agent, state: ReplicatedState, rate: Array) -> ReplicatedState:
        """The state after one round of Stan's warm-up of step and metric."""
        averaging, metric = self._adaptation()
        slow, window_ends = agent.shared[jnp.minimum(agent.round, self.warmup - 1)]
        steps = averaging[1](state.adaptation[0], rate)
        moments = jax.lax.cond(slow, lambda m: metric[1](m, state.position), lambda m: m, state.adaptation[1])

        def renewed(steps: Any, moments: Any) -> tuple[Any, Any, Any]:
            moments = metric[2](moments)
            covariance = moments.inverse_mass_matrix
            scale = jnp.linalg.cholesky(covariance) if self.dense else jnp.sqrt(covariance)
            return averaging[0](averaging[2](steps)), moments, scale

        steps, moments, scale = jax.lax.cond(
            window_ends, renewed, lambda steps, moments: (steps, moments, state.scale), steps, moments
        )
        step = jnp.where(agent.round == self.warmup - 1, averaging[2](steps), jnp.exp(steps.log_step_size))
        return state._replace(step_size=step.astype(rate.dtype), scale=scale, adaptation=(steps, moments))

    def bind(self, post: Posterior, network: Network) -> Bound:
        require_blackjax("Replicated")
        from blackjax.adaptation.window_adaptation import build_schedule

        # at least one entry to index, which only warm-up reads
        schedule = np.array(build_schedule(self.warmup) if self.warmup else [(0, False)], dtype=np.int32)
        return Bound(self, shared=schedule, adapting=self.warmup)

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values for name, values in monitored.items() if name != "evaluations"}

    def warning(self, statistics: dict[str, np.ndarray]) -> str | None:
        count = int(statistics["divergences"][:, -1].sum())
        if count == 0:
            return None
        return f"{count} transitions of Replicated diverged after warm-up: draws may miss part of the posterior"


def _times(scale: Array, y: Vector) -> Vector:
    return scale @ y if scale.ndim == 2 else scale * y


def _transposed(scale: Array, y: Vector) -> Vector:
    return scale.T @ y if scale.ndim == 2 else scale * y


def _solve_transposed(scale: Array, y: Vector) -> Vector:
    return jax.scipy.linalg.solve_triangular(scale, y, trans="T", lower=True) if scale.ndim == 2 else y / scale
