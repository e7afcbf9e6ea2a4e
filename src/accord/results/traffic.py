"""The cost of a run: rounds, exchanges, sums, bytes sent and rows read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np


def _nothing() -> np.ndarray:
    return np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Traffic:
    """The cost of a run or of a part of it; parts add up.

    Parameters
    ----------
    rounds
        Rounds run, burn-in and thinned ones included.
    exchanges
        Exchanges of messages that had to follow one another.
    bytes_sent
        Bytes that each agent sent in one chain, over all its edges, shape (agent,).
    gradient_rows
        Rows that each agent read for gradients of f_i in one chain, and for values where rounds do not tell them from
        gradients, shape (agent,); a potential whose rows cannot be told apart counts as one row.
    sums
        Sums over all agents, each of which took some of the exchanges.
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
    """The cost of a number of effective draws, with all that comes before the first of them.

    Parameters
    ----------
    rounds, sums, exchanges
        Rounds of the method, sums over all agents, and exchanges that follow one another, sums' among them. They serve
        all chains at once.
    bytes_sent, gradient_rows, value_rows
        What the busiest agent sends for all chains, and the rows that it reads for gradients, and for values of its
        potential without one.
    seconds
        On this machine, all agents in one process, without the time of compiling; NaN where it was not measured.
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
        """The cost of what was counted already."""
        return cls(
            spent.rounds,
            spent.sums,
            spent.exchanges,
            float(spent.bytes_sent.max()),
            float(spent.gradient_rows.max()),
            float(spent.value_rows.max()),
            seconds,
        )
