"""The audit file of a site, with one line for each request: its answer, or the reason of a refusal."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_NAME = "audit.jsonl"


def note(folder: Path, **what: Any) -> None:
    """Append a line to the audit file of a folder, and flush it to disk."""
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **what})
    descriptor = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # one write, as other processes may append too
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of an audit file."""
    return [json.loads(line) for line in (folder / _NAME).read_text().splitlines()]
