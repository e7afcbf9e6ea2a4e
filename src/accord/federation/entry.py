"""Entries: what a site contributes to one step of a study. A signed text file of JSON, never code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.text import cleaned, json_of
from ..data.cells import AboutCells
from .keys import bytes_of, is_signed, signature, text_of

# Allowed dtypes of arrays: numbers and booleans.
_KINDS = "biuf"
# Size from which on an array is written in base64.
_LARGE = 16
# Start of every signed message, so that a signature of another protocol is no signature of an entry.
_PURPOSE = b"accord entry 1\n"
# Types of the fields of an entry but `content`.
_TYPES = {"study": str, "step": int, "site": str, "before": str, "what": str, "plan": str, "written": dict}
# Keys of contents whose numbers only count in a sum.
HIDDEN = frozenset({"masked", "own", "coarse"})
# Fields of counts, which may be texts such as "< 3".
_COUNTS = ("missing", "dropped")
# Lines of an entry.
LINES = 2
# Most bytes of an entry.
MOST_BYTES = 200_000_000


class ForgedError(DataError):
    """An entry is damaged, is not signed by its site, or contradicts an earlier entry."""


@dataclass(frozen=True)
class Entry:
    """What one site contributes to one step of a study.

    Parameters
    ----------
    study
        Hash of the study.
    step
        Number of the step, from 0.
    site
        Name of the site.
    before
        Digest of all entries of earlier steps.
    what
        The content in words.
    plan
        Digest of the plan of the step: what is evaluated where.
    written
        The plan, in the entry of the first site. Empty in other entries.
    content
        The numbers of the site, as JSON values from `plain`.
    """

    study: str
    step: int
    site: str
    before: str
    what: str
    plan: str
    written: dict[str, Any]
    content: Any

    def signed(self, identity: Path) -> bytes:
        """The entry as two lines, JSON and its signature by the private key in a file.

        Keys are sorted, so that the text of `written` is the text of its digest, also for readers that write floats in
        another way.
        """
        line = json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()
        return _joined(line, signature(identity, _PURPOSE + line))

    @classmethod
    def read(cls, found: bytes, public: Mapping[str, str], where: str) -> Entry:
        """An entry from bytes.

        Parameters
        ----------
        found
            The bytes of `signed`.
        public
            Public keys of the sites by name.
        where
            Name of the file or message, for errors.

        Raises
        ------
        ForgedError
            The bytes are no entry, or the entry is not signed by its site.
        """
        try:
            if len(found) > MOST_BYTES:
                raise ValueError("it is too large")
            line, proof = _parts(found)
            entry = cls(**json_of(line))
            for name, kind in _TYPES.items():
                if type(getattr(entry, name)) is not kind:
                    raise ValueError(f"{name} has another type")
        except (ValueError, TypeError, KeyError) as error:
            raise ForgedError(f"{where} is no entry of a study: {type(error).__name__}, {cleaned(error)}") from error
        if entry.site not in public:
            raise ForgedError(f"{where} is an entry of {cleaned(entry.site, 64)!r}, which takes no part in the study")
        if not is_signed(public[entry.site], _PURPOSE + line, proof):
            raise ForgedError(f"{where} is not signed by {entry.site}: it was changed, or made by someone else")
        return entry


def signed_line(found: bytes) -> bytes:
    """The line of an entry that its site has signed. Everything else in the file, a carrier can change."""
    return found.partition(b"\n")[0].removesuffix(b"\r")


def canonical(found: bytes) -> bytes:
    """An entry that was read, as `Entry.signed` writes it."""
    return _joined(*_parts(found))


def unsigned(found: bytes, where: str) -> dict[str, Any]:
    """The JSON values of an entry whose signature is not checked. Raises `ForgedError` for other bytes."""
    try:
        values = json_of(signed_line(found))
        if not isinstance(values, dict):
            raise ValueError("no object of JSON")
    except ValueError as error:
        raise ForgedError(f"{where} is no entry of a study: {cleaned(error)}") from error
    return values


def _joined(line: bytes, proof: bytes) -> bytes:
    return line + b"\n" + json.dumps({"signature": text_of(proof)}).encode() + b"\n"


def _parts(found: bytes) -> tuple[bytes, bytes]:
    """The signed line of an entry, and its signature."""
    return signed_line(found), bytes_of(json_of(found.partition(b"\n")[2])["signature"])


def digest_of(value: Any) -> str:
    """The SHA-256 of JSON values in hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


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
        about = {"shape": list(value.shape), "type": value.dtype.newbyteorder("<").str}
        if value.size >= _LARGE and value.dtype.kind in _KINDS:
            own = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            return {**about, "base64": text_of(own.tobytes())}
        return {**about, "values": plain(value.ravel().tolist())}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    return value


def revived(value: Any) -> Any:
    """The inverse of `plain`, with lists for tuples. Raises `ValueError` for arrays of other types than numbers."""
    if isinstance(value, dict):
        if value.keys() in ({"shape", "type", "values"}, {"shape", "type", "base64"}):
            # None is a dtype too
            dtype = np.dtype(str(value["type"]))
            if dtype.kind not in _KINDS or dtype.itemsize > 8:
                raise ValueError("an array holds no numbers")
            if "base64" in value:
                flat = np.frombuffer(bytes_of(value["base64"]), dtype)
            else:
                flat = np.array(revived(value["values"]), dtype)
            return flat.reshape(value["shape"])
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: revived(item) for key, item in value.items()}
    return [revived(item) for item in value] if isinstance(value, list) else value


def require_like(found: Any, own: Any, field: str = "content") -> Any:
    """The values from `revived` of another site, if they have the types of this site's own ones.

    Lists may have other lengths, dictionaries of texts other keys, and a count may be a text such as "< 3".

    Raises
    ------
    TypeError
        A field has another type. The message names the field.
    """
    kinds = {_kind(found), _kind(own)}
    if len(kinds) > 1 and not (kinds == {"text", "a number"} and field.rpartition(" ")[2] in _COUNTS):
        raise TypeError(f"{field} is {_kind(found)}, not {_kind(own)}")
    if isinstance(own, dict):
        if found.keys() != own.keys() and not all(isinstance(value, str) for value in own.values()):
            raise TypeError(f"{field} has other keys")
        for name, value in found.items():
            require_like(value, own.get(name, ""), f"{field} {name}")
    elif isinstance(own, list):
        for place, value in enumerate(found):
            require_like(value, own[place] if place < len(own) else own[0] if own else "", f"{field} {place + 1}")
    return found


def _kind(value: Any) -> str:
    """The type of a value from `revived` in words."""
    kinds = {str: "text", dict: "a dictionary", list: "a list", np.ndarray: "an array", bool: "true or false"}
    return kinds.get(type(value), "null" if value is None else "a number")
