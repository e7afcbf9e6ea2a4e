"""FSGLD: chains that travel, with gradients that surrogates of all shards correct."""

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
    """Means (agent, dim) and precisions (agent, dim, dim) of the Gaussians that are given."""

    means: Any
    precisions: Any


class FSGLDNumbers(NamedTuple):
    """What an agent knows: its visits, and the surrogate of its own potential."""

    visits: Visits
    own: Quadratic


class FSGLDShared(NamedTuple):
    """What all agents know: the center, and the sum of all surrogates."""

    center: Any
    whole: Quadratic


@pytree
class FSGLD(Travelling):
    """Federated SGLD: D-SGLD with conducive gradients.

    N chains travel; every agent holds one of them at a time. From agent i, N_i times:
    `x+ = x - step_size (grad f_i(x) / q_i + grad Q(x) - grad Q_i(x) / q_i) + sqrt(2 step_size) w`; then the hub hands
    all chains out in random order. Q_i is a quadratic surrogate of f_i, and Q = sum_i Q_i.

    El Mekkaoui, Mesquita, Blomstedt and Kaski 2021 (arXiv 2004.11231), epsilon = 2 `step_size`; their q_s are
    exp(-Q_i), and q_i = N_i / sum_j N_j is as in `HubSGLD`. The last two terms, the conducive gradient, are zero on
    average over a chain's steps, so that with any surrogates the estimate stays unbiased; good ones take away what
    pulls a visiting chain to the shard's own mode. The draws of an agent are the chains that arrive there. With exact
    surrogates, which Gaussian posteriors have, every step is a Langevin step on F wherever it is made, and the bias is
    that of `step_size` alone; what surrogates miss is left as in D-SGLD. Stable on quadratic potentials where
    `step_size ((H_i - P_i) / q_i + P) < 2` for every agent, P_i the Hessian of Q_i and P that of Q; surrogates that are
    much too steep may be unstable all the same. The hub is any agent, as in `HubSGLD`.

    Parameters
    ----------
    step_size
        Step on F, > 0, a number.
    local_steps
        N_i >= 1, one number or one an agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
    batch_size
        Rows that each gradient reads, drawn with replacement; None reads all.
    surrogates
        One `accord.Gaussian` an agent, near exp(-f_i) up to a factor: fitted to draws of the shard alone, say, in the
        posterior's own coordinates (not `whiten=True`). None: the second-order expansions of all f_i at the mode of F,
        which sums over the agents find by Newton's method before round 0. Either way everybody learns the sum of the
        surrogates, and the hub all of them.
    temperature
        As in `Sampler`. The noise of a chain's steps is its own.

    Raises
    ------
    ValueError
        A number out of its range or not one an agent, or surrogates of a wrong number or size, or flat.
    ArithmeticError
        There is no mode to expand at.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.FSGLD(step_size=0.05, local_steps=5)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    # `Surrogates`, once they are checked
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
            raise ValueError(f"surrogates must be one Gaussian an agent, {wanted}, found {found}")
        if post.coordinates is not None:
            raise ValueError("surrogates are given in the user's parameters: leave them or whiten=True out")
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
        raise ValueError("surrogates must be one accord.Gaussian an agent, all of one size")
    for agent, law in enumerate(found):
        if not np.linalg.eigvalsh(law.cov)[0] > 0:
            raise ValueError(f"the surrogate of agent {agent} must have a positive definite covariance")
    return Surrogates(np.stack([law.mean for law in found]), np.linalg.inv(np.stack([law.cov for law in found])))
