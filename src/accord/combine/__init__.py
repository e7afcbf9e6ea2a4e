"""One-shot methods: each shard is sampled alone by NUTS, and the draws are combined once, at a hub."""

from .consensus import consensus
from .median import median
from .nonparametric import nonparametric
from .parametric import parametric
from .semiparametric import semiparametric
from .wasp import wasp
from .weierstrass import weierstrass

__all__ = ["consensus", "median", "nonparametric", "parametric", "semiparametric", "wasp", "weierstrass"]
