"""The local engine, with all agents and chains of a run on one device."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..base.compiler import Program, compiled
from ..network import Network
from ..posterior import Posterior
from .arrays import ArrayBuilder, ArrayEngine, Programs
from .build import build_problem
from .loop import finite, record, start
from .round import Problem

_start = compiled(start, static_argnames="chains")
_record = Program(record, static=("chains", "capacity"))
_finite = compiled(finite)


class LocalEngine(ArrayEngine):
    """Runs a method on one device. Parameters as in `ArrayEngine`."""

    def _problem(self, post: Posterior, network: Network, seed: int) -> Problem:
        return build_problem(post, network, self.bound, seed)

    def _programs(self) -> Programs:
        return Programs(_start, _record.of(self.chains), _finite)

    def _rows(self, rows: np.ndarray) -> Array:
        return jnp.asarray(rows)


class Local(ArrayBuilder):
    """Options of the engine "local", with all agents on one device. Parameters as in `ArrayBuilder`."""

    _kind = LocalEngine
