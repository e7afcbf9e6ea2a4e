"""The original spelling of terms, and a check for expressions that formulae parses in an unusual order.

formulae omits inner parentheses in names, so that `I((x - 50) ** 2)` and `I(x - 50 ** 2)` have the same name. It parses
-x ** 2 as (-x) ** 2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

_OPENING, _CLOSING = ("LEFT_PAREN", "LEFT_BRACE"), ("RIGHT_PAREN", "RIGHT_BRACE")
_OPERANDS = ("IDENTIFIER", "BQNAME", "NUMBER", "STRING", *_CLOSING)


def require_usual_powers(text: str, tokens: Sequence[Any]) -> None:
    """Raise `ValueError` for a sign before a power, or a power of a power, inside a function."""
    for first, last in _calls(tokens):
        for place in range(first, last):
            if tokens[place].kind != "STAR_STAR":
                continue
            before = _start_of_operand(tokens, place - 1) - 1
            is_sign = tokens[before].kind in ("PLUS", "MINUS") and tokens[before - 1].kind not in _OPERANDS
            if is_sign or tokens[before].kind == "STAR_STAR":
                raise ValueError(
                    f"the formula {text!r} has a sign before a power, or a power of a power, which formulae "
                    "evaluates in an unusual order: write parentheses, -(x ** 2)"
                )


class Spelling:
    """The original spelling of the functions in a formula.

    Raises
    ------
    ValueError
        formulae gives two different functions the same name.
    """

    def __init__(self, text: str, tokens: Sequence[Any]) -> None:
        self._written: dict[str, str] = {}
        for first, last in _calls(tokens):
            written = spelt("".join(_lexeme(token) for token in tokens[first : last + 1]))
            key = _bare(written)
            if self._written.setdefault(key, written) != written:
                raise ValueError(
                    f"the formula {text!r} has {self._written[key]} and {written}, which formulae cannot distinguish: "
                    "write one of them in another way"
                )

    def of(self, component: str) -> str:
        """The original spelling of a component, by its name in formulae."""
        return self._written.get(_bare(component), component)


def spelt(text: str) -> str:
    """A term in canonical spelling; text that is not a Python expression is returned unchanged."""
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except SyntaxError:
        return text


def _lexeme(token: Any) -> str:
    # {x} is short for I(x)
    return {"LEFT_BRACE": "I(", "RIGHT_BRACE": ")"}.get(token.kind, token.lexeme)


def _bare(text: str) -> str:
    return "".join(character for character in text if character not in " ()\"'")


def _calls(tokens: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """First and last token of each outermost function call."""
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
    """The first token of the operand that ends at token `last`."""
    place, depth = last, 0
    while place > 0:
        depth += (tokens[place].kind in _CLOSING) - (tokens[place].kind in _OPENING)
        if depth == 0:
            break
        place -= 1
    is_call = tokens[place].kind == "LEFT_PAREN" and tokens[place - 1].kind == "IDENTIFIER"
    return place - 1 if is_call else place
