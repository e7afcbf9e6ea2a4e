"""Connections between neighbours: whole messages over TLS, each under a label that the receiver checks.

An agent sends to all neighbours of an exchange and receives from all of them in one loop that never blocks on one of
them, so that messages larger than the buffers of the system cannot lock two agents that send to each other. One thread
reads and writes, as an SSL socket demands.
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

# run hash, attempt, round, exchange of the round, sender, bytes that follow
_HEADER = struct.Struct("<16sIqIIQ")
# Incoming calls without a greeting; beyond this number the oldest is closed.
_MOST_STRANGERS = 64


class LateNeighbourError(TimeoutError):
    """A neighbour's message, or its connection, did not come in time.

    Parameters
    ----------
    agent, neighbour
        Who waited, and for whom.
    round
        The round of the message; -1 where it was to connect.
    seconds
        How long.
    address
        Where the neighbour was called, or None.
    """

    def __init__(self, agent: int, neighbour: int, round: int, seconds: float, address: Address | None = None) -> None:
        super().__init__(agent, neighbour, round, seconds, address)
        self.agent, self.neighbour, self.round, self.seconds = agent, neighbour, round, seconds
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        """Carry all arguments to another process: an OSError keeps two of them."""
        return type(self), (self.agent, self.neighbour, self.round, self.seconds, self.address)

    def __str__(self) -> str:
        where = "" if self.address is None else " at {}:{}".format(*self.address)
        what = "to connect" if self.round < 0 else f"in round {self.round}"
        return f"agent {self.agent} waited {self.seconds:g} s for agent {self.neighbour}{where} {what}"


class LostNeighbourError(ConnectionError):
    """The connection to a neighbour ended."""


class ForeignMessageError(RuntimeError):
    """A message came that is not of this run, or not the one that had to come."""


class Label(NamedTuple):
    """The label of a message: run, attempt, round and number, beside its sender."""

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
        self._identity = Identity()
        self._links: dict[int, _Link] = {}
        self._listener = socket.create_server((host, 0), family=family(host), backlog=1024)
        self._listener.setblocking(False)
        host, port, *_ = self._listener.getsockname()
        self.own = Peer(host, port, self._identity.certificate)
        # seconds that this agent has waited for each neighbour so far, and whom it waits for now
        self.waited: dict[int, float] = {}
        self.waiting_for: tuple[int, ...] = ()

    def connect(self, peers: Mapping[int, Peer], attempt: int, parts: dict[str, str], limit: float) -> None:
        """Connect to all peers, in place of earlier connections.

        Both sides show their certificates, which must be the ones in `peers`, and refuse another run by naming the
        difference. An agent calls peers of lower numbers and is called by peers of higher numbers, all at the same
        time. An agent calls from the address that it listens at, and an incoming call from any other address is closed.

        Parameters
        ----------
        peers
            Addresses and certificates by agent.
        attempt
            Number of this set of connections; calls with another number are refused.
        parts
            The agent's `fingerprint`.
        limit
            Seconds to wait.

        Raises
        ------
        LostNeighbourError
            A peer cannot be reached, closed the connection, or showed another certificate.
        LateNeighbourError
            A peer did not connect in time.
        ValueError
            A peer is in another run (the difference is named), or called twice.
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
        """Calls to some peers."""
        context = self._identity.context(is_server=False, peers=called.values())
        for j, peer in called.items():
            wire = socket.socket(family(peer.host))
            wire.bind((self.own.host, 0))
            yield Call(wire, context, {j: peer}, greeting, ends, called=j)

    def _wait_for_calls(self, calls: list[Call], ends: float) -> bool:
        """Sleep until a call can go on or is out of time; whether there is a new one."""
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
        """Go on with a call where that is possible; whether it is over, with a new link or without."""
        try:
            found = call.go_on()
        except (OSError, StrangerError) as error:
            # a stranger's call does not end a run
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
        """Send to some neighbours and hear from some.

        Parameters
        ----------
        label
            Written on what is sent, and demanded of what comes.
        outgoing
            Bytes to send, by neighbour.
        incoming
            The most bytes that may come, by neighbour to hear from.
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
                content = self._links[peer].received(label, incoming[peer])
                if content is not None:
                    found[peer] = content
                    missing.discard(peer)
            if not (unsent or missing):
                return found
            self._wait(unsent, missing, began, limit, label.round)

    def _wait(self, unsent: set[int], missing: set[int], began: float, limit: float, round: int) -> None:
        """Sleep until a socket is ready; `LateNeighbourError` where none is in time."""
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
        """End all connections; the agent can be called again."""
        for link in self._links.values():
            link.wire.close()
        self._links = {}
        self.waiting_for = ()

    def close(self) -> None:
        """End all connections and stop listening."""
        self.disconnect()
        self._listener.close()


def _drop_oldest(calls: list[Call]) -> None:
    """Make room for one more incoming call."""
    strangers = [call for call in calls if call.called is None]
    if len(strangers) >= _MOST_STRANGERS:
        strangers[0].close()
        calls.remove(strangers[0])


class _Link:
    """A connection that sends and receives labelled messages without blocking."""

    def __init__(self, connection: Connection) -> None:
        self._secure, self.peer, _ = connection
        self.wire = self._secure.wire
        self._header = bytearray(_HEADER.size)
        self._content: bytearray | None = None
        self._filled = 0

    def send(self, *parts: Any) -> None:
        """Put a message behind the messages that wait to be sent."""
        for part in filter(len, parts):
            self._secure.write(part)

    def flushed(self) -> bool:
        """Send as much as the socket takes; whether nothing is left."""
        try:
            return self._secure.flushed()
        except OSError as error:
            raise self._lost(error) from error

    def received(self, label: Label, most: int) -> bytearray | None:
        """The next message if it has come whole; it must bear the label, and no memory is taken for a longer one."""
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
            if length > most:
                raise ForeignMessageError(
                    f"agent {self.peer} announced a message of {length} bytes where {most} were due"
                )
            self._content, self._filled = bytearray(length), 0
        if not self._fill(self._content):
            return None
        content, self._content, self._filled = self._content, None, 0
        return content

    def _fill(self, buffer: bytearray) -> bool:
        """Read into a buffer until it is full or nothing more has come; whether it is full."""
        try:
            self._filled += self._secure.read_into(memoryview(buffer)[self._filled :])
        except OSError as error:
            raise self._lost(error) from error
        return self._filled == len(buffer)

    def _lost(self, error: OSError) -> LostNeighbourError:
        return LostNeighbourError(f"the connection to agent {self.peer} ended: {error}")
