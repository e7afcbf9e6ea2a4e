"""SGLD at a hub with gradients that are some rounds old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import one_an_agent, whole_number, whole_numbers
from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.spectrum import reciprocal
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .protocol import Bound, HasLaw, Langevin, Needs, Tunable
from .schedules import Step, as_step, at, rescaled


class StaleSGLDState(NamedTuple):
    # the hub's parameters, the same at all agents
    position: Float[Array, " dim"]
    # the agent's gradients at the latest positions, newest first
    gradients: Float[Array, "age dim"]


@pytree
class StaleSGLD(Tunable, Langevin, HasLaw):
    """SGLD at a hub with stale gradients: each agent's gradient is `staleness` rounds old.

    In round k the hub updates `x_k+1 = x_k - step_size sum_i grad f_i(x_k-tau_i) + sqrt(2 step_size) w`. Gradients at
    the start replace missing older ones. From agent i: it sends `x_k / N - step_size grad f_i(x_k-tau_i)`. The total of
    these messages is the next position without its noise.

    Chen, Ding, Li, Zhang and Carin 2016 (arXiv 1610.06664), h = `step_size`. They allow any delays up to tau, and here
    agent i always has the delay tau_i. A draw is x, the same at every agent. It targets the posterior up to a bias of
    order tau step_size. The Monte Carlo error of long averages does not depend on tau. On Gaussian posteriors the mean
    is exact, and along a direction of curvature c the variance is `1 + (tau + 1/2) step_size c` times the posterior's
    to first order (1 + step_size c / 2 for Langevin steps). Stable on quadratic convex potentials if
    `step_size H < 2 sin(pi / (4 tau + 2))`, H the Hessian of F and tau the largest delay. Above that bound it is
    unstable if all delays are equal. At `temperature=0` this is gradient descent with delays, which converges to the
    mode. Any agent can be the hub. If no agent is a neighbour of all others, sums use a spanning tree.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    staleness
        tau_i >= 0 in rounds, one number or one per agent. 0 is Langevin on F. With the default, 1, agents compute a
        gradient during the hub's round.
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    temperature
        As in `Sampler`. The hub draws one noise for all.

    Raises
    ------
    ValueError
        A parameter out of range or of a wrong number.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.StaleSGLD(step_size=0.02, staleness=3)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    staleness: int | Sequence[int] = static(default=1)
    batch_size: int | None = static(default=None)

    noises: ClassVar[tuple[str, ...]] = ("independent",)
    tunable: ClassVar[tuple[str, ...]] = ("step_size",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "staleness", whole_numbers("staleness", self.staleness, 0))
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)

    def needs(self, dim: int) -> Needs:
        return Needs("total", common=True, batch_size=self.batch_size)

    def bind(self, post: Posterior, network: Network) -> Bound:
        return Bound(self, own=one_an_agent("staleness", self.staleness, post.num_agents))

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> StaleSGLDState:
        gradient = agent.gradient(position, noise.batch)
        return StaleSGLDState(position, jnp.tile(gradient, (int(np.max(self.staleness)) + 1, 1)))

    def message(self, agent: Agent, state: StaleSGLDState) -> Float[Array, " dim"]:
        step = at(self.step_size, agent.round)
        return state.position / agent.num_agents - step * state.gradients[agent.own]

    def update(self, agent: Agent, state: StaleSGLDState, inbox: Inbox, noise: Noise) -> StaleSGLDState:
        position = inbox.total() + (2.0 * at(self.step_size, agent.round)) ** 0.5 * noise.normal
        newest = agent.gradient(position, noise.batch)
        return StaleSGLDState(position, jnp.concatenate([newest[None], state.gradients[:-1]]))

    def linear(self) -> Self:
        return self if self.batch_size is None else replace(self, batch_size=None)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0)

    def max_step(self, network: Network, hessians: np.ndarray) -> float | None:
        # On the unit circle z = e^(iw) a root of z - 1 + sum_i a_i z^-tau_i, a_i >= 0, has sum_i a_i cos(w (tau_i +
        # 1/2)) = 0 and sum_i a_i sin(w (tau_i + 1/2)) = 2 sin(w / 2). Hence w >= pi / (2 tau + 1) for the largest tau,
        # and sum_i a_i >= 2 sin(w / 2). Equal delays attain this bound, others may be stable above it.
        if np.min(self.staleness) < np.max(self.staleness):
            return None
        largest = float(np.linalg.eigvalsh(hessians.sum(axis=0))[-1])
        return 2.0 * float(np.sin(np.pi / (4.0 * np.max(self.staleness) + 2.0))) * reciprocal(largest)
