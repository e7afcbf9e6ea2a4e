"""User errors on the command line, as one line without a traceback."""

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
    """Print each warning once, and user errors as one line each. Yields the list of accord's warnings so far."""
    warned, shown = list[str](), set[str]()

    def show(message: Warning | str, category: type[Warning], *rest: object, **options: object) -> None:
        if str(message) in shown:
            return
        shown.add(str(message))
        print(f"warning: {message}", file=sys.stderr)
        # warnings of libraries have other classes
        if category is UserWarning:
            warned.append(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield warned
        except (typer.Exit, typer.Abort, typer.BadParameter):
            # raised by Typer to end a command
            raise
        except (ValueError, TypeError, OSError, ArithmeticError, ImportError) as error:
            # the error number of the operating system does not help users
            text = re.sub(r"\[Errno -?\d+\] ", "", str(error))
            Console(stderr=True, soft_wrap=True).print(
                f"error: {text}", style="bold red", highlight=False, markup=False
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            print(str(stop) or "interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except Exception as error:
            # an error in accord itself keeps its traceback
            if not place_of(error):
                raise
            print(f"error: {explained(error)}", file=sys.stderr)
            raise typer.Exit(1) from None
