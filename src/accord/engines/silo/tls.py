"""TLS 1.3 between agents: a certificate for each process, and a connection that never blocks."""

from __future__ import annotations

import datetime
import secrets
import socket
import ssl
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

# Certificates are compared byte by byte, so that no clock decides on them.
_VALID = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
# Bytes to take from a socket at once.
_CHUNK = 2**16


class Peer(NamedTuple):
    """The address at which an agent listens, and the certificate (DER) that it must show."""

    host: str
    port: int
    certificate: bytes


class Identity:
    """A key pair and its self-signed certificate, made for one process; the private key never leaves the process.

    Attributes
    ----------
    certificate
        The certificate (DER), which other agents receive through the driver.
    """

    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise ImportError('agents make certificates with cryptography: pip install "accord[silo]"') from error
        key = ec.generate_private_key(ec.SECP256R1())
        # OpenSSL looks certificates up by name, so that every process needs its own
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
        """The settings of one side of connections to some peers: TLS 1.3, and both sides show certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        if is_server:
            # a session that is resumed shows no certificate
            context.num_tickets = 0
        for peer in peers:
            context.load_verify_locations(cadata=peer.certificate)
        # ssl reads keys from files only; the key is encrypted there
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._chain)
            file.flush()
            context.load_cert_chain(file.name, password=self._password)
        return context


class Secure:
    """TLS over a connected socket that does not block, for one thread.

    TLS works in memory and never touches the socket: many records then take one call of the system.

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
        """The certificate (DER) of the other side, after the handshake."""
        return self._tls.getpeercert(binary_form=True)

    def has_shaken(self) -> bool:
        """Go on with the handshake; whether it is over. Then, as before each wait, `flushed` sends what is due."""
        while True:
            try:
                self._tls.do_handshake()
                return True
            except ssl.SSLWantReadError:
                if not self._read_more():
                    return False

    def write(self, content: Any) -> None:
        """Encrypt bytes for `flushed` to send."""
        self._tls.write(content)

    def flushed(self) -> bool:
        """Send as much as the socket takes; whether nothing is left."""
        while self._unsent or self._outgoing.pending:
            self._unsent = self._unsent or memoryview(self._outgoing.read())
            try:
                self._unsent = self._unsent[self.wire.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Read what has come into a buffer, as far as it goes; the number of bytes.

        Raises
        ------
        ConnectionError, ssl.SSLError
            The connection ended, or what came was changed on its way.
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
        """Take more bytes from the socket; whether there were some."""
        try:
            count = self.wire.recv_into(self._chunk)
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionError("the other side closed it")
        self._incoming.write(self._chunk[:count])
        return True
