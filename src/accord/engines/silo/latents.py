"""The file of an agent's own latents, which only the agent's user can read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...posterior import Posterior
from ...posterior.local_draws import latents_of
from ...results.netcdf import write

if TYPE_CHECKING:
    import xarray as xr

# File modes for the agent's user only.
_FOLDER, _FILE = 0o700, 0o600
_NAME = "latents.nc"
# Default folder of latents at each site.
LATENTS = "~/accord-latents"
# Format attribute of the file.
_FORMAT = "accord-latents-1"


def place(folder: str, run: str, agent: int | str) -> str:
    """The path of an agent's file, with "~" for the agent's home."""
    return f"{folder}/{run}-agent-{agent}/{_NAME}"


def prepare(folder: str) -> None:
    """Create the folder of latents. Raises `OSError` if it is not writable."""
    found = _expanded(folder)
    found.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    if not os.access(found, os.W_OK | os.X_OK):
        raise PermissionError(f"{found} is not writable")


def keep(post: Posterior, positions: np.ndarray, seed: int, folder: str, run: str) -> None:
    """Draw the latents of a posterior's single agent at positions (chain, draw, dim), and write its file.

    An existing file of the run stays, as the agent wrote it before a restart.
    """
    (agent,), post = post.held, post.in_parameters()
    path = _expanded(place(folder, run, agent))
    if path.exists():
        return
    # one folder per agent, because agents of one machine may belong to different users
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    about = {"format": _FORMAT, "run": run, "agent": agent, "seed": np.uint64(seed)}
    write(_as_tree(latents_of(post, positions, seed), _has_groups(post), about), path, _FILE)


def _has_groups(post: Posterior) -> bool:
    assert post._local is not None
    return post._local.group is not None


def _as_tree(found: dict[str, np.ndarray], has_groups: bool, about: dict[str, Any]) -> xr.DataTree:
    """Latents as a tree for ArviZ, with dimensions chain, draw, group if there are groups, and their own."""
    import xarray as xr

    arrays = {}
    for name, values in found.items():
        lead = ("chain", "draw", *((f"{name}_group",) if has_groups else ()))
        own = tuple(f"{name}_dim_{k}" for k in range(values.ndim - len(lead)))
        arrays[name] = xr.DataArray(values, dims=(*lead, *own))
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(arrays)})
    tree.attrs = about
    return tree


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise OSError(f"{path}: {error}") from error
