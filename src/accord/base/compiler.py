"""What XLA must be told: against wrong numbers, against programs that never end, and for speed."""

from __future__ import annotations

import os
from typing import Any

import jaxlib

# Their CPU compiler hands reductions to a library that sums arrays above some 32,768 entries wrongly, without a word:
# https://github.com/jax-ml/jax/issues/39103. Dependencies exclude them, but an environment may hold one all the same.
_WRONG_SUMS = ("0.10.2", "0.11.0")
_OFF = "--xla_cpu_experimental_ynn_fusion_type="


# Batches of triangular solves, as those of a multivariate normal, wait for threads of the pool that they run on: two of
# them at a time, on two processors, wait for ever (jaxlib 0.10.1). One operation after another there are no two.
_ONE_AFTER_ANOTHER = "--xla_cpu_enable_concurrency_optimized_scheduler="

# Options of the programs that take most of a run's time. LLVM takes half of the widest vectors (AVX-512) unless told, as
# some processors slow down for whole ones. With these softplus and exponentials take half of the time, and rounds of
# logistic regressions two thirds to nine tenths. Processors that have none take no notice.
WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}


def guard() -> None:
    """Say both; it must be called before JAX first compiles anything in the process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _ONE_AFTER_ANOTHER not in flags:
        flags = f"{flags} {_ONE_AFTER_ANOTHER}false".strip()
    if jaxlib.__version__ in _WRONG_SUMS and _OFF not in flags:
        flags = f"{flags} {_OFF}".strip()
    os.environ["XLA_FLAGS"] = flags
