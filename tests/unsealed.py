"""Silo agents without encryption after the handshake, for tests of message content."""

from contextlib import contextmanager
from unittest import mock

import ray

from accord.engines.silo import actor
from accord.engines.silo.connections import Channels
from accord.engines.silo.worker import Worker


class Open:
    """`Secure` without TLS. `rest` has bytes received after the greeting."""

    def __init__(self, wire, rest):
        self.wire, self.rest, self.unsent = wire, rest, b""

    def write(self, content):
        self.unsent += bytes(content)

    def flushed(self):
        try:
            while self.unsent:
                self.unsent = self.unsent[self.wire.send(self.unsent) :]
        except BlockingIOError:
            return False
        return True

    def read_into(self, buffer):
        filled = min(len(buffer), len(self.rest))
        buffer[:filled], self.rest = self.rest[:filled], self.rest[filled:]
        try:
            while filled < len(buffer):
                count = self.wire.recv_into(buffer[filled:])
                if not count:
                    raise ConnectionError("the peer closed the connection")
                filled += count
        except BlockingIOError:
            pass
        return filled


class UnsealedChannels(Channels):
    """Connections without TLS after the handshake."""

    def connect(self, *arguments):
        super().connect(*arguments)
        for link in self._links.values():
            link._secure = Open(link.wire, link._secure._incoming.read())


class UnsealedProcess(actor.WorkerProcess):
    """An agent with `UnsealedChannels`."""

    def __init__(self, index, settings):
        super().__init__(index, settings)
        host = self.channels.own.host
        self.channels.close()
        self.channels = UnsealedChannels(index, host)

    @ray.method(concurrency_group="look")
    def status(self):
        return Worker.status(self)


@contextmanager
def unsealed():
    """Let new agents send without encryption."""
    with mock.patch.object(actor, "WorkerProcess", UnsealedProcess):
        yield
