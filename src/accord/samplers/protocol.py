"""The protocol of a sampling method over a network, from the viewpoint of one agent. Read this first.

A method is a frozen dataclass of its hyper-parameters. An engine calls its functions for every agent and chain,
carries the messages and draws the noise; no method ever sees the network, a rank, a random key or a socket.

    needs(dim)                                  what a round takes: its inbox, its noise, its gradients
    state   = init(agent, position, noise)      at the start
    message = message(agent, state)             all that leaves the agent in a round: the privacy boundary
    state   = update(agent, state, inbox, noise)
    draw    = position(state)
    bound   = bind(post, network)               once, before round 0: weights, and numbers that take the data

Because the noise is an input, a round on a quadratic potential is an affine map of (state, noise); `accord.law`
differentiates these very functions to get a method's exact mean and covariance.

What only some rooms ask for are capabilities, which a method inherits where it has them: `Tunable` (its numbers may be
left out), `Langevin` (it has a step on F), `HasLaw`, `Monitored` (rounds report counts), `Weighted` (chains are
particles) and `Recentred`. `accord.samplers.Gossip` and `HubGibbs` are families that share most of this.

All that a method of your own needs can be imported from here; docs/new-method.md writes one, line by line.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PyTree

from ..base.pytree import apply_checks, checked, pytree, static
from ..network import Network
from ..posterior import Posterior
from ..results.run import Traffic
from .agent import Agent, Inbox, Noise
from .schedules import Step, as_step, at, rescaled

__all__ = [
    "Agent",
    "Bound",
    "HasLaw",
    "Inbox",
    "Langevin",
    "Monitored",
    "Needs",
    "Noise",
    "Recentred",
    "Sampler",
    "Step",
    "Tunable",
    "Weighted",
    "as_step",
    "at",
    "checked",
    "pytree",
    "rescaled",
    "static",
]

# The forms in which an inbox can be read.
InboxName = Literal["mix", "average", "neighbour_sum", "total", "permuted", "query"]
# Langevin steps that a plan tries, each half of the one before.
_HALVINGS = 16


class Needs(NamedTuple):
    """The inbox, noise and gradients that a round of a method needs; declared, never found out by trying.

    Parameters
    ----------
    inbox
        Which form of the messages `update` reads: `inbox.mix()`, `inbox.neighbour_sum()` and with it
        `inbox.disagreement()`, `inbox.total()`, `inbox.permuted()` or `inbox.query(state)`. "average" is `inbox.mix()`
        too, of all agents alike.
    turns
        "together": all agents update at once. "by color": colour by colour, so that each reads the neighbours' values
        of this round where their colour came before its own; a draw is the state after all colours. "at the hub": the
        state lives at the hub alone, as agent 0 for what `init` is given, agents answer what it asks by
        `inbox.query`, and every agent is sent its position.
    normal
        Whether `update` reads `noise.normal`, dim standard normals.
    steps
        Steps that `noise.normal` has a row for, of the shape (steps, dim); None for the shape (dim,).
    common
        Whether these are the same for all agents: a hub's, or those of `noise="common"`.
    local
        Shape (steps, width) of `noise.local`, more standard normals of the agent's own, or None.
    key
        Whether it reads `noise.key`, the agent's own; "common": one that all agents share. The round is then not
        affine.
    eigenvectors
        Whether shards carry the eigenvectors of their Hessians, for proximal steps; see `Posterior.stacked`.
    exchanges
        Mixing exchanges in a round.
    gradients
        Gradients of f_i that an agent evaluates in a round, one number or one an agent. 0 where the method's info
        counts them.
    batch_size
        Rows that a gradient reads; None for all.
    pushed
        Parts of the message, by name, whose sum over all agents is conserved, such as a tracked gradient: links that
        lose messages hand it on as running sums, and the method divides it by `inbox.share` to read it as an average.
        All other parts are pulled: averaged over what arrives.
    differences
        The first round whose differences `inbox.differences()` counts; None where `update` does not read them.
    reliable
        Whether every message must arrive in its round, as where agents decide something together.
    """

    inbox: InboxName
    turns: Literal["together", "by color", "at the hub"] = "together"
    normal: bool = True
    steps: int | None = None
    common: bool = False
    local: tuple[int, int] | None = None
    key: bool | Literal["common"] = False
    eigenvectors: bool = False
    exchanges: int = 1
    gradients: int | np.ndarray = 1
    batch_size: int | None = None
    pushed: tuple[str, ...] = ()
    differences: int | None = None
    reliable: bool = False

    @property
    def at_hub(self) -> bool:
        """Whether the state lives at the hub alone."""
        return self.turns == "at the hub"

    @property
    def spans_network(self) -> bool:
        """Whether messages of all agents are summed or handed out, which takes a connected network."""
        return self.sums or self.inbox == "permuted"

    @property
    def sums(self) -> bool:
        """Whether messages of all agents are summed."""
        return self.inbox in ("total", "average", "query")


class Bound(NamedTuple):
    """A method on a posterior and a network: every number known, everything checked.

    Parameters
    ----------
    sampler
        The method with all its numbers.
    weights
        The matrix that `inbox.mix()` applies, for methods that read it.
    own
        Numbers of each agent, every array with a leading agent axis; a method reads its agent's as `agent.own`.
    shared
        Numbers that all agents know; read as `agent.shared`.
    spent
        What finding them took.
    adapting
        Rounds at the start whose states are not draws, because the method still adapts.
    """

    sampler: Sampler
    weights: scipy.sparse.csr_array | None = None
    own: PyTree = ()
    shared: PyTree = ()
    spent: Traffic = Traffic()
    adapting: int = 0


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
        gradients do, and their own draws have the posterior's spread (Deng et al. 2021, arXiv 2112.05120, shared
        noise so before, of clients of a hub). Its price: neighbours know each other's noise, so that it hides nothing
        of a gradient.
    """

    temperature: float = static(default=1.0)
    noise: str = static(default="independent")

    # Whether what the method aims at is the posterior; its draws are then held against the posterior's own slope.
    samples_posterior: ClassVar[bool] = True
    # The values of `noise` that the method has a meaning for.
    noises: ClassVar[tuple[str, ...]] = ("independent", "common")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number >= 0, found {self.temperature}")
        if self.noise not in self.noises:
            allowed = " or ".join(f'"{noise}"' for noise in self.noises)
            raise ValueError(f"noise must be {allowed} in {type(self).__name__}, found {self.noise!r}")
        apply_checks(self)

    @abc.abstractmethod
    def needs(self, dim: int) -> Needs:
        """What a round takes, for a posterior of `dim` parameters."""

    @abc.abstractmethod
    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> Any:
        """The agent's state before round 0. Of the noise only `batch` is given, for a first gradient."""

    @abc.abstractmethod
    def message(self, agent: Agent, state: Any) -> PyTree:
        """Everything that leaves the agent in a round."""

    @abc.abstractmethod
    def update(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> Any:
        """The agent's state after the round."""

    def position(self, state: Any) -> Float[Array, " dim"]:
        """The draw that a state stands for."""
        return state.position

    def bind(self, post: Posterior, network: Network) -> Bound:
        """The method on a problem: numbers that it chooses itself, weights, and what agents need before round 0.

        Raises `ValueError` where the method's numbers do not fit the posterior or the network.
        """
        return Bound(self)

    def common_scale(self, agent: Agent) -> Array:
        """What common noise is multiplied by, so that it moves the average as much as independent noise does."""
        return agent.num_agents**-0.5


# --- capabilities ---


class Expanding(Sampler):
    """A method that knows a quadratic model of every f_i, and whose network carries the rest.

    On the Gaussian posterior that stands for another one nothing is left; a plan judges it as well where the agents'
    curvatures are those at one of the stiffest draws, and its model is that of the Gaussian.
    """

    @abc.abstractmethod
    def expanded(self, post: Posterior) -> Self:
        """The method with the models of another posterior, in its coordinates, at their origin."""


class Tunable(Sampler):
    """A method whose numbers may be left out; `tuning` chooses them."""

    # Fields that may be None until they are chosen, and those of them that `bind` chooses where nobody else did.
    tunable: ClassVar[tuple[str, ...]]
    chosen_by_bind: ClassVar[tuple[str, ...]] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The fields that are still to be chosen."""
        return tuple(name for name in self.tunable if getattr(self, name) is None)

    @abc.abstractmethod
    def with_step(self, step: float, network: Network) -> Self:
        """The method with what was left out filled in, so that `langevin_step` is about `step`."""

    def candidates(self, network: Network, stiffness: float) -> Iterator[Self]:
        """The method with what was left out filled in, from the settings with the cheapest draws on.

        They are for whitened coordinates, in which the Hessian of F is about the identity on average and at a typical
        draw has the largest eigenvalue `stiffness`. A method that left out nothing is its own only candidate.
        """
        before = None
        for halvings in range(_HALVINGS):
            candidate = self.with_step(2.0**-halvings / stiffness, network)
            if candidate != before:
                yield candidate
            before = candidate

    def filled(self, **numbers: Any) -> Self:
        """The method with these numbers where it has none."""
        return replace(self, **{name: number for name, number in numbers.items() if getattr(self, name) is None})


class Langevin(Sampler):
    """A method whose average moves, over many rounds, like Langevin dynamics on F."""

    @abc.abstractmethod
    def langevin_step(self, network: Network) -> Step:
        """The step, a number or schedule, that the average makes on F: the common currency between methods."""

    def max_step(self, network: Network, hessians: np.ndarray) -> float | None:
        """The largest stable step_size on quadratic potentials with these Hessians (agent, dim, dim); None if any is.

        Raises `ValueError` where the other numbers of the method allow no step at all.
        """
        return None


class HasLaw(Sampler):
    """A method that has an exact law on Gaussian posteriors, itself or in its `linear` form."""

    def linear(self) -> Self:
        """The method whose law on a Gaussian posterior stands for this one's, such as the same without minibatches."""
        return self

    def is_constant(self) -> bool:
        """Whether every round is the same: no step follows a schedule."""
        return not any(callable(getattr(self, field.name)) for field in fields(self))

    def conserved(self, agent: Agent, state: Any) -> Float[Array, " dim"] | None:
        """A quantity whose sum over the agents never changes, if the method has one; the law needs to know it."""
        return None


class Monitored(Sampler):
    """A method whose rounds have more to say than their states: counts of what they took, errors that they left.

    Its `transition` returns the state and an info, a named tuple of scalars or None. Each draw records, by name and for
    the agent with the most, integers added up over all rounds so far, and of other numbers, >= 0, the largest so far.
    By convention "gradients" counts the evaluations of f_i or its gradient, where `Needs.gradients` cannot say it
    beforehand, and "evaluations" those of `inbox.query`.
    """

    @abc.abstractmethod
    def transition(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> tuple[Any, Any]:
        """The agent's state after the round, and its info."""

    def update(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> Any:
        """The agent's state after the round."""
        return self.transition(agent, state, inbox, noise)[0]

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        """The statistics of a run, from its infos, (chain, draw), and the rounds until each draw, (draw,)."""
        return monitored

    def warning(self, statistics: dict[str, np.ndarray]) -> str | None:
        """A warning about a finished run, from its statistics of shape (chain, draw), or None."""
        return None

    def explain(self, bound: Bound, agent: int) -> str | None:
        """Why an agent's position became non-finite, if the method knows; it may say so by making it NaN."""
        return None


class Weighted(Sampler):
    """A method whose chains may be particles, resampled by their weights."""

    @abc.abstractmethod
    def log_weight(self, agent: Agent, state: Any) -> Array | None:
        """Log importance weight that this agent adds to its chain after a round, or None.

        Where there is one, chains are particles: they are resampled by their weights, the sums over the agents, in
        every round after which these differ.
        """


class Recentred(Sampler):
    """A method that may tilt every f_i by its gradient at the common minimiser, which the agents find beforehand."""

    # Whether it does.
    recentre: bool

    @abc.abstractmethod
    def recentred(self, bound: Bound, gradients: np.ndarray, spent: Traffic) -> Bound:
        """The bound method with the agents' gradients there, (agent, dim), and what finding them took."""
