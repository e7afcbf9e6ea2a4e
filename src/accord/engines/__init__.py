"""Engines, which run agents: all on one device, spread over devices, or a process each."""

from . import processes
from .local import Local
from .mesh.engine import Mesh
from .silo.engine import Silo

__all__ = ["Local", "Mesh", "Silo", "processes"]
