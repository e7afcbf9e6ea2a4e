"""Partly centred coordinates of effects whose prior depends on other parameters, chosen from the chains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ...base.compiler import compiled
from ...base.widths import in_doubles
from ...posterior import Posterior
from ...posterior.coordinates import Coordinates
from ...posterior.newton import Expansion
from ...posterior.parameters import variables
from ..session import Session
from .evaluations import slopes


@dataclass(frozen=True)
class Centring:
    """Coordinates z of chains, and F in these coordinates.

    With y = place(z), an effect whose prior has location m and scale s is x = m + s**(1 - c) (y - c m). It is centred
    for c = 1 and non-centred for c = 0. If the rows have the share c of the information about the effect, y hardly
    depends on s a posteriori (Papaspiliopoulos, Roberts & Skold 2007, "A General Framework for the Parametrization of
    Hierarchical Models"). Other parameters have x = y.

    Parameters
    ----------
    post
        The posterior, whose `hierarchy` has m and s.
    share
        The numbers c, shape (dim,), and 1 for other parameters.
    place
        Affine coordinates.
    """

    post: Posterior
    share: np.ndarray
    place: Coordinates

    @classmethod
    def none(cls, post: Posterior, place: Coordinates) -> Centring:
        """The affine coordinates alone."""
        return cls(post, np.ones(post.dim), place)

    @classmethod
    def non_centred(cls, post: Posterior) -> Centring:
        """Non-centred effects, and other parameters as they are."""
        own = cls.none(post, Coordinates(np.zeros(post.dim), np.eye(post.dim)))
        return own if post.hierarchy is None else replace(own, share=np.where(_is_effect(post), 0.0, 1.0))

    @classmethod
    def by_information(cls, post: Posterior, x: np.ndarray, hessian: np.ndarray) -> Centring:
        """Effects centred by the rows' share of the information at x, from the Hessian of F there."""
        own = cls.non_centred(post)
        if own.is_affine:
            return own
        log_scale = _prior(post, x[None])[1][0]
        with np.errstate(over="ignore"):
            information = np.diagonal(hessian) - np.exp(-2.0 * log_scale)
        return replace(own, share=_share(post, information, log_scale))

    @property
    def is_affine(self) -> bool:
        """Whether no effect is partly centred."""
        return bool((self.share == 1.0).all())

    def x(self, z: Float[np.ndarray, "... dim"]) -> Float[np.ndarray, "... dim"]:
        """The posterior's unconstrained x at positions z."""
        y = self.place.origin + z @ self.place.factor.T
        if self.is_affine:
            return y
        found = in_doubles(lambda: _moved_all(*self._map, jnp.asarray(y.reshape(-1, y.shape[-1])))[0])
        return np.asarray(found).reshape(y.shape)

    def z(self, x: Float[np.ndarray, "point dim"]) -> Float[np.ndarray, "point dim"]:
        """The positions of points x."""
        return self.place.inverse(x if self.is_affine else self._y(x))

    def slopes(self, session: Session, z: Float[np.ndarray, "point dim"]) -> tuple[np.ndarray, np.ndarray]:
        """F, (point,), with its gradient, (point, dim), in z; one sum."""
        if self.is_affine:
            return slopes(session, self.place, z)
        return self._pulled(z, *slopes(session, None, self.x(z)))

    def expansion(self, x: Float[np.ndarray, " dim"], here: Expansion) -> Expansion:
        """The expansion of F in z, from its expansion in x; without the volume of `place`."""
        if not self.is_affine:
            y = jnp.asarray(self._y(x[None])[0])
            found = in_doubles(lambda: _expanded(*self._map, y, *(jnp.asarray(part) for part in (x, *here))))
            here = Expansion(float(found[0]), *map(np.asarray, found[1:]))
        root = self.place.factor
        return Expansion(here.value, here.gradient @ root, root.T @ here.hessian @ root)

    def fitted(
        self, session: Session, z: Float[np.ndarray, "point dim"]
    ) -> tuple[Centring, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Coordinates fitted to the chains at z, and positions, F and gradients of the chains there; one sum."""
        x = self.x(z)
        values, gradients = slopes(session, None, x)
        location, log_scale = _prior(self.post, x)
        # robust to chains that are far away
        near = (values <= np.quantile(values, _NEAR)) & np.isfinite(location + log_scale).all(axis=1)
        if not near.any():
            return self, (z, *self._pulled(z, values, gradients))
        small = np.quantile(log_scale[near], _SMALL, axis=0)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # the gradient without the effect's own prior, as if that were normal
            score = gradients[near] - (x - location)[near] * np.exp(-2.0 * log_scale[near])
            apart, score = x[near] - x[near].mean(axis=0), score - score.mean(axis=0)
            information = (apart * score).sum(axis=0) / np.square(apart).sum(axis=0)
        share = _share(self.post, information, small)
        y = Centring(self.post, share, self.place)._y(x)
        low, middle, high = np.quantile(y[near], [0.16, 0.5, 0.84], axis=0)
        own = Centring(self.post, share, Coordinates(middle, np.diag(np.maximum(high - low, 1e-12) / 2.0)))
        moved = own.place.inverse(y)
        return own, (moved, *own._pulled(moved, values, gradients))

    @property
    def _map(self) -> tuple[Any, ...]:
        """The first arguments of `_moved_all`."""
        return _hierarchy(self.post), self.post.parameters, jnp.asarray(self.share)

    def _y(self, x: np.ndarray) -> np.ndarray:
        location, log_scale = _prior(self.post, x)
        # far chains may overflow
        with np.errstate(over="ignore", invalid="ignore"):
            return self.share * location + np.exp((self.share - 1.0) * log_scale) * (x - location)

    def _pulled(self, z: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F and its gradient in z, with the volume of the map, from F and its gradient in x."""
        y = self.place.origin + z @ self.place.factor.T
        volume, pulled = in_doubles(lambda: _pulled(*self._map, jnp.asarray(y), jnp.asarray(gradients)))
        return values - np.asarray(volume), np.asarray(pulled) @ self.place.factor


# Share of the chains, those with the least F, from which coordinates are fitted.
_NEAR = 0.9
# Quantile of the prior's scale for which effects are centred. Low, as a scale near 0 has a long tail.
_SMALL = 0.05


def _prior(post: Posterior, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Location and log scale of the prior of each effect, 0 for other parameters, shapes (point, dim)."""
    location, log_scale = in_doubles(lambda: _prior_all(_hierarchy(post), post.parameters, jnp.asarray(x)))
    return np.asarray(location), np.asarray(log_scale)


def _share(post: Posterior, information: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """The numbers c of effects from the information of rows about them, shapes (dim,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        share = np.nan_to_num(1.0 - 1.0 / (1.0 + np.maximum(information, 0.0) * np.exp(2.0 * log_scale)))
    return np.where(_is_effect(post), share, 1.0)


def _is_effect(post: Posterior) -> np.ndarray:
    """Which unconstrained numbers are effects, shape (dim,)."""
    return post.parameters.repeated([name in post.effects for name, _ in post.variables])


def _hierarchy(post: Posterior) -> Partial:
    assert post.hierarchy is not None
    return post.hierarchy


def _flat(hierarchy: Any, parameters: Any, x: Array) -> tuple[Array, Array]:
    """Location and log scale of each number's prior at x, shapes (dim,)."""
    params = parameters(x)
    found = hierarchy(params)
    location, log_scale = [], []
    for (name, _), shape in zip(variables(params), parameters.shapes, strict=True):
        m, s = found.get(name, (0.0, 1.0))
        location.append(jnp.broadcast_to(m, shape).ravel())
        log_scale.append(jnp.broadcast_to(jnp.log(s), shape).ravel())
    return jnp.concatenate(location), jnp.concatenate(log_scale)


def _moved(hierarchy: Any, parameters: Any, share: Array, y: Array) -> tuple[Array, Array]:
    """x, (dim,), and the log Jacobian determinant of the map, from y."""

    def step(_: Any, reached: tuple[Array, Array]) -> tuple[Array, Array]:
        location, log_scale = _flat(hierarchy, parameters, reached[0])
        x = location + jnp.exp((1.0 - share) * log_scale) * (y - share * location)
        return x, jnp.sum((1.0 - share) * log_scale)

    # an effect's prior may depend on other effects
    depth = len(hierarchy(parameters(y)))
    found: tuple[Array, Array] = jax.lax.fori_loop(0, depth, step, (y, jnp.zeros(())))
    return found


@compiled
def _prior_all(hierarchy: Any, parameters: Any, x: Array) -> tuple[Array, Array]:
    return jax.vmap(lambda one: _flat(hierarchy, parameters, one))(x)


@compiled
def _moved_all(hierarchy: Any, parameters: Any, share: Array, y: Array) -> tuple[Array, Array]:
    return jax.vmap(lambda one: _moved(hierarchy, parameters, share, one))(y)


@compiled
def _pulled(hierarchy: Any, parameters: Any, share: Array, y: Array, gradients: Array) -> tuple[Array, Array]:
    (_, volume), pull = jax.vjp(jax.vmap(lambda one: _moved(hierarchy, parameters, share, one)), y)
    return volume, pull((gradients, -jnp.ones_like(volume)))[0]


@compiled
def _expanded(
    hierarchy: Any, parameters: Any, share: Array, y: Array, x: Array, value: Array, gradient: Array, hessian: Array
) -> tuple[Array, Array, Array]:
    """The expansion of F in y, with the volume of the map, from its expansion in x."""

    def model(y: Array) -> Array:
        moved, volume = _moved(hierarchy, parameters, share, y)
        apart = moved - x
        return value + gradient @ apart + apart @ hessian @ apart / 2.0 - volume

    return model(y), jax.grad(model)(y), jax.hessian(model)(y)
