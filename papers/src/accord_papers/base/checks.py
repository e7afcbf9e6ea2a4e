"""Checks of arguments; each raises one clear error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np


def whole_number(name: str, value: Any, low: int) -> int:
    """The value as an int, or a `ValueError` if it is not a whole number >= low."""
    try:
        number = low - 1 if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = low - 1
    if number < low:
        raise ValueError(f"{name} must be a whole number >= {low}, found {value!r}")
    return number


def one_an_agent(name: str, value: Any, num_agents: int) -> np.ndarray:
    """A number, or one number for each agent, as an array of shape (agent,). Other shapes raise `ValueError`."""
    array = np.asarray(value)
    if array.shape not in ((), (num_agents,)):
        raise ValueError(f"{name} must be one number or {num_agents}, one for each agent, found shape {array.shape}")
    return np.broadcast_to(array, (num_agents,))


def positive(name: str, value: float) -> None:
    """Raise `ValueError` unless a number is finite and > 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number > 0, found {value}")


def unknown_name_error(kind: str, name: object, choices: Iterable[str]) -> ValueError:
    """The error for a name that is not among the choices. Its message names the nearest choice."""
    choices = list(choices)
    near = difflib.get_close_matches(str(name).lower(), choices, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else "."
    return ValueError(f"unknown {kind} {name!r}{hint} The choices are {', '.join(map(repr, choices))}")
