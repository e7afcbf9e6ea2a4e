"""Fingerprints of a run: hashes that must be equal in all its processes, and when it is resumed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import json
import numbers
import platform
import secrets
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
import scipy.sparse

from ..base.errors import DataError
from ..base.text import __version__
from ..base.traced import ADDRESS, Traced, digest
from ..base.whole import write_private
from ..network import Network
from ..network.weights import MixingMatrix
from ..posterior import Posterior
from ..samplers.protocol import Sampler
from .code import own_code

# How far a run goes and how often it is saved change nothing of its draws: a resumed run may change them.
_EXTENT = ("draws", "checkpoint_every")
_DIGITS = 12
_FILE, _KEY = "run.json", "key"
_KEY_BYTES = 32


def fingerprint(post: Posterior, network: Network, sampler: Sampler | None, **settings: Any) -> dict[str, str]:
    """Short texts by name, the same in every process that was given the same.

    Of the posterior they tell nothing of any shard: its parameters, where they start, the names of its functions and
    the numbers bound to them, and the prior as JAX traces it, which all have in common.

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
        "log prior": _text(named[1], digest(post._log_prior, post._params)),
        "method": "totals" if sampler is None else _text(type(sampler).__name__, [sampler, method_code(sampler)]),
        **{name: _setting(value) for name, value in settings.items()},
    }


def method_code(sampler: Sampler) -> str:
    """A digest of the code of a user's own method, and of what it has from outside; empty for those of accord."""
    code = own_code(type(sampler))
    return _digest(code) if code else ""


def _graph(network: Network) -> list[Any]:
    graph = [network.num_agents, network.edges]
    return graph if network.unreliable is None else [*graph, network.unreliable]


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


def inputs(post: Posterior, sampler: Sampler | None, key: bytes) -> dict[str, str]:
    """Versions, and keyed digests of the rows and functions of a posterior and of the code of a user's method."""
    keyed = {"data": _rows(post, key), "functions": _functions(post, key)}
    if sampler is not None:
        keyed["method"] = _keyed(key, method_code(sampler).encode())
    return {**versions(), **{name: found[:_DIGITS] for name, found in keyed.items()}}


def claim(folder: Path, parts: dict[str, str]) -> None:
    """Mark a folder as this run's.

    Raises
    ------
    ValueError
        It is another run's; what differs first is named.
    """
    mine = _lasting(parts)
    try:
        theirs = recorded(folder)
    except ValueError as error:
        raise ValueError(f"{error}; name a new checkpoint folder") from error
    if theirs is None:
        record(folder, mine)
    elif (difference := first_difference(mine, theirs)) is not None:
        raise ValueError(
            f"the checkpoint folder {folder} belongs to another run (this one and that: {difference}); name a new one"
        )


def own_key(folder: Path) -> bytes:
    """The secret of a run that is kept in a folder; made where there is none."""
    path = Path(folder) / _KEY
    if not path.exists():
        write_private(path, secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} is not what accord wrote; name a new checkpoint folder")
    return key


def require_same_method(folder: Path, code: str, key: bytes) -> None:
    """Keep a digest of a user's method, `Problem.code`; `DataError` where it was another one before."""
    _require_same(folder / "method", _keyed(key, code.encode()), "the method, or a number that it has from outside, is")


def require_same_posterior(folder: Path, post: Posterior, key: bytes) -> None:
    """Keep digests of the rows and the functions of a posterior; `DataError` where they were others before.

    Without the key they tell nothing, even of rows that could be guessed.
    """
    who = f"agent {post.held[0]}" if len(post.held) == 1 else f"some of {len(post.held)} agents"
    _require_same(folder / "rows", _rows(post, key), f"the data of {who} is")
    _require_same(
        folder / "functions",
        _functions(post, key),
        "a function of the posterior, or a number that it has from outside, is",
    )


def _rows(post: Posterior, key: bytes) -> str:
    rows = hmac.new(key, digestmod="sha256")
    for agent, shard in post._read.items():
        rows.update(json.dumps([agent, str(jax.tree.structure(shard))]).encode())
        for leaf in jax.tree.leaves(shard):
            rows.update(json.dumps([str(leaf.dtype), leaf.shape]).encode() + np.ascontiguousarray(leaf).tobytes())
    return rows.hexdigest()


def _functions(post: Posterior, key: bytes) -> str:
    return _keyed(key, json.dumps(post.digests()).encode())


def _keyed(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, "sha256").hexdigest()


def _require_same(path: Path, found: str, what: str) -> None:
    if not path.exists():
        write_private(path, found.encode())
    elif not hmac.compare_digest(path.read_bytes(), found.encode()):
        raise DataError(f"{what} not what it was when the run began ({path}): begin a new run")


def _lasting(parts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in parts.items() if name not in _EXTENT}


def _setting(value: Any) -> str:
    """A number or a word as it is, anything larger by its digest."""
    return str(value) if isinstance(value, str | int | float | None) else _digest(value)


def _text(readable: str, content: Any) -> str:
    return f"{readable} ({_digest(content)})"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(_plain(content)).encode()).hexdigest()[:_DIGITS]


def _plain(value: Any, inside: tuple[Any, ...] = ()) -> Any:
    """A value in lists and texts that are the same in every process: no address, no order of a set, no hash of Python.

    Functions count by their names and what is bound to them, so that two schedules of one maker differ. `inside` names
    the functions that the value is bound to, for one that is bound to itself.
    """
    plain = functools.partial(_plain, inside=inside)
    if value is None or isinstance(value, bool | str):
        return [type(value).__name__, value]
    if isinstance(value, numbers.Integral):
        return ["int", int(value)]
    if isinstance(value, numbers.Real):
        return ["float", float(value).hex()]
    if isinstance(value, MixingMatrix):
        return ["mixing", plain(value.matrix)]
    if scipy.sparse.issparse(value):
        rows = scipy.sparse.csr_array(value)
        return ["sparse", list(rows.shape), *map(plain, (rows.indptr, rows.indices, rows.data))]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return ["array", str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, dict):
        return ["dict", *sorted([str(key), plain(item)] for key, item in value.items())]
    if isinstance(value, list | tuple):
        return ["list", *map(plain, value)]
    if isinstance(value, functools.partial):
        return ["partial", plain(value.func), plain(value.args), plain(value.keywords)]
    if isinstance(value, Traced):
        return ["traced", _function_name(value.function), value.digest]
    if isinstance(value, types.FunctionType) and value not in inside:
        bound = [value.__defaults__, *(cell.cell_contents for cell in value.__closure__ or ())]
        return ["function", _function_name(value), *(_plain(item, (*inside, value)) for item in bound)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_function_name(value), *([f.name, plain(getattr(value, f.name))] for f in dataclasses.fields(value))]
    return ["named", _function_name(value)]


def _function_name(function: Any) -> str:
    """The qualified name of a function or class, or of the class of any other thing."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") and hasattr(function, "__module__") else type(function)
    # what holds a user's function says which
    own = ""
    if isinstance(function, types.MethodType):
        own = ADDRESS.sub("", repr(function.__self__))
    elif dataclasses.is_dataclass(function) and not isinstance(function, type):
        own = ADDRESS.sub("", repr(function))
    return f"{named.__module__}.{named.__qualname__}{own}"
