"""The user's parameters, and the unconstrained numbers that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..base.compiler import compiled
from ..base.errors import unknown_name_error
from ..base.pytree import pytree, static

# Positions that are told in the user's numbers at a time.
_AT_ONCE = 2**13


@pytree
class Standardised:
    """In place of a constraint: methods move in a variable (group, effect) times the inverse of a matrix.

    The variable may be any number. In these units it is a priori independent of the parameters that the matrix is
    made of, such as a standard deviation, which methods need (the parameterisation is "non-centred").

    Parameters
    ----------
    factor
        `factor(params)`: a lower-triangular matrix, (effect, effect), of the other parameters.
    """

    factor: Callable[[PyTree], Array] = static()

    def __repr__(self) -> str:
        # the same in every process
        return f"Standardised({getattr(self.factor, '__qualname__', '')})"

    def __call__(self, z: Float[Array, "group effect"], params: PyTree) -> tuple[Array, Array]:
        """The variable at standardised numbers, and the log of the volume that a unit of these has."""
        factor = self.factor(params)
        # no product of matrices: these are of one or two rows and columns
        return jnp.sum(factor[None] * z[:, None], axis=2), z.shape[0] * jnp.log(jnp.diagonal(factor)).sum()

    def inverse(self, own: Float[Array, "group effect"], params: PyTree) -> Float[Array, "group effect"]:
        """The standardised numbers of the variable."""
        factor, found = self.factor(params), list[Array]()
        # row by row: there are few effects, and many positions at once
        for row in range(own.shape[1]):
            known = sum((factor[row, place] * z for place, z in enumerate(found)), jnp.zeros(()))
            found.append((own[:, row] - known) / factor[row, row])
        return jnp.stack(found, axis=1)


def unravel(x: Float[Array, " dim"], shapes: tuple[tuple[int, ...], ...], treedef: Any) -> PyTree:
    """The numbers of a flat position, as a pytree of such a structure."""
    # a split, whose gradient is one concatenation, where that of slices is a sum of arrays of all numbers
    parts = jax.lax.split(x, list(map(prod, shapes)))
    return treedef.unflatten([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])


@pytree
class Parameters:
    """A pytree of parameters as a function of a flat position x, shape (dim,), every one of which is allowed.

    Parameters
    ----------
    transforms
        One a variable: NumPyro's bijection from unconstrained numbers to the user's, `Standardised`, or None where
        these are the same.
    shapes
        Of each variable's unconstrained numbers.
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
        """Whether the user's numbers are others than those of a position."""
        return any(transform is not None for transform in self.transforms)

    def __call__(self, x: Float[Array, " dim"]) -> PyTree:
        """The user's parameters at a position."""
        return self.with_volume(x)[0]

    def with_volume(self, x: Float[Array, " dim"]) -> tuple[PyTree, Array | float]:
        """The same, and the log of the volume that a unit of positions has there."""
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
        """The user's numbers at a position, one variable after another."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(self(x))])

    def reported(self, positions: np.ndarray) -> np.ndarray:
        """The user's numbers at positions (..., dim), shape (..., number)."""
        if not self.constrained:
            return positions
        flat = positions.reshape(-1, positions.shape[-1])
        # few sizes, so that few programs do for all
        size = min(_AT_ONCE, 2 ** ceil(log2(max(1, len(flat)))))
        whole = np.concatenate([flat, np.repeat(flat[-1:], -len(flat) % size, axis=0)]).astype(np.float64)
        with jax.enable_x64(True):
            found = [np.asarray(_reported(self, part)) for part in np.split(whole, max(1, len(whole) // size))]
        return np.concatenate(found)[: len(flat)].astype(positions.dtype).reshape(*positions.shape[:-1], -1)


@compiled
def _reported(parameters: Parameters, x: Float[Array, "point dim"]) -> Float[Array, "point number"]:
    return jax.vmap(parameters.flat)(x)


def unconstrained(init: PyTree, constraints: Mapping[str, Any], what: str = "init") -> tuple[Parameters, np.ndarray]:
    """How flat positions stand for parameters like `init`, and the one that stands for `init` itself, shape (dim,).

    Parameters
    ----------
    init
        A pytree of numbers, in the user's scale.
    constraints
        By the name of a variable, as `variables` has it: one of NumPyro's `numpyro.distributions.constraints`, or its
        name. Variables without one may be any number.
    what
        What `init` is, for errors.

    Raises
    ------
    ValueError
        A constraint is none or is of no variable, or `init` violates one.
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
    """Names of variables must be usable in the tree of a run: unique, no dimension's name, no path."""
    for name in names:
        if name in ("chain", "draw", "agent") or "/" in name or names.count(name) > 1:
            raise ValueError(
                f"the name {name!r} in init cannot be used: names must differ, hold no '/', and not be chain, draw "
                "or agent"
            )


def flat_names(variables: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[str, ...]:
    """A name for each number of some variables."""
    return tuple(
        name + (str(list(index)) if shape else "") for name, shape in variables for index in np.ndindex(*shape)
    )


def _constraint(name: str, given: Any) -> Any:
    """NumPyro's constraint of a name, or the one that is given."""
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
            f"the constraint of {name} must be one of numpyro.distributions.constraints or its name, as "
            f"constraints.interval(0.0, 5.0) or 'positive', found {given!r}"
        )
    return found


def _transform(name: str, given: Any) -> Any:
    """NumPyro's bijection onto the numbers that a constraint allows, or `Standardised`; None where it allows all."""
    if given is None or isinstance(given, Standardised):
        return given
    from_constraint = _constraint(name, given)
    from numpyro.distributions import biject_to, transforms

    try:
        found = biject_to(from_constraint)
    except NotImplementedError as error:
        raise ValueError(f"{name} cannot be constrained to {given!r}: its values are not a continuum") from error
    return None if isinstance(found, transforms.IdentityTransform) else found


def _inverse(name: str, given: Any, transform: Any, leaf: np.ndarray, what: str, init: PyTree) -> np.ndarray:
    """The unconstrained numbers of a value of a variable of `init`."""
    if isinstance(transform, Standardised):
        return np.asarray(transform.inverse(jnp.asarray(leaf), init))
    constraint = _constraint(name, given)
    # 1 of vectors, 2 of matrices
    if leaf.ndim < constraint.event_dim or not np.all(constraint(leaf)):
        raise ValueError(f"{what} of {name} is {np.array2string(leaf, threshold=5)}, which is not {given}")
    found = np.asarray(transform._inverse(jnp.asarray(leaf)))
    if not np.isfinite(found).all():
        raise ValueError(f"{what} of {name} is {np.array2string(leaf, threshold=5)}, on the edge of {given}")
    return found
