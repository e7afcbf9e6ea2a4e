"""Forks of a process that has used accord: JAX's threads are gone in them, so that the fork would hang.

Of forks of a process that has used JAX alone, JAX itself warns.
"""

from __future__ import annotations

import os

_used = _forked = False


def watch() -> None:
    """Notice forks from now on."""
    # not on Windows
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_look)


def _look() -> None:
    global _forked
    _forked = _forked or _used


def require_no_fork() -> None:
    """Raise `RuntimeError` in a process that was forked from one that had used accord."""
    global _used
    if _forked:
        raise RuntimeError(
            "this process was forked from one that had used JAX, whose threads are gone here, so that accord would "
            'hang: start processes by multiprocessing.get_context("spawn")'
        )
    _used = True
