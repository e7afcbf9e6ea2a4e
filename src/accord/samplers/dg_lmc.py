"""DG-LMC: Gibbs sampling between a hub and its agents, which make local Langevin steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..base.checks import one_an_agent, positive, whole_numbers
from ..base.pytree import pytree, static
from ..network import Network
from ..posterior import Posterior
from ..posterior.potential import Potential, Shard
from .agent import Agent, Inbox, Noise
from .conditional import curvatures, largest_curvature
from .costs import total_traffic
from .hub_gibbs import HubGibbs
from .protocol import Bound, Needs


class DGLMCState(NamedTuple):
    # the hub's parameters, the same at all agents
    position: Float[Array, " dim"]
    # the agent's variable z_i, padded to the longest of all agents
    local: Float[Array, " width"]


class DGLMCNumbers(NamedTuple):
    """Parameters of an agent: rho_i, gamma_i, N_i, its operator A_i and the pseudo-inverse (1 for an identity)."""

    rho: Any
    step_size: Any
    local_steps: Any
    operator: Any
    inverse: Any


class DGLMCHub(NamedTuple):
    """Parameters of the hub: Q^-1, and R with R R' = Q^-1. Scalars if Q is a multiple of the identity."""

    covariance: Any
    factor: Any


@pytree
class DGLMC(HubGibbs):
    """Distributed Gibbs using Langevin Monte Carlo.

    In each round the hub draws `theta ~ N(Q^-1 sum_i A_i' z_i / rho_i, Q^-1)`, Q = sum_i A_i' A_i / rho_i. From agent
    i, N_i times: `z_i+ = (1 - gamma_i / rho_i) z_i + (gamma_i / rho_i) A_i theta - gamma_i grad U_i(z_i)
    + sqrt(2 gamma_i) w_i`, at the start z_i = A_i x_i.

    DG-LMC paper (Plassier et al. 2021), Algorithm 1, gamma_i = `step_size`, N_i = `local_steps`. A draw is theta, the
    same at every agent. It targets the theta-marginal of `exp(-sum_i U_i(z_i) - |z_i - A_i theta|^2 / (2 rho_i))`, eq.
    2, which tends to the posterior as rho decreases. Langevin steps add a bias of order gamma_i, and unequal N_i
    gamma_i add another. Here U_i(z) = f_i(A_i^+ z) with the pseudo-inverse A_i^+, so that U_i(A_i x) = f_i(x). This
    needs f_i to depend on A_i x alone (with a proper prior in every f_i: operators of full column rank). Any agent can
    be the hub. If no agent is a neighbour of all others, sums use a spanning tree.

    Parameters
    ----------
    rho
        Tolerances rho_i > 0, one number or one per agent. None: a plan chooses it, in whitened coordinates. With
        operators, or `whiten=False`: 1 / M_i (guideline 3.2.1), M_i the largest eigenvalue of the Hessian of U_i at the
        posterior's init.
    step_size
        gamma_i in (0, rho_i / (1 + rho_i M_i)], one number or one per agent. None: a quarter of that bound.
    local_steps
        N_i >= 1, one number or one per agent (`accord.samplers.balance.balanced_steps` for agents of unequal speed).
        None: ceil(mean of rho_i / (gamma_i (1 + rho_i M_i))) for all (guideline 3.2.2).
    operators
        One matrix A_i of shape (d_i, dim) per agent. None: identities.
    temperature
        As in `Sampler`. The hub draws one noise, the agents draw independently.

    Raises
    ------
    ValueError
        A parameter out of range or of a wrong number, operators of a wrong shape, a singular sum_i A_i' A_i (H1 of the
        paper), a potential that does not depend on A_i x alone, or a step above its bound.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.DGLMC(rho=0.2, step_size=0.05, local_steps=4)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    rho: Any = None
    step_size: Any = None
    local_steps: int | Sequence[int] | None = static(default=None)
    operators: Any = None

    chosen_by_bind: ClassVar[tuple[str, ...]] = ("rho",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rho", "step_size"):
            for value in np.atleast_1d([] if getattr(self, name) is None else getattr(self, name)):
                positive(name, float(value))
        if self.local_steps is not None:
            object.__setattr__(self, "local_steps", whole_numbers("local_steps", self.local_steps, 1))
        if self.operators is not None:
            object.__setattr__(self, "operators", tuple(np.asarray(A, np.float64) for A in self.operators))

    def needs(self, dim: int) -> Needs:
        steps = np.atleast_1d(1 if self.local_steps is None else self.local_steps)
        width = dim if self.operators is None else max(len(A) for A in self.operators)
        gradients = steps if isinstance(self.local_steps, tuple) else int(steps.max())
        return super().needs(dim)._replace(local=(int(steps.max()), width), gradients=gradients)

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> DGLMCState:
        return DGLMCState(position, times(agent.own.operator, position))

    def message(self, agent: Agent, state: DGLMCState) -> Float[Array, " dim"]:
        return times(agent.own.operator.T, state.local) / agent.own.rho

    def update(self, agent: Agent, state: DGLMCState, inbox: Inbox, noise: Noise) -> DGLMCState:
        own, hub = agent.own, agent.shared
        assert noise.local is not None and noise.normal is not None
        theta = times(hub.covariance, inbox.total()) + times(hub.factor, noise.normal)
        step, pull = own.step_size, own.step_size / own.rho
        center, local = times(own.operator, theta), noise.local

        def langevin(k: Array, z: Array) -> Array:
            gradient = times(own.inverse.T, agent.gradient(times(own.inverse, z)))
            moved = (1.0 - pull) * z + pull * center - step * gradient + (2.0 * step) ** 0.5 * local[k]
            return jnp.where(k < own.local_steps, moved, z)

        return DGLMCState(theta, jax.lax.fori_loop(0, local.shape[0], langevin, state.local))

    def bind(self, post: Posterior, network: Network) -> Bound:
        A, inverse, curvature = as_blocks(self.operators, post)
        rho, step, steps = guided(self.rho, self.step_size, self.local_steps, curvature)
        # A_i = 1 for all agents: Q is a multiple of the identity
        precision = np.asarray((1.0 / rho).sum() if A.ndim == 1 else np.einsum("nki,nkj,n->ij", A, A, 1.0 / rho))
        chosen = replace(self, rho=rho, step_size=step, local_steps=tuple(int(k) for k in steps))
        own = DGLMCNumbers(rho, step, steps, A, inverse)
        return Bound(chosen, own=own, shared=_hub(precision), spent=total_traffic(network, precision.size))

    @property
    def left_out(self) -> tuple[str, ...]:
        # operators belong to coordinates, so that only `bind` chooses parameters with them
        return super().left_out if self.operators is None else ()

    def langevin_step(self, network: Network) -> float:
        if self.rho is None or self.step_size is None or self.local_steps is None:
            raise ValueError("omitted fields depend on the posterior: use method.bind(post, network).sampler")
        # Without gradients z follows a linear recursion whose invariant direction weights z_i by
        # 1 / (rho_i (1 - a_i)), a_i = (1 - gamma_i / rho_i)^N_i. A round moves it by -h sum_i grad f_i.
        rho, step, steps = (np.asarray(v, np.float64) for v in (self.rho, self.step_size, self.local_steps))
        forgotten = 1.0 - (1.0 - step / rho) ** steps
        per_agent = np.broadcast_to(1.0 / (rho * forgotten), network.num_agents)
        return float(1.0 / per_agent.sum())


def _hub(precision: np.ndarray) -> DGLMCHub:
    if precision.ndim == 0:
        return DGLMCHub(1.0 / precision, precision**-0.5)
    covariance = np.linalg.inv(precision)
    return DGLMCHub(covariance, np.linalg.cholesky((covariance + covariance.T) / 2.0))


# Guideline 3.2.1: the step is 0.1 to 0.5 of rho_i / (1 + rho_i M_i).
_STEP_FRACTION = 0.25


def guided(
    rho: Any, step_size: Any, local_steps: Any, curvature: Float[np.ndarray, " agent"]
) -> tuple[Float[np.ndarray, " agent"], Float[np.ndarray, " agent"], Int[np.ndarray, " agent"]]:
    """rho_i, gamma_i and N_i of each agent. The guidelines choose those that are None.

    Parameters
    ----------
    rho, step_size, local_steps
        As in `DGLMC`.
    curvature
        M_i, the largest eigenvalue of the Hessian of each U_i.

    Raises
    ------
    ValueError
        A wrong number of values, a step above its bound, or no positive curvature to choose `rho` from.
    """
    n = curvature.size
    if rho is None and not (curvature > 0).all():
        agent = int(np.argmin(curvature))
        raise ValueError(
            f"rho must be given: the Hessian of agent {agent} at init has no positive finite eigenvalue to choose "
            "it from"
        )
    rho = 1.0 / curvature if rho is None else one_an_agent("rho", rho, n)
    bound = rho / (1.0 + rho * curvature)
    step = _STEP_FRACTION * bound if step_size is None else one_an_agent("step_size", step_size, n)
    if (step > bound * (1.0 + 1e-9)).any():
        agent = int(np.argmax(step / bound))
        raise ValueError(
            f"step_size {step[agent]:.6g} of agent {agent} is above {bound[agent]:.6g}, its stability bound "
            "rho_i / (1 + rho_i M_i)"
        )
    if local_steps is None:
        return rho, step, np.full(n, int(np.ceil(np.mean(bound / step) - 1e-9)))
    return rho, step, one_an_agent("local_steps", local_steps, n)


def times(A: Any, x: Array) -> Array:
    """A x. A scalar A is a multiple of the identity."""
    return A * x if jnp.ndim(A) == 0 else A @ x


def as_blocks(
    operators: tuple[np.ndarray, ...] | None, post: Posterior
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, " agent"]]:
    """Stacked operators, their pseudo-inverses (1 for identities), and the largest curvature of each U_i.

    U_i(z) = f_i(A_i^+ z). Raises the errors of `check_operators`.
    """
    if operators is None:
        return np.ones(post.num_agents), np.ones(post.num_agents), curvatures(post)
    check_operators(operators, post)
    A, inverse = padded(operators)
    return A, inverse, post.each(largest_curvature, post.init, own=(inverse,))


def padded(operators: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Operators padded with zero rows (agent, width, dim), and their pseudo-inverses (agent, dim, width)."""
    width = max(len(A) for A in operators)
    A = np.stack([np.pad(A, ((0, width - len(A)), (0, 0))) for A in operators])
    return A, np.linalg.pinv(A)


def check_operators(operators: tuple[np.ndarray, ...], post: Posterior) -> None:
    """Raise `ValueError` if operators do not fit a posterior.

    Required: one finite matrix per agent with dim columns, an invertible sum_i A_i' A_i (H1 of the DG-LMC paper), and
    potentials that depend on A_i x alone.
    """
    if len(operators) != post.num_agents:
        raise ValueError(f"operators must be one matrix per agent, {post.num_agents}, found {len(operators)}")
    for agent, A in enumerate(operators):
        if A.ndim != 2 or A.shape[1] != post.dim or A.shape[0] == 0 or not np.isfinite(A).all():
            raise ValueError(
                f"the operator of agent {agent} must be finite of shape (d_i, {post.dim}), found {A.shape}"
            )
    values = np.linalg.eigvalsh(sum(A.T @ A for A in operators))
    if not values[0] > 1e-10 * values[-1]:
        raise ValueError(
            f"sum_i A_i' A_i must be invertible (H1 of the DG-LMC paper), found the eigenvalue {values[0]:.3g}"
        )
    A, inverse = padded(operators)
    x = post.init + np.random.default_rng(0).standard_normal(post.dim)
    outside = post.each(_outside, x, own=(np.eye(post.dim) - inverse @ A,))
    if (outside > 1e-6).any():
        agent = int(np.argmax(outside))
        raise ValueError(
            f"the potential of agent {agent} depends on more than A_i x: its gradient has a part of relative size "
            f"{outside[agent]:.3g} outside the rows of its operator (a proper prior does this; "
            "give it to an agent of its own)"
        )


def _outside(potential: Potential, shard: Shard, x: Array, projector: Array) -> Array:
    gradient = potential.gradient(shard, x)
    return jnp.abs(projector @ gradient).max() / (1.0 + jnp.abs(gradient).max())
