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
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PyTree

from ..base.pytree import static
from ..posterior import Posterior
from ..schedules import as_step
from .agent import Agent, Inbox, Noise, Prepared, Randomness

if TYPE_CHECKING:
    from ..network import Network


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
