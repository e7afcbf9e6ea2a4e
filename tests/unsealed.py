"""Silo agents that send in the clear after their greetings, for tests that look at what agents send."""

from contextlib import contextmanager
from unittest import mock

import ray

from accord.engines.silo import actor
from accord.engines.silo.connections import Channels
from accord.engines.silo.worker import Worker


class Open:
    """The calls of `Secure` without TLS; bytes that came behind the greeting are in `rest`."""

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
                    raise ConnectionError("the other side closed it")
                filled += count
        except BlockingIOError:
            pass
        return filled


class UnsealedChannels(Channels):
    """Connections without TLS once agents have greeted."""

    def connect(self, *arguments):
        super().connect(*arguments)
        for link in self._links.values():
            link._secure = Open(link.wire, link._secure._incoming.read())


class UnsealedProcess(actor.WorkerProcess):
    """An agent with such connections."""

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
    """Agents that begin from here on are such ones."""
    with mock.patch.object(actor, "WorkerProcess", UnsealedProcess):
        yield
