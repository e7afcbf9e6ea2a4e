"""Forks of a process that has used accord: JAX's threads are gone in them, so that the fork would hang.

Of forks of a process that has used JAX alone, JAX itself warns.
"""

from __future__ import annotations

import os

_used = _forked = False


def require_no_fork() -> None:
    """Notice forks from now on; raise `RuntimeError` in one of a process that had used accord."""
    global _used
    if _forked:
        raise RuntimeError(
            "this process was forked from one that had used JAX, whose threads are gone here, so that accord would "
            'hang: start processes by multiprocessing.get_context("spawn")'
        )
    # not on Windows
    if not _used and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked_now)
    _used = True


def _forked_now() -> None:
    global _forked
    _forked = True
