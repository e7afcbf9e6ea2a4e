"""The file of an agent's own latents, in a folder that only it reads."""

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

# Readable and writable by the agent's user only.
_FOLDER, _FILE = 0o700, 0o600
_NAME = "latents.nc"
# Where those of runs are, at each site.
LATENTS = "~/accord-latents"
# Attribute by which the file is known.
_FORMAT = "accord-latents-1"


def place(folder: str, run: str, agent: int | str) -> str:
    """The path of an agent's file, where the agent's home is not yet known."""
    return f"{folder}/{run}-agent-{agent}/{_NAME}"


def prepare(folder: str) -> None:
    """Make the folder that those of runs are made in; `OSError` where nothing can be written to it."""
    found = _expanded(folder)
    found.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    if not os.access(found, os.W_OK | os.X_OK):
        raise PermissionError(f"{found} is not writable")


def keep(post: Posterior, positions: np.ndarray, seed: int, folder: str, run: str) -> None:
    """Draw the latents of the one agent of a posterior at positions (chain, draw, dim), and write its file.

    A file that is there was written by the same agent in the same run, before it began anew, and stays.
    """
    (agent,), post = post.held, post.in_parameters()
    path = _expanded(place(folder, run, agent))
    if path.exists():
        return
    # two agents of a machine may belong to two users, so that each has a folder of its own
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    about = {"format": _FORMAT, "run": run, "agent": agent, "seed": np.uint64(seed)}
    write(_as_tree(latents_of(post, positions, seed), _has_groups(post), about), path, _FILE)


def _has_groups(post: Posterior) -> bool:
    assert post._local is not None
    return post._local.group is not None


def _as_tree(found: dict[str, np.ndarray], has_groups: bool, about: dict[str, Any]) -> xr.DataTree:
    """Latents as ArviZ reads them, with the dimensions chain, draw, group if there are several, and their own."""
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
