"""One run at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..base.whole import make_private

_FILE = "in-use"
# Of file systems that have no locks; a run there is not worth refusing.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others out of a folder, which is made if it is not there.

    The system lets go of the lock when the process ends, however it ends, so that no run is refused for a dead one's
    sake. The file stays, and names who held the folder last.

    Raises
    ------
    ValueError
        Another run is in it; its process is named.
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
