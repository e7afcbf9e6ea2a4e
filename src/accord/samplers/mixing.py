"""Base classes of methods that mix with their neighbours and step along a gradient."""

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

# Mixing rule of exact averages over a spanning tree.
RELAY = "relay"


@dataclass(frozen=True, kw_only=True)
class Mixing(Langevin):
    """Base class of `Gossip`, and of similar methods whose rounds are not affine.

    Parameters
    ----------
    batch_size
        Rows that each gradient reads, drawn with replacement and scaled by n_i / batch_size (unbiased), from 1 to the
        size of the smallest shard. None: all rows.
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
        """Whether messages are averaged exactly over a spanning tree in place of mixing."""
        return getattr(self, "mixing", None) == RELAY


@dataclass(frozen=True, kw_only=True)
class Gossip(Mixing, HasLaw):
    """Base class of methods that mix with their neighbours and step along a gradient.

    The field `mixing`, if a method has it, takes the name of a rule for W, an (N, N) matrix, or "relay". "relay" sums
    messages up and down a spanning tree, so that every agent gets the exact average after exchanges of twice the tree's
    height (RelaySum, Vogels et al. 2021, within a step). It sends d numbers per direction of a tree edge for any
    height, and K exchanges send K times as many.

    Parameters
    ----------
    batch_size
        As in `Mixing`.
    mix_rounds
        Exchanges K in one step, >= 1. More than one applies the Chebyshev polynomial T_K(W/s) / T_K(1/s) of the mixing
        matrix, s its second largest absolute eigenvalue. It keeps the average and contracts disagreement as fast as K
        exchanges can. On unreliable links (`Network.links`) the exchanges are plain, because the polynomial's terms
        cancel only if every message arrives.
    """

    mix_rounds: int | None = static(default=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mix_rounds is None and isinstance(self, Tunable) and "mix_rounds" in self.tunable):
            whole_number("mix_rounds", self.mix_rounds, 1)
        if self.relays and self.exchanges > 1:
            raise ValueError(
                f'mixing="relay" averages exactly within one step: omit mix_rounds, found {self.mix_rounds}'
            )

    def needs(self, dim: int) -> Needs:
        inbox: InboxName = "average" if self.relays else "mix"
        return super().needs(dim)._replace(inbox=inbox, exchanges=self.exchanges)

    @property
    def exchanges(self) -> int:
        """Exchanges in one step, and 1 if `mix_rounds` is None."""
        return 1 if self.mix_rounds is None else self.mix_rounds

    def linear(self) -> Self:
        return self if self.batch_size is None else replace(self, batch_size=None)

    def effective_weights(self, network: Network) -> scipy.sparse.csr_array:
        """The matrix that one step applies to the messages: the Chebyshev polynomial of W over its exchanges.

        On unreliable links it is a power of the mean of W.
        """
        if self.relays:
            n = network.num_agents
            return scipy.sparse.csr_array(np.full((n, n), 1.0 / n))
        weights = self.weights(network)
        if network.unreliable is None:
            return chebyshev(weights, self.exchanges)
        return power(lazier(weights, network.unreliable.prompt), self.exchanges)


def as_mixing(name: str, mixing: Any) -> str | MixingMatrix:
    """A mixing rule as static data of a compiled method: its name, or a custom matrix that hashes by content."""
    return mixing if isinstance(mixing, str | MixingMatrix) else MixingMatrix(mixing)
