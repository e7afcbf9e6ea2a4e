"""Figures and tables of the papers, one folder for each paper. `accord reproduce NAME` runs one.

Each module with an `EXPERIMENT` in these folders is an experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from ..base.checks import unknown_name_error
from . import dadmms, desgld, dglmc, gibbs, gtdula
from .frame import Experiment


def _found() -> Iterator[Experiment]:
    for paper in (dadmms, desgld, dglmc, gibbs, gtdula):
        for module in iter_modules(paper.__path__, f"{paper.__name__}."):
            found = getattr(import_module(module.name), "EXPERIMENT", None)
            if found is not None:
                yield found


EXPERIMENTS: dict[str, Experiment] = {found.name: found for found in sorted(_found(), key=lambda found: found.name)}


def find(name: str) -> Experiment:
    """The experiment with this name. Raises `ValueError` with the nearest name if there is none."""
    if name not in EXPERIMENTS:
        raise unknown_name_error("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS[name]
