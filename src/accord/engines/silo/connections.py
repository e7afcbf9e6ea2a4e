"""Connections between neighbours over TLS, for messages with a label that the receiver checks.

In an exchange an agent sends to and receives from all neighbours in one non-blocking loop. Two agents that send each
other messages larger than the system's buffers therefore do not deadlock. One thread reads and writes, as TLS requires.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..fingerprint import first_difference
from .handshake import Address, Call, Connection, Greeting, StrangerError, family
from .tls import Identity, Peer

# Run hash, attempt, round, exchange of the round, sender, number of content bytes.
_HEADER = struct.Struct("<16sIqIIQ")
# Incoming calls without a greeting, beyond which the oldest is closed.
_MOST_STRANGERS = 64


class LateNeighbourError(TimeoutError):
    """Timeout of a neighbour's message or connection.

    Parameters
    ----------
    agent, neighbour
        The waiting agent and the late neighbour.
    round
        Round of the message, -1 for a connection.
    seconds
        Seconds that the agent waited.
    address
        Address of an outgoing call, else None.
    """

    def __init__(self, agent: int, neighbour: int, round: int, seconds: float, address: Address | None = None) -> None:
        super().__init__(agent, neighbour, round, seconds, address)
        self.agent, self.neighbour, self.round, self.seconds = agent, neighbour, round, seconds
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments, as OSError keeps only two."""
        return type(self), (self.agent, self.neighbour, self.round, self.seconds, self.address)

    def __str__(self) -> str:
        where = "" if self.address is None else " at {}:{}".format(*self.address)
        what = "to connect" if self.round < 0 else f"in round {self.round}"
        return f"agent {self.agent} waited {self.seconds:g} s for agent {self.neighbour}{where} {what}"


class LostNeighbourError(ConnectionError):
    """The connection to a neighbour ended."""


class ForeignMessageError(RuntimeError):
    """A received message has an unexpected label or length."""


class Label(NamedTuple):
    """The label of a message without its sender."""

    run: bytes
    attempt: int
    round: int
    exchange: int


class Channels:
    """An agent's connections.

    Parameters
    ----------
    agent
        Number of the agent.
    host
        The only address to listen at.
    """

    def __init__(self, agent: int, host: str) -> None:
        self.agent = agent
        self._identity = Identity()
        self._links: dict[int, _Link] = {}
        self._listener = socket.create_server((host, 0), family=family(host), backlog=1024)
        self._listener.setblocking(False)
        host, port, *_ = self._listener.getsockname()
        self.own = Peer(host, port, self._identity.certificate)
        # seconds that this agent has waited for each neighbour
        self.waited: dict[int, float] = {}
        self.waiting_for: tuple[int, ...] = ()

    def connect(self, peers: Mapping[int, Peer], attempt: int, parts: dict[str, str], limit: float) -> None:
        """Close earlier connections and connect to all peers.

        Both sides present their certificates, which must equal those in `peers`, and compare fingerprints. An agent
        calls peers with lower numbers and accepts calls of peers with higher numbers, concurrently. It calls from its
        listening address and closes incoming calls from unknown addresses.

        Parameters
        ----------
        peers
            Addresses and certificates by agent.
        attempt
            Number of this set of connections. Calls with another number are closed.
        parts
            The agent's `fingerprint`.
        limit
            Timeout in seconds.

        Raises
        ------
        LostNeighbourError
            A peer cannot be reached, closed the connection, or presented another certificate.
        LateNeighbourError
            A peer did not connect in time.
        ValueError
            A peer has another fingerprint, whose first difference is named, or called twice.
        """
        self.disconnect()
        greeting, ends = Greeting(attempt, parts), time.monotonic() + limit
        callers = {j: peer for j, peer in peers.items() if j > self.agent}
        incoming = self._identity.context(is_server=True, peers=callers.values())
        calls: list[Call] = []
        try:
            calls += self._outgoing({j: peer for j, peer in peers.items() if j < self.agent}, greeting, ends)
            while True:
                calls = [call for call in calls if not self._has_ended(call, peers, parts)]
                missing = peers.keys() - self._links.keys()
                if not missing:
                    return
                if time.monotonic() >= ends:
                    late = min(missing)
                    where = peers[late][:2] if late < self.agent else None
                    raise LateNeighbourError(self.agent, late, -1, limit, where)
                if self._wait_for_calls(calls, ends):
                    with suppress(BlockingIOError, ConnectionAbortedError):
                        wire, (host, *_) = self._listener.accept()
                        if host not in {peer.host for peer in callers.values()}:
                            wire.close()
                            continue
                        _drop_oldest(calls)
                        calls.append(Call(wire, incoming, callers, greeting, ends))
        except BaseException:
            self.disconnect()
            raise
        finally:
            for call in calls:
                call.close()

    def _outgoing(self, called: Mapping[int, Peer], greeting: Greeting, ends: float) -> Iterator[Call]:
        """Outgoing calls to peers."""
        context = self._identity.context(is_server=False, peers=called.values())
        for j, peer in called.items():
            wire = socket.socket(family(peer.host))
            wire.bind((self.own.host, 0))
            yield Call(wire, context, {j: peer}, greeting, ends, called=j)

    def _wait_for_calls(self, calls: list[Call], ends: float) -> bool:
        """Wait until a call can continue or times out. Returns whether there is a new incoming call."""
        poll = select.poll()
        for call in calls:
            poll.register(call.number, call.waits_for)
        listener = self._listener.fileno()
        poll.register(listener, select.POLLIN)
        first = min([ends, *(call.ends for call in calls)])
        ready = dict(poll.poll(max(0.0, first - time.monotonic()) * 1e3))
        for call in calls:
            call.is_ready = call.number in ready
        return listener in ready

    def _has_ended(self, call: Call, peers: Mapping[int, Peer], parts: dict[str, str]) -> bool:
        """Continue a call. Returns whether it ended, with or without a new link."""
        try:
            found = call.go_on()
        except (OSError, StrangerError) as error:
            # a failed incoming call does not end the run
            if call.called is None:
                return True
            host, port, _ = peers[call.called]
            raise LostNeighbourError(
                f"agent {self.agent} cannot reach agent {call.called} at {host}:{port}: {error}"
            ) from error
        if found is None:
            return False
        secure, other, greeting = found
        difference = first_difference(parts, greeting.parts)
        if difference is not None or other in self._links:
            secure.wire.close()
            what = "called twice" if difference is None else f"is not in the run of agent {self.agent}"
            where = "" if difference is None else f" (here and there: {difference})"
            raise ValueError(f"agent {other} {what}{where}")
        self._links[other] = _Link(found)
        self.waited.setdefault(other, 0.0)
        return True

    def exchange(
        self, label: Label, outgoing: Mapping[int, Any], incoming: Mapping[int, int], limit: float
    ) -> dict[int, bytearray]:
        """Send messages to neighbours and receive messages from neighbours.

        Parameters
        ----------
        label
            Label of sent messages, required of received ones.
        outgoing
            Content to send, by neighbour.
        incoming
            Largest number of bytes to receive, by neighbour.
        limit
            Timeout in seconds, > 0.

        Returns
        -------
        dict
            Received content by neighbour.
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
                content = self._links[peer].received(label, incoming[peer])
                if content is not None:
                    found[peer] = content
                    missing.discard(peer)
            if not (unsent or missing):
                return found
            self._wait(unsent, missing, began, limit, label.round)

    def _wait(self, unsent: set[int], missing: set[int], began: float, limit: float, round: int) -> None:
        """Wait until a socket is ready. Raises `LateNeighbourError` after the timeout."""
        poll = select.poll()
        for peer in unsent | missing:
            reads, writes = peer in missing, peer in unsent
            poll.register(self._links[peer].wire, (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0))
        since = time.monotonic()
        self.waiting_for = tuple(missing or unsent)
        ready = poll.poll(max(0.0, began + limit - since) * 1e3)
        for peer in self.waiting_for:
            self.waited[peer] += time.monotonic() - since
        if not ready:
            raise LateNeighbourError(self.agent, min(self.waiting_for), round, limit)
        self.waiting_for = ()

    def disconnect(self) -> None:
        """Close all connections and keep listening."""
        for link in self._links.values():
            link.wire.close()
        self._links = {}
        self.waiting_for = ()

    def close(self) -> None:
        """Close all connections and stop listening."""
        self.disconnect()
        self._listener.close()


def _drop_oldest(calls: list[Call]) -> None:
    """Close the oldest incoming call if there are too many."""
    strangers = [call for call in calls if call.called is None]
    if len(strangers) >= _MOST_STRANGERS:
        strangers[0].close()
        calls.remove(strangers[0])


class _Link:
    """A non-blocking connection for labelled messages."""

    def __init__(self, connection: Connection) -> None:
        self._secure, self.peer, _ = connection
        self.wire = self._secure.wire
        self._header = bytearray(_HEADER.size)
        self._content: bytearray | None = None
        self._filled = 0

    def send(self, *parts: Any) -> None:
        """Append a message to the send buffer."""
        for part in filter(len, parts):
            self._secure.write(part)

    def flushed(self) -> bool:
        """Send without blocking. Returns whether the send buffer is empty."""
        try:
            return self._secure.flushed()
        except OSError as error:
            raise self._lost(error) from error

    def received(self, label: Label, most: int) -> bytearray | None:
        """The next message once it is complete, else None. Checks its label and its length before allocating memory."""
        if self._content is None:
            if not self._fill(self._header):
                return None
            *found, sender, length = _HEADER.unpack(self._header)
            if Label(*found) != label or sender != self.peer:
                raise ForeignMessageError(
                    f"agent {self.peer} sent a message of agent {sender}, round {found[2]}, exchange {found[3]}, "
                    f"attempt {found[1]}, expected round {label.round}, exchange {label.exchange}, attempt "
                    f"{label.attempt}" + ("" if found[0] == label.run else ", and of another run")
                )
            if length > most:
                raise ForeignMessageError(
                    f"agent {self.peer} announced a message of {length} bytes, expected at most {most}"
                )
            self._content, self._filled = bytearray(length), 0
        if not self._fill(self._content):
            return None
        content, self._content, self._filled = self._content, None, 0
        return content

    def _fill(self, buffer: bytearray) -> bool:
        """Read available bytes into a buffer. Returns whether it is full."""
        try:
            self._filled += self._secure.read_into(memoryview(buffer)[self._filled :])
        except OSError as error:
            raise self._lost(error) from error
        return self._filled == len(buffer)

    def _lost(self, error: OSError) -> LostNeighbourError:
        return LostNeighbourError(f"the connection to agent {self.peer} ended: {error}")
