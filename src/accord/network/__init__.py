"""The communication network: its graph, mixing weights, spectrum and spanning tree."""

from .network import Network

__all__ = ["Network"]
