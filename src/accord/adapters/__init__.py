"""Models written for other libraries, as posteriors over sites."""

from .numpyro import from_numpyro

__all__ = ["from_numpyro"]
