"""Errors that several rooms of the house raise."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

# Where code lies that is not the user's: this package, Python, and what is installed.
_OTHERS = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))


class DivergenceError(ArithmeticError):
    """Raised when a chain became non-finite; `run` holds what was drawn before.

    Parameters
    ----------
    message : str
        What happened, with the bound on the step where one is known.
    agent : int
        The first agent whose position is not finite.
    round : int
        The round in which that was seen, counted from 0.
    run : Run, optional
        Everything drawn before the round.
    """

    def __init__(self, message: str, *, agent: int, round: int, run: Any = None) -> None:
        super().__init__(message)
        self.agent = agent
        self.round = round
        self.run = run

    def __reduce__(self) -> tuple[Callable[..., DivergenceError], tuple[Any, ...]]:
        """Carry the keyword-only attributes too: the silo engine sends errors from process to process."""
        return partial(type(self), agent=self.agent, round=self.round, run=self.run), self.args


class AgentLostError(RuntimeError):
    """Raised where an agent is gone for good; `run` holds what was drawn before.

    Parameters
    ----------
    message : str
        What happened.
    agent : int
        Who is gone.
    run : Run, optional
        Everything drawn before, where there are draws.
    """

    def __init__(self, message: str, *, agent: int, run: Any = None) -> None:
        super().__init__(message)
        self.agent = agent
        self.run = run


class DataError(ValueError):
    """Raised where an agent's data could not be read, or is asked for where it does not lie."""


def told(error: BaseException) -> str:
    """What is told of an error that a function raised while it had somebody's rows before it.

    Its text may quote a cell, so its kind is told, and the line of the user's code. A `DataError` quotes none, nor
    does what an operating system says of a file.

    Examples
    --------
    >>> told(FileNotFoundError(2, "No such file or directory", "north.csv"))
    'FileNotFoundError: No such file or directory: north.csv'
    """
    if isinstance(error, DataError):
        return str(error)
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return f"{kind}: {error.strerror}" + (f": {error.filename}" if error.filename is not None else "")
    return f"{kind}{place_of(error)} (its text may quote data)"


def has_own_words(error: BaseException) -> bool:
    """Whether a `raise` in this package or in the user's code made an error, and not Python or somebody's library."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not (frames[-1].line or "").startswith("raise"):
        return False
    return Path(frames[-1].filename).is_relative_to(_OTHERS[0]) or place_of(error).endswith(
        f"line {frames[-1].lineno} of {frames[-1].filename}"
    )


def explained(error: BaseException) -> str:
    """An error of the user's code, in its own words where it has some, or as it is `told`."""
    return f"{type(error).__name__}{place_of(error)}: {error}" if has_own_words(error) else told(error)


@cache
def is_users(filename: str) -> bool:
    """Whether code of a file, or of a notebook's cell, is the user's, and not made by a library."""
    return filename != "<string>" and not any(map(Path(filename).is_relative_to, _OTHERS))


def place_of(error: BaseException) -> str:
    """Where in the user's own code an error is, in words: " in FUNCTION, line 3 of FILE"; "" where it is in none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" in line {error.lineno} of {error.filename}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        # <frozen importlib>, <string>
        if not frame.filename.startswith("<") and is_users(frame.filename):
            return f" in {frame.name}, line {frame.lineno} of {frame.filename}"
    return ""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is spelled most like a name, or None where none is much like it.

    Examples
    --------
    >>> nearest("age", ["dose", "Age"])
    'Age'
    """
    # compared without case, so that "Ring" finds "ring"
    lowered = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[found[0]] if found else None


def absent_error(name: str, why: str) -> AttributeError:
    """Return the error for an attribute that this object does not have; Python suggests no other name beside it.

    Parameters
    ----------
    name : str
        The attribute.
    why : str
        Why it is absent.

    Returns
    -------
    AttributeError
        To be raised by the caller.
    """
    # without an object there are no names to suggest
    return AttributeError(why, name=name, obj=None)


def unknown_name_error(kind: str, name: object, choices: Iterable[str], meant: str | None = None) -> ValueError:
    """Return the error for a name that is not among the choices, with the nearest right one.

    Parameters
    ----------
    kind : str
        What is being named, such as ``"network"``.
    name : object
        What was found.
    choices : iterable of str
        The right names.
    meant : str, optional
        The right name, where it is known; else the choice that is spelled most like `name`.

    Returns
    -------
    ValueError
        To be raised by the caller.

    Examples
    --------
    >>> unknown_name_error("network", "rign", ["ring", "star"])
    ValueError("unknown network 'rign', did you mean 'ring'? The choices are 'ring', 'star'")
    """
    choices = list(choices)
    near = nearest(str(name), choices) if meant is None else meant
    hint = f", did you mean {near!r}?" if near is not None else "."
    return ValueError(f"unknown {kind} {name!r}{hint} The choices are {', '.join(map(repr, choices))}")
