"""Priors of coefficients, scales and other parameters, with normalised log densities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import factorial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base.checks import positive
from ..base.pytree import apply_checks, checked, pytree
from ..base.special import log_gamma, softplus

# e^u E1(u) is computed from a series below this u, and from a continued fraction above it.
_SERIES_BELOW = 2.0
# Terms of the series: 24 are exact in double precision up to u = 2.
_SERIES_TERMS = 24
# Levels of the continued fraction: 40 are exact in double precision from u = 2.
_FRACTION_LEVELS = 40


def _finite(name: str, value: Any) -> float:
    if not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, found {value}")
    return float(value)


def _above_zero(name: str, value: Any) -> float:
    positive(name, value)
    return float(value)


class Prior(ABC):
    """The prior of a scalar parameter; `log_density` is elementwise on arrays."""

    # a prior of numbers > 0, such as scales
    is_positive: ClassVar[bool] = False
    # a joint prior of an array, with a scalar log density
    is_vector: ClassVar[bool] = False

    def __post_init__(self) -> None:
        apply_checks(self)

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """The log density at x, normalised."""

    @property
    def moments(self) -> tuple[float, float] | None:
        """Mean and standard deviation of a symmetric prior on the real line; None for other priors."""
        return None


def stacked(priors: Sequence[Prior]) -> Prior:
    """Priors of one class stacked into one prior, with hyperparameters of shape (prior,)."""
    return jax.tree.map(lambda *numbers: np.array(numbers, np.float64), *priors)


def as_wide(prior: Prior, dtype: Any) -> Prior:
    """A prior with hyperparameters as arrays of a dtype."""
    return jax.tree.map(lambda number: jnp.asarray(number, dtype), prior)


@pytree
class Flat(Prior):
    """The improper prior with log density 0: the data must identify the parameter, and the evidence is undefined."""

    def log_density(self, x: Array) -> Array:
        return jnp.zeros_like(x)


@pytree
class Normal(Prior):
    """Normal with mean `loc` and standard deviation `scale`."""

    loc: float = checked(_finite)
    scale: float = checked(_above_zero)

    def log_density(self, x: Array) -> Array:
        return -(((x - self.loc) / self.scale) ** 2) / 2.0 - jnp.log(self.scale) - np.log(2.0 * np.pi) / 2.0

    @property
    def moments(self) -> tuple[float, float]:
        return self.loc, self.scale


@pytree
class Uniform(Prior):
    """Uniform on (low, high), for a parameter with these limits as its constraint."""

    low: float = checked(_finite)
    high: float = checked(_finite)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"low must be below high, found {self.low} and {self.high}")

    def log_density(self, x: Array) -> Array:
        return jnp.zeros_like(x) - jnp.log(self.high - self.low)


@pytree
class StudentT(Prior):
    """Student t with `df` degrees of freedom, location and scale."""

    df: float = checked(_above_zero)
    loc: float = checked(_finite)
    scale: float = checked(_above_zero)

    def log_density(self, x: Array) -> Array:
        return log_student(x, self.df, self.loc, self.scale)

    @property
    def moments(self) -> tuple[float, float] | None:
        return (self.loc, self.scale * (self.df / (self.df - 2.0)) ** 0.5) if self.df > 2.0 else None


@pytree
class Laplace(Prior):
    """Laplace (double exponential) with location and scale: the standard deviation is 1.41 * scale."""

    loc: float = checked(_finite)
    scale: float = checked(_above_zero)

    def log_density(self, x: Array) -> Array:
        return -jnp.abs(x - self.loc) / self.scale - jnp.log(2.0 * self.scale)

    @property
    def moments(self) -> tuple[float, float]:
        return self.loc, 2.0**0.5 * self.scale


@pytree
class Horseshoe(Prior):
    """Normal with standard deviation scale * u and half-Cauchy u: most coefficients are near 0, a few are large.

    u is integrated out, so the only parameter is the coefficient. The density of u is multiplied by
    exp(-floor^2 / (2 u^2)), as otherwise the density of the coefficient is infinite at 0 and no mode can be found.
    `scale` is shared by all coefficients. A rule of thumb is (number of relevant columns) / (number of other columns) *
    (sd of the noise) / sqrt(rows).
    """

    scale: float = checked(_above_zero)
    floor: float = checked(_above_zero, default=0.1)

    def log_density(self, x: Array) -> Array:
        # the mixture over t = 1 / u^2 is the integral of exp(-v t) / (1 + t), which is e^v E1(v)
        v = ((x / self.scale) ** 2 + self.floor**2) / 2.0
        log_normaliser = np.log(2.0 * np.pi**3) / 2.0 + self.floor**2 / 2.0
        log_normaliser += jnp.log(jax.scipy.special.erfc(self.floor / np.sqrt(2.0)))
        return _log_scaled_exp1(v) - jnp.log(self.scale) - log_normaliser


@pytree
class HalfNormal(Prior):
    """The positive half of a normal with mean 0 and standard deviation `scale`."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -((x / self.scale) ** 2) / 2.0 - jnp.log(self.scale) + np.log(2.0 / np.pi) / 2.0


@pytree
class HalfCauchy(Prior):
    """The positive half of a Cauchy with location 0: the median is `scale`."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -jnp.log1p((x / self.scale) ** 2) - jnp.log(self.scale) + np.log(2.0 / np.pi)


@pytree
class Exponential(Prior):
    """Exponential with mean `scale` (1 / rate)."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -x / self.scale - jnp.log(self.scale)


@pytree
class Gamma(Prior):
    """Gamma with shape and rate: the mean is shape / rate."""

    shape: float = checked(_above_zero)
    rate: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        log_constant = self.shape * jnp.log(self.rate) - log_gamma(self.shape)
        return log_constant + (self.shape - 1.0) * jnp.log(x) - self.rate * x


@pytree
class Probabilities(Prior):
    """Symmetric Dirichlet on the probabilities of ordered classes, as a prior of the cutpoints between them.

    The probabilities refer to a row with the average linear predictor. At concentration 1, all probability vectors are
    equally likely.
    """

    concentration: float = checked(_above_zero)
    is_vector = True

    def log_density(self, x: Float[Array, " cut"]) -> Array:
        below = -softplus(-x)
        above = -softplus(x)
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b))
        between = below[1:] + above[:-1] + jnp.log(-jnp.expm1(-jnp.diff(x)))
        log_probabilities = jnp.concatenate([below[:1], between, above[-1:]])
        count = x.shape[0] + 1.0
        log_constant = log_gamma(count * self.concentration)
        log_constant -= count * log_gamma(self.concentration)
        # Jacobian from cutpoints to probabilities: the slope of each sigmoid
        return log_constant + (self.concentration - 1.0) * jnp.sum(log_probabilities) + jnp.sum(below + above)


def log_student(x: Array, df: Array | float, loc: Array | float, scale: Array | float) -> Array:
    """Log density of Student's t."""
    log_constant = log_gamma((df + 1.0) / 2.0) - log_gamma(df / 2.0) - jnp.log(df * jnp.pi) / 2.0 - jnp.log(scale)
    return log_constant - (df + 1.0) / 2.0 * jnp.log1p(((x - loc) / scale) ** 2 / df)


def _log_scaled_exp1(u: Array) -> Array:
    """log(e^u E1(u)), E1 the exponential integral, for u > 0."""
    small = jnp.minimum(u, _SERIES_BELOW)
    # E1(u) = -gamma - log u + u - u^2 / (2 2!) + u^3 / (3 3!) - ..., by Horner's rule
    powers = jnp.zeros_like(small)
    for term in range(_SERIES_TERMS, 0, -1):
        powers = small * ((-1.0) ** (term + 1) / (term * factorial(term)) + powers)
    series = jnp.log(powers - np.euler_gamma - jnp.log(small)) + small
    large = jnp.maximum(u, _SERIES_BELOW)
    # E1(u) e^u = 1 / (u + 1 - 1 / (u + 3 - 4 / (u + 5 - ...))), from the innermost level out
    fraction = large + 2.0 * _FRACTION_LEVELS + 1.0
    for level in range(_FRACTION_LEVELS, 0, -1):
        fraction = large + 2.0 * level - 1.0 - level**2 / fraction
    return jnp.where(u < _SERIES_BELOW, series, -jnp.log(fraction))
