"""FA-LD: agents make local Langevin steps, and a hub averages the results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import one_an_agent, positive, whole_number
from ..base.pytree import checked, pytree, static
from ..network import Network
from ..posterior import Posterior
from .agent import Agent, Inbox, Noise
from .protocol import Bound, HasLaw, Langevin, Needs, Tunable
from .schedules import Step, as_step, at, rescaled

# Bisections for the largest stable step, which give nine digits.
_BISECTIONS = 40


class FALDState(NamedTuple):
    # the hub's average, the same at all agents
    position: Float[Array, " dim"]
    # the agent's position after its local steps
    local: Float[Array, " dim"]


@pytree
class FALD(Tunable, Langevin, HasLaw):
    """Federated averaging Langevin dynamics (FA-LD): local steps between averages, with partly shared noise.

    In each round the hub averages, `theta = sum_i p_i x_i`. From agent i, K = `local_steps` times from `x_i = theta`:
    `x_i+ = x_i - step_size grad f_i(x_i) / p_i + sqrt(2 step_size) (rho w + sqrt((1 - rho^2) / p_i) w_i)`, with normals
    w shared by all agents and independent w_i.

    Deng, Zhang, Ma, Song and Lin 2021 (arXiv 2112.05120), the algorithm with correlated noise, p_c = `weights`, rho =
    `correlation`, full participation. It is the precedent for `noise="common"`. A draw is theta, the same at every
    agent. With one local step it is Langevin on F for any rho. With more, every x_i drifts to the mode of its shard: if
    the gradients g_i at the mode of F differ, the mean of the draws is biased by
    `step_size (K - 1) / 2 H^-1 sum_i H_i g_i / p_i` to first order, for any rho. If the H_i / p_i differ, the
    covariance is biased by the same order, most at rho = 0. `accord.law` computes the exact values. Stable on quadratic
    potentials while `sum_i p_i (1 - step_size H_i / p_i)^K` is inside the unit circle. At `temperature=0` this is
    federated averaging, with the same drift. Any agent can be the hub. If no agent is a neighbour of all others, sums
    use a spanning tree.

    Parameters
    ----------
    step_size
        Step on F of one local step, > 0, a number or a schedule of the round. None: a plan chooses it, in whitened
        coordinates.
    local_steps
        K >= 1. The default, 1, has no drift. Larger values save messages if shards are alike.
    correlation
        rho from 0 (default: independent noise, which hides part of a gradient) to 1 (the same noise at all agents).
    weights
        p_i > 0, one per agent, rescaled to sum to one. None: equal. The paper uses `post.sizes`.
    batch_size
        Rows that each gradient reads, drawn with replacement. None: all rows.
    temperature
        As in `Sampler`.

    Raises
    ------
    ValueError
        A parameter out of range, or a wrong number of weights.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> method = accord.samplers.FALD(step_size=0.02, local_steps=4, correlation=0.5)
    >>> run = accord.sample(post, accord.Network.star(3), method, draws=10, chains=2, seed=0)
    >>> run.draws.shape
    (2, 10, 3, 1)
    """

    step_size: Step | None = checked(as_step, default=None)
    local_steps: int = static(default=1)
    correlation: float = static(default=0.0)
    weights: Any = static(default=None)
    batch_size: int | None = static(default=None)

    noises: ClassVar[tuple[str, ...]] = ("independent",)
    tunable: ClassVar[tuple[str, ...]] = ("step_size",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local_steps", whole_number("local_steps", self.local_steps, 1))
        if not 0 <= self.correlation <= 1:
            raise ValueError(f"correlation must be a number from 0 to 1, found {self.correlation}")
        if self.weights is not None:
            weights = tuple(float(weight) for weight in np.atleast_1d(self.weights))
            for weight in weights:
                positive("weights", weight)
            object.__setattr__(self, "weights", weights)
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)

    def needs(self, dim: int) -> Needs:
        steps, rho = self.local_steps, self.correlation
        local = None if rho == 1 else (steps, dim)
        return Needs(
            "total",
            normal=rho > 0,
            steps=steps,
            common=True,
            local=local,
            gradients=steps,
            batch_size=self.batch_size,
        )

    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> FALDState:
        return FALDState(position, position)

    def message(self, agent: Agent, state: FALDState) -> Float[Array, " dim"]:
        return agent.own * state.local

    def update(self, agent: Agent, state: FALDState, inbox: Inbox, noise: Noise) -> FALDState:
        average, share = inbox.total(), agent.own
        step = at(self.step_size, agent.round)
        batches = None if noise.batch is None else noise.batch.reshape(self.local_steps, -1)
        kicks = jnp.zeros((self.local_steps, *average.shape))
        if noise.normal is not None:
            kicks += self.correlation * noise.normal
        if noise.local is not None:
            kicks += jnp.sqrt((1.0 - self.correlation**2) / share) * noise.local

        def langevin(k: Array, x: Array) -> Array:
            gradient = agent.gradient(x, None if batches is None else batches[k]) / share
            return x - step * gradient + (2.0 * step) ** 0.5 * kicks[k]

        return FALDState(average, jax.lax.fori_loop(0, self.local_steps, langevin, average))

    def bind(self, post: Posterior, network: Network) -> Bound:
        return Bound(self, own=self._shares(post.num_agents))

    def _shares(self, num_agents: int) -> np.ndarray:
        given = 1.0 if self.weights is None else np.asarray(self.weights)
        weights = one_an_agent("weights", given, num_agents).astype(np.float64)
        return weights / weights.sum()

    def linear(self) -> Self:
        return self if self.batch_size is None else replace(self, batch_size=None)

    def with_step(self, step: float, network: Network) -> Self:
        return self.filled(step_size=step / self.local_steps)

    def langevin_step(self, network: Network) -> Step:
        return rescaled(self.step_size, float(self.local_steps))

    def max_step(self, network: Network, hessians: np.ndarray) -> float:
        shares = self._shares(network.num_agents)
        values, vectors = np.linalg.eigh(hessians / shares[:, None, None])
        values = np.maximum(values, 0.0)
        if not values.max() > 0:
            return np.inf

        def is_stable(step: float) -> bool:
            kept = (1.0 - step * values) ** self.local_steps
            average = np.einsum("n,nij,nj,nkj->ik", shares, vectors, kept, vectors, optimize=True)
            return bool(np.abs(np.linalg.eigvalsh(average)).max() <= 1.0 + 1e-9)

        # every agent's steps contract up to here; v' (.)^K v crosses -1 or 1 once for every v as the step grows, so
        # that stable steps are an interval
        low = 2.0 / float(values.max())
        high = 2.0 * low
        while is_stable(high):
            low, high = high, 2.0 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if is_stable(middle) else (low, middle)
        return low
