"""How long agents have been at one and the same thing, by what they say of themselves while they work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .worker import Status


class Patience:
    """Since when each agent of a call has come no further.

    Parameters
    ----------
    seconds
        After which it is late.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._since: dict[int, float] = {}
        self._last: dict[int, Status] = {}
        self._silent: set[int] = set()

    def overdue(self, agents: Sequence[int], answers: Mapping[int, Status]) -> list[int]:
        """Those of the agents that are late, by what some of them answer now; silence is no progress.

        An agent that waits for a neighbour is not late: it says itself when that takes too long.
        """
        now = time.monotonic()
        self._silent = {i for i in agents if i not in answers}
        for i in agents:
            if i in self._silent:
                continue
            before, status = self._last.get(i), answers[i]
            if status.waiting_for or (before is not None and status.progress != before.progress):
                self._since[i] = now
            self._last[i] = status
        late = [i for i in agents if now - self._since.get(i, self._began) > self.seconds]
        # who is late is ended, which takes a moment
        self._since.update(dict.fromkeys(late, now))
        return late

    def doing(self, agent: int) -> str:
        """What an agent said last that it is at."""
        if agent in self._silent or agent not in self._last:
            return "it does not answer"
        return self._last[agent].doing
