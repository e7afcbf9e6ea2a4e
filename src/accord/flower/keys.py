"""A site's keys: an identity that its peers know, and the masks of one run, kept on its own disk."""

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
    """Write a new private key to a file that only its owner reads, and return the public one.

    Raises
    ------
    FileExistsError
        There is such a file.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text_of(private.private_bytes_raw()) + "\n")
    return text_of(private.public_key().public_bytes_raw())


def text_of(key: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(key).decode()


def bytes_of(text: str) -> bytes:
    """Bytes of such a text; `ValueError` where it is none."""
    return base64.b64decode(text, validate=True)


def signature(identity: Path, message: bytes) -> bytes:
    """A message signed by the private key of a file."""
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
    """What a site signs: its public key of one run of one study."""
    return b"\0".join([b"accord flower key 1", session.encode(), study.encode(), site.encode(), public])


@dataclass
class KeptMasks:
    """The masks of a site in one run, whose keys and count outlive its process.

    Masks are those of a request: sites that were asked for different things have masks that do not cancel, and what is
    asked again is under the same masks as before. No other words are ever under them.

    Parameters
    ----------
    folder
        Where they are kept, which only the site reads.
    """

    folder: Path

    def begin(self) -> bytes:
        """Make a key pair, in place of the one before, and return the public key."""
        from cryptography.hazmat.primitives import serialization

        private, public = new_private_key()
        raw = private.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        self._write({"private": text_of(raw), "public": text_of(public)})
        return public

    def agree(self, agent: int, publics: Sequence[bytes], run: bytes) -> None:
        """Make the keys of all pairs; the private key is forgotten."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        state = self._read()
        if len(set(publics)) != len(publics):
            raise ValueError("the public keys that are given out are not different ones")
        if "private" not in state or bytes_of(state["public"]) != publics[agent]:
            raise ValueError("the public key that is given out for this site is not its own")
        private = X25519PrivateKey.from_private_bytes(bytes_of(state["private"]))
        keys = pair_keys(private, agent, publics, run)
        self._write({"agent": agent, "keys": {other: text_of(key) for other, key in keys.items()}, "last": 0})

    def masked(self, count: int, words: Words, request: bytes) -> Words:
        """The words of a sum under its masks; `request` is what was asked for, whose bytes are the same at all sites.

        Raises
        ------
        ValueError
            The masks of this sum may have been used, or no keys have been agreed on.
        """
        state = self._read()
        if "keys" not in state:
            raise ValueError("no keys have been agreed on")
        asked = hashlib.sha256(request).digest()
        is_again = count == state["last"] and state.get("asked") == text_of(asked)
        if not (is_again or state["last"] < count):
            raise ValueError(f"the masks of sum {count} may have been used: the last one was {state['last']}")
        self._write({**state, "last": count, "asked": text_of(asked)})
        keys = {
            int(other): hmac.digest(bytes_of(key), b"accord request 1" + asked, "sha256")
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
    """Keep other processes out of a folder: a site answers one request after another."""
    with open(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(found: bytes) -> str:
    """A short name of bytes."""
    return hashlib.sha256(found).hexdigest()


def is_digest(found: Any) -> bool:
    """Whether it is written as such a name."""
    return isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) is not None
