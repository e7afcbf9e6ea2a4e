"""What travels between a study's server and its sites: words as JSON and arrays of numbers, and never code."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..data.cells import AboutCells

# The name that the words have among the arrays.
_HEAD = "head"
# Types of arrays: numbers and truth values.
_KINDS = "biuf"


class Packet(NamedTuple):
    """Words, which JSON has, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def to_bytes(self) -> bytes:
        """The packet as bytes, from which `read` makes it again."""
        stream = io.BytesIO()
        head = np.frombuffer(json.dumps(self.head, allow_nan=False).encode(), np.uint8)
        arrays: dict[str, Any] = {_HEAD: head, **self.arrays}
        np.savez(stream, **arrays)
        return stream.getvalue()


def packet(head: Mapping[str, Any], **arrays: np.ndarray) -> Packet:
    """A packet of these."""
    return Packet(dict(head), arrays)


def read(found: bytes) -> Packet:
    """The packet that bytes hold.

    Raises
    ------
    ValueError
        They hold none.
    """
    try:
        _require_plain(found)
        # a pickle could run anything
        with np.load(io.BytesIO(found), allow_pickle=False) as arrays:
            own = dict(arrays)
        if not all(array.dtype.kind in _KINDS for array in own.values()):
            raise ValueError("an array holds no numbers")
        head = json.loads(own.pop(_HEAD).tobytes())
    except Exception as error:
        raise ValueError(f"{len(found)} bytes are no packet: {type(error).__name__}") from error
    if not isinstance(head, dict):
        raise ValueError(f"{len(found)} bytes are no packet: their words are no dictionary")
    return Packet(head, own)


def _require_plain(found: bytes) -> None:
    """Raise `ValueError` where bytes would become many more when they are read."""
    with zipfile.ZipFile(io.BytesIO(found)) as archive:
        members = archive.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in members):
            raise ValueError("it is compressed")
        if sum(one.file_size for one in members) > len(found):
            raise ValueError("its parts are larger than the whole")


# --- values that JSON does not have ---


def plain(value: Any) -> Any:
    """A value of dictionaries, lists, texts and numbers as JSON has it; floats come back exactly.

    A text about some cells becomes the one that names no lines.
    """
    if isinstance(value, AboutCells):
        return value.elsewhere
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "type": value.dtype.str, "values": plain(value.ravel().tolist())}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    return value


def revived(value: Any) -> Any:
    """What `plain` was given, tuples as lists."""
    if isinstance(value, dict):
        if value.keys() == {"shape", "type", "values"}:
            dtype = np.dtype(value["type"])
            if dtype.kind not in _KINDS or dtype.itemsize > 8:
                raise ValueError("an array holds no numbers")
            return np.array(revived(value["values"]), dtype).reshape(value["shape"])
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: revived(item) for key, item in value.items()}
    return [revived(item) for item in value] if isinstance(value, list) else value
