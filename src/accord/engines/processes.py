"""Several processes as one run: they meet at an address, watch over one another, and end together.

JAX itself tells processes that never came, two with one number, or one that died, by aborting natively or not at all.
So they meet before JAX is asked to join them, and keep the connection: the kernel closes it the moment a process dies.
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

_GREETING = "accord 1"
# A greeting or a last word; what comes to an open port from elsewhere may have any length.
_LONGEST_LINE = 2**16
# How long an unknown caller may take to say who it is.
_GREETING_SECONDS = 5.0
# Callers who have not said it yet; of more than these the oldest is hung up on.
_MOST_CALLERS = 64
# How long the main thread may take to end by itself after another process was lost.
_GRACE_SECONDS = 2.0
# JAX's own watch aborts natively; ours is quicker, and its never acts.
_NEVER = 10**6


class Place(NamedTuple):
    """Which of how many processes this is, and where they meet."""

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
    """Make this process one of several that run together; to be called before JAX computes anything.

    All processes run the same program in `with join(...):`, each with `engine="mesh"`. Where one of them fails, dies or
    falls silent, all end with an error that names it: by an exception, or, if JAX does not let go of the main thread,
    by a line on standard error and exit code 1.

    Parameters
    ----------
    coordinator
        HOST:PORT where process 0 listens, on that address only. What arrives there is not authenticated: choose an
        address that strangers cannot reach.
    num_processes
        How many processes there are.
    process_id
        Which one this is, from 0. With all three left out, JAX takes them from the cluster that it detects (SLURM,
        Open MPI, ...). Processes do not watch one another then: the cluster ends all of them where one dies.
    timeout
        Seconds that processes wait for one another at the start.
    heartbeat
        Seconds of silence after which a process counts as lost. One that dies is noticed at once.

    Raises
    ------
    ValueError
        A number is out of range, two processes claim the same, or they differ in their count or versions.
    TimeoutError
        The coordinator could not be reached, or a process did not come; it is named.
    RuntimeError
        JAX has computed something already.
    """
    positive("timeout", timeout)
    positive("heartbeat", heartbeat)
    if (coordinator, num_processes, process_id) == (None, None, None):
        return Membership(_as_cluster(), {}, heartbeat)
    place = _place(coordinator, num_processes, process_id)
    _require_unused()
    if place.num_processes == 1:
        return Membership(place, {}, heartbeat)
    meet = _receive_all if place.process_id == 0 else _report
    peers, port = meet(place, timeout)
    membership = Membership(place, peers, heartbeat)
    try:
        _initialize(place, port)
    except BaseException as error:
        with membership:
            raise error
    return membership


class Membership:
    """One process among the others, as a context manager that says at its end how it ended."""

    def __init__(self, place: Place, peers: dict[int, _Peer], heartbeat: float) -> None:
        self.process_id, self.num_processes = place.process_id, place.num_processes
        self._peers, self._heartbeat = peers, heartbeat
        self._lost = ""
        self._changed = threading.Condition()
        # whoever takes it says how this process ended
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
            # the connection of the lost process and ours to it are closed at about the same time
            self._wait_for(lambda: bool(self._lost), _GRACE_SECONDS)
        if not self._last_word.acquire(blocking=False):
            # the watch is about to end the process
            time.sleep(2 * _GRACE_SECONDS)
        if error is None:
            if self.process_id != 0:
                # a service that is gone now is no concern of this process any more
                with contextlib.suppress(RuntimeError):
                    jax.distributed.shutdown()
            self._tell({"done": True})
            if self.process_id == 0:
                self._wait_for(lambda: bool(self._lost) or all(p.done for p in self._peers.values()), self._heartbeat)
                jax.distributed.shutdown()
        else:
            self._tell({"failed": "it was interrupted" if isinstance(error, KeyboardInterrupt) else str(error)})
        if error is not None and self._lost and _is_transport(error):
            raise ConnectionError(self._lost) from error

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        for number, peer in self._peers.items():
            if number != but:
                with contextlib.suppress(OSError):
                    peer.send(message)

    def _watch(self) -> None:
        """Hear the others until one is lost; end the process if the main thread does not."""
        heard = dict.fromkeys(self._peers, time.monotonic())
        listening = dict(self._peers)
        while listening and not self._lost:
            self._tell({"beat": True})
            ready, _, _ = select.select([peer.socket for peer in listening.values()], [], [], self._heartbeat / 4)
            for number, peer in list(listening.items()):
                lost = ""
                if peer.socket in ready:
                    heard[number] = time.monotonic()
                    lost = self._heard(number, peer)
                elif time.monotonic() - heard[number] > self._heartbeat:
                    lost = f"process {number} was silent for {self._heartbeat:g} s: its machine or the network is down"
                if peer.done:
                    del listening[number]
                if lost:
                    self._tell({"lost": lost}, but=number)
                    self._lost = lost
                    break
            with self._changed:
                self._changed.notify_all()
        if self._lost:
            time.sleep(_GRACE_SECONDS)
            if self._last_word.acquire(blocking=False):
                _end(self._lost)

    def _heard(self, number: int, peer: _Peer) -> str:
        """The complaint about a peer, by the report that it sent; empty if there is none."""
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
    """Another process: lines of JSON over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.done = connection, False
        self._buffer = b""
        self._lock = threading.Lock()
        connection.settimeout(_GREETING_SECONDS)

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The messages that have come, at least a part of one, and whether more may come."""
        received = self.socket.recv(_LONGEST_LINE)
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        if len(self._buffer) > _LONGEST_LINE:
            raise ValueError("a line is too long")
        return [_message(line) for line in lines], bool(received)

    def first(self, seconds: float) -> dict[str, Any]:
        """The first message, a dict; `OSError` or `ValueError` if none comes or it is something else."""
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
    """A line as a message; `ValueError` where it is none, whatever it is."""
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError("a line is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a message")
    return found


class _Door:
    """Callers of the coordinator, heard all at the same time until they have said who they are.

    Parameters
    ----------
    server
        Where they call.
    """

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        server.setblocking(False)
        # until when each may say it
        self.callers: dict[_Peer, float] = {}

    def greetings(self, deadline: float) -> Iterator[tuple[_Peer, dict[str, Any]]]:
        """Those who say now that they are a process of the run; strangers are hung up on."""
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
        """Hang up on all who have not said who they are."""
        for caller in tuple(self.callers):
            self._drop(caller)


# The others, and the port of JAX's service.
SiteCollectives = tuple[dict[int, _Peer], int]


def _receive_all(place: Place, timeout: float) -> SiteCollectives:
    """Process 0: wait for all others and tell them the port of JAX's service."""
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
        contextlib.closing(_Door(server)) as door,
    ):
        while len(peers) < place.num_processes - 1:
            if time.monotonic() >= deadline:
                missing = [str(i) for i in range(1, place.num_processes) if i not in peers]
                text = f"only {len(peers) + 1} of {place.num_processes} processes came to {place.coordinator} within "
                which = f"process {', '.join(missing)} did not"
                raise refuse(TimeoutError(f"{text}{timeout:g} s: {which}"))
            for peer, greeting in door.greetings(deadline):
                complaint = _complaint(place, greeting, peers)
                if complaint:
                    raise refuse(ValueError(complaint), peer)
                peers[greeting["process"]] = peer
        with _listening(host, 0, host) as free:
            service = free.getsockname()[1]
    for peer in peers.values():
        peer.send({"service": service})
    return peers, service


def _complaint(place: Place, greeting: dict[str, Any], peers: dict[int, _Peer]) -> str:
    number, count = greeting["process"], greeting["of"]
    if count != place.num_processes:
        return f"process {number} was told of {count} processes, process 0 of {place.num_processes}"
    if number == 0 or number in peers:
        return f"two processes claim to be process {number} of {count}"
    difference = first_difference(greeting["versions"], versions())
    return f"process {number} and process 0 differ: {difference}" if difference else ""


def _report(place: Place, timeout: float) -> SiteCollectives:
    """All but process 0: go to it, and hear where JAX's service is."""
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
        return {0: peer}, _told(peer, place, timeout)
    except BaseException:
        peer.close()
        raise


def _told(peer: _Peer, place: Place, timeout: float) -> int:
    """The port of JAX's service, as process 0 tells it."""
    try:
        mine = {"process": place.process_id, "of": place.num_processes, "versions": versions()}
        peer.send({"greeting": _GREETING, **mine})
        # process 0 may have begun to wait when we came, and tells us why it stops
        answer = peer.first(timeout + _GREETING_SECONDS)
    except TimeoutError:
        raise TimeoutError(
            f"the coordinator at {place.coordinator} took the call of process {place.process_id} but did not answer: "
            "something else may be listening there"
        ) from None
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"the coordinator at {place.coordinator} sent process {place.process_id} away ({error}): process 0 ended, "
            "or something else is listening there"
        ) from None
    if "refused" in answer:
        raise ValueError(str(answer["refused"]))
    port = answer.get("service")
    if type(port) is not int or not 0 < port < 2**16:
        raise ConnectionError(f"something else than process 0 is listening at {place.coordinator}")
    return port


def _listening(host: str, port: int, coordinator: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"process 0 cannot listen at {coordinator}: {error.strerror or error}; another process 0 may run, or the "
            "address be another machine's"
        ) from None


def _initialize(place: Place, port: int) -> None:
    """Join JAX's service, which is in process 0."""
    # or else JAX aborts all processes where one is lost
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
    """An address in this process that passes all on to another one, and stays open when that goes.

    JAX aborts natively where its connection to the service closes, before anybody could say why.
    """
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, far = door.accept()[0], None
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
    return _joined(*door.getsockname())


def _require_unused() -> None:
    """Raise `RuntimeError` where JAX has computed something: it refuses another number of devices then."""
    devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", max(devices, 0) + 1)
    except RuntimeError:
        text = "processes must join before JAX computes anything or is asked for its devices"
        raise RuntimeError(text) from None
    jax.config.update("jax_num_cpu_devices", devices)


def _as_cluster() -> Place:
    """Join as the cluster says that this process runs in."""
    _require_unused()
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise ValueError(f"no cluster was detected ({error}): give coordinator, num_processes and process_id") from None
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
    """Whether an error may come of another process' end: what JAX raises where devices exchange."""
    # JAX raises the errors of Gloo as ValueError where it dispatches eagerly
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def _end(text: str) -> None:
    """End the process from another thread than the main one, which hangs in an exchange."""
    # a progress bar may be on the line, and hides the cursor
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{shown}\nerror: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def everyones(text: str) -> list[str]:
    """The texts of all processes, in their order; every process calls it."""
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(own.size))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def require_alike(fingerprint: dict[str, str]) -> None:
    """Raise `ValueError`, in all processes, unless all of them have one fingerprint."""
    first, *others = [json.loads(text) for text in everyones(json.dumps(fingerprint))]
    for number, other in enumerate(others, start=1):
        difference = first_difference(other, first)
        if difference is not None:
            raise ValueError(f"process {number} and process 0 do not run the same: {difference}")
