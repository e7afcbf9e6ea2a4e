"""Fingerprints of a run: settings that must be equal in all its processes, and when it is resumed.

They hold numbers, names and values that functions return, and never code: `behaviour` compares what depends on data.
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

# How far a run goes and how often it is saved change nothing of its draws: a resumed run may change them.
_EXTENT = ("draws", "checkpoint_every")
_DIGITS = 12
_FILE, _KEY = "run.json", "key"
_KEY_BYTES = 32
# The version of the files in a checkpoint folder.
_FORMAT = {"format": "2"}
# Rounds at which schedules of steps are evaluated.
_ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)
# First rounds in which schedules of links are evaluated.
_LINK_ROUNDS = 100
# Address of an object in memory, another one in every process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(post: Posterior, network: Network, sampler: Sampler | None, **settings: Any) -> dict[str, str]:
    """Short texts by name, the same in every process that was given the same.

    They hold nothing that depends on a shard. Of the posterior they hold its parameters, where these start, the names
    of its functions, the numbers bound to these, and two values of the log prior.

    Parameters
    ----------
    post, network, sampler
        What is run; None for sums over the agents.
    settings
        All else that decides the draws: seed, chains, ...
    """
    # the potential itself is known only where data has been read
    functions = [post._log_likelihood, post._log_prior]
    constraints: list[Any] = [sorted((post._constraints or {}).items())]
    if post._local is not None and post._latents is not None:
        local = post._local
        functions.append(post._latents.log_prior)
        # those of a coarse quadrature follow from the rows
        nodes = post._latents.nodes if post._finely else 0
        constraints += [sorted(local.constraints.items()), local.init, _function_name(local.group), nodes]
    named = [_function_name(f) for f in functions]
    posterior = [post.num_agents, post.variables, post.names, post.init, post.quadratic, named, str(constraints)]
    return {
        **versions(),
        "precision": str(jax.dtypes.canonicalize_dtype(np.float64)),
        "network": _text(network.name, _graph(network)),
        "posterior": _text(
            f"{post.num_agents} agents, {post.dim} parameters",
            [*posterior, *jax.tree.leaves(functions), *jax.tree.leaves(post.coordinates)],
        ),
        "log prior": " ".join([named[1], *map(_rounded, prior_values(post))]),
        "method": "totals" if sampler is None else _text(type(sampler).__name__, sampler),
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
    """The versions of what draws, by name."""
    return {
        "accord": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def combined(parts: dict[str, str]) -> str:
    """One hash of what a resumed run must share with the run before it: all but how far it goes."""
    return hashlib.sha256(json.dumps(sorted(_lasting(parts).items())).encode()).hexdigest()


def first_difference(mine: dict[str, str], theirs: dict[str, str]) -> str | None:
    """The first entry that differs with both values, such as "jax 0.10.2 and jax 0.10.1"; None where none does."""
    name = first_differing(mine, theirs)
    return None if name is None else f"{name} {mine.get(name)} and {name} {theirs.get(name)}"


def first_differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """The name of the first entry that differs; None where none does."""
    return next((name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)), None)


def record(folder: Path, parts: dict[str, str]) -> None:
    """Write a fingerprint into a folder."""
    write_private(Path(folder) / _FILE, json.dumps(parts, indent=1).encode())


def recorded(folder: Path) -> dict[str, str] | None:
    """The fingerprint in a folder; None where there is none.

    Raises
    ------
    ValueError
        The file is not what accord wrote.
    """
    path = Path(folder) / _FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is no table of a run")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not what accord wrote ({error})") from error
    return found


def forget(folder: Path) -> None:
    """Remove the fingerprint in a folder, if there is one."""
    (Path(folder) / _FILE).unlink(missing_ok=True)


def claim(folder: Path, parts: dict[str, str]) -> None:
    """Mark a folder as this run's.

    Raises
    ------
    ValueError
        It is another run's; what differs first is named.
    """
    mine = _FORMAT | _lasting(parts)
    try:
        theirs = recorded(folder)
    except ValueError as error:
        raise ValueError(f"{error}; name a new checkpoint folder") from error
    if theirs is None:
        record(folder, mine)
    elif theirs.get("format") != mine["format"]:
        raise ValueError(f"the checkpoint folder {folder} was written by another version of accord: name a new one")
    elif (difference := first_difference(mine, theirs)) is not None:
        raise ValueError(
            f"the checkpoint folder {folder} belongs to another run (this one and that: {difference}); name a new one"
        )


def refuse_another(folder: Path, parts: dict[str, str]) -> None:
    """Raise the `ValueError` of `claim` before anything long starts; a folder that no run has is left alone.

    The folder may hold more than these parts.
    """
    mine = _FORMAT | _lasting(parts)
    theirs = recorded(folder)
    if theirs is not None:
        claim(folder, {**theirs, **mine})


def own_key(folder: Path) -> bytes:
    """The secret of a run that is kept in a folder; made where there is none."""
    path = Path(folder) / _KEY
    if not path.exists():
        write_private(path, secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} is not what accord wrote; name a new checkpoint folder")
    return key


def keyed_rows(post: Posterior, key: bytes) -> str:
    """A digest under a key of the rows held here, which does not reveal even rows that could be guessed."""
    rows = hmac.new(key, digestmod="sha256")
    for agent, shard in post._read.items():
        rows.update(json.dumps([agent, str(jax.tree.structure(shard))]).encode())
        for leaf in jax.tree.leaves(shard):
            rows.update(json.dumps([str(leaf.dtype), leaf.shape]).encode() + np.ascontiguousarray(leaf).tobytes())
    return rows.hexdigest()[:_DIGITS]


def keyed(content: bytes, key: bytes) -> str:
    """A digest of bytes under a key."""
    return hmac.new(key, content, "sha256").hexdigest()[:_DIGITS]


def _lasting(parts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in parts.items() if name not in _EXTENT}


def _setting(value: Any) -> str:
    """A number or a word as it is, anything larger by its digest."""
    return str(value) if isinstance(value, str | int | float | None) else _digest(value)


def _text(readable: str, content: Any) -> str:
    return f"{readable} ({_digest(content)})"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(_plain(content)).encode()).hexdigest()[:_DIGITS]


def _rounded(value: Any) -> str:
    """A number to nine digits: machines differ in the last ones; minus zero is zero."""
    return f"{float(value) + 0.0:.8e}"


def _schedule(schedule: Schedule) -> list[str]:
    """The values of a schedule at some rounds."""
    return in_doubles(lambda: [_rounded(schedule(np.int32(k))) for k in _ROUNDS])


def _plain(value: Any) -> Any:
    """A value in lists and texts that are the same in every process: no address, no order of a set, no hash of Python.

    Schedules count by their values at some rounds, other functions by their names and the numbers bound to them.
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
    """The qualified name of a function or class, or of the class of any other thing."""
    while isinstance(function, functools.partial | Given):
        function = function.func if isinstance(function, functools.partial) else function.function
    named = function if hasattr(function, "__qualname__") and hasattr(function, "__module__") else type(function)
    # what holds a user's function says which
    own = ""
    if isinstance(function, types.MethodType):
        own = _ADDRESS.sub("", repr(function.__self__))
    elif dataclasses.is_dataclass(function) and not isinstance(function, type):
        own = _ADDRESS.sub("", repr(function))
    return f"{named.__module__}.{named.__qualname__}{own}"
