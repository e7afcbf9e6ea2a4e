"""Silo agents that send in the clear what they seal otherwise, for looks at what they send."""

from contextlib import contextmanager
from unittest import mock

import ray

from accord.engines.silo import actor
from accord.engines.silo.connections import Channels
from accord.engines.silo.sealing import TAG_BYTES
from accord.engines.silo.worker import Worker


class NoSeal:
    """In the place of a seal: messages as long, in the clear."""

    def closed(self, content):
        return bytes(content) + bytes(TAG_BYTES)

    def opened(self, content):
        return bytes(content[:-TAG_BYTES])


class UnsealedChannels(Channels):
    """Connections without seals once agents have greeted."""

    def connect(self, *arguments):
        super().connect(*arguments)
        for link in self._links.values():
            link._closes = link._opens = NoSeal()


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
