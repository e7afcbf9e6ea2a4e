"""Proximal DE-SGLD: DE-SGLD with a pull towards a convex set."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ..base.pytree import checked, pytree, static
from ..network import Network
from ..network.averaging import identity_plus
from ..network.spectrum import extreme_eigenvalues, largest_curvature, reciprocal
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .convex_sets import as_convex_set
from .mixing import Mixing, as_mixing
from .protocol import Bound, Monitored
from .schedules import Step, as_step, at, rescaled

# Fraction of the distance to the set by which a round pulls an agent back if `smoothing` is None.
_BACK = 0.5


class ProximalDESGLDState(NamedTuple):
    position: Float[Array, " dim"]


class ProximalDESGLDInfo(NamedTuple):
    outside: Float[Array, ""]


@pytree
class ProximalDESGLD(Monitored, Mixing):
    """Decentralised proximal stochastic gradient Langevin dynamics: a posterior restricted to a convex set.

    From agent i, with P(x) the nearest point of the set:
    `x_i+ = sum_j W_ij x_j - step_size (grad f_i(x_i) + (x_i - P(x_i)) / (N smoothing)) + sqrt(2 step_size) w_i`.

    Islam & Zhu 2026 (DE-PSGLD, arXiv 2605.00723), derived here from its abstract and from MYULA (Durmus, Moulines &
    Pereyra 2018): the set's indicator is replaced by its Moreau-Yosida envelope, and every agent has an equal share of
    the envelope. The network average follows Langevin on `F(x) + |x - P(x)|^2 / (2 smoothing)` with the step
    `step_size / N`. This differs from the restricted posterior. At a face with the density p (of the restricted
    posterior, across the face) a fraction of about sqrt(pi smoothing / 2) p of the draws lies outside, by sqrt(2
    smoothing / pi) on average, and the mean is biased by that fraction of its distance from the face. Draws are not
    projected. `constraint.project(run.draws)` projects them. These statements hold if the agents agree, as with
    `noise="common"`. With independent noise single agents leave the set farther than the average would and are pulled
    in, so that the average is biased away from the face by the order of DE-SGLD's disagreement. If gradients differ,
    one agent is biased as under DE-SGLD, which is this method with an unbounded set. Rounds are not affine and have no
    exact law. W must be symmetric, doubly stochastic and on the edges. Stable on quadratic potentials while
    `step_size (H + I / (N smoothing)) < I + W`. At `temperature=0` this is decentralised gradient descent on the sum
    with the envelope.

    The statistic "outside" is the largest distance of an agent from the set up to each draw. Checks of finished runs
    against the posterior are skipped, because the posterior does not include the set.

    Parameters
    ----------
    step_size
        eta > 0, a number or a schedule of the round.
    constraint
        The set for all parameters, in the user's scale: `accord.samplers.convex_sets.Box`, `L1Ball` or `Simplex`, or
        "positive", "unit_interval" or "simplex".
    smoothing
        lambda > 0, in squared units of the parameters, a number or a schedule. None: 2 step_size / N, with which a
        round pulls an agent back by half of its distance. The width of boundaries scales with the square root of the
        step.
    mixing
        Weights W: "metropolis" (default), "max-degree", "laplacian", "lazy", or an (N, N) matrix.
    batch_size, temperature, noise
        As in `Mixing` and `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range, a set of a wrong dimension, or a posterior that is sampled in other coordinates than
        the user's: with `whiten=True` or its own constraints.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.ProximalDESGLD(0.01, "positive", noise="common")
    >>> run = accord.sample(post, accord.Network.ring(3), method, draws=500, chains=2, seed=0)
    >>> bool(run.draws.min() > -0.3), bool((method.constraint.project(run.draws) >= 0).all())
    (True, True)
    """

    step_size: Step = checked(as_step)
    constraint: Any = checked(as_convex_set)
    smoothing: Step | None = checked(as_step, default=None)
    mixing: Any = static(as_mixing, default="metropolis")

    samples_posterior: ClassVar[bool] = False

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> ProximalDESGLDState:
        return ProximalDESGLDState(position)

    def message(self, agent: Agent, state: ProximalDESGLDState) -> Float[Array, " dim"]:
        return state.position

    def transition(
        self, agent: Agent, state: ProximalDESGLDState, inbox: Inbox, noise: Noise
    ) -> tuple[ProximalDESGLDState, ProximalDESGLDInfo]:
        x, step = state.position, at(self.step_size, agent.round)
        # step / (N smoothing)
        back = _BACK if self.smoothing is None else step / (agent.num_agents * at(self.smoothing, agent.round))
        moved = inbox.mix() - step * agent.gradient(x, noise.batch) + (2.0 * step) ** 0.5 * noise.normal
        position = moved - back * (x - self.constraint.project(x))
        outside = jnp.linalg.norm(position - self.constraint.project(position))
        return ProximalDESGLDState(position), ProximalDESGLDInfo(outside)

    def bind(self, post: Posterior, network: Network) -> Bound:
        if post.coordinates is not None or post.parameters.constrained:
            raise ValueError(
                "ProximalDESGLD restricts the parameters themselves: it does not work with whiten=True or with "
                "constraints of the posterior, which change the coordinates"
            )
        self.constraint.check(post.dim)
        bound = super().bind(post, network)
        smallest, _ = extreme_eigenvalues(bound.weights)
        if self.smoothing is None and not smallest > _BACK - 1.0:
            raise ValueError(
                f"without smoothing the mixing matrix needs eigenvalues above {_BACK - 1.0:g}, found {smallest:.4g}; "
                'use mixing="lazy", whose eigenvalues are >= 0'
            )
        return bound

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, 1.0 / network.num_agents)

    def weights(self, network: Network) -> scipy.sparse.csr_array:
        return network.weights(self.mixing)

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        """The largest step at which distances never grow, inside and outside of the set."""
        metric = identity_plus(self.weights(network))
        if self.smoothing is None:
            metric = metric - _BACK * scipy.sparse.eye_array(network.num_agents, format="csr")
        else:
            hessians = hessians + np.eye(hessians.shape[1]) / (network.num_agents * float(at(self.smoothing, 0)))
        return reciprocal(largest_curvature(hessians, scipy.sparse.csr_array(metric)))
