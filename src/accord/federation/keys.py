"""Keys of a site: its identity key, and the masks of one study, both on its own disk."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from ..base.atomic import write_private
from ..base.errors import DataError
from ..base.text import json_of
from ..posterior.masks import Words, integers_under_masks, new_private_key, pair_keys, under_masks

_LOST = (
    "the keys of this site's masks are lost: its file masks.json is missing, damaged or of an earlier start. Restore "
    "it, or begin a study with another seed"
)


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
        raise ValueError(f"{identity} holds no private key, see `accord study key`: {error}") from error
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


@dataclass(frozen=True)
class SiteMasks:
    """The masks of a site in one study. The keys are stored on the site's disk.

    Parameters
    ----------
    folder
        Folder for the keys, which only the site reads.
    """

    folder: Path

    def begin(self) -> bytes:
        """Create a key pair, or read the one of this study. Returns the public key."""
        from cryptography.hazmat.primitives import serialization

        state = self._read()
        if not state:
            private, public = new_private_key()
            raw = private.private_bytes(
                serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
            )
            state = {"private": text_of(raw), "public": text_of(public)}
            self._write(state)
        return bytes_of(state["public"])

    def agree(self, agent: int, publics: Sequence[bytes], study: str) -> None:
        """Derive the keys of all pairs once, and delete the private key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        state = self._read()
        if "keys" in state:
            return
        if len(set(publics)) != len(publics):
            raise ValueError("the public keys of the sites are not all different")
        if "private" not in state or publics[agent] != bytes_of(state["public"]):
            raise DataError(_LOST)
        private = X25519PrivateKey.from_private_bytes(bytes_of(state["private"]))
        keys = pair_keys(private, agent, publics, study.encode())
        keys_written = {other: text_of(key) for other, key in keys.items()}
        self._write({"public": state["public"], "agent": agent, "keys": keys_written})

    def masked(self, step: int, context: str, words: Words) -> Words:
        """The masked words of a step.

        Parameters
        ----------
        step
            Number of the step. A site masks one entry of a step only.
        context
            Digest of all earlier entries and of the plan. Masks of sites with another one do not cancel.
        words
            The site's words.
        """
        return under_masks(words, *self._keys_for(context), step + 1)

    def masked_integers(self, step: int, context: str, numbers: np.ndarray, most: np.ndarray) -> np.ndarray:
        """The masked integers of a step, modulo `most` + 1. As `masked` otherwise."""
        return integers_under_masks(numbers, most, *self._keys_for(context), step + 1)

    def _keys_for(self, context: str) -> tuple[int, dict[int, bytes]]:
        """The agent, and its keys of all pairs for one step."""
        state, use = self._read(), b"accord step 1" + context.encode()
        return state["agent"], {
            int(other): hmac.digest(bytes_of(key), use, "sha256") for other, key in state["keys"].items()
        }

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json_of((self.folder / "masks.json").read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise DataError(_LOST) from None
        return found

    def _write(self, state: dict[str, Any]) -> None:
        write_private(self.folder / "masks.json", json.dumps(state).encode())


def secret_noise(folder: Path, context: str) -> SecretNormals:
    """A generator of noise that only this site knows, the same again for the same context."""
    path = folder / "noise.key"
    if not path.is_file():
        write_private(path, text_of(os.urandom(32)).encode())
    return SecretNormals(hmac.digest(bytes_of(path.read_text()), b"accord noise 1" + context.encode(), "sha256"))


class SecretNormals:
    """Standard normal numbers from a ChaCha20 keystream. Some of them do not reveal the others.

    Parameters
    ----------
    key
        32 bytes, secret and used once.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives import ciphers

        self._stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def standard_normal(self, size: int | tuple[int, ...]) -> np.ndarray:
        """The next numbers, of this shape."""
        bits = np.frombuffer(self._stream.update(bytes(8 * int(np.prod(size)))), "<u8")
        # the upper 53 bits, as the centre of an interval in (0, 1)
        return ndtri(((bits >> np.uint64(11)) + 0.5) * 2.0**-53).reshape(size)


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


def row_hashes(folder: Path, rows: Iterable[str]) -> list[str]:
    """Hashes of rows of a site's file as texts, with a key that only the site's folder has.

    Equal rows have different ones.
    """
    path = folder / "rows.key"
    if not path.is_file():
        write_private(path, os.urandom(32).hex().encode())
    key, times, found = bytes.fromhex(path.read_text()), dict[str, int](), []
    for text in rows:
        times[text] = times.get(text, 0) + 1
        # texts with bytes that are no UTF-8 have surrogates
        found.append(hmac.digest(key, f"{times[text]} {text}".encode("utf-8", "surrogatepass"), "sha256")[:16].hex())
    return found
