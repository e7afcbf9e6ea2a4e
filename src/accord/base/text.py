"""Small texts: the version, numbers of bytes."""

from __future__ import annotations

__version__ = "0.1.0"


def human_bytes(count: float) -> str:
    """A number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"
