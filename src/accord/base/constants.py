"""Arrays of NumPy that a user's functions have within, in the float width at hand."""

from __future__ import annotations

import numpy as np
from jax._src import dtypes, literals
from jax._src.lib import weakref_lru_cache


def keep_widths_apart() -> None:
    """Have JAX keep what it makes of such an array for each float width.

    Up to 0.10.1 it keeps one, for as long as any program has it: where positions are in single precision and sums in
    double, the one then gets the other's numbers, and derivatives end in an error about dtypes. Later ones keep it
    elsewhere, and have no entry to replace.
    """
    if np.ndarray not in dtypes.canonicalize_value_handlers:
        return

    def made(array: np.ndarray) -> literals.TypedNdArray:
        return literals.TypedNdArray(np.asarray(array, dtypes.canonicalize_dtype(array.dtype)))

    # weakly, by the array itself, as JAX does: one that is used twice is one constant
    whole, narrowed = (weakref_lru_cache.weak_key_weak_value_cache(made) for _ in range(2))
    dtypes.canonicalize_value_handlers[np.ndarray] = lambda array: (
        whole(array) if dtypes.canonicalize_dtype(array.dtype) == array.dtype else narrowed(array)
    )
