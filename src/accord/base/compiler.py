"""A guard against releases of XLA that compute wrong numbers."""

from __future__ import annotations

import os

import jaxlib

# Their CPU compiler hands reductions to a library that sums arrays above some 32,768 entries wrongly, without a word:
# https://github.com/jax-ml/jax/issues/39103. Dependencies exclude them, but an environment may hold one all the same.
_WRONG_SUMS = ("0.10.2", "0.11.0")
_OFF = "--xla_cpu_experimental_ynn_fusion_type="


def guard() -> None:
    """Switch that library off; it must be called before JAX first compiles anything in the process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib.__version__ in _WRONG_SUMS and _OFF not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_OFF}".strip()
