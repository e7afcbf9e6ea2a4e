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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int, PyTree, UInt32

from .checks import whole_number
from .mixing import MixingMatrix, chebyshev
from .posterior import Posterior, Potential, Shard
from .pytree import pytree, static
from .schedules import as_step

if TYPE_CHECKING:
    from .network import Network


class Prepared(NamedTuple):
    """What a method works out once, before round 0, from the posterior, the network and its own numbers."""

    # Numbers of each agent, every array with a leading agent axis; a method reads its agent's as `agent.own`.
    own: PyTree = ()
    # Numbers that all agents know; read as `agent.shared`.
    shared: PyTree = ()
    # What finding them took: exchanges one after another, and bytes that each agent sent, (agent,) or 0.
    exchanges: int = 0
    bytes_sent: Any = 0


class Randomness(NamedTuple):
    """What a round of one agent draws; see `Noise`."""

    # Whether it reads `noise.normal`.
    normal: bool = True
    # Shape (steps, width) of `noise.local`, or None.
    local: tuple[int, int] | None = None
    # Whether it reads `noise.key`.
    key: bool = False
    # Whether `normal` is the same for all agents: a hub's, or that of `noise="common"`.
    shared: bool = False


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
    own: PyTree
    round: Int[Array, ""]
    facts: Facts
    shared: PyTree
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

    # Standard normals, scaled by the square root of the temperature, and by `common_scale` if `noise="common"`.
    normal: Float[Array, " dim"] | None
    # Random words that choose the rows of the round's minibatches (with replacement), or None for all rows.
    batch: UInt32[Array, " batch"] | None
    # Standard normals of the agent's local steps, scaled by the square root of the temperature, never shared.
    local: Float[Array, "step width"] | None
    # Words of a `jax.random` key, for what takes a random number of random numbers.
    key: UInt32[Array, 2] | None

    def random_key(self) -> Array:
        """The key of this agent and round, for `jax.random`."""
        assert self.key is not None
        return jax.random.wrap_key_data(self.key, impl="threefry2x32")


class Inbox(NamedTuple):
    """What arrived in a round, in the forms that the method declared in `receives`."""

    mixed: PyTree = None
    summed: PyTree = None
    totalled: PyTree = None
    visiting: PyTree = None
    asked: Callable[[Any], PyTree] | None = None

    def mix(self) -> PyTree:
        """The messages averaged by the mixing weights, the agent's own included: sum_j W_ij message_j."""
        return self._declared(self.mixed, "mix")

    def neighbour_sum(self) -> PyTree:
        """The sum of the neighbours' messages, without the agent's own."""
        return self._declared(self.summed, "neighbour_sum")

    def total(self) -> PyTree:
        """The sum of all agents' messages: what a hub computes."""
        return self._declared(self.totalled, "total")

    def visitor(self) -> PyTree:
        """The message of one agent, all agents' messages being handed out in random order: what a hub passes on."""
        return self._declared(self.visiting, "visitor")

    def ask(self, state: Any) -> PyTree:
        """The sum over all agents of `message(agent, state)`, for a state that the hub makes within a round."""
        return self._declared(self.asked, "ask")(state)

    @staticmethod
    def _declared(content: Any, name: str) -> Any:
        if content is None:
            raise TypeError(f"the method reads inbox.{name}() but its `receives` does not name {name!r}")
        return content


# Langevin steps that a plan tries, each half of the one before.
_HALVINGS = 16


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

    # Which forms of the messages `update` reads: any of "mix", "neighbour_sum", "total", "visitor"; "ask" where
    # the method runs at the hub.
    receives: ClassVar[tuple[str, ...]]
    # Whether the method's state lives at the hub alone, agent 0 for what `init` is given: `update` runs there, agents
    # answer what it asks, and every agent is sent its position.
    at_hub: ClassVar[bool] = False
    # Whether agents update colour by colour, so that each reads the neighbours' values of this round where their
    # colour came before its own. A draw is the state after all colours.
    by_color: ClassVar[bool] = False
    # The values of `noise` that the method has a meaning for.
    noises: ClassVar[tuple[str, ...]] = ("independent", "common")
    # Whether the method solves proximal problems, for which quadratic shards carry their eigenvectors.
    proximal: ClassVar[bool] = False
    # Numbers that may be left out, None, until a plan chooses them.
    planned: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number >= 0, found {self.temperature}")
        if self.noise not in self.noises:
            allowed = " or ".join(f'"{noise}"' for noise in self.noises)
            raise ValueError(f"noise must be {allowed} in {type(self).__name__}, found {self.noise!r}")

    def _check_steps(self, *names: str) -> None:
        """Check the named steps and make schedules part of the pytree; those left out stay so."""
        for name in names:
            if getattr(self, name) is not None or name not in self.planned:
                object.__setattr__(self, name, as_step(name, getattr(self, name)))

    @abc.abstractmethod
    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> Any:
        """The agent's state before round 0. Of the noise only `batch` is given, for a first gradient."""

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
        """The step, a number or schedule, that the average makes on F: the common currency between methods.

        None for methods that are not Langevin-like.
        """

    def check_network(self, network: Network) -> None:
        """Raise `ValueError` where the method cannot run on a network.

        A network must be connected, unless it has no edge at all: then every agent samples alone, on purpose. What is
        summed or handed out over all agents needs a connected one.
        """
        if not network.is_empty or {"total", "visitor", "ask"} & set(self.receives):
            network.require_connected()

    def weights(self, network: Network) -> scipy.sparse.csr_array | None:
        """The mixing matrix that `inbox.mix()` applies, if the method mixes."""
        return None

    def resolved(self, post: Posterior, network: Network) -> Self:
        """The method with the numbers that were left out chosen for a posterior and a network."""
        return self

    def is_complete(self) -> bool:
        """Whether no number was left out that a plan chooses."""
        return all(getattr(self, name) is not None for name in self.planned)

    def settings(self, network: Network, stiffness: float) -> Iterator[Self]:
        """The method with the numbers that were left out filled in, from those with the cheapest draws on.

        They are for whitened coordinates, in which the Hessian of F is about the identity on average and at a typical
        draw has the largest eigenvalue `stiffness`. A method without such numbers is its own only setting.
        """
        before = None
        for halvings in range(_HALVINGS):
            setting = self.filled(2.0**-halvings / stiffness, network)
            if setting != before:
                yield setting
            before = setting

    def filled(self, step: float, network: Network) -> Self:
        """The method with the numbers that were left out filled in, so that `langevin_step` is about `step`."""
        return self

    def modelled(self) -> Self:
        """The method whose law on a Gaussian posterior stands for this one's: the same without minibatches."""
        return self if self.rows_per_gradient() is None else replace(self, batch_size=None)  # type: ignore[call-arg]

    def prepare(self, post: Posterior, network: Network) -> Prepared:
        """What agents need to know before round 0, as arrays of NumPy.

        Raises `ValueError` where the method's numbers do not fit the posterior or the network.
        """
        return Prepared()

    def randomness(self, dim: int) -> Randomness:
        """What a round draws, for a posterior of `dim` parameters."""
        return Randomness(shared=self.noise == "common")

    def conserved(self, agent: Agent, state: Any) -> Float[Array, " dim"] | None:
        """A quantity whose sum over the agents never changes, if the method has one; the law needs to know it."""
        return None

    def common_scale(self, agent: Agent) -> Array:
        """What common noise is multiplied by, so that it moves the average as much as independent noise does."""
        return agent.num_agents**-0.5

    def rows_per_gradient(self) -> int | None:
        """Rows that a gradient reads; None for all."""
        return None

    def rows_read(self, sizes: np.ndarray) -> np.ndarray:
        """Rows that each agent reads for a gradient, shape (agent,), of agents with so many rows."""
        rows = self.rows_per_gradient()
        return sizes if rows is None else np.full_like(sizes, rows)

    def gradients_per_round(self) -> int | np.ndarray:
        """Gradients of f_i that an agent evaluates in a round, one number or one an agent, where it is known before."""
        return 1

    def exchanges_per_round(self) -> int:
        """Mixing exchanges in one round."""
        return 1

    def traffic_per_round(self, network: Network) -> tuple[int, np.ndarray]:
        """Exchanges of a round that must follow one another, and the messages that each agent sends in them, (agent,).

        A total goes up a spanning tree and down again: to the hub and back where an agent is everybody's neighbour.
        """
        exchanges, messages = 0, np.zeros(network.num_agents)
        if {"mix", "neighbour_sum"} & set(self.receives):
            rounds = self.exchanges_per_round()
            exchanges += int(network.coloring().max()) + 1 if self.by_color else rounds
            messages += rounds * network.degrees
        if {"total", "ask"} & set(self.receives):
            exchanges += 2 * network.aggregation.height
            messages += network.aggregation.sums_sent
        if "visitor" in self.receives:
            exchanges += 2 * network.aggregation.height
            messages += network.aggregation.letters_sent
        return exchanges, messages

    def log_weight(self, agent: Agent, state: Any) -> Array | None:
        """The agent's share of the log weight of its chain after a round.

        Where there is one, chains are particles: they are resampled by their weights, the sums over the agents, in
        every round after which these differ.
        """
        return None

    def least_burn_in(self) -> int:
        """Rounds at the start whose states are not draws, because the method still adapts."""
        return 0

    def diagnostics(self, state: Any) -> dict[str, Array]:
        """Numbers of an agent's state to watch; each draw records the largest of all agents and rounds until then.

        Counts over all rounds so far fit this. By convention "gradients" counts the evaluations of f_i or its
        gradient, where `gradients_per_round` cannot say it beforehand, and "asks" those of `inbox.ask`.
        """
        return {}

    def report(self, watched: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        """The statistics of a run, from its `diagnostics`, (chain, draw), and the rounds until each draw, (draw,)."""
        return watched

    def complaint(self, statistics: dict[str, np.ndarray]) -> str | None:
        """A warning about a finished run, from its statistics of shape (chain, draw), or None."""
        return None

    def failure(self, prepared: Prepared, agent: int) -> str | None:
        """Why an agent's position became non-finite, if the method knows; it may say so by making it NaN."""
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
