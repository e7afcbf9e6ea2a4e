"""D-ASG: decentralised accelerated (stochastic) gradient, an optimiser with Nesterov momentum."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.spectrum import extreme_eigenvalues, largest_curvature, reciprocal
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .mixing import Gossip, as_mixing
from .protocol import Bound, Needs
from .schedules import Step, as_step, at, rescaled


class DASGState(NamedTuple):
    position: Float[Array, " dim"]
    # the position extrapolated by the momentum, which agents mix and at which they evaluate gradients
    ahead: Float[Array, " dim"]


@pytree
class DASG(Gossip):
    """Decentralised accelerated stochastic gradient: an optimiser, DE-SGHMC without noise.

    From agent i:
    `x_i+ = sum_j W_ij y_j - step_size grad f_i(y_i)`, `y_i+ = (1 + momentum) x_i+ - momentum x_i`, at the start
    y_i = x_i.

    DE-SGHMC slides (Gurbuzbalaban et al. 2021), which name D-ASG: Nesterov's extrapolation with mixing. It adds no
    noise. With full gradients all agents converge to one fixed point near the mode, the same as for D-SG (`DESGLD` at
    `temperature=0`) but faster. With minibatches they fluctuate around it. W must be symmetric, doubly stochastic and
    on the edges. Stable on quadratic potentials while `step_size H < W + I / (1 + 2 momentum)`, which needs a W with
    all eigenvalues above -1 / (1 + 2 momentum), such as "lazy" weights. With `mix_rounds` above one, W is its Chebyshev
    polynomial.

    Parameters
    ----------
    step_size
        eta > 0, a number or a schedule of the round.
    momentum
        beta in [0, 1). 0 is D-SG. For curvatures from m to M use (1 - sqrt(eta m)) / (1 + sqrt(eta m)).
    mixing
        Weights W: "lazy" (default), "metropolis", "max-degree", "laplacian", or an (N, N) matrix.
    batch_size, mix_rounds
        As in `Gossip`.

    Raises
    ------
    ValueError
        A parameter out of range, a temperature other than 0, or weights that the momentum makes unstable.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DASG(step_size=0.1, momentum=0.5)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=1, seed=0)
    >>> run.draws.shape
    (1, 10, 3, 1)
    """

    step_size: Step = checked(as_step)
    momentum: float
    mixing: Any = static(as_mixing, default="lazy")
    temperature: float = static(default=0.0, kw_only=True)

    noises: ClassVar[tuple[str, ...]] = ("independent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), found {self.momentum}")
        if self.temperature != 0:
            raise ValueError(f"DASG is an optimiser: its temperature must be 0, found {self.temperature}")

    def bind(self, post: Posterior, network: Network) -> Bound:
        smallest, _ = extreme_eigenvalues(self.effective_weights(network))
        bound = -1.0 / (1.0 + 2.0 * float(self.momentum))
        if not smallest > bound:
            raise ValueError(
                f"with momentum {float(self.momentum):.4g} the mixing matrix needs eigenvalues above {bound:.4g}, "
                f'found {smallest:.4g}; use mixing="lazy", whose eigenvalues are >= 0'
            )
        return super().bind(post, network)

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(normal=False)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DASGState:
        return DASGState(position, position)

    def message(self, agent: Agent, state: DASGState) -> Float[Array, " dim"]:
        return state.ahead

    def update(self, agent: Agent, state: DASGState, inbox: Inbox, noise: Noise) -> DASGState:
        step = at(self.step_size, agent.round)
        x = inbox.mix() - step * agent.gradient(state.ahead, noise.batch)
        return DASGState(x, x + self.momentum * (x - state.position))

    def langevin_step(self, network: Network) -> Step:
        # momentum multiplies every step by 1 + beta + beta^2 + ...
        return rescaled(self.step_size, 1.0 / ((1.0 - float(self.momentum)) * network.num_agents))

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # With B = W - eta H the roots of z^2 - (1 + beta) B z + beta B leave the unit circle at z = -1, where
        # B = -1 / (1 + 2 beta).
        identity = scipy.sparse.eye_array(network.num_agents, format="csr")
        metric = self.effective_weights(network) + identity / (1.0 + 2.0 * float(self.momentum))
        return reciprocal(largest_curvature(hessians, metric))
