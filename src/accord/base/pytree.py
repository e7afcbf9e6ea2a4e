"""Frozen dataclasses that JAX can take as arguments: checked when a user makes them, rebuilt unchecked inside JAX."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """A field that shapes the compiled code (a name, a count), not a number that enters the arithmetic."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def unchecked(cls: type[T], **values: Any) -> T:
    """An instance made around the constructor: a pytree of anything but data, such as the axes of a `vmap`."""
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree; `static` fields become part of its structure.

    Unlike `jax.tree_util.register_dataclass`, rebuilding does not call the constructor, so that `__post_init__` may
    check its arguments without meeting the placeholders that transformations fill a pytree with.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = dataclasses.fields(cls)  # type: ignore[arg-type]
    leaves = tuple(f.name for f in names if not f.metadata.get("static"))
    fixed = tuple(f.name for f in names if f.metadata.get("static"))

    def flatten(value: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(value, n) for n in leaves), tuple(getattr(value, n) for n in fixed)

    def unflatten(aux: tuple[Any, ...], children: tuple[Any, ...]) -> T:
        return unchecked(cls, **dict(zip(leaves + fixed, (*children, *aux), strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
