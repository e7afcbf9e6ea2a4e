"""Keys of a site: its identity key, and the masks of one run, both on its own disk."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.atomic import write_private
from ..posterior.masks import Words, new_private_key, pair_keys, under_masks


def new_identity(path: Path) -> str:
    """Write a new private key to a file with mode 0600. Returns the public key.

    Raises
    ------
    FileExistsError
        The file exists.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text_of(private.private_bytes_raw()) + "\n")
    return text_of(private.public_key().public_bytes_raw())


def text_of(key: bytes) -> str:
    """Base64 text of bytes."""
    return base64.b64encode(key).decode()


def bytes_of(text: str) -> bytes:
    """Bytes from base64 text. Raises `ValueError` for other texts."""
    return base64.b64decode(text, validate=True)


def signature(identity: Path, message: bytes) -> bytes:
    """The signature of a message by the private key in a file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = Ed25519PrivateKey.from_private_bytes(bytes_of(identity.read_text().strip()))
    except (ValueError, OSError) as error:
        raise ValueError(f"{identity} holds no private key, see `accord flower key`: {error}") from error
    return private.sign(message)


def is_signed(public: str, message: bytes, signed: bytes) -> bool:
    """Whether the owner of a public key has signed a message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes_of(public)).verify(signed, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def statement(session: str, study: str, site: str, public: bytes) -> bytes:
    """The message that a site signs: its public key for one run of one study."""
    return b"\0".join([b"accord flower key 1", session.encode(), study.encode(), site.encode(), public])


@dataclass
class KeptMasks:
    """The masks of a site in one run. Keys and count are stored on disk.

    Masks depend on the bytes of a request: they cancel only if all sites got the same request. A repeated request has
    the same masks, and no other words are ever masked by them.

    Parameters
    ----------
    folder
        Folder for keys and count, which only the site reads.
    """

    folder: Path

    def begin(self) -> bytes:
        """Create a key pair in place of the previous one. Returns the public key."""
        from cryptography.hazmat.primitives import serialization

        private, public = new_private_key()
        raw = private.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        self._write({"private": text_of(raw), "public": text_of(public)})
        return public

    def agree(self, agent: int, publics: Sequence[bytes], run: bytes) -> None:
        """Derive the keys of all pairs, and delete the private key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        state = self._read()
        if len(set(publics)) != len(publics):
            raise ValueError("the public keys of the sites are not all different")
        if "private" not in state or bytes_of(state["public"]) != publics[agent]:
            raise ValueError("the public key that the server sent for this site is not its own")
        private = X25519PrivateKey.from_private_bytes(bytes_of(state["private"]))
        keys = pair_keys(private, agent, publics, run)
        self._write({"agent": agent, "keys": {other: text_of(key) for other, key in keys.items()}, "last": 0})

    def masked(self, count: int, words: Words, request: bytes) -> Words:
        """The masked words of a sum. The bytes of `request` are the same at all sites.

        Raises
        ------
        ValueError
            The masks of this sum may have been used before, or no keys were exchanged.
        """
        state = self._read()
        if "keys" not in state:
            raise ValueError("no keys have been exchanged")
        request_hash = hashlib.sha256(request).digest()
        is_again = count == state["last"] and state.get("asked") == text_of(request_hash)
        if not (is_again or state["last"] < count):
            raise ValueError(f"the masks of sum {count} may have been used: the last one was {state['last']}")
        self._write({**state, "last": count, "asked": text_of(request_hash)})
        keys = {
            int(other): hmac.digest(bytes_of(key), b"accord request 1" + request_hash, "sha256")
            for other, key in state["keys"].items()
        }
        return under_masks(words, state["agent"], keys, count)

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "masks.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def _write(self, state: dict[str, Any]) -> None:
        write_private(self.folder / "masks.json", json.dumps(state).encode())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, so that a site answers one request at a time."""
    with open(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(found: bytes) -> str:
    """The SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(found).hexdigest()


def is_digest(found: Any) -> bool:
    """Whether a value has the format of `digest`."""
    return isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) is not None
