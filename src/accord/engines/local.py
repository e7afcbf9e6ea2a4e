"""The local engine, with all agents and chains of a run on one device."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..base.checks import require_bool
from ..base.compiler import Program, compiled
from ..network import Network
from ..posterior import Posterior
from ..samplers.protocol import Sampler
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


@dataclass(frozen=True)
class Local(ArrayBuilder):
    """Options of the engine "local", with all agents on one device. Other parameters as in `ArrayBuilder`.

    Parameters
    ----------
    coarse
        Agents add noise to their numbers and round them, default False. The posterior, its sds and the evidence stay
        right, and each number takes one to four bytes. Needs `Importance()`.
    """

    coarse: bool = False

    _kind = LocalEngine

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bool("coarse", self.coarse)
        if self.coarse and self.consensus is not None:
            raise ValueError("coarse=True needs sums over a tree: omit consensus")

    def check(self, post: Posterior, sampler: Sampler) -> None:
        """Raise `ValueError` if the engine has options for sums, as this method is not by sums."""
        super().check(post, sampler)
        if self.coarse:
            raise ValueError("coarse=True needs a method that weights points by sums: Importance()")
