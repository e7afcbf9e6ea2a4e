"""Requests to sites by nodes that come and go: who is away is waited for and named, and who refuses is not hidden."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..base.errors import DataError
from ..base.text import human_seconds
from . import wire

# Seconds between two words about who is waited for, at first and after the first minute, and between two looks.
_TELL, _TELL_LATER, _FIRST, _LOOK = 10.0, 30.0, 60.0, 1.0
# Seconds that an answer is waited for before the site is asked anew; a site that comes back has forgotten the question.
_PATIENCE = 120.0
# Seconds that others have to say something, once a site has answered with an error.
_GRACE = 30.0
# What is being asked, in words.
_WORDS = {
    "hello": "who is there",
    "key": "public keys for masks",
    "keys": "all keys to all",
    "meet": "agreeing on the model",
    "rows": "numbers of rows",
    "own": "own numbers of a site",
    "draws": "draws for the sites to keep",
}


@dataclass(frozen=True)
class Broken:
    """What a node has in place of an answer: Flower's error."""

    reason: str


class Post(Protocol):
    """What carries messages to nodes."""

    def nodes(self) -> Collection[int]:
        """The nodes that are there now."""
        ...

    def send(self, requests: dict[int, bytes]) -> dict[str, int]:
        """Send each node a request; return the messages by their names, and whose they are."""
        ...

    def heard(self, messages: Collection[str]) -> dict[str, bytes | Broken | None]:
        """The answers to messages that have come meanwhile; None where a message was lost, or its node has gone."""
        ...


class NodeChannel:
    """Sites' answers, from nodes that say which site they are when they are first asked.

    Parameters
    ----------
    post
        What carries messages to nodes.
    tell
        What is told: a line a question, and who is waited for.
    pause
        Seconds between two looks at who has come, and what.
    """

    def __init__(self, post: Post, tell: Callable[[str], None], pause: float = _LOOK) -> None:
        self.post, self.tell, self.pause = post, tell, pause
        # by node, of those that have said who they are
        self._names: dict[int, str] = {}
        self._questions, self._sums = 0, 0

    def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
        """The answer of each site, by name, to its request; it waits until all of them are there.

        Where a site answers with an error, nobody is waited for much longer: the answers so far are all there are.

        Raises
        ------
        DataError
            Two nodes say that they are the same site, one does not say which it is, or Flower has an error of one.
        """
        account = _Account(self._words_of(next(iter(requests.values()))), requests, self.tell)
        asked = _Question(self, requests)
        while True:
            asked.ask()
            asked.hear()
            if asked.is_over:
                account.over(len(asked.answers))
                return asked.all_answers()
            account.waiting([site for site in requests if site not in asked.answers])
            time.sleep(self.pause)

    def _words_of(self, request: bytes) -> str:
        """What is asked, with its number."""
        head = wire.read(request).head
        self._questions += 1
        kind = str(head.get("kind"))
        if kind == "sum":
            self._sums += 1
        what = f"sum {self._sums}, {head.get('name')}" if kind == "sum" else _WORDS.get(kind, kind)
        return f"question {self._questions} ({what})"

    def forget(self, here: Collection[int]) -> None:
        """Forget nodes that are not there."""
        self._names = {node: name for node, name in self._names.items() if node in here}

    def name_of(self, node: int) -> str | None:
        """The site that a node is; None: it has not said it."""
        return self._names.get(node)

    def nodes_of(self, name: str) -> list[int]:
        """The nodes that have said that they are a site; one may be there still that was killed."""
        return [node for node, known in self._names.items() if known == name]

    def meet(self, node: int, name: str) -> None:
        """Know a node as a site, in place of any other."""
        self._names = {other: known for other, known in self._names.items() if known != name} | {node: name}


class _Question:
    """A request to each site, and what has come of it."""

    def __init__(self, channel: NodeChannel, requests: dict[str, bytes]) -> None:
        self.channel, self.requests = channel, requests
        self.answers: dict[str, bytes] = {}
        # whose messages are open, and when nodes were asked and have answered
        self._open: dict[str, int] = {}
        self._asked: dict[int, float] = {}
        self._answered: dict[int, float] = {}
        self._broken: dict[int, str] = {}
        self._failed: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all have answered, or one has failed and others had their time to say more."""
        if len(self.answers) + len(self._broken) >= len(self.requests):
            return True
        return self._failed is not None and time.monotonic() - self._failed >= _GRACE

    def ask(self) -> None:
        """Ask those who are there and have not been asked, or not for long."""
        here, now = set(self.channel.post.nodes()), time.monotonic()
        self.channel.forget(here)
        # one that comes back has forgotten the question
        self._asked = {node: at for node, at in self._asked.items() if node in here}
        # what all are asked first is the same for all, and the answer says who one is
        first, due = next(iter(self.requests.values())), {}
        for node in here - self._broken.keys():
            name = self.channel.name_of(node)
            is_wanted = name is None or (name in self.requests and name not in self.answers)
            if is_wanted and now - self._asked.get(node, -math.inf) >= _PATIENCE:
                due[node] = first if name is None else self.requests[name]
        if due:
            # a message that was sent before may be answered all the same
            self._open |= self.channel.post.send(due)
            self._asked |= dict.fromkeys(due, now)

    def hear(self) -> None:
        """Take what has come."""
        for message, answer in self.channel.post.heard(tuple(self._open)).items() if self._open else ():
            node = self._open.pop(message)
            if answer is None:
                self._asked.pop(node, None)
            elif isinstance(answer, Broken):
                self._broken[node] = answer.reason
                self._fail()
            else:
                self._take(node, answer)

    def all_answers(self) -> dict[str, bytes]:
        """All answers; `DataError` where a node is broken."""
        if not self._broken:
            return self.answers
        heads = [wire.read(answer).head for answer in self.answers.values()]
        errors = [str(head["error"]) for head in heads if "error" in head]
        broken = [f"{self._called(node)} answers with an error: {reason}" for node, reason in self._broken.items()]
        raise DataError("\n  ".join([*broken, *errors]))

    def _called(self, node: int) -> str:
        """A node in words: the site that it is, or those that it may be."""
        left = [name for name in self.requests if not self.channel.nodes_of(name)]
        name = self.channel.name_of(node) or (left[0] if len(left) == 1 else None)
        return name or f"SuperNode {node} (one of {', '.join(left)})"

    def _fail(self) -> None:
        self._failed = time.monotonic() if self._failed is None else self._failed

    def _take(self, node: int, answer: bytes) -> None:
        """An answer, of a node that is known, or that says by it who it is."""
        head, now = wire.read(answer).head, time.monotonic()
        name = self.channel.name_of(node)
        if name is None:
            if "site" not in head:
                reason = head.get("error", "no reason given")
                raise DataError(f"SuperNode {node} has not said which site it is: {reason}")
            name = str(head["site"])
            # it was there before the other had answered; later on it may be the same site, begun anew
            before = [self._answered.get(other, -math.inf) for other in self.channel.nodes_of(name)]
            if any(at > self._asked.get(node, math.inf) for at in before):
                raise DataError(f"two nodes say that they are {name}: a site has one")
            self.channel.meet(node, name)
        self._answered[node] = now
        if name in self.requests:
            self.answers[name] = answer
            if "error" in head:
                self._fail()


class _Account:
    """What is told of one question."""

    def __init__(self, words: str, sites: Iterable[str], tell: Callable[[str], None]) -> None:
        self.words, self.sites, self.tell = words, list(sites), tell
        self._began = self._told = time.monotonic()

    def waiting(self, missing: list[str]) -> None:
        """Say who is waited for, now and then."""
        now = time.monotonic()
        gone = now - self._began
        if now - self._told < (_TELL if gone < _FIRST else _TELL_LATER):
            return
        self._told = now
        if gone < _FIRST:
            heard = f"{len(self.sites) - len(missing)} of {len(self.sites)} have answered"
            self.tell(f"{self.words}: {heard}, waiting for {', '.join(missing)}, {gone:.0f} s")
        else:
            self.tell(
                f"waiting for {', '.join(missing)} for {human_seconds(gone)}: no SuperNode of theirs is connected, or "
                "it does not answer. Are they running? (flwr supernode list)"
            )

    def over(self, count: int) -> None:
        """Say that it is over."""
        self.tell(f"{self.words}: {count} of {len(self.sites)} have answered, {time.monotonic() - self._began:.0f} s")
