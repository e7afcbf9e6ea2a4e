"""One-shot methods: each agent works alone, and a hub combines the results once.

Most methods sample each shard by NUTS and combine the draws. `bfi` combines modes and curvatures. `surrogate` samples
one shard, corrected by the other shards' gradients in a few rounds. `one_shot` turns a custom rule into a method.
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

# One-shot methods by name.
METHODS: dict[str, Callable[..., Run]] = {
    method.__name__: method for method in (bfi, consensus, median, parametric, surrogate, wasp)
}
