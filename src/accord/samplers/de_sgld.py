"""DE-SGLD: mix with the neighbours, step along the agent's own gradient, add noise."""

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
from .protocol import Tunable
from .schedules import Step, as_step, at, rescaled


class DESGLDState(NamedTuple):
    position: Float[Array, " dim"]


@pytree
class DESGLD(Gossip, Tunable):
    """Decentralised stochastic gradient Langevin dynamics.

    From agent i:  `x_i+ = sum_j W_ij x_j - step_size grad f_i(x_i) + sqrt(2 step_size) w_i`.

    DE-SGLD slides (Gurbuzbalaban et al. 2021), the recursion before Theorem 1, eta = `step_size`, and D-SGLD, eq. 22 of
    the D-ADMMS paper. The network average follows Langevin on F with the step `step_size / N`. One agent's draws are
    over-dispersed under independent noise, more so on larger and sparser networks, and have a bias of order `step_size`
    if the agents' gradients differ. W must be symmetric, doubly stochastic and on the edges. Stable on quadratic
    potentials while `step_size H < I + W`. With `mix_rounds` above one W is its Chebyshev polynomial. At
    `temperature=0` this is D-SG, decentralised (sub)gradient descent, which converges to a fixed point near the mode.

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
    >>> method = accord.samplers.DESGLD(step_size=0.05)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    mixing: Any = static(as_mixing, default="metropolis")

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DESGLDState:
        return DESGLDState(position)

    def message(self, agent: Agent, state: DESGLDState) -> Float[Array, " dim"]:
        return state.position

    def update(self, agent: Agent, state: DESGLDState, inbox: Inbox, noise: Noise) -> DESGLDState:
        step = at(self.step_size, agent.round)
        gradient = agent.gradient(state.position, noise.batch)
        return DESGLDState(inbox.mix() - step * gradient + (2.0 * step) ** 0.5 * noise.normal)

    tunable: ClassVar[tuple[str, ...]] = ("step_size",)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step * network.num_agents)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0 / network.num_agents)

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        return reciprocal(largest_curvature(hessians, identity_plus(self.effective_weights(network))))
