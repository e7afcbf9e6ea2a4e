"""Responses drawn from a family, of the rows of a formula or of pairs (X, y)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from .families import Family
from .regression import predictor


@dataclasses.dataclass(frozen=True)
class _OfFamily:
    family: Family

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that responses are numbered by."""
        return self.family.labels

    @property
    def whole(self) -> bool:
        """Whether responses are whole numbers."""
        return self.family.is_whole


class OfRows(_OfFamily):
    """Responses of a family whose rows a formula made."""

    def observed(self, rows: dict[str, Array]) -> Array:
        """The responses that there are, (row,)."""
        return rows["y"].astype(float)

    def replicated(self, params: dict[str, Array], rows: dict[str, Array], key: Array) -> Array:
        """Responses drawn from the model, (row,)."""
        return self.family.replicated(params, predictor(self.family, params, rows), rows, key).astype(float)


@dataclasses.dataclass(frozen=True)
class OfPairs(_OfFamily):
    """Responses of a family whose rows are pairs (X, y), and whose parameters are coefficients alone or with a sigma.

    Parameters
    ----------
    family
        The family.
    noise_scale
        The sigma, where it is known.
    """

    noise_scale: float | None = None

    def observed(self, rows: tuple[Array, Array]) -> Array:
        """The responses that there are, (row,)."""
        return rows[1].astype(float)

    def replicated(self, params: Any, rows: tuple[Array, Array], key: Array) -> Array:
        """Responses drawn from the model, (row,)."""
        own = params if isinstance(params, dict) else {"coefficients": params}
        if self.noise_scale is not None:
            own = {**own, "sigma": jnp.asarray(self.noise_scale)}
        return self.family.replicated(own, rows[0] @ own["coefficients"], {"y": rows[1]}, key).astype(float)
