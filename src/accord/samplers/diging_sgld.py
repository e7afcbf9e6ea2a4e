"""DIGing-SGLD: mix positions and trackers, step along the tracked gradient, add noise."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.averaging import identity_plus
from ..network.spectrum import largest_curvature, reciprocal
from .agent import Agent, Inbox, Noise
from .mixing import Gossip, as_mixing
from .protocol import Needs, Tunable
from .schedules import Step, as_step, at, rescaled


class DIGingSGLDState(NamedTuple):
    position: Float[Array, " dim"]
    tracker: Float[Array, " dim"]
    gradient: Float[Array, " dim"]


class DIGingSGLDMessage(NamedTuple):
    position: Float[Array, " dim"]
    tracker: Float[Array, " dim"]


@pytree
class DIGingSGLD(Gossip, Tunable):
    """Stochastic gradient Langevin dynamics with DIGing's gradient tracking.

    From agent i:
    `x_i+ = sum_j W_ij x_j - step_size y_i + sqrt(2 step_size) w_i`,
    `y_i+ = sum_j W_ij y_j + grad f_i(x_i+) - grad f_i(x_i)`, at the start y_i = grad f_i(x_i).

    Bajwa, Gurbuzbalaban, Kutbay, Zhu & Zulqarnain 2025 (arXiv 2511.12836), derived here from its abstract and from
    DIGing (Nedic et al. 2017). The mean of the trackers is the mean of the gradients, so that the network average
    follows Langevin on F with the step `step_size / N` for any sequence of doubly stochastic W. With full gradients no
    agent's mean is biased on Gaussian posteriors. Under independent noise one agent's draws are over-dispersed as under
    GT-DULA. The method is GT-DULA with one W of any rule in place of two consensus steps, and N times its step. With W
    = I - beta L they are equal. W must be symmetric, doubly stochastic and on the edges. Stable on quadratic potentials
    while `2 step_size H < (I + W)^2`. With `mix_rounds` above one W is its Chebyshev polynomial. At `temperature=0`
    this is DIGing, which converges to the mode.

    Parameters
    ----------
    step_size
        eta > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    mixing
        Weights W: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    batch_size, mix_rounds, temperature, noise
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DIGingSGLD(step_size=0.05)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    mixing: Any = static(as_mixing, default="metropolis")

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DIGingSGLDState:
        gradient = agent.gradient(position, noise.batch)
        return DIGingSGLDState(position, gradient, gradient)

    def message(self, agent: Agent, state: DIGingSGLDState) -> DIGingSGLDMessage:
        return DIGingSGLDMessage(state.position, state.tracker)

    def update(self, agent: Agent, state: DIGingSGLDState, inbox: Inbox, noise: Noise) -> DIGingSGLDState:
        step, mixed = at(self.step_size, agent.round), inbox.mix()
        position = mixed.position - step * state.tracker / inbox.share_before + (2.0 * step) ** 0.5 * noise.normal
        gradient = agent.gradient(position, noise.batch)
        return DIGingSGLDState(position, mixed.tracker + gradient - state.gradient, gradient)

    def conserved(self, agent: Agent, state: DIGingSGLDState) -> Float[Array, " dim"]:
        return state.tracker - state.gradient

    tunable: ClassVar[tuple[str, ...]] = ("step_size",)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step * network.num_agents)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0 / network.num_agents)

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(pushed=("tracker",))

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # Roots of z^2 - z (2 W - eta H) + (W^2 - eta H) leave the unit circle at z = -1.
        mixed = self.effective_weights(network)
        metric = identity_plus(mixed) @ identity_plus(mixed) / 2.0
        return reciprocal(largest_curvature(hessians, scipy.sparse.csr_array(metric)))
