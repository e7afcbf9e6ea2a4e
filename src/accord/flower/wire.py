"""Messages between the server and the sites of a study: JSON and numeric arrays, never code."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..data.cells import AboutCells

# Key of the JSON part among the arrays.
_HEAD = "head"
# Allowed dtypes: numbers and booleans.
_KINDS = "biuf"


class Packet(NamedTuple):
    """A message: JSON values and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def to_bytes(self) -> bytes:
        """The packet as bytes, for `read`."""
        stream = io.BytesIO()
        head = np.frombuffer(json.dumps(self.head, allow_nan=False).encode(), np.uint8)
        arrays: dict[str, Any] = {_HEAD: head, **self.arrays}
        np.savez(stream, **arrays)
        return stream.getvalue()


def packet(head: Mapping[str, Any], **arrays: np.ndarray) -> Packet:
    """A packet with these values."""
    return Packet(dict(head), arrays)


def read(found: bytes) -> Packet:
    """The packet in bytes.

    Raises
    ------
    ValueError
        The bytes are not a packet.
    """
    try:
        _require_plain(found)
        # a pickle could run code
        with np.load(io.BytesIO(found), allow_pickle=False) as arrays:
            own = dict(arrays)
        if not all(array.dtype.kind in _KINDS for array in own.values()):
            raise ValueError("an array is not numeric")
        head = json.loads(own.pop(_HEAD).tobytes())
    except Exception as error:
        raise ValueError(f"{len(found)} bytes are not a packet: {type(error).__name__}") from error
    if not isinstance(head, dict):
        raise ValueError(f"{len(found)} bytes are not a packet: the JSON part is no object")
    return Packet(head, own)


def _require_plain(found: bytes) -> None:
    """Raise `ValueError` for bytes that expand when read, such as a zip bomb."""
    with zipfile.ZipFile(io.BytesIO(found)) as archive:
        members = archive.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in members):
            raise ValueError("it is compressed")
        if sum(one.file_size for one in members) > len(found):
            raise ValueError("its parts are larger than the whole")


# --- values without a JSON type ---


def plain(value: Any) -> Any:
    """A nested value as JSON types. Floats round-trip exactly, and messages about cells lose their lines."""
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
    """The inverse of `plain`, with lists for tuples."""
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
