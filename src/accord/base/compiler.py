"""What XLA must be told: a guard against wrong numbers, and against programs that never end."""

from __future__ import annotations

import os

import jaxlib

# Their CPU compiler hands reductions to a library that sums arrays above some 32,768 entries wrongly, without a word:
# https://github.com/jax-ml/jax/issues/39103. Dependencies exclude them, but an environment may hold one all the same.
_WRONG_SUMS = ("0.10.2", "0.11.0")
_OFF = "--xla_cpu_experimental_ynn_fusion_type="


# Batches of triangular solves, as those of a multivariate normal, wait for threads of the pool that they run on: two of
# them at a time, on two processors, wait for ever (jaxlib 0.10.1). One operation after another there are no two.
_ONE_AFTER_ANOTHER = "--xla_cpu_enable_concurrency_optimized_scheduler="


def guard() -> None:
    """Say both; it must be called before JAX first compiles anything in the process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _ONE_AFTER_ANOTHER not in flags:
        flags = f"{flags} {_ONE_AFTER_ANOTHER}false".strip()
    if jaxlib.__version__ in _WRONG_SUMS and _OFF not in flags:
        flags = f"{flags} {_OFF}".strip()
    os.environ["XLA_FLAGS"] = flags
