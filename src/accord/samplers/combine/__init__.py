"""One-shot methods: agents work alone, and what they found is combined once, at a hub.

Most sample each shard by NUTS and combine the draws. `bfi` combines modes and curvatures; `surrogate` samples one
shard, told of the others' slopes in a few rounds. `one_shot` makes a method of your own rule of combination.
"""

from collections.abc import Callable

from ...results.run import Run
from .bfi import bfi
from .consensus import consensus
from .median import median
from .parametric import parametric
from .pooling import Moments, moments, pooled
from .subsets import Combination, one_shot
from .surrogate import surrogate
from .wasp import wasp

__all__ = [
    "METHODS",
    "Combination",
    "Moments",
    "bfi",
    "consensus",
    "median",
    "moments",
    "one_shot",
    "parametric",
    "pooled",
    "surrogate",
    "wasp",
]

# The methods themselves, by name.
METHODS: dict[str, Callable[..., Run]] = {
    method.__name__: method for method in (bfi, consensus, median, parametric, surrogate, wasp)
}
