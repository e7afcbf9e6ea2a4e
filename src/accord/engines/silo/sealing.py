"""What agents send is sealed: under keys of one connection, agreed on by agents that know each other's public keys."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

PUBLIC_BYTES = 32
# What sealing adds to a message: the tag that tells whether it was changed.
TAG_BYTES = 16
_SIGNATURE_BYTES = 64
_NONCE = struct.Struct("<IQ")


class Peer(NamedTuple):
    """Where an agent listens, and the public key that whoever signs in its name has to have."""

    host: str
    port: int
    public: bytes


class BrokenSealError(ConnectionError):
    """A message was changed on its way, or was sealed under another key."""


class Identity:
    """An agent's key pair (Ed25519), which stays in its process.

    Attributes
    ----------
    public
        The public key, 32 bytes.
    """

    def __init__(self) -> None:
        require_sealing()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def signed(self, text: bytes, transcript: bytes) -> bytes:
        """A text behind the agent's signature of it and of what was said before it."""
        return self._private.sign(transcript + text) + text


def unsigned(content: bytes) -> bytes:
    """The text of what `Identity.signed` made, whoever it was."""
    return content[_SIGNATURE_BYTES:]


def require_signed(public: bytes, content: bytes, transcript: bytes) -> None:
    """Raise `BrokenSealError` unless the owner of a public key has made what `Identity.signed` makes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(content[:_SIGNATURE_BYTES], transcript + unsigned(content))
    except (InvalidSignature, ValueError):
        raise BrokenSealError("its signature is not of the key that the agent has") from None


class Seal:
    """One direction of a connection: ChaCha20-Poly1305, each message under the next number.

    A message that was changed, left out, repeated or put in another place does not open.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self._cipher, self._count = ChaCha20Poly1305(key), 0

    def closed(self, content: Any) -> bytes:
        """The next message, `TAG_BYTES` longer."""
        return self._cipher.encrypt(self._next(), content, None)

    def opened(self, content: Any) -> bytes:
        """What the next message holds; `BrokenSealError` if it is not the one that was sealed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(self._next(), content, None)
        except InvalidTag:
            raise BrokenSealError("a message was changed on its way") from None

    def _next(self) -> bytes:
        self._count += 1
        return _NONCE.pack(0, self._count)


class Agreement:
    """One side of a new connection, until both know its keys: X25519 with keys that are used once.

    What is recorded on the way stays closed to whoever learns the run's secret or an agent's key later.

    Attributes
    ----------
    public
        What the other side is sent, 32 bytes.
    """

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def seals(self, theirs: bytes, secret: bytes, calls: bool) -> tuple[Seal, Seal, bytes]:
        """The seals of what is sent and of what comes, and what both sides said so far.

        Parameters
        ----------
        theirs
            The public key of the other side.
        secret
            The run's: who does not know it has other keys.
        calls
            Whether this side is the one that calls.

        Raises
        ------
        BrokenSealError
            What the other side sent is no public key.
        """
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        said = b"accord silo 1" + (self.public + theirs if calls else theirs + self.public)
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError as error:
            raise BrokenSealError(f"it sent no public key: {error}") from None
        keys = HKDF(hashes.SHA256(), 64, salt=secret, info=said).derive(shared)
        caller, called = Seal(keys[:32]), Seal(keys[32:])
        return (caller, called, said) if calls else (called, caller, said)


def require_sealing() -> None:
    """Raise `ImportError` where `cryptography` is not installed: agents talk sealed or not at all."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ImportError('agents seal what they send with cryptography: pip install "accord[silo]"') from error
