"""How a formula is spelt: names of its terms as they were written, and what would be read otherwise than it looks.

formulae prints functions without the parentheses inside them, so that `I((x - 50) ** 2)` and `I(x - 50 ** 2)` have one
name; and it takes a sign before a power to be part of what is raised.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

_OPENING, _CLOSING = ("LEFT_PAREN", "LEFT_BRACE"), ("RIGHT_PAREN", "RIGHT_BRACE")
_OPERANDS = ("IDENTIFIER", "BQNAME", "NUMBER", "STRING", *_CLOSING)


def require_usual_powers(text: str, tokens: Sequence[Any]) -> None:
    """Raise `ValueError` where, in a function, a sign comes before a power, or a power is raised to another."""
    for first, last in _calls(tokens):
        for place in range(first, last):
            if tokens[place].kind != "STAR_STAR":
                continue
            before = _start_of_operand(tokens, place - 1) - 1
            is_sign = tokens[before].kind in ("PLUS", "MINUS") and tokens[before - 1].kind not in _OPERANDS
            if is_sign or tokens[before].kind == "STAR_STAR":
                raise ValueError(
                    f"in the formula {text!r} a sign before a power, or a power of a power, would be read otherwise "
                    "than it is meant: write parentheses, -(x ** 2)"
                )


class Spelling:
    """The functions in a formula as they were written.

    Raises
    ------
    ValueError
        Two different functions have one name for formulae.
    """

    def __init__(self, text: str, tokens: Sequence[Any]) -> None:
        self._written: dict[str, str] = {}
        for first, last in _calls(tokens):
            written = spelt("".join(_lexeme(token) for token in tokens[first : last + 1]))
            key = _bare(written)
            if self._written.setdefault(key, written) != written:
                raise ValueError(
                    f"the formula {text!r} has {self._written[key]} and {written}, which formulae takes for the same: "
                    "write one of them in another way"
                )

    def of(self, component: str) -> str:
        """A component of a term, by the name that formulae has for it."""
        return self._written.get(_bare(component), component)


def spelt(text: str) -> str:
    """A function or a term in the one way that names are spelt in; what is no Python stays as it is."""
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except SyntaxError:
        return text


def _lexeme(token: Any) -> str:
    # braces are another way to write I()
    return {"LEFT_BRACE": "I(", "RIGHT_BRACE": ")"}.get(token.kind, token.lexeme)


def _bare(text: str) -> str:
    return "".join(character for character in text if character not in " ()\"'")


def _calls(tokens: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """First and last token of each function that is in no other one."""
    place = 0
    while place < len(tokens):
        is_call = tokens[place].kind == "IDENTIFIER" and place + 1 < len(tokens)
        if tokens[place].kind == "LEFT_BRACE" or (is_call and tokens[place + 1].kind == "LEFT_PAREN"):
            last = _end_of_group(tokens, place + (tokens[place].kind == "IDENTIFIER"))
            yield place, last
            place = last
        place += 1


def _end_of_group(tokens: Sequence[Any], opening: int) -> int:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].kind in _OPENING) - (tokens[place].kind in _CLOSING)
        if depth == 0:
            return place
    return len(tokens) - 1


def _start_of_operand(tokens: Sequence[Any], last: int) -> int:
    """Where the operand begins that ends with a token."""
    place, depth = last, 0
    while place > 0:
        depth += (tokens[place].kind in _CLOSING) - (tokens[place].kind in _OPENING)
        if depth == 0:
            break
        place -= 1
    is_call = tokens[place].kind == "LEFT_PAREN" and tokens[place - 1].kind == "IDENTIFIER"
    return place - 1 if is_call else place
