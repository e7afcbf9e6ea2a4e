"""Random numbers of NumPy that are a pure function of a seed, what they are for, and an index."""

from __future__ import annotations

import numpy as np


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Random numbers by counter: the same on any machine, whatever was drawn before.

    Parameters
    ----------
    seed
        From 0 to 2**64 - 1.
    purpose
        What they are for, at most eight ASCII letters: no two purposes share a key.
    index
        Which of several sets of numbers, >= 0.
    """
    key = np.array([seed, int.from_bytes(purpose.encode("ascii"), "big")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, index]))
