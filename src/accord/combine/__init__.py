"""One-shot methods: each shard is sampled alone by NUTS, and the draws are combined once, at a hub."""

from .consensus import consensus
from .density_product import nonparametric, parametric, semiparametric
from .median import median
from .wasp import wasp
from .weierstrass import weierstrass

__all__ = ["consensus", "median", "nonparametric", "parametric", "semiparametric", "wasp", "weierstrass"]
