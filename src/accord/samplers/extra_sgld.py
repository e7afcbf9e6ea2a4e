"""EXTRA-SGLD: DE-SGLD with accumulated disagreement, which corrects for different gradients."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.spectrum import largest_curvature, reciprocal
from .agent import Agent, Inbox, Noise
from .mixing import Gossip, as_mixing
from .protocol import Needs, Tunable
from .schedules import Step, as_step, at, rescaled


class EXTRASGLDState(NamedTuple):
    position: Float[Array, " dim"]
    # estimate of the mean gradient minus the agent's own
    correction: Float[Array, " dim"]


@pytree
class EXTRASGLD(Gossip, Tunable):
    """Generalised EXTRA stochastic gradient Langevin dynamics.

    From agent i, with m_i = sum_j W_ij x_j:
    `x_i+ = m_i - step_size (grad f_i(x_i) + u_i) + sqrt(2 step_size) w_i`,
    `u_i+ = u_i + (blend / step_size) (x_i - m_i)`, at the start u_i = 0.

    Gurbuzbalaban, Islam, Wang & Zhu 2024 (arXiv 2412.01993), derived here from its abstract and from EXTRA (Shi et al.
    2015): with a constant step the noiseless rounds are EXTRA with W and W~ = blend I + (1 - blend) W, and noise is
    added once per round. The corrections sum to zero, so that the network average follows Langevin on F with the step
    `step_size / N`. With full gradients no agent's mean is biased on Gaussian posteriors, on which DE-SGLD has a bias
    of order `step_size`. Under independent noise one agent's draws are more over-dispersed than DE-SGLD's, because the
    correction also accumulates noise: at small steps the excess variance is up to 1 / (1 - blend) times as large. W
    must be symmetric, doubly stochastic and on the edges. Stable on quadratic potentials while
    `step_size H < (1 + blend / 2) I + (1 - blend / 2) W`. With `mix_rounds` above one W is its Chebyshev polynomial. At
    `temperature=0` this is EXTRA, which converges to the mode.

    Parameters
    ----------
    step_size
        eta > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    blend
        0 < blend <= 1/2, the weight of I in W~. 1/2 (default) is EXTRA. Smaller values reduce over-dispersion and
        correct more slowly.
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
    >>> method = accord.samplers.EXTRASGLD(step_size=0.05)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    blend: float = 0.5
    mixing: Any = static(as_mixing, default="metropolis")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.blend <= 0.5:
            raise ValueError(f"blend must be in (0, 1/2], found {self.blend}")

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> EXTRASGLDState:
        return EXTRASGLDState(position, jnp.zeros_like(position))

    def message(self, agent: Agent, state: EXTRASGLDState) -> Float[Array, " dim"]:
        return state.position

    def update(self, agent: Agent, state: EXTRASGLDState, inbox: Inbox, noise: Noise) -> EXTRASGLDState:
        step, mixed = at(self.step_size, agent.round), inbox.mix()
        slope = agent.gradient(state.position, noise.batch) + state.correction
        learnt = agent.facts.caution * self.blend / step * inbox.differences()
        return EXTRASGLDState(mixed - step * slope + (2.0 * step) ** 0.5 * noise.normal, state.correction + learnt)

    def conserved(self, agent: Agent, state: EXTRASGLDState) -> Float[Array, " dim"]:
        return state.correction

    tunable: ClassVar[tuple[str, ...]] = ("step_size",)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step * network.num_agents)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0 / network.num_agents)

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(differences=0)

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # Roots of z^2 - z (I + W - eta H) + (W~ - eta H) leave the unit circle at z = -1, where 2 I + W + W~ = 2 eta H.
        half = float(self.blend) / 2.0
        identity = scipy.sparse.eye_array(network.num_agents, format="csr")
        metric = (1.0 + half) * identity + (1.0 - half) * self.effective_weights(network)
        return reciprocal(largest_curvature(hessians, scipy.sparse.csr_array(metric)))
