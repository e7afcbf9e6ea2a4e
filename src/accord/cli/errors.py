"""Users' errors on the command line: a line each, and no traceback."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from ..base.errors import explained, place_of


@contextmanager
def users_errors() -> Iterator[list[str]]:
    """Show warnings and the user's errors as one line each, without a traceback; yields accord's warnings so far."""
    warned: list[str] = []

    def show(message: Warning | str, category: type[Warning], *rest: object, **options: object) -> None:
        print(f"warning: {message}", file=sys.stderr)
        # deprecations and numerical warnings of libraries have other classes
        if category is UserWarning and str(message) not in warned:
            warned.append(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield warned
        except (typer.Exit, typer.Abort, typer.BadParameter):
            # Typer's own ways to end a command
            raise
        except (ValueError, TypeError, OSError, ArithmeticError, ImportError) as error:
            # the number that an operating system has for an error helps no user
            text = re.sub(r"\[Errno -?\d+\] ", "", str(error))
            Console(stderr=True, soft_wrap=True).print(
                f"error: {text}", style="bold red", highlight=False, markup=False
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except Exception as error:
            # of a user's model or method: another one is accord's, and needs its traceback
            if not place_of(error):
                raise
            print(f"error: {explained(error)}", file=sys.stderr)
            raise typer.Exit(1) from None
