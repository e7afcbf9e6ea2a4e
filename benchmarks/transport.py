"""Microseconds of a message between agents: accord's own sockets, which seal, beside ZeroMQ's, and both in the clear.

Prints a table. "there and back": two processes, one sends to the other and waits for the answer. "ring round": four
processes, each of which sends to both neighbours and waits for both. "silo round": the same within `engine="silo"`, a
round of DE-SGLD with the agents, chains and numbers of `benchmarks/engines.py`, 16 bytes of each message a dimension.
All transports are open at the same time and take turns, so that what else the machine does falls on all of them.
"median" is of one transport's times, "beside own" of its differences to accord's sockets as they are in the same turn.

ZeroMQ is given the least that it could cost: a pair of sockets for each edge, each at a port of its own, nothing that
would notice a lost neighbour, and no limit to how long a message may take to leave. Needs pyzmq and Ray; Ray listens
beyond loopback unless told not to, so where that matters run it where nothing else is:

    unshare -n sh -c 'ip link set lo up; exec "$@"' _ python benchmarks/transport.py
"""

import argparse
import contextlib
import multiprocessing
import statistics
import time
from unittest import mock

import numpy as np
import ray
import zmq
from engines import AGENTS, CHAINS, posterior

import accord
from accord.engines.agreement import bind
from accord.engines.silo import actor, connections
from accord.engines.silo.connections import Channels, ForeignMessageError, Label, LateNeighbourError
from accord.engines.silo.sealing import TAG_BYTES, Peer
from accord.engines.silo.worker import Worker

HOST, KEY, RUN = "127.0.0.1", b"k" * 32, b"r" * 16
LIMIT = 60.0


class NoSeal:
    """In the place of a seal: messages as long, in the clear."""

    def closed(self, content):
        return bytes(content) + bytes(TAG_BYTES)

    def opened(self, content):
        return bytes(content[:-TAG_BYTES])


class OpenChannels(Channels):
    """Accord's connections without seals once agents have greeted."""

    def connect(self, *arguments):
        super().connect(*arguments)
        for link in self._links.values():
            link._closes = link._opens = NoSeal()


class ZeroMQ:
    """What `Channels` does, as far as a run without mishaps needs it; of two neighbours the higher number calls."""

    def __init__(self, agent, host):
        self.agent, self.context = agent, zmq.Context()
        self.public, self.secret = zmq.curve_keypair()
        self.waited, self.waiting_for, ports = {}, (), {}
        self.sockets = {j: self.context.socket(zmq.PAIR) for j in range(AGENTS) if j != agent}
        for j, socket in self.sockets.items():
            socket.linger = 0
            if j > agent:
                self.secure(socket)
                ports[j] = socket.bind_to_random_port(f"tcp://{host}")
        self.own = Peer(host, ports, self.public)

    def secure(self, socket, server=None):
        pass

    def connect(self, peers, key, attempt, parts, limit):
        for j, (host, ports, public) in peers.items():
            self.waited[j] = 0.0
            if j < self.agent:
                self.secure(self.sockets[j], public)
                self.sockets[j].connect(f"tcp://{host}:{ports[self.agent]}")

    def exchange(self, label, outgoing, incoming, limit):
        for j, content in outgoing.items():
            self.sockets[j].send(connections._HEADER.pack(*label, self.agent, len(content)) + content)
        missing, found, ends = set(incoming), {}, time.monotonic() + limit
        while missing:
            for j in tuple(missing):
                try:
                    message = self.sockets[j].recv(zmq.NOBLOCK)
                except zmq.Again:
                    continue
                if Label(*connections._HEADER.unpack_from(message)[:4]) != label:
                    raise ForeignMessageError(f"agent {j} sent another message than was due")
                found[j] = memoryview(message)[connections._HEADER.size :]
                missing.discard(j)
            if missing:
                self.wait(missing, ends, label, limit)
        return found

    def wait(self, missing, ends, label, limit):
        since, self.waiting_for = time.monotonic(), tuple(missing)
        ready = zmq.zmq_poll([(self.sockets[j], zmq.POLLIN) for j in missing], int(max(0.0, ends - since) * 1e3))
        for j in missing:
            self.waited[j] += time.monotonic() - since
        if not ready:
            raise LateNeighbourError(self.agent, min(missing), label.round, limit)
        self.waiting_for = ()

    def disconnect(self):
        self.close()

    def close(self):
        self.context.destroy()


class Curve(ZeroMQ):
    """The same, encrypted by the keys of both sides."""

    def secure(self, socket, server=None):
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret
        if server is None:
            socket.curve_server = True
        else:
            socket.curve_serverkey = server


TRANSPORTS = {"own": Channels, "own, in the clear": OpenChannels, "ZeroMQ": ZeroMQ, "ZeroMQ, CURVE": Curve}


# --- messages alone ---


def there_and_back(channels, peers, rounds, content):
    (peer,) = peers
    for round in range(rounds):
        there, back = Label(RUN, 1, round, 0), Label(RUN, 1, round, 1)
        if channels.agent == 0:
            channels.exchange(there, {peer: content}, {}, LIMIT)
            channels.exchange(back, {}, {peer: len(content)}, LIMIT)
        else:
            channels.exchange(there, {}, {peer: len(content)}, LIMIT)
            channels.exchange(back, {peer: content}, {}, LIMIT)


def ring_round(channels, peers, rounds, content):
    outgoing = dict.fromkeys(peers, content)
    for round in range(rounds):
        channels.exchange(Label(RUN, 1, round, 0), outgoing, dict.fromkeys(peers, len(content)), LIMIT)


PATTERNS = {"there and back": (2, there_and_back), "ring round": (AGENTS, ring_round)}


def work(agent, pattern, pipe, barrier, size, rounds, repeats):
    """One agent's process: open all transports, then time them in turn."""
    count, talk = PATTERNS[pattern]
    peers = sorted({(agent - 1) % count, (agent + 1) % count})
    everything = {name: kind(agent, HOST) for name, kind in TRANSPORTS.items()}
    pipe.send({name: channels.own for name, channels in everything.items()})
    addresses = pipe.recv()
    for name, channels in everything.items():
        channels.connect({j: addresses[j][name] for j in peers}, KEY, 1, {}, LIMIT)
    seconds = {name: [] for name in everything}
    for repeat in range(repeats + 1):
        for name, channels in in_turn(everything, repeat):
            barrier.wait(LIMIT)
            began = time.perf_counter()
            talk(channels, peers, rounds, bytes(size))
            if repeat > 0:  # in the first ZeroMQ still connects
                seconds[name].append((time.perf_counter() - began) / rounds)
    pipe.send(seconds)
    barrier.wait(LIMIT)
    for channels in everything.values():
        channels.close()


def in_turn(everything, repeat):
    """Forward and backward by turns, so that none always follows the same other one."""
    return list(everything.items())[:: -1 if repeat % 2 else 1]


def of_messages(pattern, size, rounds, repeats):
    """Seconds of a round in each repeat, by transport, as agent 0 sees them."""
    count, _ = PATTERNS[pattern]
    context = multiprocessing.get_context("spawn")
    barrier, pipes = context.Barrier(count), [context.Pipe() for _ in range(count)]
    options = (barrier, size, rounds, repeats)
    processes = [context.Process(target=work, args=(i, pattern, pipes[i][1], *options)) for i in range(count)]
    for process in processes:
        process.start()
    addresses = dict(enumerate(here.recv() for here, _ in pipes))
    for here, _ in pipes:
        here.send(addresses)
    seconds = [here.recv() for here, _ in pipes][0]
    for process in processes:
        process.join()
    return seconds


# --- rounds of the engine ---


def process_of(kind):
    """The agents' process with another transport."""

    class Process(actor.WorkerProcess):
        def __init__(self, index, settings):
            super().__init__(index, settings)
            self.channels.close()
            self.channels = kind(index, HOST)

        @ray.method(concurrency_group="look")
        def status(self):
            return Worker.status(self)

    return Process


def of_silo(dim, rounds, repeats):
    """Seconds of a round in each repeat, by transport, as the driver sees them."""
    post, net, sampler = posterior(dim), accord.Network.ring(AGENTS), accord.samplers.DESGLD(0.05)
    with contextlib.ExitStack() as stack:
        machines = {}
        for name, kind in TRANSPORTS.items():
            with mock.patch.object(actor, "WorkerProcess", process_of(kind)):
                sites = stack.enter_context(accord.Silo())
                placed = stack.enter_context(sites.placed(post))
            machines[name] = sites.build(
                placed, net, bind(placed, net, sampler), chains=CHAINS, seed=0, keep=np.arange(1), fingerprint={}
            )
        carries = {name: machine.start(np.zeros((AGENTS, dim)), None) for name, machine in machines.items()}
        seconds = {name: [] for name in machines}
        for repeat in range(repeats + 1):
            for name, machine in in_turn(machines, repeat):
                began = time.perf_counter()
                carries[name] = machine.advance(carries[name], rounds)
                if repeat > 0:  # the first compiles
                    seconds[name].append((time.perf_counter() - began) / rounds)
        for machine in machines.values():
            machine.close()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 16_000], help="bytes of a message")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 1000], help="dimensions of a silo round")
    parser.add_argument("--rounds", type=int, default=200, help="rounds timed at once")
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()
    numbers = arguments.rounds, arguments.repeats

    def report(what, seconds):
        for name, times in seconds.items():
            more = statistics.median(time - own for time, own in zip(times, seconds["own"], strict=True))
            median = f"{1e6 * statistics.median(times):.0f} us"
            print(f"{what:<30} {name:<18} {median:>10} {f'{1e6 * more:+.0f} us':>12}", flush=True)

    print(f"{'':<30} {'transport':<18} {'median':>10} {'beside own':>12}")
    for pattern in PATTERNS:
        for size in arguments.sizes:
            report(f"{pattern}, {size:,} bytes", of_messages(pattern, size, *numbers))
    for dim in arguments.dims:
        report(f"silo round, dimension {dim:,}", of_silo(dim, *numbers))


if __name__ == "__main__":
    main()
