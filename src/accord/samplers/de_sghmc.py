"""DE-SGHMC: DE-SGLD with momentum."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.checks import positive
from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.averaging import identity_plus
from ..network.spectrum import largest_curvature
from .agent import Agent, Inbox, Noise
from .mixing import Gossip, as_mixing
from .protocol import Tunable
from .schedules import Step, as_step, at, rescaled


class DESGHMCState(NamedTuple):
    position: Float[Array, " dim"]
    velocity: Float[Array, " dim"]


@pytree
class DESGHMC(Gossip, Tunable):
    """Decentralised stochastic gradient Hamiltonian Monte Carlo (kinetic Langevin, Euler).

    From agent i:
    `v_i+ = v_i - step_size (friction v_i + grad f_i(x_i)) + sqrt(2 friction step_size) w_i`,
    `x_i+ = sum_j W_ij x_j + step_size v_i+`, with v_i = 0 at the start.

    DE-SGHMC slides (Gurbuzbalaban et al. 2021), the recursion before Theorem 7, eta = `step_size`, gamma = `friction`.
    The network average follows kinetic Langevin on F. One agent's draws are biased as under DE-SGLD. W must be
    symmetric, doubly stochastic and on the edges. Stable on quadratic potentials while
    `step_size^2 H < (2 - step_size friction) (I + W)` and `step_size friction < 2`. With `mix_rounds` above one, W is
    its Chebyshev polynomial. At `temperature=0` this is the decentralised heavy ball, which converges to a fixed point
    near the mode.

    Parameters
    ----------
    step_size
        eta > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    friction
        gamma > 0, in units of 1 / step_size. None: 2 / sqrt(N), critical damping in whitened coordinates.
    mixing
        Weights W: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    batch_size, mix_rounds, temperature, noise
        As in `Gossip` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range, or `step_size * friction >= 2`.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DESGHMC(step_size=0.1, friction=1.0)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    friction: Any = None
    mixing: Any = static(as_mixing, default="metropolis")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.friction is not None:
            positive("friction", self.friction)
        if not self.left_out:
            product = float(at(self.step_size, 0)) * self.friction
            if not product < 2:
                raise ValueError(f"step_size * friction must be < 2, found {product:.4g}")

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DESGHMCState:
        return DESGHMCState(position, jnp.zeros_like(position))

    def message(self, agent: Agent, state: DESGHMCState) -> Float[Array, " dim"]:
        return state.position

    def update(self, agent: Agent, state: DESGHMCState, inbox: Inbox, noise: Noise) -> DESGHMCState:
        step = at(self.step_size, agent.round)
        force = self.friction * state.velocity + agent.gradient(state.position, noise.batch)
        velocity = state.velocity - step * force + (2.0 * self.friction * step) ** 0.5 * noise.normal
        return DESGHMCState(inbox.mix() + step * velocity, velocity)

    tunable: ClassVar[tuple[str, ...]] = ("step_size", "friction")

    def with_step(self, step: float, network: Network) -> Self:
        # the average moves on F / N with curvature about 1 / N
        friction = 2.0 * network.num_agents**-0.5 if self.friction is None else self.friction
        # keeps step_size * friction <= 1
        return self.filled(step_size=min(step * friction * network.num_agents, 1.0 / friction), friction=friction)

    def langevin_step(self, network: Network) -> Step:
        # A velocity kick moves the average by kick / friction before it decays. Over times longer than 1 / friction the
        # average therefore follows Langevin with step_size / friction on F / N.
        return rescaled(self.step_size, 1.0 / (float(self.friction) * network.num_agents))

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # Roots of z^2 - z (W + a I - eta^2 H) + a W, a = 1 - eta gamma, leave the unit circle at z = -1,
        # where eta^2 H = (2 - eta gamma) (I + W): a quadratic equation in eta for the extreme mode.
        W = self.effective_weights(network)
        curvature = largest_curvature(hessians, identity_plus(W))
        friction = float(self.friction)
        # this form of the root gives 2 / friction at zero curvature
        return float(4.0 / (np.sqrt(friction**2 + 8.0 * curvature) + friction))
