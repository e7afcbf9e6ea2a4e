"""Posteriors from models of NumPyro and PyMC."""

from .numpyro import from_numpyro
from .pymc import from_pymc

__all__ = ["from_numpyro", "from_pymc"]
