"""Checkpoints on disk, written atomically by one writer per folder."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import io
import json
import os
import re
import socket
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..base.atomic import make_private, write_private

# Environment variable with the user's key.
_KEY = "ACCORD_CHECKPOINT_KEY"
# Name of the array with the JSON of the tag and the round, in a file of `np.savez`.
_METADATA = "checkpoint"
# Bytes of the SHA-256 of all bytes before it, in the zip comment, because CRC-32 does not cover a zip's headers. With a
# key the HMAC-SHA256 of all bytes before it follows.
_DIGEST_BYTES = hashlib.sha256().digest_size
_NAME = re.compile(r"round-(\d+)\.npz")


class CheckpointStore:
    """One writer's checkpoints in a folder, one file per round.

    Parameters
    ----------
    folder
        Folder of this writer only, created with the first file.
    tag
        Identifies the run.
    keep
        Number of newest valid files to keep. None keeps all.
    key
        Key that signs files on writing and verifies them on reading. b"": the user's key in the environment variable
        ACCORD_CHECKPOINT_KEY. Without both, files are not signed.
    """

    def __init__(self, folder: Path, tag: str, keep: int | None = 2, key: bytes = b"") -> None:
        self.folder, self.tag, self.keep = Path(folder), tag, keep
        self.key = key or os.environ.get(_KEY, "").encode()
        # rounds of files known to be valid, so that pruning reads no file twice
        self._whole: set[int] = set()

    def write(self, round: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the file of a round atomically."""
        about = json.dumps({"tag": self.tag, "round": int(round)})
        write_private(self._path(round), _packed({_METADATA: np.array(about), **arrays}, self.key))
        self._whole.add(int(round))
        self._prune()

    def rounds(self) -> list[int]:
        """The rounds with a valid file, ascending. Warns about a truncated or corrupt file and skips it.

        Raises
        ------
        ValueError
            A file belongs to another run.
        """
        found = []
        for round in self._written():
            try:
                self._content(round)
            except _DamagedError as damage:
                warnings.warn(f"{damage} and is skipped", stacklevel=2)
            else:
                found.append(round)
        self._whole = set(found)
        return found

    def read(self, round: int) -> dict[str, np.ndarray]:
        """The arrays of a round.

        Raises
        ------
        ValueError
            The file is truncated or corrupt, or belongs to another run.
        """
        found = self._content(round)
        return {name: found[name] for name in found if name != _METADATA}

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:012d}.npz"

    def _written(self) -> list[int]:
        found = [_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.npz")]
        return sorted(int(match[1]) for match in found if match)

    def _content(self, round: int) -> Any:
        """The validated file of a round, as `np.load` opens it."""
        path = self._path(round)
        content = path.read_bytes()
        signed = len(content) - (_DIGEST_BYTES if self.key else 0)
        body, digest = content[: max(0, signed - _DIGEST_BYTES)], content[max(0, signed - _DIGEST_BYTES) : signed]
        if digest != hashlib.sha256(body).digest():
            raise _DamagedError(f"the checkpoint {path} is truncated or corrupt")
        if self.key and not hmac.compare_digest(content[signed:], _signature(self.key, content[:signed])):
            raise ValueError(f"the checkpoint {path} is not signed with this run's key")
        try:
            found = np.load(io.BytesIO(content), allow_pickle=False)
            about = json.loads(str(found[_METADATA]))
            about["tag"], about["round"]
        except Exception as error:
            # another program can write a valid hash
            raise _DamagedError(f"the checkpoint {path} was not written by accord") from error
        if about["tag"] != self.tag:
            raise ValueError(f"the folder {self.folder} belongs to another run. Use a new checkpoint folder.")
        if about["round"] != round:
            raise _DamagedError(f"the checkpoint {path} contains round {about['round']}")
        return found

    def _prune(self) -> None:
        if self.keep is None:
            return
        left = self.keep
        for round in reversed(self._written()):
            if left == 0:
                self._path(round).unlink()
                self._whole.discard(round)
            elif self._is_whole(round):
                left -= 1

    def _is_whole(self, round: int) -> bool:
        if round not in self._whole:
            try:
                self._content(round)
            except _DamagedError:
                return False
            self._whole.add(round)
        return True


class _DamagedError(ValueError):
    """A file is damaged or was not written by accord."""


def _packed(arrays: dict[str, np.ndarray], key: bytes) -> bytes:
    """Bytes of an .npz file of arrays that end in their hash and, with a key, a signature."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    # `savez` of NumPy 2.1 has no option against pickles, which `load` then rejects
    pickled = [name for name, array in arrays.items() if array.dtype.hasobject]
    if pickled:
        raise ValueError(f"a checkpoint holds arrays of numbers, found objects under {pickled[0]!r}")
    body = io.BytesIO()
    np.savez(body, **arrays)  # type: ignore[arg-type]
    with zipfile.ZipFile(body, "a") as archive:
        archive.comment = bytes(_DIGEST_BYTES + (_DIGEST_BYTES if key else 0))
    content = body.getvalue()[: -len(archive.comment)]
    content += hashlib.sha256(content).digest()
    return content + _signature(key, content) if key else content


def _signature(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


_FILE = "in-use"
# Errors of file systems without locks, on which runs are allowed.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder for this process and create the folder if it is missing.

    The operating system releases the lock when the process ends or crashes. The lock file stays and names the last
    process.

    Raises
    ------
    ValueError
        Another run uses the folder. The message names its process.
    """
    make_private(folder)
    path = folder / _FILE
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"the checkpoint folder {folder} is in use by {file.read() or 'another run'}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
