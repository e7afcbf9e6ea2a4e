"""Posterior predictive draws from a family, for rows of a formula or pairs (X, y)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from .families import Family
from .regression import predictor


@dataclasses.dataclass(frozen=True)
class _FamilyPredictive:
    family: Family

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a coded response; empty for numbers."""
        return self.family.labels

    @property
    def whole(self) -> bool:
        """Whether responses are integers."""
        return self.family.is_whole


class FormulaPredictive(_FamilyPredictive):
    """Predictive draws for the rows of a formula."""

    def observed(self, rows: dict[str, Array]) -> Array:
        """The observed responses, shape (row,)."""
        return rows["y"].astype(float)

    def replicated(self, params: dict[str, Array], rows: dict[str, Array], key: Array) -> Array:
        """Responses drawn from the model, shape (row,)."""
        return self.family.replicated(params, predictor(self.family, params, rows), rows, key).astype(float)


@dataclasses.dataclass(frozen=True)
class PairsPredictive(_FamilyPredictive):
    """Predictive draws for pairs (X, y), with the parameters `coefficients` or {coefficients, sigma}.

    Parameters
    ----------
    family
        The family.
    noise_scale
        A known sigma, or None.
    """

    noise_scale: float | None = None

    def observed(self, rows: tuple[Array, Array]) -> Array:
        """The observed responses, shape (row,)."""
        return rows[1].astype(float)

    def replicated(self, params: Any, rows: tuple[Array, Array], key: Array) -> Array:
        """Responses drawn from the model, shape (row,)."""
        own = params if isinstance(params, dict) else {"coefficients": params}
        if self.noise_scale is not None:
            own = {**own, "sigma": jnp.asarray(self.noise_scale)}
        return self.family.replicated(own, rows[0] @ own["coefficients"], {"y": rows[1]}, key).astype(float)
