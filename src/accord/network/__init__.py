"""The communication network: who talks to whom, mixing weights, spectra, and the tree that sums travel over."""

from .network import Network

__all__ = ["Network"]
