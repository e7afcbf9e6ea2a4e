"""The handshake between agents, TLS with certificates of both sides and then a greeting from each."""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import NamedTuple

from .tls import Peer, Secure

_LENGTH = struct.Struct("<I")
# Largest number of bytes of a greeting.
_LONGEST_GREETING = 2**20
# Timeout in seconds of an incoming greeting.
_GREETING_SECONDS = 10.0

Address = tuple[str, int]


class StrangerError(Exception):
    """The peer is not an expected agent, or in another attempt."""


class Greeting(NamedTuple):
    """The first message of an agent, with the number of the set of connections and the run's `fingerprint`."""

    attempt: int
    parts: dict[str, str]


class Connection(NamedTuple):
    """A connection to an agent after both greetings."""

    secure: Secure
    agent: int
    greeting: Greeting


class Call:
    """A non-blocking handshake.

    Parameters
    ----------
    wire
        The socket, unconnected for an outgoing call.
    context
        The TLS settings, see `Identity.context`.
    peers
        The allowed agents on the other side, by number.
    greeting
        The greeting to send.
    ends
        Deadline of an incoming call, on the monotonic clock.
    called
        The agent to call, None for an incoming call.
    """

    def __init__(
        self,
        wire: socket.socket,
        context: ssl.SSLContext,
        peers: Mapping[int, Peer],
        greeting: Greeting,
        ends: float,
        called: int | None = None,
    ) -> None:
        address = None if called is None else peers[called][:2]
        self.called, self.ends, self._wire = called, ends, wire
        if called is None:
            self.ends = min(ends, time.monotonic() + _GREETING_SECONDS)
        self.number = wire.fileno()
        self.waits_for, self.is_ready = 0, True
        self._steps = _greeted(wire, context, peers, greeting, address)

    def go_on(self) -> Connection | None:
        """Continue the handshake. Returns the connection once both greetings are exchanged, else None.

        Raises
        ------
        OSError, StrangerError
            The handshake failed, or an incoming one timed out.
        """
        try:
            if self.is_ready:
                self.waits_for = next(self._steps)
        except StopIteration as end:
            return end.value
        if self.called is None and time.monotonic() >= self.ends:
            self.close()
            raise StrangerError("timeout, no greeting received")
        return None

    def close(self) -> None:
        """Abort the handshake if it is not complete."""
        self._steps.close()
        # closing a generator that has not started does not close the socket
        self._wire.close()


def _greeted(
    wire: socket.socket,
    context: ssl.SSLContext,
    peers: Mapping[int, Peer],
    greeting: Greeting,
    address: Address | None,
) -> Generator[int, None, Connection]:
    """Connect, run the TLS handshake and exchange greetings. Yields the `poll` events that it waits for."""
    try:
        wire.setblocking(False)
        if address is not None:
            yield from _connected(wire, address)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = Secure(wire, context, is_server=address is None)
        yield from _shaken(secure)
        agent = next((j for j, peer in peers.items() if peer.certificate == secure.certificate()), None)
        if agent is None:
            raise StrangerError("it presents the certificate of another agent")
        text = json.dumps(greeting._asdict()).encode()
        secure.write(_LENGTH.pack(len(text)) + text)
        yield from _sent(secure)
        (length,) = _LENGTH.unpack((yield from _received(secure, _LENGTH.size)))
        if length > _LONGEST_GREETING:
            raise StrangerError(f"its greeting exceeds {_LONGEST_GREETING} bytes")
        other = _parsed((yield from _received(secure, length)))
        if other.attempt != greeting.attempt:
            raise StrangerError(f"it is in attempt {other.attempt}, not {greeting.attempt}")
        return Connection(secure, agent, other)
    except BaseException:
        wire.close()
        raise


def _shaken(secure: Secure) -> Generator[int, None, None]:
    try:
        while not secure.has_shaken():
            yield from _sent(secure)
            yield select.POLLIN
    except ssl.SSLError:
        # send the TLS alert with the reason
        with suppress(OSError):
            secure.flushed()
        raise
    yield from _sent(secure)


def _parsed(text: bytearray) -> Greeting:
    try:
        greeting = Greeting(**json.loads(text))
        if type(greeting.attempt) is not int or not isinstance(greeting.parts, dict):
            raise TypeError(greeting)
    except (ValueError, TypeError, RecursionError):
        raise StrangerError("malformed greeting") from None
    return greeting


def _connected(wire: socket.socket, address: Address) -> Generator[int, None, None]:
    try:
        wire.connect(address)
    except BlockingIOError:
        yield select.POLLOUT
        error = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error)) from None


def _sent(secure: Secure) -> Generator[int, None, None]:
    while not secure.flushed():
        yield select.POLLOUT


def _received(secure: Secure, length: int) -> Generator[int, None, bytearray]:
    content, filled = bytearray(length), 0
    while (filled := filled + secure.read_into(memoryview(content)[filled:])) < length:
        yield select.POLLIN
    return content


def family(host: str) -> socket.AddressFamily:
    """The address family, IPv6 or IPv4, of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
