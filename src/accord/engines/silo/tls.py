"""TLS 1.3 between agents, with a certificate for each process and non-blocking connections."""

from __future__ import annotations

import datetime
import secrets
import socket
import ssl
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

# Validity of certificates, unlimited because they are compared byte by byte.
_VALID = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
# Bytes per read from a socket.
_CHUNK = 2**16


class Peer(NamedTuple):
    """The listening address of an agent and its certificate (DER)."""

    host: str
    port: int
    certificate: bytes


class Identity:
    """A key pair of one process with a self-signed certificate. The private key never leaves the process.

    Attributes
    ----------
    certificate
        The certificate (DER), which the driver sends to other agents.
    """

    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise ImportError('certificates of agents need cryptography: pip install "accord[silo]"') from error
        key = ec.generate_private_key(ec.SECP256R1())
        # a unique name, as OpenSSL looks certificates up by name
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, secrets.token_hex(16))])
        begins, ends = _VALID
        builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begins, ends)
        made = builder.sign(key, hashes.SHA256())
        self.certificate: bytes = made.public_bytes(serialization.Encoding.DER)
        self._password = secrets.token_bytes(32).hex()
        self._chain: bytes = made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(self._password.encode()),
        )

    def context(self, *, is_server: bool, peers: Iterable[Peer]) -> ssl.SSLContext:
        """The TLS 1.3 settings of one side of connections to peers, with certificates of both sides."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        if is_server:
            # resumed sessions have no certificate exchange
            context.num_tickets = 0
        for peer in peers:
            context.load_verify_locations(cadata=peer.certificate)
        # ssl reads keys from files only, so the key is encrypted
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._chain)
            file.flush()
            context.load_cert_chain(file.name, password=self._password)
        return context


class Secure:
    """TLS over a connected non-blocking socket, for one thread.

    TLS works on memory buffers, so that many records take one system call.

    Attributes
    ----------
    wire
        The socket.
    """

    def __init__(self, wire: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> None:
        self.wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._unsent, self._chunk = memoryview(b""), memoryview(bytearray(_CHUNK))

    def certificate(self) -> bytes | None:
        """The peer's certificate (DER), after the handshake."""
        return self._tls.getpeercert(binary_form=True)

    def has_shaken(self) -> bool:
        """Continue the handshake. Returns whether it is complete. Call `flushed` afterwards and before each wait."""
        while True:
            try:
                self._tls.do_handshake()
                return True
            except ssl.SSLWantReadError:
                if not self._read_more():
                    return False

    def write(self, content: Any) -> None:
        """Encrypt bytes into the send buffer."""
        self._tls.write(content)

    def flushed(self) -> bool:
        """Send without blocking. Returns whether the send buffer is empty."""
        while self._unsent or self._outgoing.pending:
            self._unsent = self._unsent or memoryview(self._outgoing.read())
            try:
                self._unsent = self._unsent[self.wire.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Read available bytes into a buffer. Returns their number.

        Raises
        ------
        ConnectionError, ssl.SSLError
            The connection ended, or received bytes were altered.
        """
        filled = 0
        while filled < len(buffer):
            try:
                filled += int(self._tls.read(len(buffer) - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                if not self._read_more():
                    break
        return filled

    def _read_more(self) -> bool:
        """Read from the socket. Returns whether bytes were available."""
        try:
            count = self.wire.recv_into(self._chunk)
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionError("the peer closed the connection")
        self._incoming.write(self._chunk[:count])
        return True
