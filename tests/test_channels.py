"""Connections and messages of agents without Ray, with agents as threads or as processes with sockets."""

import gc
import json
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

import networkx as nx
import numpy as np
import pytest

import accord.engines.silo.connections as channels_module
from accord import Network
from accord.engines.silo.connections import (
    _HEADER,
    Channels,
    ForeignMessageError,
    Label,
    LateNeighbourError,
    LostNeighbourError,
)
from accord.engines.silo.messages import EVERY_COLOR, Communicator
from accord.engines.silo.tls import Identity, Peer
from accord.samplers import DADMMS, DESGLD, GCMC, HubSGLD
from accord.samplers.costs import messages_per_round

RUN = b"r" * 16
# address of an agent that calls and is not called
NOWHERE = Peer("127.0.0.1", 0, Identity().certificate)
PARTS = {"method": "DESGLD (1f)", "chains": "4"}

NETWORKS = {
    "ring": Network.ring(5),
    "star": Network.star(6),
    "path": Network.path(5),
    "complete": Network.complete(4),
    "tree": Network.tree(3),
    "random": Network.erdos_renyi(9, 0.4, seed=3),
    "random tree": Network.from_networkx(nx.random_labeled_tree(11, seed=5)),
    "two": Network.path(2),
    "one": Network.empty(1),
    "empty": Network.empty(3),
}
CONNECTED = [name for name in NETWORKS if name != "empty"]


def at_once(jobs, seconds=60.0):
    """Run jobs concurrently. Returns their results or errors. A job that does not end fails the test."""
    outcomes = [None] * len(jobs)

    def run(place, job):
        try:
            outcomes[place] = job()
        except Exception as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a job hangs"
    return outcomes


def without_errors(outcomes):
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def connected(network, everyone, limit=20.0, attempt=1, parts=PARTS):
    """Connect all agents. Returns None or an error by agent."""
    places = {i: one.own for i, one in enumerate(everyone)}

    def join(i):
        peers = {int(j): places[int(j)] for j in network.neighbors(i)}
        own = parts[i] if isinstance(parts, list) else parts
        return everyone[i].connect(peers, attempt, own, limit)

    return at_once([lambda i=i: join(i) for i in range(network.num_agents)])


@contextmanager
def listening(count):
    # exclude existing objects from the collection below, which takes most of the time
    gc.freeze()
    everyone = [Channels(i, "127.0.0.1") for i in range(count)]
    try:
        yield everyone
    finally:
        for one in everyone:
            one.close()
        # an open socket is a warning, here an error
        gc.collect()
        gc.unfreeze()


@contextmanager
def joined(network, **options):
    with listening(network.num_agents) as everyone:
        without_errors(connected(network, everyone, **options))
        yield everyone


def label(round=0, exchange=0, attempt=1, run=RUN):
    return Label(run, attempt, round, exchange)


def content(agent, peer, round, size):
    return np.random.default_rng([agent, peer, round]).bytes(size)


# --- exchanges ---


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long_from(5)
def test_messages_arrive_whole_and_in_order(name):
    network, sizes = NETWORKS[name], [8, 0, 100_000, 1]

    def rounds(agent, own):
        peers = [int(j) for j in network.neighbors(agent)]
        for round in range(40):
            size = sizes[round % len(sizes)]
            outgoing = {j: content(agent, j, round, size) for j in peers}
            found = own.exchange(label(round), outgoing, dict.fromkeys(peers, size), 20.0)
            assert {j: bytes(found[j]) for j in peers} == {j: content(j, agent, round, size) for j in peers}

    with joined(network) as everyone:
        without_errors(at_once([lambda i=i: rounds(i, everyone[i]) for i in range(network.num_agents)]))


def test_large_messages_both_ways_do_not_deadlock():
    network, size = Network.complete(3), 16 * 2**20

    def rounds(agent, own):
        peers = [int(j) for j in network.neighbors(agent)]
        for round in range(2):
            mine = bytes([agent, round]) * (size // 2)
            found = own.exchange(label(round), dict.fromkeys(peers, mine), dict.fromkeys(peers, size), 30.0)
            assert all(found[j] == bytes([j, round]) * (size // 2) for j in peers)

    with joined(network) as everyone:
        without_errors(at_once([lambda i=i: rounds(i, everyone[i]) for i in range(3)]))


def test_a_neighbour_may_be_some_exchanges_ahead():
    with joined(Network.path(2)) as (first, second):
        for exchange in range(5):
            first.exchange(label(3, exchange), {1: b"%d" % exchange}, {}, 5.0)
        found = [second.exchange(label(3, exchange), {}, {0: 1}, 5.0)[0] for exchange in range(5)]
        assert found == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.long
def test_processes_exchange_large_messages():
    script = (
        "from accord.engines.silo.connections import Channels, Label\n"
        "from accord.engines.silo.tls import Peer\n"
        "own = Channels(0, '127.0.0.1')\n"
        "print(own.own.host, own.own.port, own.own.certificate.hex(), flush=True)\n"
        f"own.connect({{1: Peer('127.0.0.1', 0, bytes.fromhex(input()))}}, 1, {PARTS!r}, 60.0)\n"
        "for round in range(3):\n"
        f"    found = own.exchange(Label({RUN!r}, 1, round, 0), {{1: bytes(2**22)}}, {{1: 2**22}}, 60.0)\n"
        "    print(len(found[1]), set(found[1]), flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        host, port, certificate = process.stdout.readline().split()
        own = Channels(1, "127.0.0.1")
        print(own.own.certificate.hex(), file=process.stdin, flush=True)
        own.connect({0: Peer(host, int(port), bytes.fromhex(certificate))}, 1, PARTS, 60.0)
        for round in range(3):
            assert own.exchange(label(round), {0: b"\x07" * 2**22}, {0: 2**22}, 60.0)[0] == bytes(2**22)
        assert process.stdout.read() == f"{2**22} {{7}}\n" * 3
        with pytest.raises(LostNeighbourError, match="the connection to agent 0 ended"):
            own.exchange(label(3), {}, {0: 1}, 60.0)
        own.close()
    assert process.returncode == 0


def test_reconnecting_replaces_connections():
    network = Network.ring(4)
    with joined(network) as everyone:
        # the rest of a message on the first set is dropped
        everyone[0]._links[1].wire.send(b"rest")
        for attempt in (2, 3):
            without_errors(connected(network, everyone, attempt=attempt))
            jobs = [
                lambda own=own, i=i, attempt=attempt: own.exchange(
                    label(0, attempt=attempt), {(i + 1) % 4: b"x"}, {(i - 1) % 4: 1}, 5.0
                )
                for i, own in enumerate(everyone)
            ]
            assert without_errors(at_once(jobs)) == [{(i - 1) % 4: b"x"} for i in range(4)]


# --- errors of messages ---


def sends(agent, content):
    """Send raw bytes to agent 0."""
    agent._links[0].send(content)
    assert agent._links[0].flushed()


def test_a_late_neighbour_is_named():
    with joined(Network.path(3)) as everyone:
        began = time.monotonic()
        with pytest.raises(LateNeighbourError) as caught:
            everyone[1].exchange(label(7), {0: b"", 2: b""}, {0: 0, 2: 0}, 0.3)
        assert 0.3 <= time.monotonic() - began < 5.0
        assert str(caught.value) == "agent 1 waited 0.3 s for agent 0 in round 7"
        assert everyone[1].waiting_for == (0, 2)
        assert all(seconds >= 0.25 for seconds in everyone[1].waited.values())


def test_a_neighbour_that_does_not_read_is_late():
    with (
        joined(Network.path(2)) as (first, _),
        pytest.raises(LateNeighbourError, match=r"0.3 s for agent 1 in round 2"),
    ):
        first.exchange(label(2), {1: bytes(64 * 2**20)}, {}, 0.3)


def test_late_neighbours_survive_a_pickle():
    import pickle

    error = pickle.loads(pickle.dumps(LateNeighbourError(1, 0, -1, 2.0, ("10.0.0.1", 4000))))
    assert str(error) == "agent 1 waited 2 s for agent 0 at 10.0.0.1:4000 to connect"


@pytest.mark.parametrize("how", ["before", "while waiting", "in a message"])
def test_a_closed_neighbour_is_lost_at_once(how):
    with joined(Network.path(2)) as (first, second):
        if how == "in a message":
            sends(second, _HEADER.pack(*label(4), 1, 10) + b"half")
        if how == "while waiting":
            threading.Timer(0.2, second.disconnect).start()
        else:
            second.disconnect()
        began = time.monotonic()
        with pytest.raises(LostNeighbourError, match="the connection to agent 1 ended"):
            first.exchange(label(4), {1: b"x"}, {1: 10}, 30.0)
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (label(run=b"s" * 16), "agent 1 sent a message of agent 1, round 0.* and of another run"),
        (label(round=5), "round 5, exchange 0, attempt 1, expected round 0, exchange 0, attempt 1$"),
        (label(exchange=2), "exchange 2, attempt 1, expected round 0, exchange 0"),
        (label(attempt=9), "attempt 9, expected round 0, exchange 0, attempt 1"),
    ],
)
def test_a_message_with_an_unexpected_label_is_refused(header, message):
    with joined(Network.path(2)) as (first, second):
        second.exchange(header, {0: b"hello"}, {}, 5.0)
        with pytest.raises(ForeignMessageError, match=message):
            first.exchange(label(), {}, {1: 5}, 5.0)


def test_a_message_of_another_sender_is_refused():
    with joined(Network.path(2)) as (first, second):
        sends(second, _HEADER.pack(*label(), 3, 0))
        with pytest.raises(ForeignMessageError, match="agent 1 sent a message of agent 3, round 0"):
            first.exchange(label(), {}, {1: 5}, 5.0)


@pytest.mark.parametrize("announced", [6, 3 * 2**30, 2**64 - 1])
def test_a_message_longer_than_expected_is_refused_before_it_is_read(announced, monkeypatch):
    with joined(Network.path(2)) as (first, second):
        monkeypatch.setattr(channels_module, "bytearray", lambda length: pytest.fail("allocated"), raising=False)
        sends(second, _HEADER.pack(*label(), 1, announced))
        with pytest.raises(ForeignMessageError, match=f"a message of {announced} bytes, expected at most 5"):
            first.exchange(label(), {}, {1: 5}, 5.0)


# --- greetings ---


def test_a_difference_is_named_on_both_sides():
    with listening(2) as everyone:
        first, second = connected(Network.path(2), everyone, parts=[PARTS, {**PARTS, "chains": "2"}])
    assert str(first) == "agent 1 is not in the run of agent 0 (here and there: chains 4 and chains 2)"
    assert str(second) == "agent 0 is not in the run of agent 1 (here and there: chains 2 and chains 4)"


def test_an_unreachable_agent_is_named_with_its_address():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with listening(2) as (_, second):
        with pytest.raises(LostNeighbourError) as caught:
            second.connect({0: NOWHERE._replace(host=address[0], port=address[1])}, 1, PARTS, 5.0)
    assert str(caught.value) == (
        f"agent 1 cannot reach agent 0 at 127.0.0.1:{address[1]}: [Errno 111] Connection refused"
    )


def test_an_agent_that_does_not_greet_is_named_with_its_address():
    with socket.create_server(("127.0.0.1", 0)) as silent, listening(2) as (_, second):
        port = silent.getsockname()[1]
        with pytest.raises(LateNeighbourError, match=f"^agent 1 waited 0.3 s for agent 0 at 127.0.0.1:{port} to conn"):
            second.connect({0: NOWHERE._replace(port=port)}, 1, PARTS, 0.3)


def test_an_agent_that_does_not_call_is_named():
    with listening(2) as (first, _), pytest.raises(LateNeighbourError, match=r"^agent 0 waited 0.3 s for agent 1 to c"):
        first.connect({1: NOWHERE}, 1, PARTS, 0.3)


def garbage(stranger):
    stranger.sendall(bytes(range(256)) * 40)


def silence(stranger):
    pass


def hanging_up(stranger):
    stranger.close()


def huge(stranger):
    # the first TLS record of a message of 16 MB
    stranger.sendall(b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(2**14))


def hello(stranger):
    # only the client's half of a handshake
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        anonymous().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    stranger.sendall(outgoing.read())


def plaintext(stranger):
    stranger.sendall(_HEADER.pack(*label(), 1, 5) + b"hello")


def trickle(stranger):
    with pytest.raises(OSError):
        # the header of a TLS record, with its content byte by byte
        stranger.sendall(b"\x16\x03\x01\x40\x00")
        while True:
            stranger.sendall(b"\x01")
            time.sleep(0.05)


@pytest.mark.parametrize("behave", [garbage, silence, hanging_up, huge, trickle, hello, plaintext])
def test_strangers_neither_end_nor_delay_a_run(behave, monkeypatch):
    monkeypatch.setattr("accord.engines.silo.handshake._GREETING_SECONDS", 1.0)
    network = Network.path(2)
    with listening(2) as everyone:
        strangers = [socket.create_connection(everyone[0].own[:2]) for _ in range(5)]
        behaviour = [threading.Thread(target=behave, args=(stranger,), daemon=True) for stranger in strangers]
        for thread in behaviour:
            thread.start()
        time.sleep(0.1)
        began = time.monotonic()
        without_errors(connected(network, everyone, limit=20.0))
        assert time.monotonic() - began < 0.9
        for stranger in strangers:
            stranger.close()
        for thread in behaviour:
            thread.join()


def beside(first, second, job):
    """The result of a job while agent 0 waits for agent 1, which connects after the job."""

    def then():
        found = job()
        second.connect({0: first.own}, 1, PARTS, 20.0)
        return found

    _, found = without_errors(at_once([lambda: first.connect({1: second.own}, 1, PARTS, 20.0), then]))
    return found


def test_a_stranger_that_takes_too_long_is_closed(monkeypatch):
    monkeypatch.setattr("accord.engines.silo.handshake._GREETING_SECONDS", 0.2)
    with listening(2) as (first, second), socket.create_connection(first.own[:2]) as stranger:
        # the trickle ends when the agent closes the connection
        beside(first, second, lambda: trickle(stranger))


def test_a_stranger_does_not_extend_the_timeout(monkeypatch):
    monkeypatch.setattr("accord.engines.silo.handshake._GREETING_SECONDS", 0.2)
    with listening(2) as (first, _):
        stranger = socket.create_connection(first.own[:2])
        thread = threading.Thread(target=trickle, args=(stranger,), daemon=True)
        thread.start()
        with pytest.raises(LateNeighbourError):
            first.connect({1: NOWHERE}, 1, PARTS, 0.5)
        # the agent closed the connection
        thread.join(5.0)
        assert not thread.is_alive()
        stranger.close()


def test_the_oldest_of_too_many_strangers_is_closed(monkeypatch):
    monkeypatch.setattr(channels_module, "_MOST_STRANGERS", 3)
    with listening(2) as (first, second):
        crowd = [socket.create_connection(first.own[:2], timeout=5.0) for _ in range(5)]

        def job():
            assert crowd[0].recv(1) == crowd[1].recv(1) == b""
            for stranger in crowd[2:]:
                stranger.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    stranger.recv(1)

        beside(first, second, job)
        for stranger in crowd:
            stranger.close()


def test_a_crowd_of_silent_strangers_does_not_delay_a_run():
    with listening(2) as everyone:
        crowd = [socket.create_connection(everyone[0].own[:2]) for _ in range(300)]
        began = time.monotonic()
        without_errors(connected(Network.path(2), everyone, limit=20.0))
        # less than the timeout of one stranger
        assert time.monotonic() - began < 5.0
        for stranger in crowd:
            stranger.close()


def test_a_call_from_an_unknown_address_is_closed():
    with listening(2) as (first, _):
        hosts = ("127.0.0.9", "127.0.0.1")
        calling = [socket.create_connection(first.own[:2], source_address=(host, 0)) for host in hosts]
        for stranger in calling:
            hello(stranger)
        with pytest.raises(LateNeighbourError):
            first.connect({1: NOWHERE}, 1, PARTS, 0.3)
        # no byte for the first, the server's half of a handshake for the second
        assert [len(received(stranger)) > 0 for stranger in calling] == [False, True]
        for stranger in calling:
            stranger.close()


def test_agents_call_from_their_listening_address():
    everyone = [Channels(0, "127.0.0.1"), Channels(1, "127.0.0.9")]
    try:
        without_errors(connected(Network.path(2), everyone))
    finally:
        for one in everyone:
            one.close()


def received(wire):
    """All bytes until the peer closes the connection."""
    wire.settimeout(5.0)
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while more := wire.recv(65536):
            found += more
    return found


def anonymous():
    """Settings of a client that presents no certificate and accepts any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def caller(agent, identity):
    """Settings of a client that calls an agent."""
    return identity.context(is_server=False, peers=[agent.own])


def shaken(agent, context):
    """Call an agent and run the TLS handshake."""
    return context.wrap_socket(socket.create_connection(agent.own[:2], timeout=5.0))


def greeted(agent, context, text, length=None):
    """Call an agent with a greeting. Returns the agent's greeting after it closed the connection."""
    with shaken(agent, context) as wire:
        wire.sendall(struct.pack("<I", len(text) if length is None else length) + text)
        (length,) = struct.unpack("<I", wire.recv(4))
        found = json.loads(wire.recv(length))
        received(wire)
        return found


def greeting(attempt=1, parts=PARTS):
    return json.dumps({"attempt": attempt, "parts": parts}).encode()


def test_a_stranger_without_a_certificate_receives_no_greeting():
    with listening(2) as (first, second):

        def stranger():
            with shaken(first, anonymous()) as wire:
                shown = wire.getpeercert(binary_form=True)
                with suppress(ConnectionError, ssl.SSLError):
                    wire.sendall(struct.pack("<I", 2) + b"{}")
                return shown, received(wire)

        shown, found = beside(first, second, stranger)
    # the certificate has a random name and a public key
    assert shown == first.own.certificate and found == b""


def test_older_versions_of_tls_are_refused():
    with listening(2) as (first, second):

        def older():
            context = caller(first, second._identity)
            context.minimum_version, context.maximum_version = [ssl.TLSVersion.TLSv1_2] * 2
            with pytest.raises((ConnectionError, ssl.SSLError)):
                shaken(first, context)

        beside(first, second, older)


def test_an_agent_with_another_certificate_is_refused():
    with listening(3) as (first, second, impostor):
        impostor.agent = 1

        def intrude():
            with pytest.raises(LostNeighbourError):
                impostor.connect({0: first.own}, 1, PARTS, 20.0)

        beside(first, second, intrude)


def test_a_called_agent_must_have_its_certificate():
    with listening(3) as (first, second, other):
        there = first.own._replace(certificate=other.own.certificate)

        def called_for_another():
            with pytest.raises(LostNeighbourError, match="agent 1 cannot reach agent 0 at .*CERTIFICATE_VERIFY_FAILED"):
                second.connect({0: there}, 1, PARTS, 20.0)

        beside(first, second, called_for_another)


def test_a_neighbour_cannot_answer_for_another():
    with listening(3) as (first, second, third), socket.create_server(("127.0.0.1", 0)) as server:
        context = second._identity.context(is_server=True, peers=[third.own])

        def answer():
            # agent 1 answers both calls
            for _ in range(2):
                with suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as wire:
                    received(wire)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        places = {0: first.own._replace(port=port), 1: second.own}
        with pytest.raises(LostNeighbourError, match=r"reach agent 0 .* presents the certificate of another agent$"):
            third.connect(places, 1, PARTS, 20.0)
        # an empty call ends the second answer, if there was no second call
        socket.create_connection(server.getsockname()).close()
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_certificate_that_a_neighbour_issued_is_refused():
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    with listening(3) as (first, second, impostor):
        chain, password = second._identity._chain, second._identity._password.encode()
        own, key = x509.load_pem_x509_certificate(chain), serialization.load_pem_private_key(chain, password)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issued")])
        times = own.not_valid_before_utc, own.not_valid_after_utc
        issued = x509.CertificateBuilder(own.subject, name, key.public_key(), 1, *times).sign(key, hashes.SHA256())
        impostor._identity._password = second._identity._password
        impostor._identity._chain = issued.public_bytes(serialization.Encoding.PEM) + chain
        impostor.agent = 1

        def intrude():
            with pytest.raises(LostNeighbourError):
                impostor.connect({0: first.own}, 1, PARTS, 20.0)

        beside(first, second, intrude)


def test_a_neighbour_that_calls_twice_is_an_error():
    with listening(1) as (first,):
        identity = Identity()
        context = caller(first, identity)
        peers = {1: NOWHERE._replace(certificate=identity.certificate), 2: NOWHERE}
        error, *found = at_once(
            [lambda: first.connect(peers, 1, PARTS, 10.0)] + [lambda: greeted(first, context, greeting())] * 2
        )
    assert isinstance(error, ValueError) and str(error) == "agent 1 called twice"
    assert found == [json.loads(greeting())] * 2


def test_a_call_of_an_earlier_attempt_is_dropped():
    with listening(2) as everyone:
        context = caller(everyone[0], everyone[1]._identity)

        def call():
            with suppress(OSError, struct.error):  # the agent may close the connection early
                greeted(everyone[0], context, greeting())

        stale = threading.Thread(target=call, daemon=True)
        stale.start()
        time.sleep(0.1)
        without_errors(connected(Network.path(2), everyone, attempt=2))
        stale.join(10.0)
        assert not stale.is_alive()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b'{"attempt": [1]}',
        b'{"attempt": 1, "parts": {}, "z": 2}',
        b"[" * 5000,
        b'{"attempt":"1","parts":{}}',
        b'{"attempt":1,"parts":[]}',
    ],
)
@pytest.mark.long_from(3)
def test_a_malformed_greeting_closes_only_its_connection(text):
    with listening(2) as (first, second):
        beside(first, second, lambda: greeted(first, caller(first, second._identity), text))


def test_a_long_greeting_is_refused_before_it_is_read():
    with listening(2) as (first, second):
        context = caller(first, second._identity)
        beside(first, second, lambda: greeted(first, context, b"", length=2**20 + 1))


# --- TLS ---


@contextmanager
def between(monkeypatch, passed_on):
    """Two agents with a man in the middle, who forwards `passed_on(content)` for content of the second."""
    with listening(2) as (first, second), socket.create_server(("127.0.0.1", 0)) as middle:

        def relay(source, target, passed_on):
            try:
                while more := source.recv(65536):
                    target.sendall(passed_on(more))
            except OSError:
                pass
            finally:
                target.close()

        def listen():
            caller, _ = middle.accept()
            called = socket.create_connection(first.own[:2])
            back = threading.Thread(target=relay, args=(called, caller, bytes), daemon=True)
            back.start()
            relay(caller, called, passed_on)
            back.join(5.0)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        there = first.own._replace(port=middle.getsockname()[1])
        without_errors(
            at_once(
                [
                    lambda: first.connect({1: second.own}, 1, PARTS, 5.0),
                    lambda: second.connect({0: there}, 1, PARTS, 5.0),
                ]
            )
        )
        yield first, second
        for own in (first, second):
            own.disconnect()
        thread.join(10.0)
        assert not thread.is_alive()


def test_messages_and_greetings_are_encrypted(monkeypatch):
    seen = bytearray()

    def listens(content):
        seen.extend(content)
        return content

    canary = b"canary of the second agent"
    with between(monkeypatch, listens) as (first, second):
        second.exchange(label(), {0: canary}, {}, 5.0)
        assert first.exchange(label(), {}, {1: len(canary)}, 5.0)[1] == canary
    assert len(seen) > 32 + len(canary)
    # message, label, greeting and certificate
    secret = (canary, canary[:8], RUN, b"DESGLD", b"chains", second.own.certificate[-64:])
    assert not any(word in bytes(seen) for word in secret)


@pytest.mark.parametrize("place", ["label", "content"])
def test_an_altered_message_ends_the_connection(place, monkeypatch):
    changes = []

    def changed(content):
        if not changes:
            return content
        content = bytearray(content)
        content[10 if place == "label" else -3] ^= 1
        return bytes(content)

    with between(monkeypatch, changed) as (first, second):
        changes.append(1)
        second.exchange(label(), {0: bytes(100)}, {}, 5.0)
        with pytest.raises(LostNeighbourError, match="connection to agent 1 ended: .*BAD_RECORD_MAC"):
            first.exchange(label(), {}, {1: 100}, 5.0)


@pytest.mark.parametrize("how", ["twice", "left out"])
def test_a_repeated_or_dropped_message_ends_the_connection(how, monkeypatch):
    there, sent = {"twice": 2, "left out": 0}[how], []

    def counted(content):
        if not sent:
            return content
        sent.append(content)
        return content * (there if len(sent) == 2 else 1)

    with between(monkeypatch, counted) as (first, second):
        sent.append(b"")
        for round in range(2):
            second.exchange(label(round), {0: b"x"}, {}, 5.0)
            time.sleep(0.2)
        with pytest.raises(LostNeighbourError, match="connection to agent 1 ended: .*BAD_RECORD_MAC"):
            for round in range(2):
                first.exchange(label(round), {}, {1: 1}, 5.0)


def test_a_recorded_connection_cannot_be_replayed(monkeypatch):
    record = bytearray()

    def recorded(content):
        record.extend(content)
        return content

    with between(monkeypatch, recorded) as (first, second):
        second.exchange(label(), {0: b"x"}, {}, 5.0)
        assert first.exchange(label(), {}, {1: 1}, 5.0)[1] == b"x"

        def again():
            with socket.create_connection(first.own[:2]) as stranger:
                stranger.sendall(record)
                # the server's half of a handshake with other keys
                assert received(stranger)

        beside(first, second, again)


def test_the_private_key_is_encrypted_in_its_file(monkeypatch):
    written = []

    class File:
        def __init__(self):
            self.file = open_file()

        def __enter__(self):
            return self.file.__enter__()

        def __exit__(self, *reason):
            self.file.seek(0)
            written.append(self.file.read())
            return self.file.__exit__(*reason)

    open_file = tempfile.NamedTemporaryFile
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", File)
    Identity().context(is_server=True, peers=[])
    (content,) = written
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in content and b"BEGIN PRIVATE KEY" not in content


def test_missing_cryptography_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install \"accord\[silo\]\""):
        Channels(0, "127.0.0.1")


# --- collective operations ---


@contextmanager
def mails(network, limit=20.0):
    with joined(network) as everyone:
        found = [Communicator(network, i, own, RUN, limit) for i, own in enumerate(everyone)]
        for communicator in found:
            communicator.begin(1, 0)
        yield found


def numbers(agents, *shapes):
    """Arrays (agent, 1, ..., chain) with different dtypes."""
    rng = np.random.default_rng(1)
    kinds = [np.float32, np.float64, np.int32]
    return [(100 * rng.standard_normal((agents, 1, *shape))).astype(kinds[k % 3]) for k, shape in enumerate(shapes)]


def everywhere(found, job):
    return without_errors(
        at_once([lambda i=i, communicator=communicator: job(i, communicator) for i, communicator in enumerate(found)])
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_swap_returns_the_neighbours_messages(name):
    network = NETWORKS[name]
    x, y = numbers(network.num_agents, (3, 4), (4,))
    with mails(network) as found:
        for round in range(3):
            got = everywhere(
                found, lambda i, communicator, round=round: communicator.swap(round, EVERY_COLOR, x[i] + round, y[i])
            )
            for i, (first, second) in enumerate(got):
                neighbours = network.neighbors(i)
                np.testing.assert_array_equal(first, x[neighbours, 0] + round)
                np.testing.assert_array_equal(second, y[neighbours, 0])
                assert (first.dtype, second.dtype) == (np.float32, np.float64)
        exchanges, messages = messages_per_round(DESGLD(0.1).needs(2), network)
        assert exchanges == 1
        assert [communicator.bytes_sent for communicator in found] == (
            3 * messages * (x[0].nbytes + y[0].nbytes)
        ).tolist()


@pytest.mark.parametrize("name", CONNECTED)
def test_swap_in_a_turn_sends_to_one_colour(name):
    network, colors = NETWORKS[name], NETWORKS[name].coloring()
    (x,) = numbers(network.num_agents, (2, 3))

    def turns(i, communicator):
        return [communicator.swap(0, color, x[i] + color)[0] for color in range(colors.max() + 1)]

    with mails(network) as found:
        for i, got in enumerate(everywhere(found, turns)):
            for color, part in enumerate(got):
                receives = color == colors[i]
                np.testing.assert_array_equal(
                    part, x[network.neighbors(i), 0] + color if receives else np.zeros_like(part)
                )
                assert part.shape == (len(network.neighbors(i)), 2, 3)
        # each agent receives once from each neighbour, and so sends once to each
        assert [communicator.bytes_sent for communicator in found] == (network.degrees * x[0].nbytes).tolist()


@pytest.mark.parametrize("name", CONNECTED)
def test_total_is_the_sum_with_the_same_bytes_everywhere(name):
    network = NETWORKS[name]
    parts = numbers(network.num_agents, (3, 4), (), (5,))

    def sums(i, communicator):
        return [communicator.total(round, *(part[i, 0] for part in parts)) for round in (0, 0, 1)]

    with mails(network) as found:
        got = everywhere(found, sums)
        for times in got:
            for again in times:
                for part, mine, first in zip(parts, again, got[0][0], strict=True):
                    np.testing.assert_allclose(mine, part.astype(float).sum(axis=(0, 1)), rtol=1e-4, atol=1e-4)
                    assert np.asarray(mine).tobytes() == np.asarray(first).tobytes()
                    assert np.asarray(mine).dtype == part.dtype
        size = sum(part[0].nbytes for part in parts)
        expected = 3 * network.aggregation.sums_sent * size
        assert [communicator.bytes_sent for communicator in found] == expected.tolist()
        assert messages_per_round(GCMC(1.0).needs(2), network)[1].tolist() == network.aggregation.sums_sent.tolist()


@pytest.mark.parametrize("name", CONNECTED)
def test_letters_follow_the_given_order(name):
    network = NETWORKS[name]
    x, y = numbers(network.num_agents, (2, 3), (3,))
    rng = np.random.default_rng(4)
    # one order per chain
    order = np.stack([rng.permutation(network.num_agents) for _ in range(3)], axis=-1)[:, None]
    with mails(network) as found:
        got = everywhere(found, lambda i, communicator: communicator.permute(0, order, x[i], y[i]))
        for i, (first, second) in enumerate(got):
            np.testing.assert_array_equal(first[0], np.stack([x[order[i, 0, c], 0, :, c] for c in range(3)], axis=-1))
            np.testing.assert_array_equal(second[0], np.stack([y[order[i, 0, c], 0, c] for c in range(3)], axis=-1))
        size = x[0].nbytes + y[0].nbytes
        assert [communicator.bytes_sent for communicator in found] == (network.aggregation.letters_sent * size).tolist()
        messages = messages_per_round(HubSGLD(0.1, 2).needs(2), network)[1]
        assert messages.tolist() == network.aggregation.letters_sent.tolist()


@pytest.mark.parametrize("name", CONNECTED)
def test_all_agents_answer_queries_of_the_hub(name):
    network = NETWORKS[name]
    questions = np.random.default_rng(2).standard_normal((3, 4, 2))

    def reply(agent, question):
        return question * (agent + 1) + agent

    def session(i, communicator):
        if communicator.parent is None:
            answers = [communicator.query(question, reply(i, question)) for question in questions]
            communicator.dismiss()
            return answers
        communicator.answer(lambda content: reply(i, np.frombuffer(content).reshape(4, 2)).tobytes(), 4 * 2 * 8)
        return None

    def both(i, communicator):
        return session(i, communicator), communicator.total(1, np.float64(i)), session(i, communicator)

    with mails(network) as found:
        got = everywhere(found, both)
        root = network.aggregation.root
        for replies in (got[root][0], got[root][2]):
            for question, answers in zip(questions, replies, strict=True):
                expected = np.stack([reply(i, question) for i in range(network.num_agents)], axis=-2)
                np.testing.assert_array_equal(answers, expected)
        assert all(total == [sum(range(network.num_agents))] for _, total, _ in got)


def test_a_message_of_another_length_is_refused():
    network = Network.path(2)
    with mails(network) as found:
        outcomes = at_once(
            [
                lambda: found[0].total(0, np.zeros(3)),
                lambda: found[1].channels.exchange(label(exchange=4), {0: b"x" * 7}, {}, 5.0),
            ]
        )
    assert str(outcomes[0]) == "a message has 7 bytes, expected 24"


def sent_to_root(found, exchange, content):
    """A job in which agent 1 sends other content than a sum or letters to the root."""
    return lambda: found[1].channels.exchange(label(exchange=exchange), {0: content}, {}, 5.0)


@pytest.mark.parametrize("operation", ["total", "swap", "permute", "query"])
def test_every_operation_checks_the_length_of_messages(operation):
    network = Network.path(2)
    operations = {
        "total": (4, lambda one: one.total(0, np.zeros(3))),
        "swap": (3, lambda one: one.swap(0, EVERY_COLOR, np.zeros((1, 3)))),
        "permute": (4, lambda one: one.permute(0, np.zeros((2, 1, 1), int), np.zeros((1, 3, 1)))),
        "query": (4, lambda one: one.query(np.zeros(2), np.zeros(3))),
    }
    exchange, call = operations[operation]
    for size, message in ((25, "of 25 bytes, expected at most 24"), (23, "a message has 23 bytes, expected 24")):
        with mails(network) as found:
            answer, _ = at_once([lambda: call(found[0]), sent_to_root(found, exchange, bytes(size))])
        assert isinstance(answer, ForeignMessageError) and message in str(answer)


@pytest.mark.parametrize("size", [2, 9, 18])
def test_a_query_of_another_length_is_refused(size):
    with mails(Network.path(2)) as found:
        jobs = [
            lambda: found[0].channels.exchange(label(exchange=5), {1: bytes(size)}, {}, 5.0),
            lambda: found[1].answer(lambda content: pytest.fail("the query was answered"), 8),
        ]
        _, error = at_once(jobs)
    assert isinstance(error, ForeignMessageError)


def test_different_rounds_of_agents_are_an_error():
    network = Network.path(2)
    with mails(network) as found:
        jobs = [
            lambda: found[0].swap(0, EVERY_COLOR, np.zeros((1, 2))),
            lambda: found[1].swap(1, EVERY_COLOR, np.zeros((1, 2))),
        ]
        outcomes = at_once(jobs)
        assert all(isinstance(outcome, ForeignMessageError) for outcome in outcomes)
        assert all(communicator.failure is outcome for communicator, outcome in zip(found, outcomes, strict=True))
        assert "round 1, exchange 0, attempt 1, expected round 0" in str(outcomes[0])
        # a new attempt clears the failure
        found[0].begin(2, 0)
        assert found[0].failure is None


def test_messages_per_round_equal_sent_messages():
    """The count of each kind of exchange."""
    network = NETWORKS["random"]
    assert messages_per_round(DADMMS(1.0).needs(2), network)[1].tolist() == network.degrees.tolist()
    assert messages_per_round(DESGLD(0.1, mix_rounds=3).needs(2), network)[1].tolist() == (3 * network.degrees).tolist()
