"""One-shot methods that multiply densities or histograms, or fit weights; `accord.samplers.combine` has the others.

Each method samples every shard by NUTS and combines the draws once, by `accord.samplers.combine.one_shot`.
"""

from .nonparametric import nonparametric
from .semiparametric import semiparametric
from .trees import trees
from .variational import variational
from .weierstrass import weierstrass

__all__ = ["nonparametric", "semiparametric", "trees", "variational", "weierstrass"]
