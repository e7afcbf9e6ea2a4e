"""Forks of a process that has used JAX: JAX's threads are gone in them, so that it would wait for ever."""

from __future__ import annotations

import os

from jax._src.xla_bridge import backends_are_initialized

_forked = False


def watch() -> None:
    """Notice forks from now on."""
    # not on Windows
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_look)


def _look() -> None:
    global _forked
    _forked = _forked or backends_are_initialized()


def require_no_fork() -> None:
    """Raise `RuntimeError` in a process that was forked from one that had used JAX."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one that had used JAX, whose threads are gone here, so that accord would "
            'wait for ever: start processes by multiprocessing.get_context("spawn")'
        )
