"""One-shot methods: agents work alone, and what they found is combined once, at a hub.

Most sample each shard by NUTS and combine the draws. `bfi` combines modes and curvatures; `surrogate` samples one
shard, told of the others' slopes in a few rounds.
"""

from .bfi import bfi
from .consensus import consensus
from .median import median
from .nonparametric import nonparametric
from .parametric import parametric
from .semiparametric import semiparametric
from .surrogate import surrogate
from .trees import trees
from .variational import variational
from .wasp import wasp
from .weierstrass import weierstrass

__all__ = [
    "bfi",
    "consensus",
    "median",
    "nonparametric",
    "parametric",
    "semiparametric",
    "surrogate",
    "trees",
    "variational",
    "wasp",
    "weierstrass",
]
