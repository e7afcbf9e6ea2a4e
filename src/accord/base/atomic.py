"""Files that are whole or not there: written beside their place, and moved there once the disk has all of them."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview, mode: int = 0o666) -> None:
    """Write a file that, after a crash at any moment, is the old one or the new one in full.

    Parameters
    ----------
    path
        The file, in a folder that is there.
    content
        All of it.
    mode
        Its permissions, of which the umask is taken.

    Raises
    ------
    OSError
        It cannot be written, as where the disk is full: the file is named, and what was there before still is.
    """
    unfinished = path.with_name(path.name + ".partial")
    try:
        # what another run left there may have other permissions
        unfinished.unlink(missing_ok=True)
        try:
            with open(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            # on a full disk it is in the way of what could be written else
            unfinished.unlink(missing_ok=True)
            raise
        # the new name itself lives in the folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise type(error)(error.errno, f"could not be written: {error.strerror}", str(path)) from error


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, for their user alone: states and draws tell of data."""
    for one in [*reversed(folder.parents), folder]:
        one.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file for its user's eyes, in a folder that is made where there is none."""
    make_private(path.parent)
    write_whole(path, content, mode=0o600)
