"""The protocol of a sampling method over a network, written for one agent. Read this module first.

A method is a frozen dataclass of its hyper-parameters. An engine calls its functions for every agent and chain, carries
the messages and draws the noise. A method never sees the network, a rank, a random key or a socket.

    needs(dim)                                  the inbox, noise and gradients that a round reads
    state   = init(agent, position, noise)      before round 0
    message = message(agent, state)             everything that leaves the agent in a round: the privacy boundary
    state   = update(agent, state, inbox, noise)
    draw    = position(state)
    bound   = bind(post, network)               once, before round 0: weights and numbers computed from the data

The noise is an input, so a round on a quadratic potential is an affine map of (state, noise). `accord.law`
differentiates these functions to compute a method's exact mean and covariance.

Optional features are capabilities, which a method inherits: `Tunable` (parameters may be omitted), `Langevin` (has a
step on F), `HasLaw`, `Monitored` (rounds report counts), `Weighted` (chains are particles) and `Recentred`.
`accord.samplers.Gossip` and `HubGibbs` are base classes that implement most of this.

A custom method imports everything it needs from here. docs/new-method.md writes one line by line.
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

# Forms of the inbox.
InboxName = Literal["mix", "average", "neighbour_sum", "total", "permuted", "query"]
# Number of Langevin steps that a plan tries, each half of the previous one.
_HALVINGS = 16


class Needs(NamedTuple):
    """The inbox, noise and gradients that a round of a method reads. They are declared, not detected.

    Parameters
    ----------
    inbox
        The form of the messages that `update` reads: "mix" for `inbox.mix()`, "neighbour_sum" for
        `inbox.neighbour_sum()` and `inbox.disagreement()`, "total" for `inbox.total()`, "permuted" for
        `inbox.permuted()`, "query" for `inbox.query(state)`. "average" also gives `inbox.mix()`, with the exact average
        over all agents.
    turns
        "together": all agents update at once. "by color": one colour after another, so that an agent reads this round's
        values of neighbours with an earlier colour. A draw is the state after all colours. "at the hub": only the hub
        has a state, initialised as agent 0's. Agents answer its `inbox.query` calls and receive its position.
    normal
        Whether `update` reads `noise.normal`, dim standard normals.
    steps
        Number of rows of `noise.normal`, for shape (steps, dim). None: shape (dim,).
    common
        Whether `noise.normal` is the same for all agents, as for a hub or with `noise="common"`.
    local
        Shape (steps, width) of `noise.local`, further standard normals drawn by each agent independently. None: no such
        noise.
    key
        Whether `update` reads `noise.key`, one key per agent. "common": one key for all agents. With a key the round is
        not affine.
    eigenvectors
        Whether shards include the eigenvectors of their Hessians, for proximal steps. See `Posterior.stacked`.
    exchanges
        Mixing exchanges in a round.
    gradients
        Gradients of f_i that an agent evaluates in a round: one number, or an array (agent,). 0 if the method's info
        counts them.
    batch_size
        Rows that a gradient reads. None: all rows.
    pushed
        Names of message parts whose sum over all agents is conserved, such as a tracked gradient. Unreliable links
        transmit them as running sums, and the method divides them by `inbox.share` to get an average. All other parts
        are averaged over the messages that arrive.
    differences
        First round whose differences `inbox.differences()` counts. None: `update` does not read them.
    reliable
        Whether every message must arrive in its round, for methods in which all agents take a joint decision.
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
        """Whether only the hub has a state."""
        return self.turns == "at the hub"

    @property
    def spans_network(self) -> bool:
        """Whether messages of all agents are summed or permuted, which needs a connected network."""
        return self.sums or self.inbox == "permuted"

    @property
    def sums(self) -> bool:
        """Whether messages of all agents are summed."""
        return self.inbox in ("total", "average", "query")


class Bound(NamedTuple):
    """A method bound to a posterior and a network: every parameter has a value and every check has passed.

    Parameters
    ----------
    sampler
        The method with all its parameters.
    weights
        The matrix that `inbox.mix()` applies. None: the method does not mix.
    own
        Numbers of each agent, arrays with a leading agent axis. A method reads its agent's as `agent.own`.
    shared
        Numbers that all agents know. A method reads them as `agent.shared`.
    spent
        Traffic that computing them took.
    adapting
        Rounds at the start in which the method adapts and whose states are not draws.
    """

    sampler: Sampler
    weights: scipy.sparse.csr_array | None = None
    own: PyTree = ()
    shared: PyTree = ()
    spent: Traffic = Traffic()
    adapting: int = 0


@dataclass(frozen=True, kw_only=True)
class Sampler(abc.ABC):
    """Base class of all methods. The module docstring describes the protocol.

    Parameters
    ----------
    temperature
        Samples exp(-F / temperature), >= 0. 0 removes the noise and gives the method's optimiser.
    noise
        "independent": every agent draws its own noise. "common": all agents draw the same noise from the shared seed,
        scaled so that the average moves as with independent noise. The agents then disagree only through their
        gradients, and each agent's draws have the posterior's spread (Deng et al. 2021, arXiv 2112.05120, for clients
        of a hub). With common noise a message hides nothing of a gradient, because neighbours know the noise.
    """

    temperature: float = static(default=1.0)
    noise: str = static(default="independent")

    # True if the method targets the posterior. Finished runs are then tested with Stein's identity.
    samples_posterior: ClassVar[bool] = True
    # Values of `noise` that the method supports.
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
        """The inbox, noise and gradients of a round, for a posterior of `dim` parameters."""

    @abc.abstractmethod
    def init(self, agent: Agent, position: Float[Array, " dim"], noise: Noise) -> Any:
        """The agent's state before round 0. The noise contains only `batch`, for a first gradient."""

    @abc.abstractmethod
    def message(self, agent: Agent, state: Any) -> PyTree:
        """Everything that leaves the agent in a round."""

    @abc.abstractmethod
    def update(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> Any:
        """The agent's state after the round."""

    def position(self, state: Any) -> Float[Array, " dim"]:
        """The draw of a state, shape (dim,)."""
        return state.position

    def bind(self, post: Posterior, network: Network) -> Bound:
        """The method bound to a problem, with weights and everything that agents need before round 0.

        Raises `ValueError` if the method's parameters do not fit the posterior or the network.
        """
        return Bound(self)

    def common_scale(self, agent: Agent) -> Array:
        """The factor of common noise with which it moves the average as much as independent noise does."""
        return agent.num_agents**-0.5


# --- capabilities ---


class Expanding(Sampler):
    """A method with a quadratic model of every f_i, which sends only the remainder over the network.

    On a Gaussian posterior the remainder is zero. A plan therefore also evaluates the method with the agents'
    curvatures at one of the stiffest draws and the Gaussian's models.
    """

    @abc.abstractmethod
    def expanded(self, post: Posterior) -> Self:
        """The method with quadratic models of `post` about the origin of its coordinates."""


class Tunable(Sampler):
    """A method whose parameters may be omitted. `tuning` chooses them."""

    # Fields that may be None until they are chosen.
    tunable: ClassVar[tuple[str, ...]]
    # Tunable fields that `bind` chooses if tuning did not.
    chosen_by_bind: ClassVar[tuple[str, ...]] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the fields that are not chosen yet."""
        return tuple(name for name in self.tunable if getattr(self, name) is None)

    @abc.abstractmethod
    def with_step(self, step: float, network: Network) -> Self:
        """The method with omitted fields chosen such that `langevin_step` is about `step`."""

    def candidates(self, network: Network, stiffness: float) -> Iterator[Self]:
        """Settings of the omitted fields, in order of increasing cost of a draw.

        They assume whitened coordinates: the Hessian of F is about the identity on average, and its largest eigenvalue
        at a typical draw is `stiffness`. A method without omitted fields yields itself only.
        """
        before = None
        for halvings in range(_HALVINGS):
            candidate = self.with_step(2.0**-halvings / stiffness, network)
            if candidate != before:
                yield candidate
            before = candidate

    def filled(self, **numbers: Any) -> Self:
        """The method with these values in the fields that are None."""
        return replace(self, **{name: number for name, number in numbers.items() if getattr(self, name) is None})


class Langevin(Sampler):
    """A method whose average moves like Langevin dynamics on F over many rounds."""

    @abc.abstractmethod
    def langevin_step(self, network: Network) -> Step:
        """The step of the average on F, a number or schedule. It makes methods comparable."""

    def max_step(self, network: Network, hessians: np.ndarray) -> float | None:
        """The largest stable step_size on quadratic potentials, given Hessians (agent, dim, dim). None: no known bound.

        Raises `ValueError` if the method's other parameters make every step unstable.
        """
        return None


class HasLaw(Sampler):
    """A method with an exact law on Gaussian posteriors, directly or in its `linear` form."""

    def linear(self) -> Self:
        """The method whose law on a Gaussian posterior replaces this method's, for example without minibatches."""
        return self

    def is_constant(self) -> bool:
        """Whether every round is the same, which excludes schedules."""
        return not any(callable(getattr(self, field.name)) for field in fields(self))

    def conserved(self, agent: Agent, state: Any) -> Float[Array, " dim"] | None:
        """A quantity whose sum over the agents is constant, shape (dim,), or None. The law needs it."""
        return None


class Monitored(Sampler):
    """A method whose rounds return statistics besides their states, such as counts and residual errors.

    `transition` returns the state and an info, a named tuple of scalars or None. For each draw and name, the run
    records the largest value over agents: integers are summed over all rounds so far, and for other numbers, >= 0, the
    maximum so far is kept. By convention "gradients" counts evaluations of f_i or its gradient if `Needs.gradients`
    cannot give the count in advance, and "evaluations" counts `inbox.query` calls.
    """

    @abc.abstractmethod
    def transition(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> tuple[Any, Any]:
        """The agent's state after the round, and its info."""

    def update(self, agent: Agent, state: Any, inbox: Inbox, noise: Noise) -> Any:
        return self.transition(agent, state, inbox, noise)[0]

    def summarise(self, monitored: dict[str, np.ndarray], rounds: np.ndarray) -> dict[str, np.ndarray]:
        """Statistics of a run from its infos (chain, draw) and the number of rounds before each draw (draw,)."""
        return monitored

    def warning(self, statistics: dict[str, np.ndarray]) -> str | None:
        """A warning about a finished run, from its statistics of shape (chain, draw), or None."""
        return None

    def explain(self, bound: Bound, agent: int) -> str | None:
        """Why an agent's position is not finite, or None if unknown. A method may report an error by a NaN position."""
        return None


class Weighted(Sampler):
    """A method whose chains may be particles that are resampled by weight."""

    @abc.abstractmethod
    def log_weight(self, agent: Agent, state: Any) -> Array | None:
        """The agent's contribution to the log importance weight of its chain after a round, or None.

        If it is not None, chains are particles. They are resampled by the contributions' sum over agents after every
        round in which the weights differ.
        """


class Recentred(Sampler):
    """A method that can tilt every f_i by its gradient at the common minimiser, found before round 0."""

    # Whether the potentials are tilted.
    recentre: bool

    @abc.abstractmethod
    def recentred(self, bound: Bound, gradients: np.ndarray, spent: Traffic) -> Bound:
        """The bound method with the agents' gradients (agent, dim) at the minimiser, whose search cost `spent`."""
