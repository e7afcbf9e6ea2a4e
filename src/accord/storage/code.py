"""The code of users' classes, and what it has from outside: an edited method is another one."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from ..base.errors import is_users


def own_code(cls: type) -> list[Any]:
    """What the functions of a class do, of it and its bases, in lists, texts and values; nothing of accord's own.

    Bytecode, which no comment or line number changes, with the constants in it, values of names that it has from its
    module and closure, and the same of users' functions that it calls.
    """
    seen: set[int] = set()
    owners = [owner for owner in cls.__mro__ if any(map(_is_written, vars(owner).values()))]
    return [
        [name, *(_told(function, seen) for function in _functions(member))]
        for owner in owners
        for name, member in sorted(vars(owner).items())
    ]


def _is_written(member: Any) -> bool:
    return any(is_users(function.__code__.co_filename) for function in _functions(member))


def _functions(member: Any) -> Iterator[types.FunctionType]:
    """The Python functions behind a member of a class, or behind a value: a method, a property, what JAX has jitted."""
    parts = (member.fget,) if isinstance(member, property) else (getattr(member, "__func__", member),)
    for part in parts:
        found = inspect.unwrap(part) if callable(part) and not isinstance(part, type) else part
        if isinstance(found, types.FunctionType):
            yield found


def _told(function: types.FunctionType, seen: set[int]) -> list[Any]:
    if id(function) in seen or not is_users(function.__code__.co_filename):
        return [function.__qualname__]
    seen.add(id(function))
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    outside = {name: function.__globals__[name] for name in names if name in function.__globals__}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*outside.items(), *enumerate(cells), ("defaults", [function.__defaults__, function.__kwdefaults__])]
    told = [[str(name), *([_told(f, seen) for f in _functions(value)] or [_value(value)])] for name, value in values]
    return [function.__qualname__, [_bytes(code) for code in _codes(function.__code__)], told]


def _value(value: Any) -> Any:
    """A value that is one; of modules and classes their names are in the code."""
    return None if isinstance(value, types.ModuleType | type) else value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _bytes(code: types.CodeType) -> list[str]:
    constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
    # a set of texts has another order in every process
    told = [repr(sorted(map(repr, c)) if isinstance(c, frozenset) else c) for c in constants]
    return [code.co_code.hex(), *code.co_names, *told]
