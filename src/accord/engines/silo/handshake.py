"""How agents greet before they talk: both sides prove who they are and that they know the run's key, under a seal."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .sealing import PUBLIC_BYTES, Agreement, BrokenSealError, Identity, Peer, Seal, require_signed, unsigned

_LENGTH = struct.Struct("<I")
_LONGEST_GREETING = 2**20
# Whoever calls and has not said who it is after so long is not waited for.
_GREETING_SECONDS = 10.0

Address = tuple[str, int]


class StrangerError(Exception):
    """The peer does not know the run's key, or belongs to another attempt."""


class Greeting(NamedTuple):
    """An agent's introduction: its index, the number of the connection, and the run's `fingerprint`."""

    agent: int
    attempt: int
    parts: dict[str, str]


class Credentials(NamedTuple):
    """What an agent greets with: what it tells of itself, its own key, the run's secret, and whom it knows."""

    greeting: Greeting
    identity: Identity
    secret: bytes
    peers: Mapping[int, Peer]


class Connection(NamedTuple):
    """A socket, the seals of what is sent and of what comes, and who is there."""

    wire: socket.socket
    closes: Seal
    opens: Seal
    other: Greeting


class Call:
    """A call to a peer, or of somebody who calls, until both sides have greeted; it never blocks.

    Parameters
    ----------
    peer
        Who is called; None for who calls.
    own
        Who this agent is, and whom it knows.
    ends
        When a call of somebody ends that has not greeted, on the monotonic clock.
    source
        The address to call from; "" leaves it to the system.
    wire
        The connection of who calls.
    """

    def __init__(
        self, peer: int | None, own: Credentials, ends: float, source: str = "", wire: socket.socket | None = None
    ) -> None:
        address = None
        if wire is None:
            assert peer is not None
            address = own.peers[peer][:2]
            wire = socket.socket(family(address[0]))
            wire.bind((source, 0))
        self.peer, self.ends, self._wire = peer, ends, wire
        self.number = wire.fileno()
        self.waits_for, self.is_ready = 0, True
        self._steps = _greeted(wire, address, own)

    @classmethod
    def heard(cls, wire: socket.socket, own: Credentials, ends: float) -> Call:
        """The call of somebody."""
        return cls(None, own, min(ends, time.monotonic() + _GREETING_SECONDS), wire=wire)

    def go_on(self) -> Connection | None:
        """The connection once both have greeted, else None.

        Raises
        ------
        OSError, StrangerError
            It ended, or who calls is out of time.
        """
        try:
            if self.is_ready:
                self.waits_for = next(self._steps)
        except StopIteration as end:
            return end.value
        if self.peer is None and time.monotonic() >= self.ends:
            self.close()
            raise StrangerError("it does not say who it is")
        return None

    def close(self) -> None:
        """End the call, if it is not over."""
        self._steps.close()
        # steps that have not begun close nothing
        self._wire.close()


def _greeted(wire: socket.socket, address: Address | None, own: Credentials) -> Generator[int, None, Connection]:
    """Greet who is there, at an address that is called or, without one, as the one who was called.

    Both sides send a public key that is made for this connection. The keys that follow from these and from the run's
    secret seal everything after it, first of all who they are, signed by each agent's own key with both public keys
    and who called: nobody can use what one agent signs to greet another (SIGMA; Krawczyk 2003).
    """
    calls, agreement = address is not None, Agreement()
    try:
        wire.setblocking(False)
        if address is not None:
            yield from _called(wire, address)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield from _sent(wire, agreement.public)
        theirs = yield from _heard(wire, PUBLIC_BYTES)
        try:
            closes, opens, said = agreement.seals(theirs, own.secret, calls)
            text = json.dumps(own.greeting._asdict()).encode()
            content = closes.closed(own.identity.signed(text, said + _role(calls)))
            yield from _sent(wire, _LENGTH.pack(len(content)) + content)
            (length,) = _LENGTH.unpack((yield from _heard(wire, _LENGTH.size)))
            if length > _LONGEST_GREETING:
                raise StrangerError("it does not speak as an agent does")
            other = _who(opens.opened((yield from _heard(wire, length))), said + _role(not calls), own.peers)
        except BrokenSealError as error:
            raise StrangerError(f"it does not know the run's key: {error}") from None
        if other.attempt != own.greeting.attempt:
            raise StrangerError(f"it is in attempt {other.attempt}, not {own.greeting.attempt}")
        return Connection(wire, closes, opens, other)
    except BaseException:
        wire.close()
        raise


def _role(calls: bool) -> bytes:
    return b"caller" if calls else b"called"


def _who(content: bytes, said: bytes, peers: Mapping[int, Peer]) -> Greeting:
    """Who has signed a greeting; one that is nobody's here has no key to compare with."""
    try:
        greeting = Greeting(**json.loads(unsigned(content)))
        if type(greeting.agent) is not int or not isinstance(greeting.parts, dict):
            raise TypeError(greeting)
    except (ValueError, TypeError, RecursionError):
        # it knows the run's secret, and is no agent of accord's
        raise StrangerError("it does not greet as an agent does") from None
    if greeting.agent in peers:
        try:
            require_signed(peers[greeting.agent].public, content, said)
        except BrokenSealError as error:
            raise StrangerError(f"it says that it is agent {greeting.agent}: {error}") from None
    return greeting


def _called(wire: socket.socket, address: Address) -> Generator[int, None, None]:
    try:
        wire.connect(address)
    except BlockingIOError:
        yield select.POLLOUT
        error = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error)) from None


def _done(action: Callable[[], Any], waits_for: int) -> Generator[int, None, Any]:
    """The result of an action on a socket, as soon as the socket lets it."""
    while True:
        try:
            return action()
        except BlockingIOError:
            yield waits_for


def _sent(wire: socket.socket, content: bytes) -> Generator[int, None, None]:
    while content:
        content = content[(yield from _done(partial(wire.send, content), select.POLLOUT)) :]


def _heard(wire: socket.socket, length: int) -> Generator[int, None, bytes]:
    content = b""
    while len(content) < length:
        more = yield from _done(partial(wire.recv, length - len(content)), select.POLLIN)
        if not more:
            raise ConnectionError("it hung up")
        content += more
    return content


def family(host: str) -> socket.AddressFamily:
    """Whether an address is one of IPv6."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
