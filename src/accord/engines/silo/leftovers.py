"""Folders among a site's temporary files: held while somebody works with them, and cleared away when nobody can."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_NAME = re.compile("accord-[0-9a-f]{16}")
# Seconds after which a folder that nobody holds is of a driver that was killed: agents that begin anew hold theirs.
_FORGOTTEN = 86_400.0


class Holds:
    """The folders that a process works with; the system lets go of them when it ends, however it ends."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def hold(self, folder: Path) -> None:
        """Keep others from clearing a folder away, which is there."""
        if folder not in self._open:
            descriptor = os.open(folder, os.O_RDONLY)
            # where a file system has no locks, folders are cleared away by their age alone
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._open[folder] = descriptor

    def let_go(self, folder: Path) -> None:
        """Hold it no longer."""
        if folder in self._open:
            os.close(self._open.pop(folder))


def clear_forgotten() -> None:
    """Remove this user's folders that nobody holds and in which nothing has changed for a day."""
    for folder in Path(tempfile.gettempdir()).glob("accord-*"):
        # what goes away meanwhile, or is somebody else's, is no concern
        with suppress(OSError):
            own = _NAME.fullmatch(folder.name) and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if own and time.time() - _changed(folder) > _FORGOTTEN:
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _changed(folder: Path) -> float:
    """When something in a folder changed last."""
    return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])
