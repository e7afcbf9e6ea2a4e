"""The user's parameters as a function of unconstrained numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..base.compiler import compiled
from ..base.errors import unknown_name_error
from ..base.pytree import pytree, static

# Fewest positions of a program, so that runs of few draws share one.
_FEWEST = 1024
# Largest batch of positions that are transformed to the user's parameters.
_AT_ONCE = 2**13


@pytree
class Standardised:
    """A non-centred parameterisation, in place of a constraint.

    Methods move in z, where the variable (group, effect) is `factor(params)` times z. A priori, z does not depend on
    the parameters of the factor, such as a standard deviation. The variable may have any values.

    Parameters
    ----------
    factor
        `factor(params)`: a lower-triangular matrix, (effect, effect), from the other parameters.
    """

    factor: Callable[[PyTree], Array] = static()

    def __repr__(self) -> str:
        # no memory address, so that all processes agree
        return f"Standardised({getattr(self.factor, '__qualname__', '')})"

    def __call__(self, z: Float[Array, "group effect"], params: PyTree) -> tuple[Array, Array]:
        """The variable at standardised numbers, and the log Jacobian determinant."""
        factor = self.factor(params)
        # faster than a matrix product for one or two effects
        return jnp.sum(factor[None] * z[:, None], axis=2), z.shape[0] * jnp.log(jnp.diagonal(factor)).sum()

    def inverse(self, own: Float[Array, "group effect"], params: PyTree) -> Float[Array, "group effect"]:
        """The standardised numbers of the variable."""
        factor, found = self.factor(params), list[Array]()
        # forward substitution, for few effects and many positions at once
        for row in range(own.shape[1]):
            known = sum((factor[row, place] * z for place, z in enumerate(found)), jnp.zeros(()))
            found.append((own[:, row] - known) / factor[row, row])
        return jnp.stack(found, axis=1)


def unravel(x: Float[Array, " dim"], shapes: tuple[tuple[int, ...], ...], treedef: Any) -> PyTree:
    """A flat position as a pytree with these shapes and this structure."""
    # the gradient of a split is one concatenation, the gradient of slices a sum of full arrays
    parts = jax.lax.split(x, list(map(prod, shapes)))
    return treedef.unflatten([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])


@pytree
class Parameters:
    """A pytree of parameters as a function of an unconstrained flat position x, shape (dim,).

    Parameters
    ----------
    transforms
        One per variable: NumPyro's bijection from unconstrained values to the user's, `Standardised`, or None for the
        identity.
    shapes
        The shape of each variable's unconstrained value.
    treedef
        The structure of the user's pytree.
    """

    transforms: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] = static()
    treedef: Any = static()

    @property
    def dim(self) -> int:
        """Number of unconstrained numbers."""
        return sum(map(prod, self.shapes))

    @property
    def constrained(self) -> bool:
        """Whether any variable has a transform."""
        return any(transform is not None for transform in self.transforms)

    def repeated(self, of_variables: Sequence[Any]) -> np.ndarray:
        """One value per variable, repeated for each of its unconstrained numbers, (dim,)."""
        return np.repeat(of_variables, list(map(prod, self.shapes)))

    def __call__(self, x: Float[Array, " dim"]) -> PyTree:
        """The user's parameters at a position."""
        return self.with_volume(x)[0]

    def with_volume(self, x: Float[Array, " dim"]) -> tuple[PyTree, Array | float]:
        """The user's parameters at a position, and the log Jacobian determinant of the transform there."""
        if not self.constrained:
            return unravel(x, self.shapes, self.treedef), 0.0
        free, volume = jax.tree.leaves(unravel(x, self.shapes, self.treedef)), jnp.zeros(())
        leaves = list(free)
        for place, (transform, own) in enumerate(zip(self.transforms, free, strict=True)):
            if transform is not None and not isinstance(transform, Standardised):
                leaves[place] = transform(own)
                volume = volume + jnp.sum(transform.log_abs_det_jacobian(own, leaves[place]))
        params = self.treedef.unflatten(leaves)
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, Standardised):
                leaves[place], own_volume = transform(free[place], params)
                volume = volume + own_volume
        return self.treedef.unflatten(leaves), volume

    def flat(self, x: Float[Array, " dim"]) -> Float[Array, " number"]:
        """The user's parameters at a position, as a flat vector."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(self(x))])

    def reported(self, positions: np.ndarray) -> np.ndarray:
        """The user's parameters at positions (..., dim), as flat vectors, shape (..., number)."""
        if not self.constrained:
            return positions
        flat = positions.reshape(-1, positions.shape[-1])
        # powers of two, to compile few programs
        size = min(_AT_ONCE, 2 ** ceil(log2(max(_FEWEST, len(flat)))))
        whole = np.concatenate([flat, np.repeat(flat[-1:], -len(flat) % size, axis=0)]).astype(np.float64)
        with jax.enable_x64(True):
            found = [np.asarray(_reported(self, part)) for part in np.split(whole, max(1, len(whole) // size))]
        return np.concatenate(found)[: len(flat)].astype(positions.dtype).reshape(*positions.shape[:-1], -1)


@compiled
def _reported(parameters: Parameters, x: Float[Array, "point dim"]) -> Float[Array, "point number"]:
    return jax.vmap(parameters.flat)(x)


def unconstrained(init: PyTree, constraints: Mapping[str, Any], what: str = "init") -> tuple[Parameters, np.ndarray]:
    """The map from unconstrained positions to parameters like `init`, and the position of `init`, shape (dim,).

    Parameters
    ----------
    init
        A pytree of numbers, in the user's scale.
    constraints
        Constraints by variable name (see `variables`): one of `numpyro.distributions.constraints`, or its name.
        Variables without a constraint are real.
    what
        The name of `init` in errors.

    Raises
    ------
    ValueError
        A constraint or its variable does not exist, or `init` violates a constraint.
    ImportError
        Constraints are given, and NumPyro is not installed.
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), init))
    if not leaves:
        raise ValueError(f"{what} holds no parameter: it must be a pytree with at least one array")
    names = [name for name, _ in variables(init)]
    for name in constraints:
        if name not in names:
            raise unknown_name_error("variable in constraints", name, names)
    transforms = tuple(_transform(name, constraints.get(name)) for name in names)
    for name, leaf in zip(names, leaves, strict=True):
        if not np.isfinite(leaf).all():
            raise ValueError(f"{what} must be finite, found NaN or infinity in {name}")
    with jax.enable_x64(True):
        free = [
            leaf if transform is None else _inverse(name, constraints[name], transform, leaf, what, init)
            for name, transform, leaf in zip(names, transforms, leaves, strict=True)
        ]
    return Parameters(transforms, tuple(leaf.shape for leaf in free), treedef), np.concatenate(
        list(map(np.ravel, free))
    )


def variables(init: PyTree) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of each variable of a pytree."""
    paths: Any
    paths, _ = jax.tree_util.tree_flatten_with_path(init)
    return tuple(
        (jax.tree_util.keystr(path, simple=True, separator=".") or "x", np.shape(leaf)) for path, leaf in paths
    )


def check_variables(names: list[str]) -> None:
    """Raise `ValueError` unless names are unique, no dimension of a run's arrays, and without "/"."""
    for name in names:
        if name in ("chain", "draw", "agent") or "/" in name or names.count(name) > 1:
            raise ValueError(
                f"the name {name!r} in init cannot be used: names must differ, hold no '/', and not be chain, draw "
                "or agent"
            )


def flat_names(variables: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[str, ...]:
    """One name per scalar of the variables, such as "x[0]"."""
    return tuple(
        name + (str(list(index)) if shape else "") for name, shape in variables for index in np.ndindex(*shape)
    )


def _constraint(name: str, given: Any) -> Any:
    """NumPyro's constraint, from its name or as given."""
    try:
        from numpyro.distributions import constraints
    except ImportError as error:
        raise ImportError("constraints need NumPyro: pip install 'accord[models]'") from error
    found = getattr(constraints, given, None) if isinstance(given, str) else given
    if not isinstance(found, constraints.Constraint):
        known = [key for key, value in vars(constraints).items() if isinstance(value, constraints.Constraint)]
        if isinstance(given, str) and given not in ("interval", "greater_than", "less_than"):
            raise unknown_name_error(f"constraint of {name}:", given, known)
        raise ValueError(
            f"the constraint of {name} must be one of numpyro.distributions.constraints or its name, such as "
            f"constraints.interval(0.0, 5.0) or 'positive', found {given!r}"
        )
    return found


def _transform(name: str, given: Any) -> Any:
    """NumPyro's bijection onto the support of a constraint, or `Standardised`. None for real numbers."""
    if given is None or isinstance(given, Standardised):
        return given
    from_constraint = _constraint(name, given)
    from numpyro.distributions import biject_to, transforms

    try:
        found = biject_to(from_constraint)
    except NotImplementedError as error:
        raise ValueError(f"{name} cannot be constrained to {given!r}: NumPyro has no continuous transform") from error
    return None if isinstance(found, transforms.IdentityTransform) else found


def _inverse(name: str, given: Any, transform: Any, leaf: np.ndarray, what: str, init: PyTree) -> np.ndarray:
    """The unconstrained value of a variable of `init`."""
    if isinstance(transform, Standardised):
        return np.asarray(transform.inverse(jnp.asarray(leaf), init))
    constraint = _constraint(name, given)
    # event_dim is 1 for vectors, 2 for matrices
    if leaf.ndim < constraint.event_dim or not np.all(constraint(leaf)):
        raise ValueError(f"{what} of {name} is {np.array2string(leaf, threshold=5)}, which is not {given}")
    found = np.asarray(transform._inverse(jnp.asarray(leaf)))
    if not np.isfinite(found).all():
        raise ValueError(f"{what} of {name} is {np.array2string(leaf, threshold=5)}, on the boundary of {given}")
    return found
