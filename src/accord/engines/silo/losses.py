"""What a run met on links that are really late or lossy, and whether that is more than was declared."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

import numpy as np

from ...network import Network

# How often a run is warned of, of those whose links lose just what was declared.
_FALSE_ALARMS = 1e-3


class Tally:
    """The messages of one link that were due, that did not come in time, the outages of these, and the longest one.

    Parameters
    ----------
    patience
        Exchanges that a message may be late.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._due, self._missed, self._outages, self._longest = 0, 0, 0, 0
        # whether the messages came that may still come in time
        self._open: dict[int, bool] = {}
        # messages missed in a row
        self._length = 0

    def after(self, number: int, was_due: bool, came: Iterable[int]) -> None:
        """Count an exchange: whether a message was due in it, and the numbers of those that came."""
        if was_due:
            self._open[number] = False
        for one in came:
            if one in self._open:
                self._open[one] = True
        for one, has_come in list(self._open.items()):
            if not has_come and one > number - self.patience:
                return
            del self._open[one]
            self._due += 1
            self._missed += not has_come
            self._outages += not (has_come or self._length)
            self._length = 0 if has_come else self._length + 1
            self._longest = max(self._longest, self._length)

    def taken(self) -> tuple[int, int, int, int]:
        """Due, missed, and outages since this was asked last, and the messages of the longest that ended or goes on."""
        counts = self._due, self._missed, self._outages, self._longest
        self._due, self._missed, self._outages, self._longest = 0, 0, 0, 0
        return counts


class Losses:
    """What all links of a run met, with what the network declares.

    Parameters
    ----------
    network
        Whose links are unreliable.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        # sender and receiver of each link
        self._ends = [(int(j), i) for i in range(network.num_agents) for j in network.neighbors(i)]
        self._counts = np.zeros((len(self._ends), 3), np.int64)
        self._longest = np.zeros(len(self._ends), np.int64)

    def add(self, met: list[Any]) -> None:
        """Count what every agent met on the links from its neighbours, (neighbour, 4) each."""
        found = np.concatenate(met)
        self._counts += found[:, :3]
        self._longest = np.maximum(self._longest, found[:, 3])

    def told(self) -> dict[str, Any]:
        """The shares that did not come in time, of the mean link and of the worst, and what was declared."""
        due, missed, _ = self._counts.T
        if not due.any():
            return {}
        shares = missed / np.maximum(due, 1)
        worst = int(shares.argmax())
        return {
            "mean": float(missed.sum() / due.sum()),
            "worst": float(shares[worst]),
            "worst_link": list(self._ends[worst]),
            "longest_outage": int(self._longest.max()),
            "declared": self._declared,
        }

    def warning(self) -> str | None:
        """What to say of links that lose more than was declared, or for longer, beyond chance; None where none does."""
        return "; ".join(filter(None, (self._share(), self._outage()))) or None

    def _outage(self) -> str | None:
        """What to say of the longest outage, where links that lose what was declared have none so long.

        Outages leave agents to themselves, and may widen draws many times though few messages are lost in all.
        """
        links = self.network.unreliable
        assert links is not None
        due = self._counts[:, 0]
        loss = np.maximum(links.loss, 1.0 / (due + 2.0))
        # of outages of `burst` messages that follow one another by chance
        rare = np.log(np.maximum(due, 1) * len(due) / _FALSE_ALARMS) / -np.log(loss)
        allowed = np.ceil(links.burst * (1.0 + rare))
        beyond = np.flatnonzero(self._longest > allowed)
        if not beyond.size:
            return None
        worst = beyond[self._longest[beyond].argmax()]
        sender, receiver = self._ends[worst]
        return (
            f"{self._longest[worst]:,} messages in a row came too late, or not at all, from agent {sender} to agent "
            f"{receiver}, and network.links(loss={links.loss:g}, burst={links.burst}) has no outage beyond "
            f"{allowed[worst]:.0f}: draws about that time may be far too wide. Declare a longer burst, or take a "
            "longer deadline"
        )

    def _share(self) -> str | None:
        """What to say of links that lose more than was declared.

        Outages and the times between them are taken to last as long as a Markov chain's: a share of n messages is then
        as uncertain as one of n s / (2 - s) that are lost by chance, s the rates at which outages begin and end.
        """
        due, missed, outages = self._counts.T
        level = NormalDist().inv_cdf(1.0 - _FALSE_ALARMS / len(self._ends))
        rates = (outages + 1.0) / (missed + 1.0) + (outages + 1.0) / (due - missed + 1.0)
        looks = np.maximum(due, 1) * np.minimum(1.0, rates / np.maximum(2.0 - rates, 1.0))
        share, smooth = missed / np.maximum(due, 1), (missed + 1.0) / (due + 2.0)
        beyond = np.flatnonzero(share - level * (smooth * (1.0 - smooth) / looks) ** 0.5 > self._declared)
        if not beyond.size:
            return None
        worst = beyond[share[beyond].argmax()]
        sender, receiver = self._ends[worst]
        return (
            f"messages came too late, or not at all, more often than network.links(loss={self._declared:g}) says, on "
            f"{beyond.size} of {len(self._ends)} links; most often from agent {sender} to agent {receiver}: "
            f"{share[worst]:.2%} of {due[worst]:,}. Numbers that were right for the one may be wrong for the other: "
            "declare more loss or delay, or take a longer deadline"
        )

    @property
    def _declared(self) -> float:
        assert self.network.unreliable is not None
        return self.network.unreliable.loss
