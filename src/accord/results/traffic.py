"""The cost of a run: rounds, exchanges, sums, bytes sent and rows read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np


def _nothing() -> np.ndarray:
    return np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Traffic:
    """The cost of a run or of a part of a run. Costs of parts can be added.

    Parameters
    ----------
    rounds
        Rounds, including burn-in and thinned rounds.
    exchanges
        Exchanges of messages that had to follow one another.
    bytes_sent
        Bytes that each agent sent in one chain over all its edges, shape (agent,).
    gradient_rows
        Rows that each agent read for gradients of f_i in one chain, shape (agent,). It includes rows read for values
        if the method does not count values separately. A potential that is no sum over rows counts as one row.
    sums
        Sums over all agents, each of which used some of the exchanges.
    value_rows
        Rows that each agent read for values of f_i without a gradient, shape (agent,).
    """

    rounds: int = 0
    exchanges: int = 0
    bytes_sent: np.ndarray = field(default_factory=_nothing)
    gradient_rows: np.ndarray = field(default_factory=_nothing)
    sums: int = 0
    value_rows: np.ndarray = field(default_factory=_nothing)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.rounds + other.rounds,
            self.exchanges + other.exchanges,
            self.bytes_sent + other.bytes_sent,
            self.gradient_rows + other.gradient_rows,
            self.sums + other.sums,
            self.value_rows + other.value_rows,
        )


class Cost(NamedTuple):
    """The cost of a number of effective draws, including everything before the first draw.

    Parameters
    ----------
    rounds, sums, exchanges
        Rounds of the method, sums over all agents, and successive exchanges including the exchanges of sums. All
        chains share them.
    bytes_sent, gradient_rows, value_rows
        For all chains: bytes that the busiest agent sends, rows that it reads for gradients, and rows that it reads
        for values of its potential without a gradient.
    seconds
        Seconds on this machine with all agents in one process, without compilation; NaN if not measured.
    """

    rounds: float
    sums: float
    exchanges: float
    bytes_sent: float
    gradient_rows: float
    value_rows: float
    seconds: float = np.nan

    @classmethod
    def of(cls, spent: Traffic, seconds: float = np.nan) -> Self:
        """The cost of traffic that was already counted."""
        return cls(
            spent.rounds,
            spent.sums,
            spent.exchanges,
            float(spent.bytes_sent.max()),
            float(spent.gradient_rows.max()),
            float(spent.value_rows.max()),
            seconds,
        )
