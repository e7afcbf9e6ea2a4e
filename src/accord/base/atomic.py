"""Atomic writes: a temporary file in the same folder, synced to disk and then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview, mode: int = 0o666) -> None:
    """Write a file atomically: after a crash it has the old content or the new content.

    Parameters
    ----------
    path
        The file, in an existing folder.
    content
        The content.
    mode
        The permissions before the umask applies.

    Raises
    ------
    OSError
        The file cannot be written, for example on a full disk. The old file is kept.
    """
    unfinished = path.with_name(path.name + ".partial")
    try:
        # a leftover of another run may have other permissions
        unfinished.unlink(missing_ok=True)
        try:
            with open(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            # frees space on a full disk
            unfinished.unlink(missing_ok=True)
            raise
        # makes the rename durable
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise type(error)(error.errno, f"could not be written: {error.strerror}", str(path)) from error


def make_private(folder: Path) -> None:
    """Create a folder and missing parents with mode 0o700, because states and draws reveal data."""
    for one in [*reversed(folder.parents), folder]:
        one.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically with mode 0o600, and create its folder if missing."""
    make_private(path.parent)
    write_whole(path, content, mode=0o600)
