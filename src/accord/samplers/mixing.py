"""Bases of the methods that mix with their neighbours and step along a gradient."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse

from ..base.checks import whole_number
from ..base.pytree import static
from ..network import Network
from ..network.averaging import chebyshev, lazier, power
from ..network.weights import MixingMatrix
from ..posterior import Posterior
from .protocol import Bound, HasLaw, InboxName, Langevin, Needs, Tunable

# The name of exact averages over a spanning tree among the mixing rules.
RELAY = "relay"


@dataclass(frozen=True, kw_only=True)
class Mixing(Langevin):
    """Base of `Gossip`, and of such methods whose rounds are not affine.

    Parameters
    ----------
    batch_size
        Rows that each gradient reads, drawn with replacement and scaled by n_i / batch_size (unbiased), from 1 to
        the smallest shard; None reads all rows.
    """

    batch_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)

    def needs(self, dim: int) -> Needs:
        return Needs("mix", common=self.noise == "common", batch_size=self.batch_size)

    @abc.abstractmethod
    def weights(self, network: Network) -> scipy.sparse.csr_array:
        """The mixing matrix W of one exchange."""

    def bind(self, post: Posterior, network: Network) -> Bound:
        return Bound(self, None if self.relays else self.weights(network))

    @property
    def relays(self) -> bool:
        """Whether messages are averaged exactly over a spanning tree, in place of mixing."""
        return getattr(self, "mixing", None) == RELAY


@dataclass(frozen=True, kw_only=True)
class Gossip(Mixing, HasLaw):
    """Base of the methods that mix with their neighbours and step along a gradient.

    Those with a field `mixing` may have the name of a rule for W, an (N, N) matrix, or "relay": sums are then relayed
    over a spanning tree, up and down, so that every agent has the exact average of all messages in twice the tree's
    height of exchanges (RelaySum, Vogels et al. 2021, within a step). An agent sends d numbers a tree's edge and
    direction for it, whatever the height, where K exchanges send K times as many.

    Parameters
    ----------
    batch_size
        As in `Mixing`: rows that each gradient reads, drawn with replacement and scaled by n_i / batch_size
        (unbiased), from 1 to the smallest shard; None reads all rows.
    mix_rounds
        Exchanges K in one step, >= 1. More than one applies the Chebyshev polynomial T_K(W/s) / T_K(1/s) of the
        mixing matrix, s its second largest absolute eigenvalue, which keeps the average and contracts disagreement
        as fast as K exchanges can. On unreliable links (`Network.links`) they are K plain exchanges: the polynomial's
        terms cancel only where every message arrives.
    """

    mix_rounds: int | None = static(default=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mix_rounds is None and isinstance(self, Tunable) and "mix_rounds" in self.tunable):
            whole_number("mix_rounds", self.mix_rounds, 1)
        if self.relays and self.exchanges > 1:
            raise ValueError(
                f'mixing="relay" averages exactly in one go: leave out mix_rounds, found {self.mix_rounds}'
            )

    def needs(self, dim: int) -> Needs:
        inbox: InboxName = "average" if self.relays else "mix"
        return super().needs(dim)._replace(inbox=inbox, exchanges=self.exchanges)

    @property
    def exchanges(self) -> int:
        """Exchanges in one step; one as long as their number is left out."""
        return 1 if self.mix_rounds is None else self.mix_rounds

    def linear(self) -> Self:
        return self if self.batch_size is None else replace(self, batch_size=None)

    def effective_weights(self, network: Network) -> scipy.sparse.csr_array:
        """The matrix that one whole step applies to the messages: the Chebyshev polynomial of W over its exchanges.

        On unreliable links it is the power of what W is on average.
        """
        if self.relays:
            n = network.num_agents
            return scipy.sparse.csr_array(np.full((n, n), 1.0 / n))
        weights = self.weights(network)
        if network.unreliable is None:
            return chebyshev(weights, self.exchanges)
        return power(lazier(weights, network.unreliable.prompt), self.exchanges)


def as_mixing(name: str, mixing: Any) -> str | MixingMatrix:
    """A mixing rule as static data of a compiled method: its name, or a user's matrix behind a hash."""
    return mixing if isinstance(mixing, str | MixingMatrix) else MixingMatrix(mixing)
