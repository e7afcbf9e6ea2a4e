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
        # a compilation that Ctrl-C left goes on in a thread of JAX, and crashes when Python frees JAX at exit; and JAX
        # aborts where it takes leave of processes that are gone
        if isinstance(end.code, int) and (end.code == 130 or (end.code and _is_one_of_several())):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code)
        raise


def _is_one_of_several() -> bool:
    """Whether JAX still knows other processes."""
    import jax

    return jax.distributed.is_initialized()
