"""Base of the methods that mix with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import scipy.sparse

from ..base.checks import whole_number
from ..base.pytree import static
from ..network.chebyshev import chebyshev
from ..network.weights import MixingMatrix
from .protocol import Sampler

if TYPE_CHECKING:
    from ..network import Network


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
