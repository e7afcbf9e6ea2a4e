"""Commands of other packages, from entry points of the group `accord.commands`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from .errors import users_errors

GROUP = "accord.commands"


def add_commands(app: typer.Typer) -> None:
    """Add the commands of all installed packages. Each entry point is a Typer function."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        app.command(point.name)(_guarded(_loaded(point)))


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    """The function of an entry point, or one that raises `ImportError` if its package cannot be imported."""
    try:
        command: Callable[..., Any] = point.load()
    except Exception as error:
        reason = f"the command {point.name} of {point.value} cannot be loaded: {error}"

        def command() -> None:
            raise ImportError(reason)

        command.__doc__ = f"Not available: {error}"
    return command


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """The function with user errors as one line each."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> Any:
        with users_errors():
            return command(*arguments, **options)

    return guarded
