"""A site's audit file: a line for each question, with what left the site, or why nothing did."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_NAME = "audit.jsonl"


def note(folder: Path, **what: Any) -> None:
    """Append a line to the audit file of a folder; it is on the disk when this returns."""
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **what})
    descriptor = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # in one piece, whatever other processes append
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of an audit file."""
    return [json.loads(line) for line in (folder / _NAME).read_text().splitlines()]
