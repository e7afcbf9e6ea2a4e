"""Silo agents some of whose messages leave too late, and what is drawn then."""

import collections
import random
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
import ray
from tables import walk

import accord
from accord.engines.silo import actor
from accord.engines.silo.connections import Channels
from accord.engines.silo.worker import Worker
from accord.samplers import GTBAOAB

AGENTS = 4


class LateChannels(Channels):
    """Connections that stall before a share of the messages for a little longer than they are waited for."""

    def __init__(self, agent, host, share, seconds):
        super().__init__(agent, host)
        self.share, self.seconds, self.random = share, seconds, random.Random(agent)
        # what waits, by connection: until when, and the message
        self.stalled = {}

    def _post(self, peer, label, content):
        now, connection = time.monotonic(), (peer, label.attempt)
        # the first is waited for; what follows comes behind it, as in a connection that sends something again
        is_hit = connection in self.stalled and self.random.random() < self.share
        waiting = self.stalled.setdefault(connection, collections.deque())
        waiting.append((now + self.seconds if is_hit else now, label, content))
        while waiting and waiting[0][0] <= now:
            _, *message = waiting.popleft()
            super()._post(peer, *message)
        return True


class LateWorkerProcess(actor.WorkerProcess):
    """An agent with such connections, which `settings` describe; its name is one that `agents_below` knows."""

    def __init__(self, index, settings):
        super().__init__(index, {name: value for name, value in settings.items() if name != "late"})
        host = self.channels.own.host
        self.channels.close()
        self.channels = LateChannels(index, host, *settings["late"])

    def load(self, post, settings, folder, key):
        super().load(post, {name: value for name, value in settings.items() if name != "late"}, folder, key)

    @ray.method(concurrency_group="look")
    def status(self):
        return Worker.status(self)


@contextmanager
def late(share, seconds):
    """Of agents that begin from here on so many of the messages are so late."""
    from accord.engines.silo import workers

    settings_here = workers._settings_here
    with (
        mock.patch.object(actor, "WorkerProcess", LateWorkerProcess),
        mock.patch.object(workers, "_settings_here", lambda: {**settings_here(), "late": (share, seconds)}),
    ):
        yield


def posterior():
    """Gaussians far apart and of unequal width."""
    rng = np.random.default_rng(0)
    means, variances = 2.0 * rng.standard_normal((AGENTS, 2)), rng.uniform(0.4, 2.0, (AGENTS, 2, 1))
    return accord.models.gaussian(means, variances * np.eye(2))


def draw(share, declared, chains=400, draws=30, deadline=0.02, mix_rounds=8, network=None, engine=None, **options):
    """A run on a ring where this share of messages is late, declared as that."""
    post = posterior()
    network = accord.Network.ring(AGENTS) if network is None else network
    network = network if declared is None else network.links(loss=declared)
    options = {"burn_in": 20, "seed": 1, "init": post.exact(), "engine": engine, **options}
    if engine is None:
        options["engine"] = accord.Silo(deadline=deadline, timeout=60.0)
    with late(share, 1.5 * deadline):
        run = walk(post, network, GTBAOAB(0.3, 1.0, mix_rounds=mix_rounds), draws=draws, chains=chains, **options)
    return post, run
