"""Runs as ArviZ DataTrees and netCDF files. Files may come from untrusted sources and are validated."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.atomic import write_whole
from .certificate import Certificate, Check
from .findings import FEATURES, Balance, Expected, Findings
from .points import Points
from .unconstrained import Unconstrained, for_all

if TYPE_CHECKING:
    import h5py
    import xarray as xr


# Version of the file format.
FORMAT = "accord-run-4"
# Name of the digest's attribute.
_DIGEST = "sha256"
# Largest ratio of declared bytes to the size of the file. accord stores arrays whole and uncompressed. Only dimensions
# without values are declared but not stored, and they are small.
_MOST_DECLARED = 2
# Largest size of an attribute with several texts, in bytes. Each text may be as long as the file.
_MOST_TEXTS = 2**30
# Largest length of an attribute. Two million names fit, and parsed JSON takes at most a gigabyte.
_MOST_CHARACTERS = 2**25
# Attributes in which netCDF stores references.
_REFERENCES = ("DIMENSION_LIST", "REFERENCE_LIST")
# Types of the settings that summaries, reports and queries of agents read.
_SETTINGS: dict[str, type] = {
    "sites": list, "sds": dict, "method": str, "network": str, "chosen": str, "local": str,
    "masks": bool, "coarse": bool, "nodes": int, "seed": int,
}  # fmt: skip


def dataset(
    draws: np.ndarray, names: Sequence[str], variables: Sequence[tuple[str, tuple[int, ...]]], agents: Sequence[Any]
) -> xr.Dataset:
    """A dataset of draws (chain, draw, dim) or (chain, draw, agent, dim) in ArviZ's layout.

    A variable with elements such as `x[0, 1]` keeps its shape. A variable with elements such as `x[some label]` gets
    one axis of labels. A variable with other names of elements, such as columns, is split into scalars.
    """
    import xarray as xr

    lead = ("chain", "draw", "agent")[: draws.ndim - 1]
    arrays: dict[str, xr.DataArray] = {}
    start = 0
    for variable, shape in variables:
        stop = start + int(np.prod(shape, dtype=int))
        own, values = names[start:stop], draws[..., start:stop]
        start = stop
        labels = [name[len(variable) + 1 : -1] for name in own]
        if not shape or own != tuple(f"{variable}[{label}]" for label in labels):
            arrays |= {_safe(name): xr.DataArray(values[..., k], dims=lead) for k, name in enumerate(own)}
        elif labels == [", ".join(map(str, place)) for place in np.ndindex(shape)]:
            dims = (*lead, *(f"{_safe(variable)}_dim_{axis}" for axis in range(len(shape))))
            arrays[_safe(variable)] = xr.DataArray(values.reshape(*draws.shape[:-1], *shape), dims=dims)
        else:
            axis = f"{_safe(variable)}_dim_0"
            arrays[_safe(variable)] = xr.DataArray(values, dims=(*lead, axis), coords={axis: labels})
    return xr.Dataset(arrays, coords={"agent": list(agents)} if "agent" in lead else {})


def _safe(name: str) -> str:
    """A name without "/", which separates groups of a tree."""
    return name.replace("/", "\u2215")


def flatten(dataset: xr.Dataset, lead: int) -> np.ndarray:
    """All variables of a dataset, flattened after the first `lead` axes and concatenated, (..., dim)."""
    arrays = [array.values.reshape(*array.shape[:lead], -1) for array in dataset.data_vars.values()]
    return np.concatenate(arrays, axis=-1)


def points_of(dataset: xr.Dataset) -> Points:
    """The weighted points in a group of a file."""
    positions, log_density, log_proposal = (dataset[k].values for k in ("positions", "log_density", "log_proposal"))
    values = dataset["values"].values if "values" in dataset else positions
    shared = float(dataset["shared_error"].values) if "shared_error" in dataset else 0.0
    return Points(positions, log_density, log_proposal, values, shared)


def unconstrained_of(dataset: xr.Dataset, agents: int) -> Unconstrained:
    """The unconstrained draws in a group of a file. If it has no draws of agents, they are the average's."""
    names, average = tuple(map(str, dataset["parameter"].values)), dataset["average"].values
    kept = dataset["agents"].values if "agents" in dataset else for_all(average, agents)
    return Unconstrained(names, average, kept)


def write(tree: xr.DataTree, path: Path, mode: int = 0o666) -> None:
    """Write a tree and its digest atomically, with permissions `mode` restricted by the umask."""
    tree.attrs[_DIGEST] = digest(tree)
    # HDF5 aborts the process if it cannot close a file, for example on a full disk, so write to memory first
    whole = io.BytesIO()
    tree.to_netcdf(whole, engine="h5netcdf")
    write_whole(path, whole.getbuffer(), mode)


def read(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a tree that `write` wrote.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, it cannot be read, or it contains something that `write` does not write.
    """
    import xarray as xr

    file = os.fspath(path)
    try:
        problem = next(_problems(file), "")
        if not problem:
            with xr.open_datatree(path, engine="h5netcdf", decode_times=False) as opened:
                tree = opened.load()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {file}") from None
    except PermissionError:
        raise PermissionError(f"no permission to read {file}") from None
    except Exception as error:
        # HDF5, h5netcdf and xarray raise many exceptions for damaged and foreign files
        raise ValueError(f"{file} is not a complete netCDF file") from error
    if problem:
        raise ValueError(f"{file} is not a run written by accord: {problem}; use the file that `run.save` wrote")
    if tree.attrs.get("format") != FORMAT:
        found = _short(tree.attrs.get("format"))
        raise ValueError(f"{file} is not a run written by accord, or by another version (format {found}, not {FORMAT})")
    return tree


def _problems(path: str) -> Iterator[str]:
    """Problems of an HDF5 file: content other than plain arrays and texts. Arrays are not read."""
    import h5py

    size, declared = os.path.getsize(path), 0

    def inside(part: Any, place: str) -> Iterator[str]:
        nonlocal declared
        yield from (f"{place} {problem}" for problem in _of_attributes(part, size))
        if isinstance(part, h5py.Dataset):
            yield from (f"{place} {problem}" for problem in _of_array(part))
        for taken in _bytes_of(part):
            declared += taken
            if declared > _MOST_DECLARED * size:
                yield f"arrays and texts up to {place} take more than {_MOST_DECLARED} times its {size:,} bytes"

    with h5py.File(path, "r") as file:
        met = {_address(file)}
        yield from inside(file, "/")
        # only the root contains groups
        for group in (file, *(part for part in _parts(file) if isinstance(part, h5py.Group))):
            for name in group:
                place = _short(f"{group.name.rstrip('/')}/{name}")
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    yield f"{place} is a link"
                part = group[name]
                if _address(part) in met:
                    yield f"{place} is a second name of another part"
                met.add(_address(part))
                if not isinstance(part, h5py.Dataset) and (group.name != "/" or not isinstance(part, h5py.Group)):
                    yield f"{place} is neither an array nor a group of arrays"
                yield from inside(part, place)


def _parts(group: h5py.Group) -> Iterator[Any]:
    """The parts of a group that are no links."""
    import h5py

    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield group[name]


def _address(part: Any) -> int:
    """The address of a part in its file."""
    import h5py

    return int(h5py.h5o.get_info(part.id).addr)


def _of_array(array: h5py.Dataset) -> Iterator[str]:
    """Problems of an array, found without reading it."""
    import h5py

    if array.is_virtual or array.external:
        yield "stores its values in another file"
    if array.id.get_create_plist().get_nfilters():
        yield "is compressed or filtered"
    is_text = h5py.check_string_dtype(array.dtype) is not None
    if array.shape is None or (array.dtype.kind not in "biuf" and not (is_text and array.ndim == 1)):
        yield "contains neither numbers nor a list of texts"
    if any(len(scales) != 1 for scales in array.dims) and not array.is_scale:
        yield "has an axis with no dimension or several dimensions"


def _bytes_of(part: Any) -> Iterator[int]:
    """Bytes of a part in memory: texts of its attributes, declared bytes of an array and its texts.

    In a crafted file many texts may share one address, so that together they are longer than the file.
    """
    import h5py

    def is_long(dtype: Any) -> bool:
        text = h5py.check_string_dtype(dtype)
        return text is not None and text.length is None

    for name in part.attrs:
        if is_long(part.attrs.get_id(name).dtype):
            yield sum(len(str(one)) for one in np.atleast_1d(np.asarray(part.attrs[name], object)))
    if isinstance(part, h5py.Dataset):
        yield part.nbytes
        if is_long(part.dtype):
            for place in range(len(part)):
                yield len(part[place])


def _of_attributes(part: Any, size: int) -> Iterator[str]:
    """Problems of attributes in a file of `size` bytes, found without reading them."""
    import h5py

    for name in part.attrs:
        found, is_array = part.attrs.get_id(name), isinstance(part, h5py.Dataset)
        count = int(np.prod(found.shape, dtype=object))
        text = h5py.check_string_dtype(found.dtype)
        is_long = text is not None and text.length is None and count > 1 and count * size > _MOST_TEXTS
        if name in _REFERENCES and is_array:
            # `_of_array` checks DIMENSION_LIST, and REFERENCE_LIST is not read
            is_plain = found.dtype.kind in "OV" and text is None
        else:
            is_plain = (found.dtype.kind in "biuf" or text is not None) and not is_long
        if not is_plain or count * found.dtype.itemsize > _MOST_DECLARED * size:
            yield f"has an attribute {_short(name)} that is neither numbers nor short texts"


def _short(name: object) -> str:
    """An untrusted name for an error message, without control characters and at most 80 characters long."""
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def digest(tree: xr.DataTree) -> str:
    """SHA-256 of a tree: attributes, except the digest itself, and arrays of all groups."""
    found = hashlib.sha256()
    for node in sorted(tree.subtree, key=lambda node: node.path):
        attrs = {str(name): np.asarray(value).ravel().tolist() for name, value in node.attrs.items() if name != _DIGEST}
        found.update(json.dumps([node.path, attrs], sort_keys=True, default=repr).encode())
        variables = node.to_dataset(inherit=False).variables
        for name in sorted(map(str, variables)):
            values = variables[name].values
            if values.dtype.kind not in "biuf":
                values = np.array(json.dumps([str(text) for text in values.ravel()]).encode())
            kind = values.dtype.newbyteorder("<")
            found.update(json.dumps([name, list(map(str, variables[name].dims)), values.shape, kind.str]).encode())
            for part in values if values.ndim > 1 else [values]:
                found.update(np.ascontiguousarray(part, kind).tobytes())
    return found.hexdigest()


def require_digest(tree: xr.DataTree, path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` if a tree has changed since `write` wrote it; warn if it was written without a digest."""
    if _DIGEST not in tree.attrs:
        warnings.warn(
            f"{os.fspath(path)} has no digest: another program or an earlier accord wrote it, and later changes cannot "
            "be detected. Load it only if you trust it, and save the run again to add a digest",
            stacklevel=4,
        )
    elif tree.attrs[_DIGEST] != digest(tree):
        raise ValueError(
            f"{os.fspath(path)} has changed since it was saved: its SHA-256 digest does not match. Get a new copy of "
            "the file"
        )


def parsed(attrs: Mapping[Any, Any], name: str, kind: type) -> Any:
    """The value of a JSON attribute, of type `kind`.

    Raises
    ------
    ValueError
        The attribute is missing, too long, no JSON, nested too deeply, or of another type.
    """
    text = attrs.get(name)
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise ValueError(f"attribute {name} is missing, no text, or longer than {_MOST_CHARACTERS:,} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"attribute {name} is no JSON, or nested too deeply") from error
    if not isinstance(found, kind):
        raise ValueError(f"attribute {name} is no {kind.__name__}")
    return found


def variables_of(attrs: Mapping[Any, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of variables in the attributes of a file."""
    return tuple((str(name), tuple(map(int, shape))) for name, shape in parsed(attrs, "variables", list))


def certificate_of(attrs: Mapping[Any, Any]) -> Certificate | None:
    """The certificate in the attributes of a file; None if there is none."""
    if not attrs.get("certificate"):
        return None
    kinds = (str, float | int, float | int, bool, str)
    checks = parsed(attrs, "certificate", list)
    for check in checks:
        is_check = isinstance(check, list) and len(check) == len(kinds)
        if not is_check or not all(map(isinstance, check, kinds)):
            raise ValueError("its certificate contains something other than checks")
    if not checks:
        raise ValueError("its certificate has no checks")
    return Certificate(tuple(Check(*check) for check in checks))


def require_whole(run: Any) -> None:
    """Raise `ValueError` unless the parts of a `Run` from a file are consistent."""
    if run.average.ndim != 3 or 0 in run.average.shape:
        raise ValueError(f"its draws have shape {run.average.shape}")
    (chains, draws, dim), kept = run.average.shape, run.agents.size
    free = len(run.names) if run.unconstrained is None else len(run.unconstrained.names)
    sent = run.traffic.bytes_sent
    shapes: dict[str, tuple[np.ndarray, tuple[int | None, ...]]] = {
        "draws": (run.average, (chains, draws, len(run.names))),
        "agents": (run.agents, (kept,)),
        "draws of agents": (run.kept, (chains, draws, kept, dim)),
        "bytes": (sent, (None,)),
        "rows of gradients": (run.traffic.gradient_rows, (sent.size,)),
        "rows of values": (run.traffic.value_rows, (sent.size,)),
        **{f"statistic {_short(name)}": (own, (chains, draws)) for name, own in run.statistics.items()},
    }
    if run.points is not None:
        for name in ("log_density", "log_proposal"):
            shapes[f"{name} of points"] = getattr(run.points, name), (len(run.points.positions),)
        shapes["positions of points"] = run.points.positions, (None, free)
        shapes["values of points"] = run.points.values, (len(run.points.positions), dim)
    if run.unconstrained is not None:
        shapes["unconstrained draws"] = run.unconstrained.average, (chains, draws, free)
        shapes["unconstrained draws of agents"] = run.unconstrained.kept, (chains, draws, kept, free)
    expected, balance = run.findings.expected, run.findings.balance
    for name, own in ({} if expected is None else expected._asdict()).items():
        shapes[f"forecast {name}"] = own, ((free,) if name.startswith("average") else (None, free))
    if balance is not None:
        for name in ("off", "error"):
            shapes[f"forecast {name}"] = getattr(balance, name), (len(FEATURES), free)
        shapes["modes"] = balance.modes, (balance.mass.size, free)
        shapes["masses"] = balance.mass, (balance.mass.size,)
    for name, (array, shape) in shapes.items():
        fits = array.ndim == len(shape) and all(
            want in (None, found) for found, want in zip(array.shape, shape, strict=True)
        )
        if not fits or array.dtype.kind not in "biuf":
            raise ValueError(f"its {name} have shape {array.shape} and type {array.dtype}, which does not fit")
    if not all(isinstance(name, str) for name in run.names) or sum(_sizes(run.variables)) != len(run.names):
        raise ValueError("its names are no texts, or do not fit its variables")
    agents = run.agents.tolist()
    if run.agents.dtype.kind not in "iu" or len(set(agents)) < kept or not all(0 <= n < sent.size for n in agents):
        raise ValueError(f"its kept agents are not distinct numbers below {sent.size}")
    if not all(0 <= agent < sent.size for edge in run.info.edges or () for agent in edge):
        raise ValueError(f"its network has edges to other agents than its {sent.size}")
    _require_settings(run)
    if run.certificate is not None and run.certificate.holds:
        _require_finite(run)


def _sizes(variables: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[int]:
    """The number of elements of each variable."""
    return (int(np.prod(shape, dtype=object)) for _, shape in variables)


def _require_settings(run: Any) -> None:
    """Raise `ValueError` if a setting that accord reads has the wrong type."""
    settings, names = run.settings, run.settings.get("sites") or []
    for name, kind in _SETTINGS.items():
        if settings.get(name) is not None and not isinstance(settings[name], kind):
            raise ValueError(f"setting {name} has type {type(settings[name]).__name__}")
    if not all(isinstance(name, str) for name in names) or (names and run.agents.max(initial=0) >= len(names)):
        raise ValueError("setting sites has no name for each agent")
    if not all(isinstance(sd, float | int) for sd in (settings.get("sds") or {}).values()):
        raise ValueError("setting sds has values that are no numbers")


def _require_finite(run: Any) -> None:
    """Raise `ValueError` if draws or weights of a certified run are not finite."""
    arrays = {"draws": run.average, "draws of agents": run.kept}
    if run.unconstrained is not None:
        arrays |= {"unconstrained draws": run.unconstrained.average}
    if run.points is not None:
        density = run.points.log_density
        arrays |= {"points": run.points.positions, "log proposals": run.points.log_proposal}
        # a log density of -inf is valid
        arrays |= {"log densities": np.where(np.isneginf(density), 0.0, density)}
    for name, array in arrays.items():
        count = int(array.size - np.isfinite(array).sum())
        if count:
            raise ValueError(f"it is certified, but {count:,} numbers of its {name} are not finite")


def as_text(settings: Mapping[str, Any]) -> str:
    """Settings of a run as JSON. NumPy scalars become numbers, and other unknown types become texts."""
    return json.dumps(settings, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))


def as_tree(findings: Findings, names: tuple[str, ...]) -> xr.DataTree:
    """Findings as a group for a file."""
    import xarray as xr

    arrays: dict[str, Any] = {}
    if findings.expected is not None:
        for name, values in findings.expected._asdict().items():
            arrays[name] = (("agent", "parameter")[-values.ndim :], values)
    balance = findings.balance
    if balance is not None:
        arrays |= {name: (("feature", "parameter"), getattr(balance, name)) for name in ("off", "error")}
        arrays |= {"modes": (("mode", "parameter"), balance.modes), "mass": (("mode",), balance.mass)}
    if arrays:
        arrays["parameter"] = list(names)
    numbers = {
        "aim": findings.target_temperature,
        "temperature": findings.temperature,
        "error": findings.temperature_error,
    }
    if balance is not None:
        numbers |= {"batches": balance.batches, "rise": balance.rise, "allowed": balance.allowed}
    texts = {"trouble": findings.reason, "left_out": findings.left_out}
    attrs = {**texts, **numbers, "agreeing": int(findings.agreeing)}
    return xr.DataTree(xr.Dataset(arrays, attrs=attrs))


def from_tree(dataset: xr.Dataset) -> Findings:
    """The findings in a group of a file."""
    attrs, balance = dataset.attrs, None
    if "off" in dataset:
        found = {name: dataset[name].values for name in ("off", "error", "modes", "mass")}
        batches, rise, allowed = int(attrs["batches"]), float(attrs["rise"]), float(attrs["allowed"])
        balance = Balance(batches=batches, rise=rise, allowed=allowed, **found)
    return Findings(
        Expected(*(dataset[name].values for name in Expected._fields)) if "mean" in dataset else None,
        str(attrs["trouble"]),
        float(attrs["aim"]),
        float(attrs["temperature"]),
        float(attrs["error"]),
        bool(attrs["agreeing"]),
        # older files have no such attribute
        str(attrs.get("left_out", "")),
        balance,
    )
