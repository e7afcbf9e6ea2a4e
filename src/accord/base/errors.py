"""Exceptions that several packages raise, and error messages without private data."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

# Folders whose code is not the user's: this package, the standard library and installed packages.
_OTHERS = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))


class DivergenceError(ArithmeticError):
    """Raised when a chain becomes non-finite. `run` has the draws up to then.

    Parameters
    ----------
    message : str
        The error, with the bound on the step if known.
    agent : int
        The first agent with a non-finite position.
    round : int
        The round of the non-finite position, from 0.
    run : Run, optional
        All earlier draws.
    """

    def __init__(self, message: str, *, agent: int, round: int, run: Any = None) -> None:
        super().__init__(message)
        self.agent = agent
        self.round = round
        self.run = run

    def __reduce__(self) -> tuple[Callable[..., DivergenceError], tuple[Any, ...]]:
        """Pickle the keyword-only attributes too, because the silo engine sends errors between processes."""
        return partial(type(self), agent=self.agent, round=self.round, run=self.run), self.args


class AgentLostError(RuntimeError):
    """Raised when an agent is lost for good. `run` has the draws up to then.

    Parameters
    ----------
    message : str
        The error.
    agent : int
        The lost agent.
    run : Run, optional
        All earlier draws, if any.
    """

    def __init__(self, message: str, *, agent: int, run: Any = None) -> None:
        super().__init__(message)
        self.agent = agent
        self.run = run


class DataError(ValueError):
    """Raised when an agent's data cannot be read, or is requested at a site that does not have it."""


def safe_text(error: BaseException) -> str:
    """Describe an error of a function that had access to rows, without quoting data.

    The error's message may quote a cell. The description therefore has only the type and the line of the user's code,
    except for a `DataError` and for the operating system's file errors, which quote no data.

    Examples
    --------
    >>> safe_text(FileNotFoundError(2, "No such file or directory", "north.csv"))
    'FileNotFoundError: No such file or directory: north.csv'
    """
    if isinstance(error, DataError):
        return str(error)
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return f"{kind}: {error.strerror}" + (f": {error.filename}" if error.filename is not None else "")
    return f"{kind}{place_of(error)} (its text may quote data)"


def is_deliberate(error: BaseException) -> bool:
    """Whether a `raise` statement of accord or of the user raised the error, rather than Python or another library."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not (frames[-1].line or "").startswith("raise"):
        return False
    return is_of_accord(error) or place_of(error).endswith(f"line {frames[-1].lineno} of {frames[-1].filename}")


def is_of_accord(error: BaseException) -> bool:
    """Whether a `raise` statement of accord raised the error, so that its text quotes no cell."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        bool(frames)
        and (frames[-1].line or "").startswith("raise")
        and Path(frames[-1].filename).is_relative_to(_OTHERS[0])
    )


def explained(error: BaseException) -> str:
    """Describe an error with its message if accord raised it, else by `safe_text`."""
    return f"{type(error).__name__}{place_of(error)}: {error}" if is_of_accord(error) else safe_text(error)


@cache
def is_users(filename: str) -> bool:
    """Whether a file or notebook cell is the user's code, rather than a library's or generated code."""
    return filename != "<string>" and not any(map(Path(filename).is_relative_to, _OTHERS))


def place_of(error: BaseException) -> str:
    """The place of an error in the user's code, as " in FUNCTION, line 3 of FILE", or "" outside of it."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" in line {error.lineno} of {error.filename}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        # <frozen importlib>, <string>
        if not frame.filename.startswith("<") and is_users(frame.filename):
            return f" in {frame.name}, line {frame.lineno} of {frame.filename}"
    return ""


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice with the spelling nearest to a name, or None if no similarity (0 to 1) reaches `cutoff`.

    Examples
    --------
    >>> nearest("age", ["dose", "Age"])
    'Age'
    """
    # case-insensitive
    lowered = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None


def absent_error(name: str, why: str) -> AttributeError:
    """An `AttributeError` for which Python suggests no similar name.

    Parameters
    ----------
    name : str
        The attribute.
    why : str
        The message.
    """
    # Python suggests the object's names, and there is no object
    return AttributeError(why, name=name, obj=None)


def unknown_name_error(kind: str, name: object, choices: Iterable[str], meant: str | None = None) -> ValueError:
    """A `ValueError` for a name that is not among the choices, with a suggestion.

    Parameters
    ----------
    kind : str
        The kind of name, such as ``"network"``.
    name : object
        The unknown name.
    choices : iterable of str
        The valid names.
    meant : str, optional
        The name to suggest. None: the choice with the nearest spelling.

    Examples
    --------
    >>> unknown_name_error("network", "rign", ["ring", "star"])
    ValueError("unknown network 'rign', did you mean 'ring'? The choices are 'ring', 'star'")
    """
    choices = list(choices)
    near = nearest(str(name), choices) if meant is None else meant
    hint = f", did you mean {near!r}?" if near is not None else "."
    return ValueError(f"unknown {kind} {name!r}{hint} The choices are {', '.join(map(repr, choices))}")
