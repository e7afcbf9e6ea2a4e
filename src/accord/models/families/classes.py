"""Families of classes: categorical and ordinal."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...base.special import softplus
from ...data.collectives import SiteCollectives
from .. import priors
from ..priors import Prior
from .family import Family, Parameter, Rows, Summary, log_odds, require

Kind = TypeVar("Kind", bound="_Classes")


@dataclasses.dataclass(frozen=True)
class _Classes(Family):
    """Classes, given in order or gathered from the sites.

    Parameters
    ----------
    levels
        The classes; None: all classes of all sites, sorted.
    """

    levels: tuple[str | int | float, ...] | None = None
    replicates = True

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", tuple(self.levels))
        if self.levels is not None and (len(set(self.levels)) != len(self.levels) or len(self.levels) < 2):
            raise ValueError(f"levels must be two or more different classes, found {list(self.levels)}")

    @property
    def _known(self) -> tuple[str | int | float, ...]:
        assert self.levels is not None
        return self.levels

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, self._known))

    @property
    def gathers_classes(self) -> bool:
        return self.levels is None

    def settled(self: Kind, meeting: SiteCollectives, responses: Sequence[Sequence[np.ndarray]]) -> Kind:
        if self.levels is not None:
            return self
        gathered = meeting.gathered([np.unique(np.asarray(columns[0])).tolist() for columns in responses])
        seen = {level for own in gathered for level in own}
        if not all(isinstance(level, str) for level in seen):
            seen = {int(level) if level == round(level) else level for level in seen}
        return dataclasses.replace(self, levels=tuple(sorted(seen)))

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        codes = {level: code for code, level in enumerate(self._known)}
        y = np.array([codes.get(level, -1) for level in np.asarray(columns[0]).tolist()], dtype=np.int32)
        require(where, y >= 0, f"one of the classes {list(self._known)}")
        return {"y": y}

    @abstractmethod
    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Categorical(_Classes):
    """Classes without an order. eta has one log odds against the first class for each other class."""

    name = "categorical"
    ratio = "odds ratio against the first class"

    @property
    def predictors(self) -> tuple[str, ...]:
        return tuple(str(level) for level in self._known[1:])

    def intercept_prior(self, summary: Summary) -> Prior:
        return priors.Normal(0.0, 2.5)

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        logits = jax.nn.log_softmax(jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], axis=1), axis=1)
        return jnp.take_along_axis(logits, rows["y"][:, None], axis=1)[:, 0]

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return jax.random.categorical(key, jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], axis=1))


@dataclasses.dataclass(frozen=True)
class Ordinal(_Classes):
    """Ordered classes: P(class k or below) = sigmoid(cutpoint_k - eta)."""

    name = "ordinal"
    ratio = "odds ratio of a higher class"
    has_intercept = False

    def settled(self, meeting: SiteCollectives, responses: Sequence[Sequence[np.ndarray]]) -> Ordinal:
        found = super().settled(meeting, responses)
        if self.levels is None and isinstance(found._known[0], str):
            raise ValueError(
                "the order of classes is not known: give the family as accord.models.families.Ordinal([...]), with the "
                "classes from the lowest to the highest"
            )
        return found

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        cuts = len(self._known) - 1
        labels = tuple(f"{low}|{high}" for low, high in zip(self._known[:-1], self._known[1:], strict=True))
        init = np.array([log_odds((cut + 1.0) / (cuts + 1.0)) for cut in range(cuts)])
        return {"cutpoints": Parameter(init, "ordered_vector", priors.Probabilities(1.0), -1.0, labels)}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        cuts, y = params["cutpoints"], rows["y"]
        last = cuts.shape[0]
        high, low = _entry(cuts, jnp.minimum(y, last - 1)), _entry(cuts, jnp.maximum(y - 1, 0))
        upper, lower = high - eta, low - eta
        inner = (y > 0) & (y < last)
        # sigmoid(u) - sigmoid(l) = sigmoid(u) sigmoid(-l) (1 - exp(l - u))
        apart = jnp.log(-jnp.expm1(jnp.where(inner, low - high, -1.0)))
        at_most = jnp.where(y < last, -softplus(-upper), 0.0)
        at_least = jnp.where(y > 0, -softplus(lower), 0.0)
        return at_most + at_least + jnp.where(inner, apart, 0.0)

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        # a logistic variable around eta falls between the cutpoints of its class
        latent = eta + jax.random.logistic(key, eta.shape, eta.dtype)
        return jnp.searchsorted(params["cutpoints"], latent)


def _entry(cuts: Float[Array, " cut"], place: Int[Array, " row"]) -> Float[Array, " row"]:
    """cuts[place] as a sum of products, since the gradient of indexing is a slow scatter-add."""
    return jnp.sum(jax.nn.one_hot(place, cuts.shape[0], dtype=cuts.dtype) * cuts[None], axis=1)
