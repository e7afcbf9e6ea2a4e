"""FSGLD: travelling chains whose gradients are corrected by surrogates of all shards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ..base.gaussian import Gaussian
from ..base.pytree import pytree
from ..network import Network
from ..network.spectrum import reciprocal
from ..posterior import Posterior
from ..results.traffic import Traffic
from .agent import Agent
from .expansions import Expansions, Quadratic, expanded_at_mode
from .protocol import Bound
from .travelling import Travelling, Visits


class Surrogates(NamedTuple):
    """Means (agent, dim) and precisions (agent, dim, dim) of the user's Gaussians."""

    means: Any
    precisions: Any


class FSGLDNumbers(NamedTuple):
    """Parameters of an agent: its visits, and the surrogate of its potential."""

    visits: Visits
    own: Quadratic


class FSGLDShared(NamedTuple):
    """Parameters that all agents know: the center, and the sum of all surrogates."""

    center: Any
    whole: Quadratic


@pytree
class FSGLD(Travelling):
    """Federated SGLD: D-SGLD with conducive gradients.

    N chains travel, and every agent holds one at a time. From agent i, N_i times:
    `x+ = x - step_size (grad f_i(x) / q_i + grad Q(x) - grad Q_i(x) / q_i) + sqrt(2 step_size) w`. Then the hub
    permutes the chains at random. Q_i is a quadratic surrogate of f_i, and Q = sum_i Q_i.

    El Mekkaoui, Mesquita, Blomstedt and Kaski 2021 (arXiv 2004.11231), epsilon = 2 `step_size`, their q_s are
    exp(-Q_i), and q_i = N_i / sum_j N_j as in `HubSGLD`. The last two terms, the conducive gradient, average to zero
    over a chain's steps, so that the estimate is unbiased for any surrogates. Accurate surrogates remove the pull of a
    visited shard towards its own mode. The draws of an agent are the chains that arrive there. With exact surrogates,
    as on Gaussian posteriors, every step at any agent is a Langevin step on F, and the only bias is that of
    `step_size`. The error of the surrogates has the same effect as in D-SGLD. Stable on quadratic potentials if
    `step_size ((H_i - P_i) / q_i + P) < 2` for every agent, P_i the Hessian of Q_i and P that of Q. Much too steep
    surrogates may be unstable all the same. Any agent can be the hub, as in `HubSGLD`.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one per agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    surrogates
        One `accord.Gaussian` per agent, proportional to an approximation of exp(-f_i), for example fitted to draws from
        the shard alone, in the posterior's own coordinates (without `whiten=True`). None: the second-order expansions
        of all f_i at the mode of F, which agents find by Newton's method before round 0. In both cases all agents learn
        the sum of the surrogates, and the hub learns every surrogate.
    temperature
        As in `Sampler`. Each chain's noise is independent.

    Raises
    ------
    ValueError
        A parameter out of range or of a wrong number, or surrogates of a wrong number or size, or without positive
        definite covariance.
    ArithmeticError
        F has no mode to expand at.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.FSGLD(step_size=0.05, local_steps=5)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    # `Surrogates` after validation
    surrogates: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.surrogates is not None and not isinstance(self.surrogates, Surrogates):
            object.__setattr__(self, "surrogates", _as_numbers(self.surrogates))

    def slope(self, agent: Agent, visits: Visits, x: Float[Array, " dim"], batch: Array | None) -> Float[Array, " dim"]:
        own, (center, whole) = agent.own.own, agent.shared
        return (agent.gradient(x, batch) - own.gradient(x - center)) / visits.share + whole.gradient(x - center)

    def visits(self, agent: Agent) -> Visits:
        return agent.own.visits

    def bind(self, post: Posterior, network: Network) -> Bound:
        bound = super().bind(post, network)
        found, spent = expanded_at_mode(post, network) if self.surrogates is None else self._given(post)
        own, shared = FSGLDNumbers(bound.own, found.own), FSGLDShared(found.center, found.whole)
        return bound._replace(own=own, shared=shared, spent=spent)

    def _given(self, post: Posterior) -> tuple[Expansions, Traffic]:
        means, precisions = self.surrogates
        if means.shape != (post.num_agents, post.dim):
            wanted, found = f"{post.num_agents} of {post.dim} parameters", f"{len(means)} of {means.shape[1]}"
            raise ValueError(f"surrogates must be one Gaussian per agent, {wanted}, found {found}")
        if post.coordinates is not None:
            raise ValueError("surrogates are in the user's parameters: omit them or whiten=True")
        center = means.mean(axis=0)
        return Expansions(center, np.einsum("nij,nj->ni", precisions, center - means), precisions), Traffic()

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        curvatures = hessians if self.surrogates is None else self.surrogates[1]
        share = self.planned(network.num_agents).share
        seen = (hessians - curvatures) / share[:, None, None] + curvatures.sum(axis=0)
        return 2.0 * reciprocal(float(np.linalg.eigvalsh(seen)[:, -1].max()))


def _as_numbers(surrogates: Any) -> Surrogates:
    found = list(surrogates)
    if not found or not all(isinstance(law, Gaussian) and law.dim == found[0].dim for law in found):
        raise ValueError("surrogates must be one accord.Gaussian per agent, all of the same dimension")
    for agent, law in enumerate(found):
        if not np.linalg.eigvalsh(law.cov)[0] > 0:
            raise ValueError(f"the surrogate of agent {agent} must have a positive definite covariance")
    return Surrogates(np.stack([law.mean for law in found]), np.linalg.inv(np.stack([law.cov for law in found])))
