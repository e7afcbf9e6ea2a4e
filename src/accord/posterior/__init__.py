"""The posterior: shards, parameters, latents, local potentials, coordinates, starting points."""

from . import reference as reference
from .latents import Local
from .posterior import Posterior
from .potential import Potential, Shard
from .starts import starting_law

__all__ = ["Local", "Posterior", "Potential", "Shard", "starting_law"]
