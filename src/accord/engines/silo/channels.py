"""Connections between the agents that an edge joins: whole messages over TCP, each under a label that is checked.

An agent sends to all neighbours of an exchange and hears from all of them in one loop that never blocks on one of them,
so that messages larger than the buffers of the system cannot lock two agents that send to each other.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...fingerprint import first_difference

# run hash, attempt, round, exchange of the round, sender, bytes that follow
_HEADER = struct.Struct("<16sIqIIQ")
_LENGTH = struct.Struct("<I")
_NONCE_BYTES = 32
_LONGEST_GREETING = 2**20
# Whoever calls and stays silent for so long is not waited for.
_GREETING_SECONDS = 10.0

Address = tuple[str, int]


class LateNeighbourError(TimeoutError):
    """A neighbour's message did not come in time.

    Parameters
    ----------
    agent, neighbour
        Who waited, and for whom.
    round
        The round of the message.
    seconds
        How long.
    """

    def __init__(self, agent: int, neighbour: int, round: int, seconds: float) -> None:
        super().__init__(agent, neighbour, round, seconds)
        self.agent, self.neighbour, self.round, self.seconds = agent, neighbour, round, seconds

    def __str__(self) -> str:
        return f"agent {self.agent} waited {self.seconds:g} s for agent {self.neighbour} in round {self.round}"


class LostNeighbourError(ConnectionError):
    """The connection to a neighbour ended."""


class ForeignMessageError(RuntimeError):
    """A message came that is not of this run, or not the one that had to come."""


class Label(NamedTuple):
    """What is written on every message beside its sender."""

    run: bytes
    attempt: int
    round: int
    exchange: int


class Channels:
    """An agent's connections.

    Parameters
    ----------
    agent
        Its index.
    host
        The address to listen at; no other one is listened at.
    """

    def __init__(self, agent: int, host: str) -> None:
        self.agent = agent
        self._links: dict[int, _Link] = {}
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address: Address = self._listener.getsockname()[:2]
        # seconds that this agent has waited for each neighbour so far, and whom it waits for now
        self.waited: dict[int, float] = {}
        self.waiting_for: tuple[int, ...] = ()

    def connect(
        self, peers: Mapping[int, Address], key: bytes, attempt: int, parts: dict[str, str], limit: float
    ) -> None:
        """Join with all peers, in place of the connections there were.

        Both sides prove that they know the run's key, and refuse another run by the name of what differs. Agents call
        those of a lower number and are called by those of a higher one.

        Parameters
        ----------
        peers
            Addresses by agent.
        key
            The run's secret.
        attempt
            Number of this set of connections; what is left of earlier ones is refused.
        parts
            The agent's `fingerprint`.
        limit
            Seconds to wait.

        Raises
        ------
        LostNeighbourError
            A peer could not be reached in time.
        ValueError
            A peer is in another run (what differs is named), or two claim one index.
        """
        self.disconnect()
        ends = time.monotonic() + limit
        greeting = _Greeting(self.agent, attempt, parts)
        for peer in sorted(peer for peer in peers if peer < self.agent):
            try:
                plain = socket.create_connection(peers[peer], timeout=_left(ends))
                self._welcome(plain, greeting, key, ends, {peer}, server=False)
            except (OSError, _StrangerError) as error:
                host, port = peers[peer]
                raise LostNeighbourError(
                    f"agent {self.agent} cannot reach agent {peer} at {host}:{port}: {error}"
                ) from error
        expected = {peer for peer in peers if peer > self.agent}
        while expected - set(self._links):
            try:
                self._listener.settimeout(_left(ends))
                plain, _ = self._listener.accept()
            except OSError as error:
                missing = min(expected - set(self._links))
                raise LostNeighbourError(f"agent {self.agent} was not called by agent {missing}: {error}") from error
            try:
                self._welcome(plain, greeting, key, ends, expected, server=True)
            except (OSError, _StrangerError):
                # whoever knocks without the key is no reason to end a run
                plain.close()
        for link in self._links.values():
            link.start()

    def _welcome(
        self, plain: socket.socket, own: _Greeting, key: bytes, ends: float, expected: set[int], server: bool
    ) -> None:
        plain.settimeout(min(_left(ends), _GREETING_SECONDS))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = _secured(plain, server)
        other = _greeted(wire, own, key)
        if other.attempt != own.attempt:
            raise _StrangerError(f"it is in attempt {other.attempt}, not {own.attempt}")
        if other.agent in self._links or other.agent not in expected:
            raise ValueError(
                f"two agents claim one index: agent {self.agent} was called by another agent {other.agent}"
            )
        difference = first_difference(own.parts, other.parts)
        if difference is not None:
            raise ValueError(f"agent {other.agent} is not in the run of agent {own.agent}: {difference}")
        self._links[other.agent] = _Link(wire, other.agent)
        self.waited.setdefault(other.agent, 0.0)

    def exchange(
        self, label: Label, outgoing: Mapping[int, Any], incoming: Iterable[int], limit: float
    ) -> dict[int, bytearray]:
        """Send to some neighbours and hear from some.

        Parameters
        ----------
        label
            Written on what is sent, and demanded of what comes.
        outgoing
            Bytes to send, by neighbour.
        incoming
            The neighbours to hear from.
        limit
            Seconds to wait, > 0.

        Returns
        -------
        dict
            What came, by neighbour.
        """
        for peer, content in outgoing.items():
            content = memoryview(content).cast("B")
            self._links[peer].send(_HEADER.pack(*label, self.agent, content.nbytes), content)
        unsent, missing, found = set(outgoing), set(incoming), {}
        began = time.monotonic()
        while True:
            for peer in tuple(unsent):
                if self._links[peer].flushed():
                    unsent.discard(peer)
            for peer in tuple(missing):
                content = self._links[peer].received(label)
                if content is not None:
                    found[peer] = content
                    missing.discard(peer)
            if not (unsent or missing):
                return found
            self._wait(unsent, missing, began, limit, label.round)

    def _wait(self, unsent: set[int], missing: set[int], began: float, limit: float, round: int) -> None:
        """Sleep until a socket is ready; count whom that was for."""
        poll = select.poll()
        for peer in unsent | missing:
            reads, writes = peer in missing, peer in unsent
            poll.register(self._links[peer].wire, (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0))
        since = time.monotonic()
        self.waiting_for = tuple(missing or unsent)
        left = began + limit - since
        ready = poll.poll(max(0.0, left) * 1e3)
        for peer in self.waiting_for:
            self.waited[peer] += time.monotonic() - since
        if not ready:
            raise LateNeighbourError(self.agent, min(self.waiting_for), round, limit)
        self.waiting_for = ()

    def disconnect(self) -> None:
        """End all connections; the agent can be called again."""
        for link in self._links.values():
            link.wire.close()
        self._links = {}
        self.waiting_for = ()

    def close(self) -> None:
        """End all connections and stop listening."""
        self.disconnect()
        self._listener.close()


class _Link:
    """A connection: messages in and out without blocking."""

    def __init__(self, wire: socket.socket, peer: int) -> None:
        self.wire, self.peer = wire, peer
        self._outgoing: deque[memoryview] = deque()
        self._header = bytearray(_HEADER.size)
        self._content: bytearray | None = None
        self._filled = 0

    def start(self) -> None:
        """Stop blocking."""
        self.wire.setblocking(False)

    def send(self, *parts: Any) -> None:
        """Put bytes behind those that wait to be sent."""
        self._outgoing.extend(memoryview(part) for part in parts if len(part))

    def flushed(self) -> bool:
        """Send what can be sent now; whether that was all."""
        while self._outgoing:
            try:
                sent = self.wire.send(self._outgoing[0])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            except OSError as error:
                raise self._lost(error) from error
            if sent == len(self._outgoing[0]):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = self._outgoing[0][sent:]
        return True

    def received(self, label: Label) -> bytearray | None:
        """The next message if it has come whole; it must bear the label."""
        if self._content is None:
            if not self._fill(self._header):
                return None
            *found, sender, length = _HEADER.unpack(self._header)
            if Label(*found) != label or sender != self.peer:
                raise ForeignMessageError(
                    f"agent {self.peer} sent a message of agent {sender}, round {found[2]}, exchange {found[3]}, "
                    f"attempt {found[1]}, where round {label.round}, exchange {label.exchange}, attempt "
                    f"{label.attempt} was due" + ("" if found[0] == label.run else ", and of another run")
                )
            self._content, self._filled = bytearray(length), 0
        if not self._fill(self._content):
            return None
        content, self._content, self._filled = self._content, None, 0
        return content

    def _fill(self, buffer: bytearray) -> bool:
        """Read into a buffer what has come; whether it is full."""
        view = memoryview(buffer)
        while self._filled < len(buffer):
            try:
                count = self.wire.recv_into(view[self._filled :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise self._lost(None)
            self._filled += count
        return True

    def _lost(self, error: OSError | None) -> LostNeighbourError:
        return LostNeighbourError(f"the connection to agent {self.peer} ended" + (f": {error}" if error else ""))


# --- greetings: who calls, and whether it may ---


class _StrangerError(Exception):
    """Whoever called does not know the run's key, or speaks of another attempt."""


class _Greeting(NamedTuple):
    agent: int
    attempt: int
    parts: dict[str, str]


def _greeted(wire: socket.socket, own: _Greeting, key: bytes) -> _Greeting:
    """Both sides send a random number, then who they are, signed with the key and the other's number."""
    mine = secrets.token_bytes(_NONCE_BYTES)
    wire.sendall(mine)
    theirs = _read(wire, _NONCE_BYTES)
    if theirs == mine:
        raise _StrangerError("it repeats what it hears")
    text = json.dumps(own._asdict()).encode()
    wire.sendall(_LENGTH.pack(len(text)) + text + _signature(key, theirs, text))
    (length,) = _LENGTH.unpack(_read(wire, _LENGTH.size))
    if length > _LONGEST_GREETING:
        raise _StrangerError("it does not speak as an agent does")
    text = _read(wire, length)
    if not hmac.compare_digest(_read(wire, 32), _signature(key, mine, text)):
        raise _StrangerError("it does not know the run's key")
    return _Greeting(**json.loads(text))


def _signature(key: bytes, nonce: bytes, text: bytes) -> bytes:
    return hmac.digest(key, nonce + text, "sha256")


def _read(wire: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = wire.recv(length - len(content))
        if not more:
            raise ConnectionError("it hung up")
        content += more
    return content


def _left(ends: float) -> float:
    return max(1e-3, ends - time.monotonic())


def _secured(plain: socket.socket, server: bool) -> socket.socket:
    """The connection under TLS if Ray's own connections are: same variables, same certificates, both sides checked."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("1", "true", "True"):
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    # agents are known by certificates of one authority of their own, not by the names of machines
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context.wrap_socket(plain, server_side=server)
