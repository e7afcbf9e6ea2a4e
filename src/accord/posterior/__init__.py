"""The posterior: shards, local potentials, coordinates, starting points."""

from .posterior import Posterior

__all__ = ["Posterior"]
