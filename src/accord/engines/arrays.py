"""What engines that hold all agents in arrays have in common: a run in calls of compiled programs."""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ..network import Network
from ..posterior import Posterior
from ..sampler import Sampler
from .loop import Carry, Records
from .rounds import Problem, everywhere


class Programs(NamedTuple):
    """The compiled functions of `loop`, as a kind of engine runs them."""

    start: Any
    advance: Any
    record: Any
    finite: Any


class ArrayEngine(abc.ABC):
    """Base of the engines whose agents and chains are rows and columns of arrays.

    Parameters
    ----------
    post, network, sampler
        What to run; already checked to fit.
    chains
        Independent chains, the last axis of every array.
    seed
        From 0 to 2**64 - 1.
    keep
        Indices of the agents whose draws are recorded, shape (kept,).
    """

    # Recorded draws held on the device before they are copied out, in bytes.
    buffer_bytes = 64 * 2**20

    def __init__(
        self, post: Posterior, network: Network, sampler: Sampler, *, chains: int, seed: int, keep: np.ndarray
    ) -> None:
        self.prepared = sampler.prepare(post, network)
        self.num_agents = network.num_agents
        self.problem = self._problem(post, network, sampler, seed)
        self.programs = self._programs()
        self.chains = chains
        self.keep = np.asarray(keep, np.int32)
        dtype = self.problem.degree.dtype
        per_draw = chains * post.dim * (keep.size + 1) * dtype.itemsize
        self.capacity = int(np.clip(self.buffer_bytes // per_draw, 1, 1024))

    @abc.abstractmethod
    def _problem(self, post: Posterior, network: Network, sampler: Sampler, seed: int) -> Problem:
        """The problem on the engine's devices."""

    @abc.abstractmethod
    def _programs(self) -> Programs:
        """The programs that run it."""

    @abc.abstractmethod
    def _rows(self, rows: np.ndarray) -> Array:
        """An array with a row an agent, on the engine's devices."""

    def agreed(self, number: float) -> float:
        """One process' number for all the processes of a run, which must make their decisions alike."""
        return number

    def start(self, means: np.ndarray, factors: np.ndarray | None) -> Carry:
        """Before round 0. `means` (agent, dim) or (agent, dim, chain), `factors` (agent, dim, dim) or None."""
        dtype = self.problem.degree.dtype
        factor = None if factors is None else self._rows(np.asarray(factors, dtype))
        with np.errstate(over="ignore"):  # what the run's float width cannot hold becomes infinite, and is then named
            mean = self._rows(np.asarray(means, dtype))
        return self.programs.start(self.problem, mean, factor, chains=self.chains)

    def advance(self, carry: Carry, rounds: int) -> Carry:
        """Run rounds and keep nothing of them."""
        return self.programs.advance(self.problem, carry, np.int32(rounds), chains=self.chains)

    def record(self, carry: Carry, draws: int, thin: int) -> tuple[Carry, Records]:
        """Run `draws * thin` rounds and record every `thin`-th; at most `capacity` draws a call.

        The records are host arrays, cut to the number of draws.
        """
        carry, records = self.programs.record(
            self.problem,
            carry,
            np.int32(draws),
            np.int32(thin),
            self.keep,
            chains=self.chains,
            capacity=self.capacity,
        )
        return carry, jax.tree.map(lambda leaf: np.asarray(leaf)[:draws], records)

    def finite(self, carry: Carry) -> np.ndarray:
        """Whether each agent's position is finite in all chains, shape (agent,)."""
        return np.asarray(self.programs.finite(self.problem, carry))[: self.num_agents]

    def message_bytes(self, carry: Carry) -> int:
        """Bytes of the message that one agent of one chain sends in one exchange."""
        messages = jax.eval_shape(
            lambda p, s: everywhere(p.sampler.message, p.acting(0), (s,)), self.problem, carry.state
        )
        leaves = jax.tree.leaves(messages)
        return sum(math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in leaves)
