"""GT-DULA: DULA whose agents track the average gradient."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree
from ..network import Network
from ..network.averaging import identity_plus
from ..network.spectrum import largest_curvature, reciprocal
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .consensus import check_tracking_step, consensus_weights, even_step
from .mixing import Gossip
from .protocol import Bound, Needs, Tunable
from .schedules import Step, as_step, at, rescaled


class GTDULAState(NamedTuple):
    position: Float[Array, " dim"]
    tracker: Float[Array, " dim"]
    gradient: Float[Array, " dim"]


class GTDULAMessage(NamedTuple):
    position: Float[Array, " dim"]
    tracker: Float[Array, " dim"]


@pytree
class GTDULA(Gossip, Tunable):
    """Decentralised unadjusted Langevin algorithm with gradient tracking.

    From agent i:
    `x_i+ = x_i - consensus_step sum_{j in N_i} (x_i - x_j) - step_size N d_i + sqrt(2 step_size N) w_i`,
    `d_i+ = d_i - tracking_step sum_{j in N_i} (d_i - d_j) + grad f_i(x_i+) - grad f_i(x_i)`, and at the start d_i =
    grad f_i(x_i).

    GT-DULA paper, the recursion of section 3, alpha = `step_size`, beta = `consensus_step`, gamma = `tracking_step`.
    The network average follows Langevin on F with `step_size`, and different gradients cause no bias. Under independent
    noise one agent's draws are over-dispersed on large sparse networks. With `mix_rounds` above one, I - beta L of
    round 0 is replaced by its Chebyshev polynomial P, and both consensus terms become multiples of I - P (1 and
    gamma/beta at round 0). Needs beta, gamma < 2 / lambda_max(L), and for several exchanges gamma/beta < 2 / (1 + their
    contraction of disagreement). Stable on quadratic potentials while `2 step_size N H < (I + W_beta)(I + W_gamma)`. At
    `temperature=0` this is gradient tracking, which converges to the mode.

    Parameters
    ----------
    step_size
        alpha > 0, a number or a schedule of the round. None: a plan chooses it, in whitened coordinates.
    consensus_step, tracking_step
        beta and gamma, between 0 and 2 / lambda_max(L), numbers or non-increasing schedules. None: half of that bound.
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
    >>> method = accord.samplers.GTDULA(step_size=0.02, consensus_step=0.3, tracking_step=0.3)
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    consensus_step: Step | None = checked(as_step, default=None)
    tracking_step: Step | None = checked(as_step, default=None)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> GTDULAState:
        gradient = agent.gradient(position, noise.batch)
        return GTDULAState(position, gradient, gradient)

    def message(self, agent: Agent, state: GTDULAState) -> GTDULAMessage:
        return GTDULAMessage(state.position, state.tracker)

    def update(self, agent: Agent, state: GTDULAState, inbox: Inbox, noise: Noise) -> GTDULAState:
        mixed = inbox.mix()
        step = at(self.step_size, agent.round) * agent.num_agents
        # inbox.mix() applies beta of round 0 to all parts, the factors change it to beta and gamma of this round
        beta = at(self.consensus_step, 0)
        pull = at(self.consensus_step, agent.round) / beta * (state.position - mixed.position)
        blend = at(self.tracking_step, agent.round) / beta * (state.tracker - mixed.tracker)
        slope = state.tracker / inbox.share_before
        position = state.position - pull - step * slope + (2.0 * step) ** 0.5 * noise.normal
        gradient = agent.gradient(position, noise.batch)
        return GTDULAState(position, state.tracker - blend + gradient - state.gradient, gradient)

    def needs(self, dim: int) -> Needs:
        return super().needs(dim)._replace(pushed=("tracker",))

    def conserved(self, agent: Agent, state: GTDULAState) -> Float[Array, " dim"]:
        return state.tracker - state.gradient

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return consensus_weights(network, "consensus_step", self.consensus_step)

    def bind(self, post: Posterior, network: Network) -> Bound:
        bound = super().bind(post, network)
        if network.unreliable is not None and (
            callable(self.consensus_step) or self.tracking_step != self.consensus_step
        ):
            raise ValueError(
                "on unreliable links GTDULA needs one constant number as both consensus_step and tracking_step: all "
                f"parts of a message use the same weights; found {self.consensus_step!r} and {self.tracking_step!r}"
            )
        check_tracking_step(network, self.tracking_step, self.consensus_step, bound.weights, self.exchanges)
        return bound

    tunable: ClassVar[tuple[str, ...]] = ("step_size", "consensus_step", "tracking_step")

    def with_step(self, step: float, network: Network) -> Self:
        even = even_step(network)
        return self.filled(step_size=step, consensus_step=even, tracking_step=even)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        # Roots of z^2 - z (W_b + W_c - a N H) + (W_c W_b - a N H) leave the unit circle at z = -1.
        mixed = self.effective_weights(network)
        identity = scipy.sparse.eye_array(network.num_agents, format="csr")
        ratio = float(at(self.tracking_step, 0)) / float(at(self.consensus_step, 0))
        tracking = identity - ratio * (identity - mixed)
        metric = identity_plus(mixed) @ identity_plus(tracking) / 2.0
        return reciprocal(network.num_agents * largest_curvature(hessians, metric))
