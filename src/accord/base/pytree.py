"""Frozen dataclasses that are pytrees, checked when a user creates them and rebuilt unchecked inside JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")
# (field name, given value) -> stored value, or an error that names the field.
Check = Callable[[str, Any], Any]


def static(check: Check | None = None, **kwargs: Any) -> Any:
    """A static field: part of the pytree's structure, such as a name or a count, and no leaf."""
    return dataclasses.field(metadata={"static": True, "check": check}, **kwargs)


def checked(check: Check, **kwargs: Any) -> Any:
    """A field that `apply_checks` replaces by `check(name, value)`."""
    return dataclasses.field(metadata={"check": check}, **kwargs)


def apply_checks(instance: Any) -> None:
    """Replace each field by the result of its check. None stays if it is the default."""
    for field in dataclasses.fields(instance):
        check, value = field.metadata.get("check"), getattr(instance, field.name)
        if check is not None and not (value is None and field.default is None):
            object.__setattr__(instance, field.name, check(field.name, value))


def unchecked(cls: type[T], **values: Any) -> T:
    """An instance created without the constructor, for fields that are not data, such as the axes of a `vmap`."""
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def altered(instance: T, **values: Any) -> T:
    """A copy of a dataclass with other values of some fields, created without the constructor."""
    names = [f.name for f in dataclasses.fields(instance)]  # type: ignore[arg-type]
    return unchecked(type(instance), **{**{name: getattr(instance, name) for name in names}, **values})


@dataclass_transform(frozen_default=True, field_specifiers=(static, checked, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree. `static` fields become part of its structure.

    Unlike with `jax.tree_util.register_dataclass`, unflattening does not call the constructor, so that `__post_init__`
    never checks the placeholders that JAX transformations put into a pytree.
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
