"""A run as its method sees it: the job, and the session that computes sums over all agents and counts their cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..base.interruptions import let_through
from ..base.progress import stage
from ..network import Network
from ..posterior import Posterior
from ..posterior.coarse import CoarseTotals, Noise
from ..posterior.masks import masked_bytes
from ..posterior.totals import ConsensusTotals, Totals
from ..results.traffic import Traffic
from .engine import Builder


@dataclass(frozen=True, eq=False)
class Job:
    """The validated arguments of a run.

    Parameters
    ----------
    post, network
        As in `accord.sample`. In a session, the posterior returned by the engine's `placed`.
    draws, chains
        Draws of each chain, and number of chains.
    seed
        From 0 to 2**64 - 1.
    keep
        Agents whose draws the run keeps, shape (kept,).
    masks
        Whether sums are masked.
    coarse
        Whether agents add noise to their numbers and round them.
    whole
        Whether an interrupted run keeps no draws.
    """

    post: Posterior
    network: Network
    draws: int = 1000
    chains: int = 4
    seed: int = 0
    keep: np.ndarray = field(default_factory=lambda: np.arange(0))
    masks: bool = False
    coarse: bool = False
    whole: bool = False

    @property
    def target(self) -> int:
        """Draws of all chains together."""
        return self.draws * self.chains


class Session:
    """Sums over all agents during one run, the only access to the data outside of rounds.

    Parameters
    ----------
    job
        The arguments of the run.
    totals
        Computes the sums. None: the posterior does.
    recorded
        Sums that are also recorded on disk. None: they are not recorded.
    finer
        Opens the same session with a finer quadrature over latents. None: not available.
    most_exchanges
        Upper bound on the exchanges of all sums together.
    engine
        Builds engines for rounds. None: no rounds.
    checkpoint
        Checkpoint folder of the run. None: no checkpoints.

    Attributes
    ----------
    traffic
        Cost of the sums so far, with bytes of each agent, shape (agent,). A Hessian counts as one gradient per
        parameter, a Hessian-vector product as two gradients.
    """

    def __init__(
        self,
        job: Job,
        totals: Totals | None = None,
        *,
        recorded: Totals | None = None,
        finer: Callable[[], AbstractContextManager[Session]] | None = None,
        most_exchanges: float = np.inf,
        engine: Builder | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.job, self.finer = job, finer
        self.engine, self.checkpoint = engine, checkpoint
        self._given, self._recorded, self._most_exchanges = totals, recorded, most_exchanges
        self.traffic = Traffic(bytes_sent=np.zeros(job.network.num_agents, np.int64))

    @cached_property
    def _made(self) -> Totals:
        """The object that computes sums. It reads rows at the first sum."""
        if self._given is not None:
            return self._given
        return self.job.post.totals(self.job.network, masks=self.job.masks, coarse=self.job.coarse)

    @property
    def gossip(self) -> ConsensusTotals | None:
        """The object that computes sums by gossip. None: sums use a spanning tree."""
        return self._made if isinstance(self._made, ConsensusTotals) else None

    @property
    def noise(self) -> Noise | None:
        """The noise of coarse answers. None: sums are exact."""
        return self._made.noise if isinstance(self._made, CoarseTotals) else None

    @cached_property
    def _each(self) -> tuple[int, np.ndarray]:
        """Exchanges of one sum, and messages that each agent sends for it (agent,)."""
        if self.gossip is not None:
            return self.gossip.averaging.exchanges, self.gossip.averaging.messages
        tree = self.job.network.aggregation
        return 2 * tree.height, tree.sums_sent

    def fresh(self, most_exchanges: float = np.inf) -> Session:
        """A session of the same job with zero traffic and no records on disk."""
        return Session(self.job, self._made, most_exchanges=most_exchanges)

    def totals(
        self,
        function: Callable[..., PyTree],
        *arguments: Any,
        gradients: int = 0,
        values: int = 0,
        **options: Any,
    ) -> PyTree:
        """The sum of `function(potential, shard, *arguments)` over all agents.

        `gradients` and `values` are the evaluations that each agent makes for it. `options` are passed to `Totals`:
        coordinates, points, at_once.

        Raises
        ------
        ArithmeticError
            The sum would exceed `most_exchanges`.
        """
        let_through()
        each, messages = self._each
        exchanges = self.traffic.exchanges + each
        if exchanges > self._most_exchanges:
            raise ArithmeticError(
                f"one sum over this network takes {each} exchanges, so that {exchanges // each} sums exceed the "
                f"{self._most_exchanges} exchanges allowed in warm-up: raise max_exchanges, or add edges"
            )
        make = self._made if self._recorded is None else self._recorded
        found = make(function, *arguments, **options)
        leaves = jax.tree.leaves(found)
        masked, sums = self.job.masks, 1
        sent = masked_bytes(sum(leaf.size for leaf in leaves)) if masked else sum(leaf.nbytes for leaf in leaves)
        if isinstance(self._made, CoarseTotals):
            sent, sums = self._made.sent, self._made.sums
        self.traffic += Traffic(
            exchanges=each * sums,
            bytes_sent=(sent * messages).astype(np.int64),
            gradient_rows=gradients * self.job.post.sizes,
            sums=sums,
            value_rows=values * self.job.post.sizes,
        )
        return found

    def stage(self, what: str) -> None:
        """Show a progress stage, and raise `KeyboardInterrupt` if an interrupt is pending."""
        stage(what)
        let_through()
