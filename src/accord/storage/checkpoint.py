"""Checkpoints on disk: files of arrays that are whole or not there, one writer a folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from pathlib import Path

import numpy as np

# A file is the magic, the SHA-256 of what follows, a line of JSON (tag, round, names) and the arrays as .npy, in order.
_MAGIC = b"accord checkpoint 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_NAME = re.compile(r"round-(\d+)\.checkpoint")


class Shelf:
    """One writer's checkpoints in a folder, a file a round.

    Parameters
    ----------
    folder
        Made when the first file is written; nobody else may write to it.
    tag
        Which run the files belong to.
    keep
        How many whole files are kept, the newest; None keeps all.
    """

    def __init__(self, folder: Path, tag: str, keep: int | None = 2) -> None:
        self.folder, self.tag, self.keep = Path(folder), tag, keep
        # files known to be whole, so that pruning reads none twice
        self._whole: set[int] = set()

    def write(self, round: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the file of a round; after a crash it is there in full or not at all."""
        body = io.BytesIO()
        body.write(json.dumps({"tag": self.tag, "round": int(round), "names": list(arrays)}).encode() + b"\n")
        for array in arrays.values():
            np.lib.format.write_array(body, np.asarray(array), allow_pickle=False)
        content = body.getvalue()
        write_whole(self._path(round), _MAGIC + hashlib.sha256(content).digest() + content)
        self._whole.add(int(round))
        self._prune()

    def rounds(self) -> list[int]:
        """The rounds whose file is whole, ascending; a torn or corrupt file is warned of and left out.

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
                warnings.warn(f"{damage}; it is left out", stacklevel=2)
            else:
                found.append(round)
        self._whole = set(found)
        return found

    def read(self, round: int) -> dict[str, np.ndarray]:
        """The arrays of a round.

        Raises
        ------
        ValueError
            The file is torn or corrupt, or belongs to another run.
        """
        names, body = self._content(round)
        return {name: np.lib.format.read_array(body, allow_pickle=False) for name in names}

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:012d}.checkpoint"

    def _written(self) -> list[int]:
        found = [_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.checkpoint")]
        return sorted(int(match[1]) for match in found if match)

    def _content(self, round: int) -> tuple[list[str], io.BytesIO]:
        """The names of a round's arrays, and the bytes from where they start."""
        path = self._path(round)
        content = path.read_bytes()
        start = len(_MAGIC) + _DIGEST_BYTES
        body = content[start:]
        if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : start] != hashlib.sha256(body).digest():
            raise _DamagedError(f"the checkpoint {path} is torn or corrupt")
        line, _, rest = body.partition(b"\n")
        header = json.loads(line)
        if header["tag"] != self.tag:
            raise ValueError(f"the checkpoint folder {self.folder} belongs to another run; name a new one")
        if header["round"] != round:
            raise _DamagedError(f"the checkpoint {path} holds round {header['round']}")
        return header["names"], io.BytesIO(rest)

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
    """A file that is not what was written."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that, after a crash at any moment, is the old one or the new one in full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    # the new name itself lives in the folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
