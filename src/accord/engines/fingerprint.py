"""Fingerprints of a run, the settings that must be equal in all its processes and when it is resumed.

A fingerprint contains numbers, names and return values of functions. It contains no code and nothing that depends on
data, which `behaviour` compares.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import json
import numbers
import platform
import re
import secrets
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
import scipy.sparse

from ..base.atomic import write_private
from ..base.given import Given, Schedule
from ..base.text import __version__
from ..base.widths import in_doubles
from ..network import Network
from ..network.weights import MixingMatrix
from ..posterior import Posterior
from ..samplers.protocol import Sampler
from .behaviour import prior_values

# Settings that a resumed run may change, because they do not change its draws.
_EXTENT = ("draws", "checkpoint_every")
# Hexadecimal digits of a hash.
_DIGITS = 12
_FILE, _KEY = "run.json", "key"
_KEY_BYTES = 32
# Version of the files in a checkpoint folder.
_FORMAT = {"format": "2"}
# Rounds in which step size schedules are evaluated.
_ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)
# Number of first rounds in which link schedules are evaluated.
_LINK_ROUNDS = 100
# Memory address of an object, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Hash after a readable text.
_HASH_AFTER = re.compile(rf" \([0-9a-f]{{{_DIGITS}}}\)$")
# Text that is a hash. Whole numbers have no letter.
_HASH_ALONE = re.compile(rf"(?=.*[a-f])[0-9a-f]{{{_DIGITS}}}")


def fingerprint(post: Posterior, network: Network, sampler: Sampler | None, **settings: Any) -> dict[str, str]:
    """Short texts by name, equal in all processes with equal arguments, and independent of the shards.

    The posterior enters by its parameters, their initial values, the names of its functions, the numbers bound to
    these, and two values of the log prior.

    Parameters
    ----------
    post, network, sampler
        The run's posterior, network and method. The method is None for sums over the agents.
    settings
        Further settings that change the draws, such as seed and chains.
    """
    # `post.potential` needs data
    functions = [post._log_likelihood, post._log_prior]
    constraints: list[Any] = [sorted((post._constraints or {}).items())]
    if post._local is not None and post._latents is not None:
        local = post._local
        functions.append(post._latents.log_prior)
        # nodes of a coarse quadrature depend on the rows
        nodes = post._latents.nodes if post._finely else 0
        constraints += [sorted(local.constraints.items()), local.init, _function_name(local.group), nodes]
    named = [_function_name(f) for f in functions]
    posterior = [post.num_agents, post.variables, post.names, post.init, post.quadratic, named, str(constraints)]
    return {
        **versions(),
        # before the precision, which depends on the method
        "method": "totals" if sampler is None else _text(type(sampler).__name__, sampler),
        "precision": str(jax.dtypes.canonicalize_dtype(np.float64)),
        "network": _text(network.name, _graph(network)),
        "posterior": _text(
            f"{post.num_agents} agents, {post.dim} parameters",
            [*posterior, *jax.tree.leaves(functions), *jax.tree.leaves(post.coordinates)],
        ),
        "log prior": " ".join([named[1], *map(_rounded, prior_values(post))]),
        **{name: _setting(value) for name, value in settings.items()},
    }


def _graph(network: Network) -> list[Any]:
    graph, links = [network.num_agents, network.edges], network.unreliable
    if links is None:
        return graph
    function = links.function
    ups = [] if function is None else [links.up_in(network.edges, k) for k in range(_LINK_ROUNDS)]
    return [*graph, dataclasses.replace(links, function=None), np.array(ups, bool)]


def versions() -> dict[str, str]:
    """The versions of the packages that change draws, by name."""
    return {
        "accord": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def combined(parts: dict[str, str]) -> str:
    """One hash of all entries that a resumed run must not change."""
    return hashlib.sha256(json.dumps(sorted(_lasting(parts).items())).encode()).hexdigest()


def first_difference(mine: dict[str, str], theirs: dict[str, str]) -> str | None:
    """The first entry that differs with both values, such as "jax 0.10.2 and jax 0.10.1", None without any."""
    return _difference(mine, theirs, "{0} {1} and {0} {2}", "{0} {1}, with other values")


def _first_change(now: dict[str, str], before: dict[str, str]) -> str | None:
    """The first entry that changed, such as "jax changed (0.10.1 then, 0.10.2 now)", None without any."""
    return _difference(now, before, "{0} changed ({2} then, {1} now)", "{0} changed ({1}, with other values)")


def _difference(mine: dict[str, str], theirs: dict[str, str], text: str, hidden: str) -> str | None:
    """The first entry that differs, with name and values put into `text`, or into `hidden` if only hashes differ."""
    name = first_differing(mine, theirs)
    if name is None:
        return None
    values = _readable(mine, name), _readable(theirs, name)
    return (text if values[0] != values[1] else hidden).format(name, *values)


def _readable(parts: dict[str, str], name: str) -> str:
    """An entry without its hash."""
    text = str(parts.get(name))
    return "an array" if _HASH_ALONE.fullmatch(text) else _HASH_AFTER.sub("", text)


def first_differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """The name of the first entry that differs, None without any."""
    return next((name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)), None)


def record(folder: Path, parts: dict[str, str]) -> None:
    """Write a fingerprint into a folder."""
    write_private(Path(folder) / _FILE, json.dumps(parts, indent=1).encode())


def recorded(folder: Path) -> dict[str, str] | None:
    """The fingerprint in a folder, None without any.

    Raises
    ------
    ValueError
        The file was not written by accord.
    """
    path = Path(folder) / _FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} was not written by accord ({error})") from error
    return found


def forget(folder: Path) -> None:
    """Remove the fingerprint in a folder, if there is one."""
    (Path(folder) / _FILE).unlink(missing_ok=True)


def claim(folder: Path, parts: dict[str, str]) -> None:
    """Write the fingerprint of this run into a checkpoint folder, or check the one in it.

    Raises
    ------
    ValueError
        The folder belongs to another run. The message names the first setting that differs.
    """
    mine = _FORMAT | _lasting(parts)
    try:
        theirs = recorded(folder)
    except ValueError as error:
        raise ValueError(f"{error}. Use a new checkpoint folder.") from error
    if theirs is None:
        record(folder, mine)
    elif theirs.get("format") != mine["format"]:
        text = "another version of accord wrote it. Use a new checkpoint folder."
        raise ValueError(f"cannot resume from {folder}: {text}")
    elif (change := _first_change(mine, theirs)) is not None:
        raise ValueError(f"cannot resume from {folder}: {change}. Use a new checkpoint folder.")


def refuse_another(folder: Path, parts: dict[str, str]) -> None:
    """Raise the `ValueError` of `claim` without writing. The folder's fingerprint may have more entries."""
    mine = _FORMAT | _lasting(parts)
    theirs = recorded(folder)
    if theirs is not None:
        claim(folder, {**theirs, **mine})


def own_key(folder: Path) -> bytes:
    """The secret key of a run, read from a folder or created there."""
    path = Path(folder) / _KEY
    if not path.exists():
        write_private(path, secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} was not written by accord. Use a new checkpoint folder.")
    return key


def keyed_rows(post: Posterior, key: bytes) -> str:
    """A keyed hash of the rows in this process. Without the key it does not confirm guessed rows."""
    rows = hmac.new(key, digestmod="sha256")
    for agent, shard in post._read.items():
        rows.update(json.dumps([agent, str(jax.tree.structure(shard))]).encode())
        for leaf in jax.tree.leaves(shard):
            rows.update(json.dumps([str(leaf.dtype), leaf.shape]).encode() + np.ascontiguousarray(leaf).tobytes())
    return rows.hexdigest()[:_DIGITS]


def keyed(content: bytes, key: bytes) -> str:
    """A keyed hash of bytes."""
    return hmac.new(key, content, "sha256").hexdigest()[:_DIGITS]


def _lasting(parts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in parts.items() if name not in _EXTENT}


def _setting(value: Any) -> str:
    """A number or word as text, anything else as a hash."""
    return str(value) if isinstance(value, str | int | float | None) else _digest(value)


def _text(readable: str, content: Any) -> str:
    return f"{readable} ({_digest(content)})"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(_plain(content)).encode()).hexdigest()[:_DIGITS]


def _rounded(value: Any) -> str:
    """A number to nine digits, as machines differ in the last ones. Minus zero becomes zero."""
    return f"{float(value) + 0.0:.8e}"


def _schedule(schedule: Schedule) -> list[str]:
    """Values of a schedule in the rounds `_ROUNDS`."""
    return in_doubles(lambda: [_rounded(schedule(np.int32(k))) for k in _ROUNDS])


def _plain(value: Any) -> Any:
    """A value as lists and texts that are equal in every process, so without memory addresses and Python hashes.

    Schedules are replaced by their values in some rounds, other functions by their names and bound numbers.
    """
    if value is None or isinstance(value, bool | str):
        return [type(value).__name__, value]
    if isinstance(value, numbers.Integral):
        return ["int", int(value)]
    if isinstance(value, numbers.Real):
        return ["float", float(value).hex()]
    if isinstance(value, MixingMatrix):
        return ["mixing", _plain(value.matrix)]
    if scipy.sparse.issparse(value):
        rows = scipy.sparse.csr_array(value)
        return ["sparse", list(rows.shape), *map(_plain, (rows.indptr, rows.indices, rows.data))]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return ["array", str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, dict):
        return ["dict", *sorted([str(key), _plain(item)] for key, item in value.items())]
    if isinstance(value, list | tuple):
        return ["list", *map(_plain, value)]
    if isinstance(value, functools.partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, Schedule):
        return ["schedule", *_schedule(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_function_name(value), *([f.name, _plain(getattr(value, f.name))] for f in dataclasses.fields(value))]
    return ["named", _function_name(value)]


def _function_name(function: Any) -> str:
    """The qualified name of a function or class, for other objects of their class."""
    while isinstance(function, functools.partial | Given):
        function = function.func if isinstance(function, functools.partial) else function.function
    named = function if hasattr(function, "__qualname__") and hasattr(function, "__module__") else type(function)
    # the instance distinguishes methods and objects with the same class
    own = ""
    if isinstance(function, types.MethodType):
        own = _ADDRESS.sub("", repr(function.__self__))
    elif dataclasses.is_dataclass(function) and not isinstance(function, type):
        own = _ADDRESS.sub("", repr(function))
    return f"{named.__module__}.{named.__qualname__}{own}"
