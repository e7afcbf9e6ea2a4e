"""Requests to sites by nodes that come and go: who is away is waited for, and named."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ..base.errors import DataError
from . import packets

# Seconds between two words about who is waited for, and between two looks at who has come.
_TELL, _LOOK = 30.0, 1.0


class NodeChannel:
    """Sites' answers, from nodes that say which site they are when they are first asked.

    Parameters
    ----------
    nodes
        `nodes()`: the nodes that are there now.
    exchange
        `exchange(requests)`: the answers of nodes, by node, to a request of each; of nodes that went there are none.
    tell
        What is told of waiting.
    pause
        Seconds between two looks at who has come.
    """

    def __init__(
        self,
        nodes: Callable[[], Collection[int]],
        exchange: Callable[[dict[int, bytes]], dict[int, bytes]],
        tell: Callable[[str], None],
        pause: float = _LOOK,
    ) -> None:
        self.nodes, self.exchange, self.tell, self.pause = nodes, exchange, tell, pause
        # by node, of those that have said who they are
        self._names: dict[int, str] = {}

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site, by name, to its request; it waits until all of them are there.

        Raises
        ------
        DataError
            Two nodes say that they are the same site, or one does not say which it is.
        """
        answers: dict[str, bytes] = {}
        told = time.monotonic()
        while missing := [site for site in requests if site not in answers]:
            here = set(self.nodes())
            self._names = {node: name for node, name in self._names.items() if node in here}
            # what all are asked first is the same for all, and the answer says who one is
            first = next(iter(requests.values()))
            due = {node: requests[name] for node, name in self._names.items() if name in missing}
            found = self.exchange(due | {node: first for node in here - self._names.keys()})
            for node, answer in found.items():
                if node in due:
                    answers[self._names[node]] = answer
                else:
                    answers |= self._met(node, answer, requests, found)
            if not found:
                time.sleep(self.pause)
            if time.monotonic() - told > _TELL:
                self.tell(f"waiting for {', '.join(site for site in requests if site not in answers)}")
                told = time.monotonic()
        return answers

    def _met(self, node: int, answer: bytes, requests: dict[str, bytes], found: dict[int, bytes]) -> dict[str, bytes]:
        """The answer of a node that is asked for the first time, as that of the site that it is."""
        head = packets.read(answer).head
        if "site" not in head:
            raise DataError(f"a node has not said which site it is: {head.get('error', 'no reason given')}")
        name = str(head["site"])
        before = [other for other, known in self._names.items() if known == name]
        if any(other in found for other in before):
            raise DataError(f"two nodes say that they are {name}: a site has one")
        # one that was killed may be counted among those that are there for a while
        self._names = {other: known for other, known in self._names.items() if known != name} | {node: name}
        return {name: answer} if name in requests else {}
