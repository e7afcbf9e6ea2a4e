"""Mixtures of multivariate t distributions, from which all agents draw the same points without sending any."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, logsumexp

from ...base.counters import generator

# Most elements of the array of distances in memory at a time.
_NUMBERS = 4_000_000


class Mixture(NamedTuple):
    """A mixture of multivariate t distributions.

    Parameters
    ----------
    share
        Mixture weights, shape (component,), > 0, sum 1.
    mean
        Shape (component, dim).
    factor
        Lower triangular, shape (component, dim, dim). The scale matrix of a component is factor @ factor.T.
    freedom
        Degrees of freedom, shape (component,), > 0.
    """

    share: np.ndarray
    mean: np.ndarray
    factor: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of(cls, *parts: tuple[float, Self]) -> Self:
        """A mixture of mixtures, given as (share, mixture). Shares are normalised."""
        total = sum(share for share, _ in parts)
        return cls(
            np.concatenate([share / total * part.share for share, part in parts]),
            *(np.concatenate([part[k] for _, part in parts]) for k in (1, 2, 3)),
        )

    def part(self, which: slice) -> Mixture:
        """Some of the components, with unchanged shares."""
        return Mixture(*(array[which] for array in self))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.mean.shape[1]

    def log_density(self, points: Float[np.ndarray, "point dim"]) -> Float[np.ndarray, " point"]:
        """Normalised log density at points."""
        return np.asarray(logsumexp(self.log_densities(points), axis=0, b=self.share[:, None]))

    def log_densities(self, points: Float[np.ndarray, "point dim"]) -> Float[np.ndarray, "component point"]:
        """Normalised log density of each component at points."""
        return log_t(squares(points, self.mean, self.factor), self.factor, self.freedom)

    def draw(self, count: int, seed: int, batch: int) -> Float[np.ndarray, "point dim"]:
        """Points of a batch, a pure function of the arguments on any machine.

        Points are stratified: the number of points of a component differs from its share by less than one.
        """
        numbers = generator(seed, "points", batch)
        edges = np.floor(np.concatenate([[0.0], np.cumsum(self.share)]) * count + numbers.random()).astype(int)
        edges[0], edges[-1] = 0, count
        which = np.repeat(np.arange(self.share.size), np.diff(edges))
        z = numbers.standard_normal((count, self.dim))
        freedom = self.freedom[which]
        z *= np.sqrt(freedom / (2.0 * numbers.standard_gamma(freedom / 2.0)))[:, None]
        points = np.empty_like(z)
        for k in np.unique(which):
            own = which == k
            points[own] = self.mean[k] + z[own] @ self.factor[k].T
        return points


class Drawn:
    """Points of a batch, drawn on first use. Pickling sends only the arguments, and the receiver draws the same points.

    Parameters
    ----------
    mixture, count, seed, batch
        The mixture and the arguments of `Mixture.draw`.
    """

    def __init__(self, mixture: Mixture, count: int, seed: int, batch: int) -> None:
        self.recipe = mixture, count, seed, batch

    def __reduce__(self) -> tuple[type[Drawn], tuple[Any, ...]]:
        return type(self), self.recipe

    def __len__(self) -> int:
        return self.recipe[1]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.points, dtype)

    @cached_property
    def points(self) -> Float[np.ndarray, "point dim"]:
        """The points."""
        mixture, *which = self.recipe
        return mixture.draw(*which)


def student(mean: np.ndarray, factor: np.ndarray, freedom: float) -> Mixture:
    """A mixture of one multivariate t distribution, with `mean` (dim,) and lower triangular `factor` (dim, dim)."""
    return Mixture(np.ones(1), mean[None], factor[None], np.array([freedom]))


def squares(
    points: Float[np.ndarray, "point dim"],
    mean: Float[np.ndarray, "component dim"],
    factor: Float[np.ndarray, "component dim dim"],
) -> Float[np.ndarray, "component point"]:
    """Squared Mahalanobis distances of points from the mean of each component."""
    inverse, dim = np.linalg.inv(factor), points.shape[1]
    # one large matrix product per block of components
    size, found = max(1, _NUMBERS // points.size), []
    for first in range(0, len(mean), size):
        part = inverse[first : first + size]
        center = np.einsum("cij,cj->ci", part, mean[first : first + size])
        z = (part.reshape(-1, dim) @ points.T).reshape(len(part), dim, -1) - center[:, :, None]
        found.append(np.einsum("cdp,cdp->cp", z, z))
    return np.concatenate(found)


def log_t(
    square: Float[np.ndarray, "component point"],
    factor: Float[np.ndarray, "component dim dim"],
    freedom: Float[np.ndarray, " component"],
) -> Float[np.ndarray, "component point"]:
    """Log densities of multivariate t distributions at squared Mahalanobis distances."""
    dim = factor.shape[-1]
    constant = gammaln((freedom + dim) / 2.0) - gammaln(freedom / 2.0) - dim / 2.0 * np.log(freedom * np.pi)
    constant -= np.log(np.abs(np.diagonal(factor, axis1=1, axis2=2))).sum(axis=1)
    return constant[:, None] - ((freedom + dim) / 2.0)[:, None] * np.log1p(square / freedom[:, None])
