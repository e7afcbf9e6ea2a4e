"""A run as an ArviZ DataTree and as a netCDF file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.whole import write_whole
from .findings import Balance, Expected, Findings
from .points import Points
from .scales import Unconstrained

if TYPE_CHECKING:
    import xarray as xr


# Attributes of the saved tree that rebuild a run; all that is kept of a method or network is in `settings`.
FORMAT = "accord-run-2"


def flatten(dataset: xr.Dataset, lead: int) -> np.ndarray:
    """All variables of a dataset side by side, (..., dim), after its `lead` leading axes."""
    arrays = [array.values.reshape(*array.shape[:lead], -1) for array in dataset.data_vars.values()]
    return np.concatenate(arrays, axis=-1)


def points_of(dataset: xr.Dataset) -> Points:
    """Weighted points of a file's group."""
    positions, log_density, log_proposal = (dataset[k].values for k in ("positions", "log_density", "log_proposal"))
    return Points(positions, log_density, log_proposal, dataset["values"].values if "values" in dataset else positions)


def unconstrained_of(dataset: xr.Dataset) -> Unconstrained:
    """Draws as methods move, of a file's group."""
    names = tuple(map(str, dataset["parameter"].values))
    return Unconstrained(names, dataset["average"].values, dataset["agents"].values)


def write(tree: xr.DataTree, path: Path, mode: int = 0o666) -> None:
    """Write a tree to a file that is whole or not there, with permissions of which the umask is taken."""
    # in memory: HDF5 ends the process where it cannot close a file, as on a full disk
    whole = io.BytesIO()
    tree.to_netcdf(whole, engine="h5netcdf")
    write_whole(path, whole.getbuffer(), mode)


def read(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a tree that `write` wrote.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, or it cannot be read, or is of something else; it is named.
    """
    import xarray as xr

    try:
        with xr.open_datatree(path, engine="h5netcdf") as opened:
            tree = opened.load()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {os.fspath(path)}") from None
    except PermissionError:
        raise PermissionError(f"{os.fspath(path)} may not be read") from None
    except Exception as error:
        # HDF5, h5netcdf and xarray have exceptions of their own for a file that is torn or none of theirs
        raise ValueError(f"{os.fspath(path)} is not a whole netCDF file") from error
    if tree.attrs.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(path)} is not a run written by accord (format {tree.attrs.get('format')!r})")
    return tree


def as_text(settings: Mapping[str, Any]) -> str:
    """A run's settings as one JSON text, in which numbers stay numbers; what JSON does not know becomes text."""
    return json.dumps(settings, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))


def from_attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """A run's settings from the attributes of its file."""
    if "settings" in attrs:
        return dict(json.loads(attrs["settings"]))
    # written when every setting was saved as text
    names, values = (map(str, np.atleast_1d(attrs[name])) for name in ("setting_names", "setting_values"))
    return dict(zip(names, values, strict=True))


def as_tree(findings: Findings, names: tuple[str, ...]) -> xr.DataTree:
    """Findings as a group of a file."""
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
    """Findings of a file's group."""
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
        # runs were written without
        str(attrs.get("left_out", "")),
        balance,
    )
