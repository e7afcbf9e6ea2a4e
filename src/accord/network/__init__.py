"""The communication network: its graph, mixing weights, spectrum and spanning tree."""

from .network import Network
from .spectrum import extreme_eigenvalues

__all__ = ["Network", "extreme_eigenvalues"]
