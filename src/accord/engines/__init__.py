"""Engines that run agents on one device, over several devices, or in one process per agent."""

from . import processes
from .local import Local
from .mesh.engine import Mesh
from .silo.engine import Silo

__all__ = ["Local", "Mesh", "Silo", "processes"]
