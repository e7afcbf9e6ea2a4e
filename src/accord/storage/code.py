"""The code of users' classes, and what it has from outside: an edited method is another one."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.errors import is_users


def own_code(cls: type) -> list[Any]:
    """What the functions of a class do, of it and its bases, in lists, texts and values; nothing of accord's own.

    Bytecode, which no comment, docstring or line number changes, with the constants in it, what it has from its module,
    closure and class by the names that stand in it, and the same of users' functions, modules, classes and objects that
    it reaches so.
    """
    seen: set[Any] = set()
    found: list[Any] = []
    for owner in cls.__mro__:
        functions = map(_function, vars(owner).values())
        if any(f is not None and is_users(f.__code__.co_filename) for f in functions):
            found.append(_members(vars(owner), seen))
    return found


def _function(member: Any) -> types.FunctionType | None:
    """The Python function behind a member of a class, or behind a value: a method, a property, what JAX has jitted."""
    found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    if callable(found) and not isinstance(found, type):
        found = inspect.unwrap(found)
    return found if isinstance(found, types.FunctionType) else None


def _members(members: Mapping[str, Any], seen: set[Any], names: frozenset[str] | None = None) -> list[Any]:
    """Those of some names, or all; of values that Python makes for classes and modules the names say enough."""
    chosen = sorted(members if names is None else names & set(members))
    made = {name for name in chosen if name.startswith("__") and _function(members[name]) is None}
    return [[name, None if name in made else _told(members[name], seen, names)] for name in chosen]


def _told(value: Any, seen: set[Any], names: frozenset[str] | None) -> Any:
    """A value; of what holds others these, of modules and classes those of the names that stand in the code."""
    function = _function(value)
    if function is not None:
        return _of_function(function, seen)
    if isinstance(value, list | tuple):
        return [_told(item, seen, names) for item in value]
    if isinstance(value, dict):
        return {str(key): _told(item, seen, names) for key, item in value.items()}
    if isinstance(value, types.ModuleType | type):
        held, chosen = _of_users(value), names or frozenset()
    elif isinstance(value, types.SimpleNamespace) or _is_users(type(value).__module__):
        # its methods may read any of its own
        held, chosen = {**_of_users(type(value)), **getattr(value, "__dict__", {})}, None
    else:
        return value
    if (id(value), chosen) in seen:
        return None
    seen.add((id(value), chosen))
    return _members(held, seen, chosen)


def _of_users(value: types.ModuleType | type) -> dict[str, Any]:
    """What a module or class of the user's holds, of the class' own bases too; nothing of others."""
    if isinstance(value, types.ModuleType):
        return dict(vars(value)) if _is_users(value.__name__) else {}
    owners = [owner for owner in reversed(value.__mro__) if _is_users(owner.__module__)]
    return {name: member for owner in owners for name, member in vars(owner).items()}


def _is_users(module: str) -> bool:
    """Whether a module is of no library; notebooks and what was compiled in place have no file."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or is_users(file)


def _of_function(function: types.FunctionType, seen: set[Any]) -> list[Any]:
    if function in seen or not is_users(function.__code__.co_filename):
        return [function.__qualname__]
    seen.add(function)
    names = frozenset(name for code in _codes(function.__code__) for name in code.co_names)
    cells = {str(k): cell.cell_contents for k, cell in enumerate(function.__closure__ or ())}
    told = [
        *_members(function.__globals__, seen, names),
        *([name, _told(value, seen, names)] for name, value in cells.items()),
        ["defaults", _told([function.__defaults__, function.__kwdefaults__], seen, names)],
    ]
    return [function.__qualname__, [_bytes(code, function.__doc__) for code in _codes(function.__code__)], told]


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
