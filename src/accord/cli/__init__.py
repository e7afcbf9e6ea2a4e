"""The command line."""

import os
import sys

from .commands import app
from .plugins import add_commands

__all__ = ["app", "start"]

add_commands(app)


def start() -> None:
    """Run the command line."""
    try:
        app()
    except SystemExit as end:
        # skip JAX's shutdown: it crashes during a compilation that Ctrl-C interrupted, and aborts if processes are lost
        if isinstance(end.code, int) and (end.code == 130 or (end.code and _is_one_of_several())):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code)
        raise


def _is_one_of_several() -> bool:
    """Whether JAX is connected to other processes."""
    import jax

    return jax.distributed.is_initialized()
