"""Checks of the sections of a configuration file, with errors that name section, key and value."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..base.errors import explained, is_deliberate, is_of_accord, place_of, unknown_name_error


def imported(kind: str, name: str, folder: Path) -> Any:
    """The object at "module:name"; modules in `folder` can be imported."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        # user modules may raise anything
        found = f"{type(error).__name__}{place_of(error)}: {error}"
        raise ValueError(f"{kind} {name!r} cannot be loaded: {found}") from error
    finally:
        sys.path.remove(str(folder.resolve()))


def pop_name(section: str, content: dict[str, Any]) -> str:
    """Remove and return the name of a section."""
    require_given(f"[{section}]", content, ("name",))
    name = content.pop("name")
    if not isinstance(name, str):
        raise ValueError(f"name in [{section}] must be a string, found {name!r}")
    return name


def call(what: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call with the file's keys as keyword arguments; `ValueError` for keys that do not match the signature."""
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error
    return function(*arguments, **options)


def built(what: str, function: Callable[..., Any], numbers: dict[str, Any]) -> Any:
    """The result of a call with values of the file; errors name these values, which may be of any type."""
    try:
        return call(what, function, **numbers)
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and is_deliberate(error):
            raise
        given = ", ".join(f"{key} = {value!r}" for key, value in numbers.items())
        reason = str(error) if is_deliberate(error) else f"{type(error).__name__}{place_of(error)}: {error}"
        raise ValueError(f"{what} cannot have {given}: {reason}") from error


def call_users(what: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function or class that may be user code; any exception becomes one error that names the line.

    The message omits texts of errors that accord does not raise, because they may quote rows.
    """
    try:
        return call(what, function, *arguments, **options)
    except (Exception, SystemExit) as error:
        if isinstance(error, (ValueError, TypeError, OSError, ArithmeticError, ImportError)) and is_of_accord(error):
            raise
        raise ValueError(f"{what} failed: {explained(error)}") from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_table_of_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_whole(v) or isinstance(v, float) for v in value.values())


# For each annotation, a check of TOML values and a description for messages.
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_is_whole, "a whole number"),
    "float": (lambda value: _is_whole(value) or isinstance(value, float), "a number"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "Sequence[int]": (lambda value: isinstance(value, list) and all(map(_is_whole, value)), "a list of whole numbers"),
    "Sequence[Mapping[str, float | int]]": (
        lambda value: isinstance(value, list) and all(map(_is_table_of_numbers, value)),
        "a list of tables of numbers, as [{site_a = 1}, {site_b = 1}]",
    ),
    "Sequence": (lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of strings"),
    "Mapping": (lambda value: isinstance(value, dict), "a table, as {name = ...}"),
    "Policy": (lambda value: isinstance(value, dict), "a table, as {rows = 10}"),
}
# Annotations without a TOML value, or with a string in their place.
_NEVER = ("None", "Path", "os.PathLike", "Builder")


def require_types(where: str, section: dict[str, Any], function: Callable[..., Any]) -> None:
    """Raise `ValueError` for values that do not match the function's annotations; other annotations are skipped."""
    parameters = inspect.signature(function).parameters
    for key, value in section.items():
        if key in parameters:
            require_type(where, key, value, str(parameters[key].annotation))


def as_float(where: str, key: str, value: Any) -> float:
    """A number as a float; `ValueError` for integers beyond the range of floats."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{key} in {where} must be a finite number, found one of {len(str(value))} digits") from None


def require_type(where: str, key: str, value: Any, annotation: str) -> Any:
    """The value, if its type matches an annotation; else `ValueError`."""
    parts = [part.strip() for part in _alternatives(annotation)]
    names = [part if part in _TYPES else part.partition("[")[0] for part in parts]
    if not all(name in _TYPES or name in _NEVER for name in names):
        return value
    allowed = [_TYPES[name] for name in names if name in _TYPES]
    if not any(holds(value) for holds, _ in allowed):
        words = " or ".join(dict.fromkeys(word for _, word in allowed))
        raise ValueError(f"{key} in {where} must be {words}, found {value!r}")
    return value


def _alternatives(annotation: str) -> list[str]:
    """The members of a union annotation."""
    parts, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def require_known(kind: str, found: dict[str, Any], choices: Iterable[str]) -> None:
    """Raise `ValueError` for keys that are not among the choices."""
    choices = list(choices)
    for name in found:
        if name not in choices:
            raise unknown_name_error(kind, name, choices)


def require_placed(document: dict[str, Any], tables: Mapping[str, Collection[str]]) -> None:
    """Raise `ValueError` for keys of one table that stand in another table or above all tables.

    Parameters
    ----------
    document
        The content of a file.
    tables
        The keys of each table. Other tables are skipped.
    """
    for table, known in [("", document.keys() & tables.keys()), *tables.items()]:
        content = document.get(table, {}) if table else document
        for key in content if isinstance(content, dict) else ():
            owners = [f"[{other}]" for other, keys in tables.items() if key in keys]
            # every named section has a name
            if key not in known and owners and key != "name":
                where = f"in [{table}]" if table else "outside of it"
                raise ValueError(f"{key} is a key of {' or '.join(owners)}, found {where}: move it there")


def require_given(where: str, found: dict[str, Any], names: Iterable[str]) -> None:
    """Raise `ValueError` if a section lacks a key."""
    for name in names:
        if name not in found:
            raise ValueError(f"{where} must have the key {name!r}")
