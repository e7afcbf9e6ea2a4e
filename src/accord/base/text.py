"""Small texts: the version, numbers of things, bytes, seconds."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def counted(count: int, noun: str) -> str:
    """So many things: "1 parameter", "2,000 draws"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def human_bytes(count: float) -> str:
    """A number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"


def human_seconds(seconds: float) -> str:
    """Seconds as text: "3.2 s", "45 s", "2 min 5 s", "1 h 20 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def no_formula(cell: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would run as a formula begins with a single quote."""
    if not isinstance(cell, str):
        return cell
    # the csv module does not quote a carriage return, which would begin another line
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else text
