"""How agents greet before they talk: both sides prove that they know the run's key, under TLS where Ray is."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
_NONCE_BYTES = 32
_LONGEST_GREETING = 2**20
# Whoever calls and has not said who it is after so long is not waited for.
_GREETING_SECONDS = 10.0

Address = tuple[str, int]
# Of who calls, and of who is called.
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


class StrangerError(Exception):
    """The peer does not know the run's key, or belongs to another attempt."""


class Greeting(NamedTuple):
    """An agent's introduction: its index, the number of the connection, and the run's `fingerprint`."""

    agent: int
    attempt: int
    parts: dict[str, str]


class Call:
    """A call to a peer, or of somebody who calls, until both sides have greeted; it never blocks.

    Parameters
    ----------
    peer
        Who is called; None for who calls.
    address
        Where.
    security
        TLS, or None.
    own
        What is told.
    key
        The run's secret.
    ends
        When a call of somebody ends that has not greeted, on the monotonic clock.
    source
        The address to call from; "" leaves it to the system.
    plain
        The connection of who calls.
    """

    def __init__(
        self,
        peer: int | None,
        address: Address | None,
        security: Contexts | None,
        own: Greeting,
        key: bytes,
        ends: float,
        source: str = "",
        plain: socket.socket | None = None,
    ) -> None:
        if plain is None:
            assert address is not None
            plain = socket.socket(family(address[0]))
            plain.bind((source, 0))
        self.peer, self.ends, self._plain = peer, ends, plain
        # of the socket, with and without TLS
        self.number = plain.fileno()
        self.waits_for, self.is_ready = 0, True
        self._steps = _greeted(plain, address, security, own, key)

    @classmethod
    def heard(cls, plain: socket.socket, security: Contexts | None, own: Greeting, key: bytes, ends: float) -> Call:
        """The call of somebody."""
        return cls(None, None, security, own, key, min(ends, time.monotonic() + _GREETING_SECONDS), plain=plain)

    def go_on(self) -> tuple[socket.socket, Greeting] | None:
        """The connection and who is there once both have greeted, else None.

        Raises
        ------
        OSError, StrangerError
            It ended, or who calls is out of time.
        """
        try:
            if self.is_ready:
                self.waits_for = next(self._steps)
        except StopIteration as end:
            return end.value
        if self.peer is None and time.monotonic() >= self.ends:
            self.close()
            raise StrangerError("it does not say who it is")
        return None

    def close(self) -> None:
        """End the call, if it is not over."""
        self._steps.close()
        # steps that have not begun close nothing
        self._plain.close()


def _greeted(
    wire: socket.socket, address: Address | None, security: Contexts | None, own: Greeting, key: bytes
) -> Generator[int, None, tuple[socket.socket, Greeting]]:
    """Greet who is there, at an address that is called or, without one, as the one who was called.

    Both sides send a random number. Then both show that they know the key, and then who they are, under signatures of
    the two numbers and of who called: no stranger can use what one agent signs to greet another.
    """
    calls = address is not None
    try:
        wire.setblocking(False)
        if address is not None:
            yield from _called(wire, address)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security is not None:
            wire = security[0 if calls else 1].wrap_socket(wire, server_side=not calls, do_handshake_on_connect=False)
            yield from _done(wire.do_handshake, select.POLLIN)
        mine = secrets.token_bytes(_NONCE_BYTES)
        yield from _sent(wire, mine)
        theirs = yield from _heard(wire, _NONCE_BYTES)
        numbers = mine + theirs if calls else theirs + mine
        text = b""
        for said in (b"", json.dumps(own._asdict()).encode()):
            yield from _sent(wire, _LENGTH.pack(len(said)) + said + _signature(key, calls, numbers, said))
            (length,) = _LENGTH.unpack((yield from _heard(wire, _LENGTH.size)))
            if length > _LONGEST_GREETING:
                raise StrangerError("it does not speak as an agent does")
            text = yield from _heard(wire, length)
            if not hmac.compare_digest((yield from _heard(wire, 32)), _signature(key, not calls, numbers, text)):
                raise StrangerError("it does not know the run's key")
        other = Greeting(**json.loads(text))
        if other.attempt != own.attempt:
            raise StrangerError(f"it is in attempt {other.attempt}, not {own.attempt}")
        return wire, other
    except BaseException:
        wire.close()
        raise


def _signature(key: bytes, calls: bool, numbers: bytes, text: bytes) -> bytes:
    return hmac.digest(key, (b"caller" if calls else b"called") + numbers + text, "sha256")


def _called(wire: socket.socket, address: Address) -> Generator[int, None, None]:
    try:
        wire.connect(address)
    except BlockingIOError:
        yield select.POLLOUT
        error = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error)) from None


def _done(action: Callable[[], Any], otherwise: int) -> Generator[int, None, Any]:
    """The result of an action on a socket, as soon as the socket lets it; it waits for `otherwise` unless TLS knows."""
    while True:
        try:
            return action()
        except ssl.SSLWantReadError:
            yield select.POLLIN
        except ssl.SSLWantWriteError:
            yield select.POLLOUT
        except BlockingIOError:
            yield otherwise


def _sent(wire: socket.socket, content: bytes) -> Generator[int, None, None]:
    while content:
        content = content[(yield from _done(partial(wire.send, content), select.POLLOUT)) :]


def _heard(wire: socket.socket, length: int) -> Generator[int, None, bytes]:
    content = b""
    while len(content) < length:
        more = yield from _done(partial(wire.recv, length - len(content)), select.POLLIN)
        if not more:
            raise ConnectionError("it hung up")
        content += more
    return content


def family(host: str) -> socket.AddressFamily:
    """Whether an address is one of IPv6."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def contexts() -> Contexts | None:
    """TLS if Ray's own connections are under it: same variables, same certificates, both sides checked."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    return _context(ssl.PROTOCOL_TLS_CLIENT), _context(ssl.PROTOCOL_TLS_SERVER)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # agents are known by certificates of one authority of their own, not by the names of machines
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context
