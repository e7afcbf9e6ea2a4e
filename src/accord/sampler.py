"""The protocol: what a sampling method over a network must say, from the viewpoint of one agent.

A method is a frozen dataclass of its numbers with four pure functions. An engine calls them for every agent and
chain, carries the messages and draws the noise; no method ever sees the network, a rank, a random key or a socket.

    state   = init(agent, position, noise)      at the start
    message = message(agent, state)             all that leaves the agent in a round: the privacy boundary
    state   = update(agent, state, inbox, noise)
    draw    = position(state)

Because the noise is an input, a round on a quadratic potential is an affine map of (state, noise); `accord.law`
differentiates these very functions to get a method's exact mean and covariance.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int, PyTree, UInt32

from .checks import whole_number
from .mixing import MixingMatrix, chebyshev
from .posterior import Potential, Shard
from .pytree import pytree, static
from .schedules import as_step

if TYPE_CHECKING:
    from .network import Network


class Facts(NamedTuple):
    """What every agent knows of the network as a whole."""

    num_agents: Array
    degree_sum: Array
    degree_square_sum: Array


@pytree
class Agent:
    """One agent, as a method sees it: its place, its data behind f_i and its gradients, and the round."""

    # with a leading agent axis where an engine holds all agents in one
    index: UInt32[Array, "*agent"]
    degree: Float[Array, "*agent"]
    shard: Shard
    round: Int[Array, ""]
    facts: Facts
    potential: Potential

    @property
    def num_agents(self) -> Array:
        """Number of agents N, as a float."""
        return self.facts.num_agents

    def value(self, x: Float[Array, " dim"]) -> Array:
        """The potential f_i(x)."""
        return self.potential.value(self.shard, x)

    def gradient(self, x: Float[Array, " dim"], batch: Array | None = None) -> Float[Array, " dim"]:
        """Gradient of f_i, of all rows or estimated from `batch` (unbiased, scaled by n_i / b)."""
        return self.potential.gradient(self.shard, x, batch)

    def hessian(self, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """Hessian of f_i."""
        return self.potential.hessian(self.shard, x)


class Noise(NamedTuple):
    """The randomness of one agent in one round, a pure function of (seed, chain, round, agent)."""

    # Standard normals, already scaled by the square root of the temperature and, if common, shared by all agents.
    normal: Float[Array, " dim"]
    # Random words that choose the rows of a minibatch (with replacement), or None for all rows.
    batch: UInt32[Array, " batch"] | None


class Inbox(NamedTuple):
    """What arrived in a round, in the forms that the method declared in `receives`."""

    mixed: PyTree = None
    summed: PyTree = None
    totalled: PyTree = None

    def mix(self) -> PyTree:
        """The messages averaged by the mixing weights, the agent's own included: sum_j W_ij message_j."""
        return self._declared(self.mixed, "mix")

    def neighbour_sum(self) -> PyTree:
        """The sum of the neighbours' messages, without the agent's own."""
        return self._declared(self.summed, "neighbour_sum")

    def total(self) -> PyTree:
        """The sum of all agents' messages: what a hub computes."""
        return self._declared(self.totalled, "total")

    @staticmethod
    def _declared(content: PyTree, name: str) -> PyTree:
        if content is None:
            raise TypeError(f"the method reads inbox.{name}() but its `receives` does not name {name!r}")
        return content


@dataclass(frozen=True, kw_only=True)
class Sampler(abc.ABC):
    """Base of all methods; see the module's text for the protocol.

    Parameters
    ----------
    temperature
        Samples exp(-F / temperature), >= 0; 0 removes the noise and leaves the method's optimiser.
    noise
        "independent": every agent draws its own noise. "common": all agents draw the same noise from the shared
        seed, scaled to move the average as independent noise does; the agents then disagree only where their
        gradients do, and their own draws have the posterior's spread. Its price: neighbours know each other's noise,
        so that it hides nothing of a gradient.
    """

    temperature: float = static(default=1.0)
    noise: str = static(default="independent")

    # Which forms of the messages `update` reads: any of "mix", "neighbour_sum", "total".
    receives: ClassVar[tuple[str, ...]]
    # Whether the method solves proximal problems, for which quadratic shards carry their eigenvectors.
    proximal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number >= 0, found {self.temperature}")
        if self.noise not in ("independent", "common"):
            raise ValueError(f'noise must be "independent" or "common", found {self.noise!r}')

    def _check_steps(self, *names: str) -> None:
        """Check the named steps and make schedules part of the pytree."""
        for name in names:
            object.__setattr__(self, name, as_step(name, getattr(self, name)))

    @abc.abstractmethod
    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> Any:
        """The agent's state before round 0. Of the noise only `batch` is given, for a first gradient; `normal` is 0."""

    @abc.abstractmethod
    def message(self, agent: Agent, state: Any) -> PyTree:
        """Everything that leaves the agent in a round."""

    @abc.abstractmethod
    def update(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> Any:
        """The agent's state after the round."""

    @abc.abstractmethod
    def position(self, state: Any) -> Float[Array, " dim"]:
        """The draw that a state stands for."""

    @abc.abstractmethod
    def langevin_step(self, network: Network) -> Any:
        """The step, a number or schedule, that the average makes on F: the common currency between methods."""

    def check_network(self, network: Network) -> None:
        """Raise `ValueError` where the method cannot run on a network.

        A network must be connected, unless it has no edge at all: then every agent samples alone, on purpose.
        """
        if not network.is_empty:
            network.require_connected()

    def weights(self, network: Network) -> scipy.sparse.csr_array | None:
        """The mixing matrix that `inbox.mix()` applies, if the method mixes."""
        return None

    def conserved(self, agent: Agent, state: Any) -> Float[Array, " dim"] | None:
        """A quantity whose sum over the agents never changes, if the method has one; the law needs to know it."""
        return None

    def common_scale(self, agent: Agent) -> Array:
        """What common noise is multiplied by, so that it moves the average as much as independent noise does."""
        return agent.num_agents**-0.5

    def rows_per_gradient(self) -> int | None:
        """Rows that a gradient reads; None for all."""
        return None

    def exchanges_per_round(self) -> int:
        """Messages that an agent sends to each neighbour in one round."""
        return 1

    def diagnostics(self, state: Any) -> dict[str, Array]:
        """Numbers of an agent's state to watch; each draw records the largest of all agents and rounds until then."""
        return {}

    def complaint(self, statistics: dict[str, np.ndarray]) -> str | None:
        """A warning about a finished run, from the recorded `diagnostics` of shape (chain, draw), or None."""
        return None

    def is_constant(self) -> bool:
        """Whether every step is the same at every round."""
        return not any(callable(getattr(self, f.name)) for f in fields(self))

    def max_step(self, network: Network, hessians: np.ndarray) -> float | None:
        """The largest stable step_size on quadratic potentials with these Hessians (agent, dim, dim); None if any is.

        Raises `ValueError` where the other numbers of the method allow no step at all.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class MixingSampler(Sampler):
    """Base of the methods that mix with their neighbours and step along a gradient.

    Parameters
    ----------
    batch_size
        Rows that each gradient reads, drawn with replacement and scaled by n_i / batch_size (unbiased), from 1 to
        the smallest shard; None reads all rows.
    mix_rounds
        Exchanges K in one step, >= 1. More than one applies the Chebyshev polynomial T_K(W/s) / T_K(1/s) of the
        mixing matrix, s its second largest absolute eigenvalue, which keeps the average and contracts disagreement
        as fast as K exchanges can.
    """

    batch_size: int | None = static(default=None)
    mix_rounds: int = static(default=1)

    receives: ClassVar[tuple[str, ...]] = ("mix",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "mix_rounds"):
            value = getattr(self, name)
            if value is not None:
                whole_number(name, value, 1)

    def rows_per_gradient(self) -> int | None:
        return self.batch_size

    def exchanges_per_round(self) -> int:
        return self.mix_rounds

    def effective_weights(self, network: Network) -> scipy.sparse.csr_array:
        """The matrix that one whole step applies to the messages: the Chebyshev polynomial of W over its exchanges."""
        weights = self.weights(network)
        assert weights is not None
        return chebyshev(weights, self.mix_rounds)


def static_mixing(mixing: Any) -> str | MixingMatrix:
    """A mixing rule as static data of a compiled method: its name, or a user's matrix behind a hash."""
    return mixing if isinstance(mixing, str | MixingMatrix) else MixingMatrix(mixing)
