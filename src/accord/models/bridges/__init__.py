"""Models written for other libraries, as posteriors over sites."""

from .numpyro import from_numpyro
from .pymc import from_pymc

__all__ = ["from_numpyro", "from_pymc"]
