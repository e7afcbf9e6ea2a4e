"""The code of users' classes, and what it has from outside: an edited method is another one."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from ..base.errors import is_users


def own_code(cls: type) -> list[Any]:
    """What the functions of a class do, of it and its bases, in lists, texts and values; nothing of accord's own.

    Bytecode, which no comment, docstring or line number changes, with the constants in it, values of names that it has
    from its module, closure and class, and the same of users' functions that it calls.
    """
    seen: set[int] = set()
    found: list[Any] = []
    for owner in cls.__mro__:
        functions = {name: _function(member) for name, member in sorted(vars(owner).items())}
        if any(f is not None and is_users(f.__code__.co_filename) for f in functions.values()):
            found.append(
                [[name, _attribute(owner, name) if f is None else _told(f, seen)] for name, f in functions.items()]
            )
    return found


def _attribute(owner: type, name: str) -> Any:
    """The value of a class' own attribute; of those that Python makes their names say enough."""
    return None if name.startswith("__") else _value(vars(owner)[name])


def _function(member: Any) -> types.FunctionType | None:
    """The Python function behind a member of a class, or behind a value: a method, a property, what JAX has jitted."""
    found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    if callable(found) and not isinstance(found, type):
        found = inspect.unwrap(found)
    return found if isinstance(found, types.FunctionType) else None


def _told(function: types.FunctionType, seen: set[int]) -> list[Any]:
    if id(function) in seen or not is_users(function.__code__.co_filename):
        return [function.__qualname__]
    seen.add(id(function))
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    outside = {name: function.__globals__[name] for name in names if name in function.__globals__}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*outside.items(), *enumerate(cells), ("defaults", [function.__defaults__, function.__kwdefaults__])]
    told = []
    for name, value in values:
        called = _function(value)
        told.append([str(name), _value(value) if called is None else _told(called, seen)])
    return [function.__qualname__, [_bytes(code, function.__doc__) for code in _codes(function.__code__)], told]


def _value(value: Any) -> Any:
    """A value that is one; of modules and classes their names are in the code."""
    return None if isinstance(value, types.ModuleType | type) else value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _bytes(code: types.CodeType, doc: str | None) -> list[str]:
    # a docstring is a constant of the code too
    constants = [
        constant for constant in code.co_consts if not isinstance(constant, types.CodeType) and constant is not doc
    ]
    # a set of texts has another order in every process
    told = [repr(sorted(map(repr, c)) if isinstance(c, frozenset) else c) for c in constants]
    return [code.co_code.hex(), *code.co_names, *told]
