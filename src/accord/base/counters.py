"""NumPy generators keyed by a seed, a purpose and an index."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Normals(Protocol):
    """A generator of standard normal numbers, such as `numpy.random.Generator`."""

    def standard_normal(self, size: Any) -> np.ndarray:
        """The next numbers, of this shape."""
        ...


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A counter-based generator (Philox): the same numbers on any machine, independent of earlier draws.

    Parameters
    ----------
    seed
        From 0 to 2**64 - 1.
    purpose
        At most eight ASCII letters, part of the key.
    index
        Number of the stream, >= 0.
    """
    key = np.array([seed, int.from_bytes(purpose.encode("ascii"), "big")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, index]))
