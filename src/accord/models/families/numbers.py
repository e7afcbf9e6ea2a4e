"""Families of numbers: normal, Student t, gamma and beta."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...base.checks import positive
from ...base.special import log_gamma
from .. import priors
from ..priors import Prior, log_student
from .family import Family, Parameter, Positive, Rows, Summary, log_odds, numbers, require, require_varied


class _Located(Family):
    """A response around the linear predictor, with an unknown scale `sigma`."""

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        return {"y": numbers(where, columns[0])}

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        sd = self.unit(summary)
        return {"sigma": Parameter(np.array(sd), "positive", priors.Exponential(sd))}

    def amounts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        y = rows["y"]
        return y - rows["offset"] if "offset" in rows else y, np.ones(len(y))

    def start(self, summary: Summary) -> float:
        return summary.mean

    def unit(self, summary: Summary) -> float:
        # `amounts` has subtracted the offset
        require_varied(summary._replace(has_offset=False))
        return summary.sd


@dataclasses.dataclass(frozen=True)
class Normal(_Located):
    """y ~ Normal(eta, sigma)."""

    name = "normal"
    replicates = True

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        sigma = params["sigma"]
        return -(((rows["y"] - eta) / sigma) ** 2) / 2.0 - jnp.log(sigma) - np.log(2.0 * np.pi) / 2.0

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return eta + params["sigma"] * jax.random.normal(key, eta.shape, eta.dtype)


@dataclasses.dataclass(frozen=True)
class Student(_Located):
    """y ~ Student t with `nu` degrees of freedom, location eta and scale sigma.

    Parameters
    ----------
    nu
        Degrees of freedom, > 0; None: a parameter with the prior Gamma(2, 0.1).
    """

    nu: float | None = None
    name = "student"
    replicates = True

    def __post_init__(self) -> None:
        if self.nu is not None:
            positive("nu", self.nu)

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        own = {} if self.nu is not None else {"nu": Parameter(np.array(10.0), "positive", priors.Gamma(2.0, 0.1))}
        return {**super().parameters(summary), **own}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        nu = params["nu"] if self.nu is None else jnp.asarray(self.nu, eta.dtype)
        return log_student(rows["y"], nu, eta, params["sigma"])

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        nu = params["nu"] if self.nu is None else jnp.asarray(self.nu, eta.dtype)
        return eta + params["sigma"] * jax.random.t(key, nu, eta.shape, eta.dtype)


@dataclasses.dataclass(frozen=True)
class Gamma(Positive):
    """Positive numbers: gamma with mean exp(eta) and unknown `shape` (1 / shape is the squared relative sd)."""

    name = "gamma"
    ratio = "ratio of means"
    replicates = True

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        y = numbers(where, columns[0])
        require(where, y > 0, "numbers > 0")
        return {"y": y}

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        require_varied(summary)
        return {"shape": Parameter(np.array(1.0), "positive", priors.HalfCauchy(1.0))}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        y, shape = rows["y"], params["shape"]
        log_ratio = jnp.log(y) - eta
        return shape * (jnp.log(shape) + log_ratio - jnp.exp(log_ratio)) - log_gamma(shape) - jnp.log(y)

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return jnp.exp(eta) * jax.random.gamma(key, params["shape"], eta.shape, eta.dtype) / params["shape"]


@dataclasses.dataclass(frozen=True)
class Beta(Family):
    """Fractions in (0, 1): beta with mean sigmoid(eta) and unknown `precision` (the sum of its shapes)."""

    name = "beta"
    ratio = "ratio of the odds of the mean"
    replicates = True

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        y = numbers(where, columns[0])
        require(where, (y > 0) & (y < 1), "numbers between 0 and 1, both excluded")
        return {"y": y}

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        require_varied(summary)
        return {"precision": Parameter(np.array(2.0), "positive", priors.HalfCauchy(1.0))}

    def start(self, summary: Summary) -> float:
        return log_odds(summary.mean)

    def intercept_prior(self, summary: Summary) -> Prior:
        return priors.Normal(0.0, 2.5)

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        y, precision = rows["y"], params["precision"]
        a, b = precision * jax.nn.sigmoid(eta), precision * jax.nn.sigmoid(-eta)
        log_constant = log_gamma(precision) - log_gamma(a) - log_gamma(b)
        return (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y) + log_constant

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        precision = params["precision"]
        return jax.random.beta(key, precision * jax.nn.sigmoid(eta), precision * jax.nn.sigmoid(-eta))
