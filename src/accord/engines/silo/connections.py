"""Connections between the agents that an edge joins: whole sealed messages over TCP, under labels that are checked.

An agent sends to all neighbours of an exchange and hears from all of them in one loop that never blocks on one of them,
so that messages larger than the buffers of the system cannot lock two agents that send to each other.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ...storage.fingerprint import first_difference
from .handshake import Address, Call, Connection, Credentials, Greeting, StrangerError, family
from .sealing import TAG_BYTES, BrokenSealError, Identity, Peer

# run hash, attempt, round, exchange of the round, sender, bytes that follow
_HEADER = struct.Struct("<16sIqIIQ")
# Callers that have not said who they are; of more than these the oldest is hung up on.
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
        # of this process: one that begins in its place has another
        self._identity = Identity()
        self._links: dict[int, _Link] = {}
        self._listener = socket.create_server((host, 0), family=family(host), backlog=1024)
        self._listener.setblocking(False)
        host, port, *_ = self._listener.getsockname()
        self.own = Peer(host, port, self._identity.public)
        # seconds that this agent has waited for each neighbour so far, and whom it waits for now
        self.waited: dict[int, float] = {}
        self.waiting_for: tuple[int, ...] = ()

    def connect(self, peers: Mapping[int, Peer], key: bytes, attempt: int, parts: dict[str, str], limit: float) -> None:
        """Join with all peers, in place of the connections there were.

        Both sides prove that they know the run's key and that they are whom they say, and refuse another run by the
        name of what differs; all that follows is sealed. Agents call those of a lower number and are called by those of
        a higher one, all at the same time. Each calls from the address that it listens at, and who calls from any other
        address is hung up on.

        Parameters
        ----------
        peers
            Addresses and public keys by agent.
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
            A peer cannot be reached, or hung up.
        LateNeighbourError
            A peer did not connect in time.
        ValueError
            A peer is in another run (what differs is named), or two claim one index.
        """
        self.disconnect()
        own = Credentials(Greeting(self.agent, attempt, parts), self._identity, key, peers)
        ends = time.monotonic() + limit
        calls = [Call(j, own, ends, self.own.host) for j in peers if j < self.agent]
        known = {peer.host for j, peer in peers.items() if j > self.agent}
        try:
            while True:
                calls = [call for call in calls if not self._has_ended(call, own)]
                missing = peers.keys() - self._links.keys()
                if not missing:
                    return
                if time.monotonic() >= ends:
                    late = min(missing)
                    where = peers[late][:2] if late < self.agent else None
                    raise LateNeighbourError(self.agent, late, -1, limit, where)
                if self._wait_for_calls(calls, ends):
                    with suppress(BlockingIOError, ConnectionAbortedError):
                        wire, (caller, *_) = self._listener.accept()
                        if caller not in known:
                            wire.close()
                            continue
                        _drop_oldest(calls)
                        calls.append(Call.heard(wire, own, ends))
        except BaseException:
            self.disconnect()
            raise
        finally:
            for call in calls:
                call.close()

    def _wait_for_calls(self, calls: list[Call], ends: float) -> bool:
        """Sleep until a greeting can go on or is out of time; whether somebody calls."""
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

    def _has_ended(self, call: Call, own: Credentials) -> bool:
        """Go on with a greeting where that is possible; whether it is over, with a new link or without."""
        try:
            found = call.go_on()
        except (OSError, StrangerError) as error:
            # whoever knocks without the key is no reason to end a run
            if call.peer is None:
                return True
            host, port, _ = own.peers[call.peer]
            raise LostNeighbourError(
                f"agent {self.agent} cannot reach agent {call.peer} at {host}:{port}: {error}"
            ) from error
        if found is None:
            return False
        callers = {j for j in own.peers if j > self.agent}
        self._admit(found, own.greeting, callers if call.peer is None else {call.peer})
        return True

    def _admit(self, connection: Connection, own: Greeting, expected: Iterable[int]) -> None:
        """Make a link of a connection, if who is there is expected and in the same run."""
        wire, other = connection.wire, connection.other
        if other.agent in self._links or other.agent not in expected:
            wire.close()
            raise ValueError(
                f"two agents claim one index: agent {self.agent} has met another agent {other.agent} than it expects"
            )
        difference = first_difference(own.parts, other.parts)
        if difference is not None:
            wire.close()
            raise ValueError(
                f"agent {other.agent} is not in the run of agent {own.agent} (here and there: {difference})"
            )
        self._links[other.agent] = _Link(connection)
        self.waited.setdefault(other.agent, 0.0)

    def exchange(
        self, label: Label, outgoing: Mapping[int, Any], incoming: Mapping[int, int], limit: float
    ) -> dict[int, bytes]:
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
            self._links[peer].send(_HEADER.pack(*label, self.agent, content.nbytes))
            if content.nbytes:
                self._links[peer].send(content)
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
    """Make room for one more caller."""
    strangers = [call for call in calls if call.peer is None]
    if len(strangers) >= _MOST_STRANGERS:
        strangers[0].close()
        calls.remove(strangers[0])


class _Link:
    """A connection: sealed messages in and out without blocking, the label of each before what it holds."""

    def __init__(self, connection: Connection) -> None:
        self.wire, self._closes, self._opens, other = connection
        self.peer = other.agent
        self._outgoing: deque[memoryview] = deque()
        self._header = bytearray(_HEADER.size + TAG_BYTES)
        self._content: bytearray | None = None
        self._filled = 0

    def send(self, content: Any) -> None:
        """Put bytes, sealed, behind those that wait to be sent."""
        self._outgoing.append(memoryview(self._closes.closed(content)))

    def flushed(self) -> bool:
        """Send what can be sent now; whether that was all."""
        while self._outgoing:
            try:
                sent = self.wire.send(self._outgoing[0])
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._lost(error) from error
            if sent == len(self._outgoing[0]):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = self._outgoing[0][sent:]
        return True

    def received(self, label: Label, most: int) -> bytes | None:
        """The next message if it has come whole; it must bear the label, and no memory is taken for a longer one."""
        if self._content is None:
            if not self._fill(self._header):
                return None
            *found, sender, length = _HEADER.unpack(self._opened(self._header))
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
            self._content, self._filled = bytearray(length + TAG_BYTES if length else 0), 0
        if not self._fill(self._content):
            return None
        content, self._content, self._filled = self._content, None, 0
        return self._opened(content) if content else b""

    def _opened(self, content: bytearray) -> bytes:
        try:
            return self._opens.opened(content)
        except BrokenSealError as error:
            raise self._lost(error) from None

    def _fill(self, buffer: bytearray) -> bool:
        """Read into a buffer what has come; whether it is full."""
        view = memoryview(buffer)
        while self._filled < len(buffer):
            try:
                count = self.wire.recv_into(view[self._filled :])
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise self._lost(None)
            self._filled += count
        return True

    def _lost(self, error: OSError | None) -> LostNeighbourError:
        return LostNeighbourError(f"the connection to agent {self.peer} ended" + (f": {error}" if error else ""))
