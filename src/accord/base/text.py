"""The version, counts, bytes and seconds as text, and texts and JSON of others."""

from __future__ import annotations

import json
from typing import Any

__version__ = "0.1.0"
# Most levels of nested JSON values.
_DEEPEST = 64


def cleaned(text: object, most: int = 1_000) -> str:
    r"""A text of another site as one printable line of at most `most` characters.

    Examples
    --------
    >>> cleaned("no\n\x1b[2JCertified"), cleaned("abc", 2)
    ('no  [2JCertified', 'ab ...')
    """
    found = str(text)
    line = "".join(c if c.isprintable() else " " for c in found[:most])
    return f"{line} ..." if len(found) > most else line


def json_of(text: str | bytes) -> Any:
    """The values of a JSON text. Raises `ValueError` for other texts, and for values nested more than 64 deep."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    else:
        inner = [found]
        for _ in range(_DEEPEST):
            parts = [one.values() if isinstance(one, dict) else one for one in inner if isinstance(one, dict | list)]
            inner = [value for part in parts for value in part]
            if not inner:
                return found
    raise ValueError(f"values are nested more than {_DEEPEST} deep")


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 parameter", "2,000 draws"."""
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
    """A CSV cell, with a leading single quote if a spreadsheet would run the text as a formula."""
    if not isinstance(cell, str):
        return cell
    # the csv module does not quote a carriage return, which would start a new line
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else text
