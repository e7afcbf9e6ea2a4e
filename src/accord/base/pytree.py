"""Frozen dataclasses that JAX can take as arguments: checked when a user makes them, rebuilt unchecked inside JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")
# A field's name and the value given for it -> the value to keep, or an error that names the field.
Check = Callable[[str, Any], Any]


def static(check: Check | None = None, **kwargs: Any) -> Any:
    """A field that shapes the compiled code (a name, a count), not a number that enters the arithmetic."""
    return dataclasses.field(metadata={"static": True, "check": check}, **kwargs)


def checked(check: Check, **kwargs: Any) -> Any:
    """A field that becomes `check(name, value)` where its class calls `apply_checks`."""
    return dataclasses.field(metadata={"check": check}, **kwargs)


def apply_checks(instance: Any) -> None:
    """Replace fields by what their checks make of them; what may be left out, None by default, may stay so."""
    for field in dataclasses.fields(instance):
        check, value = field.metadata.get("check"), getattr(instance, field.name)
        if check is not None and not (value is None and field.default is None):
            object.__setattr__(instance, field.name, check(field.name, value))


def unchecked(cls: type[T], **values: Any) -> T:
    """An instance made around the constructor: a pytree of anything but data, such as the axes of a `vmap`."""
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def altered(instance: T, **values: Any) -> T:
    """The same dataclass with other values of some fields, made around the constructor."""
    names = [f.name for f in dataclasses.fields(instance)]  # type: ignore[arg-type]
    return unchecked(type(instance), **{**{name: getattr(instance, name) for name in names}, **values})


@dataclass_transform(frozen_default=True, field_specifiers=(static, checked, dataclasses.field))
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
