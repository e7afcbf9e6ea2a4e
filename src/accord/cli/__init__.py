"""The command line."""

import os
import sys

from .commands import app

__all__ = ["app", "start"]


def start() -> None:
    """Run the command line."""
    try:
        app()
    except SystemExit as end:
        if end.code == 130:
            # a compilation that Ctrl-C left goes on in a thread of JAX, and crashes when Python frees JAX at exit
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(130)
        raise
