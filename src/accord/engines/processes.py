"""Several processes as one run, which connect to a coordinator, monitor one another and end together.

JAX aborts natively or hangs if a process is missing, has the number of another one, or dies. The processes therefore
connect before `jax.distributed.initialize` and keep the connections, which the kernel closes when a process dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..base.checks import positive, whole_number
from .fingerprint import first_difference, versions

# Name and version of the handshake protocol.
_GREETING = "accord 1"
# Largest number of bytes of a message.
_LONGEST_LINE = 2**16
# Seconds until an incoming connection must have sent its greeting.
_GREETING_SECONDS = 5.0
# Incoming connections without a greeting, beyond which the oldest is closed.
_MOST_CALLERS = 64
# Seconds that the main thread has to end by itself after another process was lost.
_GRACE_SECONDS = 2.0
# Seconds that disable JAX's own heartbeat, which aborts natively.
_NEVER = 10**6


class Place(NamedTuple):
    """The number of this process, the number of processes, and the coordinator's address."""

    coordinator: str
    num_processes: int
    process_id: int


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 60.0,
    heartbeat: float = 20.0,
) -> Membership:
    """Join this process to the other processes of a run. Call it before JAX computes anything.

    All processes run the same program in `with join(...):`, each with `engine="mesh"`. If one of them fails, dies or
    stops responding, all end with an error that names it. The error is an exception, or a line on standard error and
    exit code 1 if the main thread hangs in JAX.

    Parameters
    ----------
    coordinator
        HOST:PORT at which process 0 listens. Connections are not authenticated, so choose an address that strangers
        cannot reach.
    num_processes
        Number of processes.
    process_id
        Number of this process, from 0. Without all three, JAX reads them from the cluster that it detects (SLURM, Open
        MPI, ...). The processes then do not monitor one another, and the cluster ends all of them if one dies.
    timeout
        Seconds that processes wait for one another at the start, default 60.
    heartbeat
        Seconds without a message after which a process is lost, default 20. The death of a process is detected at once.

    Raises
    ------
    ValueError
        A number is out of range, two processes have the same number, or their counts or versions differ.
    TimeoutError
        The coordinator could not be reached, or a process did not connect. The message names it.
    RuntimeError
        JAX was used before.
    """
    positive("timeout", timeout)
    positive("heartbeat", heartbeat)
    if (coordinator, num_processes, process_id) == (None, None, None):
        return Membership(_as_cluster(), {}, heartbeat)
    place = _place(coordinator, num_processes, process_id)
    _require_unused()
    if place.num_processes == 1:
        return Membership(place, {}, heartbeat)
    meet = _receive_all if place.process_id == 0 else _connect
    peers, port = meet(place, timeout)
    membership = Membership(place, peers, heartbeat)
    try:
        _initialize(place, port)
    except BaseException as error:
        with membership:
            raise error
    return membership


class Membership:
    """The connections of a process to the others. On exit of the context it sends them its success or failure."""

    def __init__(self, place: Place, peers: dict[int, _Peer], heartbeat: float) -> None:
        self.process_id, self.num_processes = place.process_id, place.num_processes
        self._peers, self._heartbeat = peers, heartbeat
        self._lost = ""
        self._changed = threading.Condition()
        # taken by the thread that ends this process
        self._last_word = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._peers:
            return
        if error is not None and _is_transport(error):
            # JAX may notice the lost process before `_watch` does
            self._wait_for(lambda: bool(self._lost), _GRACE_SECONDS)
        if not self._last_word.acquire(blocking=False):
            # `_watch` is about to end the process
            time.sleep(2 * _GRACE_SECONDS)
        if error is None:
            if self.process_id != 0:
                # the service may be gone already
                with contextlib.suppress(RuntimeError):
                    jax.distributed.shutdown()
            self._broadcast({"done": True})
            if self.process_id == 0:
                self._wait_for(lambda: bool(self._lost) or all(p.done for p in self._peers.values()), self._heartbeat)
                jax.distributed.shutdown()
        else:
            self._broadcast({"failed": "it was interrupted" if isinstance(error, KeyboardInterrupt) else str(error)})
        if error is not None and self._lost and _is_transport(error):
            raise ConnectionError(self._lost) from error

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def _broadcast(self, message: dict[str, Any], except_to: int | None = None) -> None:
        for number, peer in self._peers.items():
            if number != except_to:
                with contextlib.suppress(OSError):
                    peer.send(message)

    def _watch(self) -> None:
        """Receive messages until a process is lost. End this process if the main thread does not."""
        last_seen = dict.fromkeys(self._peers, time.monotonic())
        listening = dict(self._peers)
        while listening and not self._lost:
            self._broadcast({"beat": True})
            ready, _, _ = select.select([peer.socket for peer in listening.values()], [], [], self._heartbeat / 4)
            for number, peer in list(listening.items()):
                lost = ""
                if peer.socket in ready:
                    last_seen[number] = time.monotonic()
                    lost = self._loss(number, peer)
                elif time.monotonic() - last_seen[number] > self._heartbeat:
                    lost = f"process {number} was silent for {self._heartbeat:g} s: its machine or the network is down"
                if peer.done:
                    del listening[number]
                if lost:
                    self._broadcast({"lost": lost}, except_to=number)
                    self._lost = lost
                    break
            with self._changed:
                self._changed.notify_all()
        if self._lost:
            time.sleep(_GRACE_SECONDS)
            if self._last_word.acquire(blocking=False):
                _end(self._lost)

    def _loss(self, number: int, peer: _Peer) -> str:
        """Read a peer's messages. Returns the error of a lost or failed process, else ""."""
        try:
            messages, open = peer.read()
        except (OSError, ValueError):
            messages, open = [], False
        for message in messages:
            if "done" in message:
                peer.done = True
            if "failed" in message:
                return f"process {number} stopped: {message['failed']}"
            if "lost" in message:
                return str(message["lost"])
        return "" if open or peer.done else f"process {number} died"


class _Peer:
    """A connection to another process, with JSON lines as messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.done = connection, False
        self._buffer = b""
        self._lock = threading.Lock()
        connection.settimeout(_GREETING_SECONDS)

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Wait for bytes. Returns the complete messages and whether the connection is open."""
        received = self.socket.recv(_LONGEST_LINE)
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        if len(self._buffer) > _LONGEST_LINE:
            raise ValueError(f"a message exceeds {_LONGEST_LINE} bytes")
        return [_message(line) for line in lines], bool(received)

    def first(self, seconds: float) -> dict[str, Any]:
        """The first message. Raises `OSError` or `ValueError` without a valid message in time."""
        deadline = time.monotonic() + seconds
        messages: list[dict[str, Any]] = []
        while not messages:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            messages, open = self.read()
            if not open and not messages:
                raise ConnectionError("the connection was closed")
        self.socket.settimeout(_GREETING_SECONDS)
        return messages[0]

    def close(self) -> None:
        self.socket.close()


def _message(line: bytes) -> dict[str, Any]:
    """A line as a message. Raises `ValueError` for any other content."""
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("a message is not a JSON object")
    return found


class _Listener:
    """Incoming connections of the coordinator, served concurrently until their greetings.

    Parameters
    ----------
    server
        The listening socket.
    """

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        server.setblocking(False)
        # deadlines of the greetings
        self.callers: dict[_Peer, float] = {}

    def greetings(self, deadline: float) -> Iterator[tuple[_Peer, dict[str, Any]]]:
        """Wait for greetings and yield them with their connections. Closes connections of strangers."""
        ends = min([deadline, *self.callers.values()])
        waiting = {caller.socket: caller for caller in self.callers}
        ready, _, _ = select.select([self.server, *waiting], [], [], max(0.0, ends - time.monotonic()))
        for wire in ready:
            if wire is self.server:
                self._let_in()
                continue
            caller = waiting[wire]
            try:
                messages, open = caller.read()
            except (OSError, ValueError):
                messages, open = [], False
            if messages and self._is_greeting(messages[0]):
                del self.callers[caller]
                yield caller, messages[0]
            elif messages or not open:
                self._drop(caller)
        for caller in [caller for caller, until in self.callers.items() if time.monotonic() >= until]:
            self._drop(caller)

    def _let_in(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            caller = _Peer(self.server.accept()[0])
            if len(self.callers) >= _MOST_CALLERS:
                self._drop(next(iter(self.callers)))
            self.callers[caller] = time.monotonic() + _GREETING_SECONDS

    @staticmethod
    def _is_greeting(message: dict[str, Any]) -> bool:
        numbers, own = [message.get("process"), message.get("of")], message.get("versions")
        if message.get("greeting") != _GREETING or any(type(number) is not int for number in numbers):
            return False
        texts = isinstance(own, dict) and all(isinstance(text, str) for text in own.values())
        return texts and 0 <= message["process"] < message["of"]

    def _drop(self, caller: _Peer) -> None:
        del self.callers[caller]
        caller.close()

    def close(self) -> None:
        """Close all connections without a greeting."""
        for caller in tuple(self.callers):
            self._drop(caller)


# Connections to the other processes, and the port of JAX's service.
Connections = tuple[dict[int, _Peer], int]


def _receive_all(place: Place, timeout: float) -> Connections:
    """As process 0, wait for all others and send them the port of JAX's service."""
    host, port = _address(place.coordinator)
    deadline = time.monotonic() + timeout
    peers: dict[int, _Peer] = {}

    def refuse(error: Exception, *more: _Peer) -> Exception:
        for peer in (*peers.values(), *more):
            with contextlib.suppress(OSError):
                peer.send({"refused": str(error)})
        return error

    with (
        _listening(host, port, place.coordinator) as server,
        contextlib.closing(_Listener(server)) as listener,
    ):
        while len(peers) < place.num_processes - 1:
            if time.monotonic() >= deadline:
                missing = [str(i) for i in range(1, place.num_processes) if i not in peers]
                text = f"only {len(peers) + 1} of {place.num_processes} processes connected to {place.coordinator} "
                which = f"process {', '.join(missing)} did not"
                raise refuse(TimeoutError(f"{text}within {timeout:g} s: {which}"))
            for peer, greeting in listener.greetings(deadline):
                mismatch = _mismatch(place, greeting, peers)
                if mismatch:
                    raise refuse(ValueError(mismatch), peer)
                peers[greeting["process"]] = peer
        with _listening(host, 0, host) as free:
            service = free.getsockname()[1]
    for peer in peers.values():
        peer.send({"service": service})
    return peers, service


def _mismatch(place: Place, greeting: dict[str, Any], peers: dict[int, _Peer]) -> str:
    number, count = greeting["process"], greeting["of"]
    if count != place.num_processes:
        return f"num_processes is {count} in process {number}, and {place.num_processes} in process 0"
    if number == 0 or number in peers:
        return f"two processes claim to be process {number} of {count}"
    difference = first_difference(greeting["versions"], versions())
    return f"process {number} and process 0 differ: {difference}" if difference else ""


def _connect(place: Place, timeout: float) -> Connections:
    """As another process than 0, connect to process 0 and receive the port of JAX's service."""
    address, deadline = _address(place.coordinator), time.monotonic() + timeout
    while True:
        try:
            peer = _Peer(socket.create_connection(address, timeout=max(0.01, deadline - time.monotonic())))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"process {place.process_id} could not reach the coordinator at {place.coordinator} within "
                    f"{timeout:g} s: {error.strerror or error}"
                ) from None
            time.sleep(0.2)
    try:
        return {0: peer}, _service_port(peer, place, timeout)
    except BaseException:
        peer.close()
        raise


def _service_port(peer: _Peer, place: Place, timeout: float) -> int:
    """Send the greeting and receive the port of JAX's service."""
    try:
        mine = {"process": place.process_id, "of": place.num_processes, "versions": versions()}
        peer.send({"greeting": _GREETING, **mine})
        # process 0 may wait for others until its own timeout, and then sends its error
        answer = peer.first(timeout + _GREETING_SECONDS)
    except TimeoutError:
        raise TimeoutError(
            f"the coordinator at {place.coordinator} accepted the connection of process {place.process_id} but did not "
            "answer: another program may be listening there"
        ) from None
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"the coordinator at {place.coordinator} closed the connection of process {place.process_id} ({error}): "
            "process 0 ended, or another program is listening there"
        ) from None
    if "refused" in answer:
        raise ValueError(str(answer["refused"]))
    port = answer.get("service")
    if type(port) is not int or not 0 < port < 2**16:
        raise ConnectionError(f"another program than process 0 is listening at {place.coordinator}")
    return port


def _listening(host: str, port: int, coordinator: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"process 0 cannot listen at {coordinator}: {error.strerror or error}. Another process 0 may be running, "
            "or the address may be another machine's."
        ) from None


def _initialize(place: Place, port: int) -> None:
    """Join JAX's service in process 0."""
    # without it JAX aborts all processes if one is lost
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    host = _address(place.coordinator)[0]
    service = _joined(host, port)
    jax.distributed.initialize(
        service if place.process_id == 0 else _relay(host, port),
        place.num_processes,
        place.process_id,
        cluster_detection_method="deactivate",
        initialization_timeout=_NEVER,
        heartbeat_timeout_seconds=_NEVER,
        shutdown_timeout_seconds=5,
        coordinator_bind_address=service,
    )


def _relay(host: str, port: int) -> str:
    """An address in this process that forwards to another address and stays open when that one closes.

    Without it JAX aborts natively when its connection to the service closes, before accord can raise an error.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, far = listener.accept()[0], None
            while far is None:
                # process 0 sends the port shortly before it listens
                with contextlib.suppress(OSError):
                    far = socket.create_connection((host, port))
                time.sleep(0.01)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=copy, args=(source, sink), daemon=True).start()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(2**16):
                sink.sendall(received)
        threading.Event().wait()

    threading.Thread(target=serve, daemon=True).start()
    return _joined(*listener.getsockname())


def _require_unused() -> None:
    """Raise `RuntimeError` if JAX was used, which then rejects another number of devices."""
    devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", max(devices, 0) + 1)
    except RuntimeError:
        text = "processes must join before JAX computes anything or lists its devices"
        raise RuntimeError(text) from None
    jax.config.update("jax_num_cpu_devices", devices)


def _as_cluster() -> Place:
    """Join the processes of the cluster that JAX detects."""
    _require_unused()
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise ValueError(f"no cluster was detected ({error}): pass coordinator, num_processes and process_id") from None
    return Place("", jax.process_count(), jax.process_index())


def _place(coordinator: str | None, num_processes: int | None, process_id: int | None) -> Place:
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(f"coordinator, num_processes and process_id go together, {' and '.join(missing)} is missing")
    count = whole_number("num_processes", num_processes, 1)
    number = whole_number("process_id", process_id, 0, count - 1)
    _address(str(coordinator))
    return Place(str(coordinator), count, number)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"coordinator must be HOST:PORT, found {coordinator!r}")
    return host.strip("[]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_transport(error: BaseException) -> bool:
    """Whether an error comes from communication between devices, which fails if another process ends."""
    # eager dispatch raises errors of Gloo as ValueError
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def _end(text: str) -> None:
    """End the process from another thread, as the main one hangs in an exchange."""
    # show the cursor, which a progress bar hides
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{shown}\nerror: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def everyones(text: str) -> list[str]:
    """The texts of all processes in order of their numbers, an all-gather that every process must call."""
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(own.size))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def require_alike(fingerprint: dict[str, str]) -> None:
    """Raise `ValueError` in all processes unless their fingerprints are equal."""
    first, *others = [json.loads(text) for text in everyones(json.dumps(fingerprint))]
    for number, other in enumerate(others, start=1):
        difference = first_difference(other, first)
        if difference is not None:
            raise ValueError(f"process {number} and process 0 have different settings: {difference}")
