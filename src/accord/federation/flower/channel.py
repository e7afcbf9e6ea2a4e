"""Requests to sites through nodes that connect and disconnect, with reports about missing sites and refusals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ...base.errors import DataError
from ...base.text import cleaned, human_seconds, json_of

# Seconds between two reports about missing sites in the first minute.
_REPORT = 10.0
# Seconds between two reports afterwards.
_REPORT_LATER = 30.0
# Seconds of the first minute.
_FIRST = 60.0
# Seconds between two polls.
_POLL = 1.0
# Seconds after which a request is sent again. A restarted site has lost the request.
_TIMEOUT = 120.0
# Seconds to wait for other answers after the first error.
_GRACE = 30.0


@dataclass(frozen=True)
class Broken:
    """An error of Flower in place of an answer."""

    reason: str


class Post(Protocol):
    """A transport of messages to nodes."""

    def nodes(self) -> Collection[int]:
        """The connected nodes."""
        ...

    def send(self, requests: dict[int, bytes]) -> dict[str, int]:
        """Send each node its request. Returns the node of each message, by the name of the message."""
        ...

    def replies(self, messages: Collection[str]) -> dict[str, bytes | Broken | None]:
        """The replies that have arrived for messages. None if a message was lost or its node has disconnected."""
        ...


class NodeChannel:
    """Requests to all sites, through nodes that name their site in their first answer.

    Parameters
    ----------
    post
        Transport of messages to nodes.
    log
        Prints a line about missing sites.
    pause
        Seconds between two polls.
    """

    def __init__(self, post: Post, log: Callable[[str], None], pause: float = _POLL) -> None:
        self.post, self.log, self.pause = post, log, pause
        # the site of each node that has answered
        self._names: dict[int, str] = {}

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site to its request, by name. Blocks until all sites have answered.

        After an error of one site, it blocks for 30 s at most and returns the answers so far.

        Raises
        ------
        DataError
            Two nodes name the same site, a node names none, or Flower reports an error.
        """
        account = _Account(requests, self.log)
        question = _Question(self, requests)
        while True:
            question.send()
            question.receive()
            if question.is_over:
                return question.all_answers()
            account.waiting([site for site in requests if site not in question.answers])
            time.sleep(self.pause)

    def forget(self, here: Collection[int]) -> None:
        """Forget nodes that are not connected."""
        self._names = {node: name for node, name in self._names.items() if node in here}

    def name_of(self, node: int) -> str | None:
        """The site of a node, or None before its first answer."""
        return self._names.get(node)

    def nodes_of(self, name: str) -> list[int]:
        """The nodes of a site. A killed node may still be among them."""
        return [node for node, known in self._names.items() if known == name]

    def meet(self, node: int, name: str) -> None:
        """Record the site of a node, and forget its other nodes."""
        self._names = {other: known for other, known in self._names.items() if known != name} | {node: name}


class _Question:
    """One request to each site, and the answers so far."""

    def __init__(self, channel: NodeChannel, requests: dict[str, bytes]) -> None:
        self.channel, self.requests = channel, requests
        self.answers: dict[str, bytes] = {}
        # node and request of each open message
        self._open: dict[str, tuple[int, bytes]] = {}
        # time of the last request to each node
        self._asked: dict[int, float] = {}
        # time of the last answer of each node
        self._answered: dict[int, float] = {}
        self._broken: dict[int, str] = {}
        self._failed: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all sites have answered, or the grace period after an error has passed."""
        if len(self.answers) + len(self._broken) >= len(self.requests):
            return True
        return self._failed is not None and time.monotonic() - self._failed >= _GRACE

    def send(self) -> None:
        """Send requests to connected nodes without an answer, once per timeout."""
        here, now = set(self.channel.post.nodes()), time.monotonic()
        self.channel.forget(here)
        # a reconnected node has lost its request
        self._asked = {node: at for node, at in self._asked.items() if node in here}
        # an unknown node gets the request of any site, and its answer names its own site
        first, due = next(iter(self.requests.values())), {}
        for node in here - self._broken.keys():
            name = self.channel.name_of(node)
            is_wanted = name is None or (name in self.requests and name not in self.answers)
            if is_wanted and now - self._asked.get(node, -math.inf) >= _TIMEOUT:
                due[node] = first if name is None else self.requests[name]
        if due:
            # earlier messages stay open, as they may still be answered
            sent = self.channel.post.send(due)
            self._open |= {message: (node, due[node]) for message, node in sent.items()}
            self._asked |= dict.fromkeys(due, now)

    def receive(self) -> None:
        """Process the replies that have arrived."""
        for message, answer in self.channel.post.replies(tuple(self._open)).items() if self._open else ():
            node, request = self._open.pop(message)
            if answer is None:
                self._asked.pop(node, None)
            elif isinstance(answer, Broken):
                self._broken[node] = answer.reason
                self._fail()
            else:
                self._take(node, answer, request)

    def all_answers(self) -> dict[str, bytes]:
        """All answers. Raises `DataError` if a node is broken."""
        if not self._broken:
            return self.answers
        heads = [_read(answer) for answer in self.answers.values()]
        errors = [cleaned(head["error"]) for head in heads if "error" in head]
        broken = [f"{self._called(node)} answers with an error: {reason}" for node, reason in self._broken.items()]
        raise DataError("\n  ".join([*broken, *errors]))

    def _called(self, node: int) -> str:
        """A name for a node in messages: its site, or the sites that it can be."""
        left = [name for name in self.requests if not self.channel.nodes_of(name)]
        name = self.channel.name_of(node) or (left[0] if len(left) == 1 else None)
        return name or f"SuperNode {node} (one of {', '.join(left)})"

    def _fail(self) -> None:
        self._failed = time.monotonic() if self._failed is None else self._failed

    def _take(self, node: int, answer: bytes, request: bytes) -> None:
        """Process the answer to a request. The first answer of a node names its site."""
        head, now = _read(answer), time.monotonic()
        name = self.channel.name_of(node)
        if name is None:
            if "site" not in head:
                reason = cleaned(head.get("error", "no reason given"))
                raise DataError(f"SuperNode {node} has not named its site: {reason}")
            name = str(head["site"])
            # an answer of the other node after this one's request means two nodes, otherwise the site was restarted
            before = [self._answered.get(other, -math.inf) for other in self.channel.nodes_of(name)]
            if any(at > self._asked.get(node, math.inf) for at in before):
                raise DataError(f"two nodes name the site {name}: a site must have one node")
            self.channel.meet(node, name)
        self._answered[node] = now
        if name in self.requests and request != self.requests[name] and "error" not in head:
            # the request was for another site
            self._asked.pop(node, None)
        elif name in self.requests:
            self.answers[name] = answer
            if "error" in head:
                self._fail()


class _Account:
    """The reports about missing answers."""

    def __init__(self, sites: Iterable[str], log: Callable[[str], None]) -> None:
        self.sites, self.log = list(sites), log
        self._began = self._reported = time.monotonic()

    def waiting(self, missing: list[str]) -> None:
        """Report missing sites at intervals."""
        now = time.monotonic()
        gone = now - self._began
        if now - self._reported < (_REPORT if gone < _FIRST else _REPORT_LATER):
            return
        self._reported = now
        if gone < _FIRST:
            received = f"{len(self.sites) - len(missing)} of {len(self.sites)} have answered"
            self.log(f"{received}, waiting for {', '.join(missing)}, {gone:.0f} s")
        else:
            self.log(
                f"waiting for {', '.join(missing)} for {human_seconds(gone)}: no SuperNode of theirs is connected, or "
                "it does not answer. Are they running? (flwr supernode list)"
            )


def _read(answer: bytes) -> dict[str, Any]:
    """The JSON of an answer. Raises `DataError` for other bytes."""
    try:
        found = json_of(answer)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise DataError(f"an answer of {len(answer)} bytes is no answer of a site: is the same accord installed there?")
