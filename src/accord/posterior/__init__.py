"""The posterior: shards, parameters, latents, local potentials, coordinates, starting points."""

from .latents import Local
from .posterior import Posterior

__all__ = ["Local", "Posterior"]
