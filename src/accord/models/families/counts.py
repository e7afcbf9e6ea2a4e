"""Families of counts: Bernoulli, binomial, Poisson and negative binomial."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array

from ...base.special import log_gamma, log_rising, softplus
from .. import priors
from ..priors import Prior
from .family import Family, Parameter, Positive, Rows, Summary, log_odds, numbers, require


@dataclasses.dataclass(frozen=True)
class Bernoulli(Family):
    """y is 1 with probability sigmoid(eta), else 0."""

    name = "bernoulli"
    separates = True
    ratio = "odds ratio"
    replicates = True

    @property
    def labels(self) -> tuple[str, ...]:
        return "0", "1"

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        y = numbers(where, columns[0], "0 or 1 (name the level that counts as 1: y['level'] ~ ...)")
        require(where, np.isin(y, [0.0, 1.0]), "0 or 1: write what counts as 1 on the left, as in I(y == 2)")
        return {"y": y}

    def start(self, summary: Summary) -> float:
        return log_odds(summary.mean)

    def intercept_prior(self, summary: Summary) -> Prior:
        return priors.Normal(0.0, 2.5)

    def extreme(self, rows: Rows) -> np.ndarray:
        return rows["y"] == 0

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        return rows["y"] * eta - softplus(eta)

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(eta))


@dataclasses.dataclass(frozen=True)
class Binomial(Family):
    """`prop(y, trials)`: y successes in `trials` trials, each with probability sigmoid(eta)."""

    name = "binomial"
    columns = ("y", "trials")
    left = "prop(y, trials)"
    instead = "for a column of 0 and 1 use the family bernoulli"
    ratio = "odds ratio"
    is_whole = True
    replicates = True

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        y, trials = (numbers(where, column) for column in columns)
        require(where, (trials >= 0) & (trials == np.round(trials)), "of 0, 1, 2, ... trials")
        require(where, (y >= 0) & (y <= trials) & (y == np.round(y)), "whole numbers from 0 to their trials")
        gammaln = scipy.special.gammaln
        log_ways = gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)
        return {"y": y, "trials": trials, "log_ways": log_ways}

    def amounts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return rows["y"], rows["trials"]

    def start(self, summary: Summary) -> float:
        return log_odds(summary.mean)

    def intercept_prior(self, summary: Summary) -> Prior:
        return priors.Normal(0.0, 2.5)

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        return rows["log_ways"] + rows["y"] * eta - rows["trials"] * softplus(eta)

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return jax.random.binomial(key, rows["trials"], jax.nn.sigmoid(eta))


class _Count(Positive):
    ratio = "rate ratio"
    is_whole = True
    replicates = True

    def rows(self, where: str, columns: Sequence[np.ndarray]) -> Rows:
        y = numbers(where, columns[0])
        require(where, (y >= 0) & (y == np.round(y)), "counts 0, 1, 2, ...")
        return {"y": y}

    def extreme(self, rows: Rows) -> np.ndarray:
        return rows["y"] == 0


@dataclasses.dataclass(frozen=True)
class Poisson(_Count):
    """y ~ Poisson(exp(eta))."""

    name = "poisson"

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        return rows["y"] * eta - jnp.exp(eta) - log_gamma(rows["y"] + 1.0)

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        return jax.random.poisson(key, jnp.exp(eta))


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(_Count):
    """Counts with mean mu = exp(eta) and variance mu + mu^2 / concentration."""

    name = "negative_binomial"

    def parameters(self, summary: Summary) -> dict[str, Parameter]:
        return {"concentration": Parameter(np.array(1.0), "positive", priors.HalfCauchy(1.0))}

    def log_density(self, params: dict[str, Array], eta: Array, rows: dict[str, Array]) -> Array:
        y, size = rows["y"], params["concentration"]
        # y log p + size log(1 - p) with p = sigmoid(above), in terms that are small for p near 0 or 1
        above = eta - jnp.log(size)
        is_above = above > 0.0
        log_powers = jnp.where(is_above, -size, y) * above - (y + size) * softplus(jnp.where(is_above, -above, above))
        return log_rising(size, y) - log_gamma(y + 1.0) + log_powers

    def replicated(self, params: dict[str, Array], eta: Array, rows: dict[str, Array], key: Array) -> Array:
        # Poisson with a gamma rate of mean exp(eta)
        size, (of_rate, of_count) = params["concentration"], jax.random.split(key)
        rate = jax.random.gamma(of_rate, size, eta.shape) / size * jnp.exp(eta)
        return jax.random.poisson(of_count, rate)
