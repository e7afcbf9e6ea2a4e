"""Priors of coefficients, scales and other parameters of a model; all have normalised log densities."""

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

# Below this e^u E1(u) is taken from the series of the exponential integral, above from its continued fraction.
_SERIES_BELOW = 2.0
# Terms of the series; with 24 it is exact to double precision up to 2.
_SERIES_TERMS = 24
# Levels of the continued fraction; with 40 it is exact to double precision from 2 on.
_FRACTION_LEVELS = 40


def _finite(name: str, value: Any) -> float:
    if not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, found {value}")
    return float(value)


def _above_zero(name: str, value: Any) -> float:
    positive(name, value)
    return float(value)


class Prior(ABC):
    """The prior of one number; `log_density` takes arrays too and is elementwise."""

    # whether it is a prior of numbers > 0, such as scales
    is_positive: ClassVar[bool] = False
    # whether it is one of several numbers together, and `log_density` their joint one
    is_vector: ClassVar[bool] = False

    def __post_init__(self) -> None:
        apply_checks(self)

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """The log density at x, the constant included."""

    @property
    def moments(self) -> tuple[float, float] | None:
        """Mean and standard deviation of a symmetric prior of any number; None for others."""
        return None


def stacked(priors: Sequence[Prior]) -> Prior:
    """Priors of one class as one, whose numbers are arrays of shape (prior,)."""
    return jax.tree.map(lambda *numbers: np.array(numbers, np.float64), *priors)


def as_wide(prior: Prior, dtype: Any) -> Prior:
    """A prior whose numbers are arrays of a type."""
    return jax.tree.map(lambda number: jnp.asarray(number, dtype), prior)


@pytree
class Flat(Prior):
    """The log density 0 everywhere: improper, so that data must decide, and the evidence has no meaning."""

    def log_density(self, x: Array) -> Array:
        return jnp.zeros_like(x)


@pytree
class Normal(Prior):
    """Normal of a mean and a standard deviation."""

    loc: float = checked(_finite)
    scale: float = checked(_above_zero)

    def log_density(self, x: Array) -> Array:
        return -(((x - self.loc) / self.scale) ** 2) / 2.0 - jnp.log(self.scale) - np.log(2.0 * np.pi) / 2.0

    @property
    def moments(self) -> tuple[float, float]:
        return self.loc, self.scale


@pytree
class Uniform(Prior):
    """Uniform between two numbers, of a parameter that has these limits."""

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
    """Student t of degrees of freedom, a location and a scale."""

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
    """Laplace, or double exponential, of a location and a scale: the standard deviation is 1.41 scales."""

    loc: float = checked(_finite)
    scale: float = checked(_above_zero)

    def log_density(self, x: Array) -> Array:
        return -jnp.abs(x - self.loc) / self.scale - jnp.log(2.0 * self.scale)

    @property
    def moments(self) -> tuple[float, float]:
        return self.loc, 2.0**0.5 * self.scale


@pytree
class Horseshoe(Prior):
    """Normal of standard deviation scale * u, with a half-Cauchy u of its own: most are near 0, few are large.

    u is integrated out, so that the only parameter is the coefficient. Its density is multiplied by
    exp(-floor^2 / (2 u^2)): without this the density of a coefficient is infinite at 0, where no method could look for
    a mode. `scale` is that of all coefficients together; a guess is (how many matter) / (how many do not) * (sd of the
    noise) / sqrt(rows).
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
    """Normal of mean 0 and a standard deviation, of which the positive half is taken."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -((x / self.scale) ** 2) / 2.0 - jnp.log(self.scale) + np.log(2.0 / np.pi) / 2.0


@pytree
class HalfCauchy(Prior):
    """Cauchy of location 0 and a scale, of which the positive half is taken: the median is the scale."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -jnp.log1p((x / self.scale) ** 2) - jnp.log(self.scale) + np.log(2.0 / np.pi)


@pytree
class Exponential(Prior):
    """Exponential of a scale, which is the mean (1 / rate)."""

    scale: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        return -x / self.scale - jnp.log(self.scale)


@pytree
class Gamma(Prior):
    """Gamma of a shape and a rate: the mean is shape / rate."""

    shape: float = checked(_above_zero)
    rate: float = checked(_above_zero)
    is_positive = True

    def log_density(self, x: Array) -> Array:
        log_constant = self.shape * jnp.log(self.rate) - log_gamma(self.shape)
        return log_constant + (self.shape - 1.0) * jnp.log(x) - self.rate * x


@pytree
class Probabilities(Prior):
    """Dirichlet of the probabilities of ordered classes, as a prior of the cutpoints between them.

    The probabilities are those of a row whose linear predictor is the average one, and all have the same
    concentration: at 1, all probabilities that sum to one are as likely.
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
        # the slope of each sigmoid: cutpoints are the parameters, not probabilities
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
