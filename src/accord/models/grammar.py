"""The grammar of formulas: the functions and operations that may stand in a formula, and where.

A formula may come from a sender who must not run code at a site, and formulae looks up functions by their dotted names.
So this module accepts only listed functions and operations, and passes nothing else to formulae.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import unknown_name_error
from ..data.formula_names import require_short
from .spelling import Spelling, require_usual_powers

if TYPE_CHECKING:
    import pandas as pd

# Row-wise functions, also spelt `np.log` etc.
_ROW_BY_ROW: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "maximum", "minimum", "sin", "sqrt")
}
# Functions that use the mean, or mean and standard deviation, over all sites.
STANDARDS = ("center", "scale", "standardize")
FACTORS = ("C", "S", "T")
# Codings of `C`.
_CODINGS = ("Sum", "Treatment")
# Responses of two columns.
_SEVERAL = ("p", "prop", "proportion", "surv")
# Functions whose value is not one number for each row.
WITHOUT_NUMBERS = (*FACTORS, *_CODINGS, *_SEVERAL, "offset")
# Functions that depend on all rows of a site, so that their columns would differ between sites.
_FROM_ROWS = ("B", "binary", "bs", "cc", "cr", "lag", "ns", "poly", "s", "te", "tp")
# Functions of other languages that choose between values.
_CHOICES = ("cut", "ifelse", "np.where", "where")
# Functions of other languages that make a factor, or choose its reference level.
_AS_FACTOR = ("as.factor", "factor", "relevel")

# The functions that are allowed at each place of a formula.
_WITHIN_THE_LEFT = (*_ROW_BY_ROW, "I")
_ON_THE_LEFT = (*_WITHIN_THE_LEFT, *_SEVERAL)
_WITHIN_TERMS = (*_ROW_BY_ROW, "I", *STANDARDS)
_IN_INTERACTIONS = (*_WITHIN_TERMS, *FACTORS)
_TERMS = (*_IN_INTERACTIONS, "offset")

# The arguments of each function. Arguments that end in "=" are optional and may be passed by keyword.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ROW_BY_ROW, "I", *STANDARDS, "offset"), ("x",)),
    **dict.fromkeys(("maximum", "minimum"), ("x", "y")),
    **dict.fromkeys(_SEVERAL, ("successes", "trials")),
    "surv": ("time", "event"),
    "C": ("column", "contrast="),
    "S": ("column", "omit="),
    "T": ("column", "ref="),
    "Sum": ("omit=",),
    "Treatment": ("reference=",),
}
_ARITHMETIC = ("PLUS", "MINUS", "STAR", "SLASH", "STAR_STAR")
# Comparisons in the spelling of formulae.
_COMPARED = ("==", "!=", "<=", "<", ">=", ">")
# The same comparisons as tokens of formulae's scanner.
_COMPARISONS = ("EQUAL_EQUAL", "BANG_EQUAL", "LESS_EQUAL", "LESS", "GREATER_EQUAL", "GREATER")
# Patterns that formulae cannot parse, and hints.
_HINTS = {
    r"\^": "write powers as I(x ** 2)",
    r"~\s*\.": "name the columns in place of the dot",
    r"&|\band\b": "for 'and' write a product of comparisons, I((x > 1) * (z > 2))",
    r"\|\|": "write (1 + x | group)",
    r"!(?!=)|\bnot\b": "for 'not' write I(1 - (x > 1))",
    r"\d[eE][-+]?\d": "write numbers without an exponent, as 0.01",
    r"(^|[^\w`.])_": "write names that begin with _ in backquotes",
}
# Largest exponent of a sum of terms.
_MOST_ORDERS = 9
# Largest number of terms after expansion of interactions: formulae takes seconds for more.
_MOST_TERMS = 2_000


def parsed(text: str) -> tuple[Any, Spelling]:
    """The formula as a model of formulae, and the spelling of its functions.

    Everything that is not on the lists above is rejected here, before any evaluation.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    ValueError
        The formula cannot be parsed, or a part of it is not on the lists.
    """
    try:
        from formulae.parser import Parser
        from formulae.resolver import Resolver
        from formulae.scanner import Scanner
        from formulae.terms.terms import Model
    except ImportError as error:
        raise ImportError("formulas need formulae: pip install 'accord[models]'") from error
    require_short(text)
    # formulae's scanner, parser and resolver raise exceptions of several classes
    with _readable(text, Exception):
        tokens = Scanner(text).scan()
        parser = Parser(tokens)
        tree = parser.parse()
    # formulae silently ignores tokens after the end of what it can parse
    if not parser.at_end():
        rest = " ".join(token.lexeme for token in tokens[parser.current : -1])
        raise ValueError(
            f"the end of the formula {text!r} cannot be parsed, {rest}: write effects of groups in parentheses, "
            "(x | group), and comparisons in I(), I(x > 3)"
        )
    with _readable(text, RecursionError):
        _Grammar(text).require_formula(tree)
    require_usual_powers(text, tokens)
    with _readable(text, Exception):
        found = Resolver(tree).resolve()
        model = found if isinstance(found, Model) else Model(found)
        model.common_terms = _as_in_r(model.common_terms)
        for part in _allparts_of(model):
            _make_plain(part)
    return model, Spelling(text, tokens)


@contextmanager
def _readable(text: str, errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        hints = "".join(f"; {hint}" for pattern, hint in _HINTS.items() if re.search(pattern, text))
        raise ValueError(f"the formula {text!r} cannot be read: {error}{hints}") from error


def _make_plain(part: Any) -> None:
    """Remove names that formulae would look up as attributes or as Python variables."""
    from formulae.terms.call_resolver import LazyCall

    if is_call(part):
        part.callee = _without_module(part.callee)
        if part.callee == "C":
            contrasts = [*part.args[1:], *part.kwargs.values()]
            part.args[1:] = [LazyCall(one.name, [], {}) if _is_name(one) else one for one in contrasts]
            part.kwargs.clear()
    elif isinstance(value := getattr(part, "value", None), int):
        # powers of Python integers are unbounded
        part.lexeme, part.value = str(value), float(value)


def _as_in_r(terms: Sequence[Any]) -> list[Any]:
    """Terms sorted by order, without duplicates such as g:h and h:g.

    Terms are copied: formulae codes a factor by the terms before it, and stores the coding in parts that terms share.
    """
    first: dict[frozenset[str], Any] = {}
    for term in terms:
        first.setdefault(frozenset(str(part.name) for part in getattr(term, "components", ())), term)
    return [deepcopy(first[parts]) for parts in sorted(first, key=len)]


def _without_module(name: str) -> str:
    plain = name.removeprefix("np.")
    return plain if plain in _ROW_BY_ROW else name


class _Grammar:
    """Checks the syntax tree of formulae's parser: `ValueError` for every node that is not listed here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _refused(self, why: str) -> ValueError:
        return ValueError(f"the formula {self.text!r} cannot be read: {why}")

    def require_formula(self, tree: Any) -> None:
        """Raise `ValueError` unless the formula is `response ~ terms` with known parts."""
        if not _is_operation(tree, "TILDE"):
            raise ValueError(f"the formula {self.text!r} has no response: write response ~ terms")
        self._require_response(tree.left)
        self._require_term(tree.right, alone=True)
        if (count := _terms_of(tree.right)) > _MOST_TERMS:
            raise self._refused(f"its interactions make {count:,} terms, and at most {_MOST_TERMS:,} are allowed")

    def _require_response(self, node: Any) -> None:
        if _is_operation(node, "PIPE"):
            raise self._refused(self._without_bar(node.left, node.right))
        if _kind(node) == "Call":
            name = self._name_of(node)
            if name == "cbind":
                raise self._refused(f"for cbind(successes, failures) write {_prop_of_cbind(node.args)} ~ ...")
            if name in FACTORS:
                raise self._refused(
                    f"{name}() is for the right side: write the plain column on the left. The order of classes is "
                    "an option of the family, as in accord.models.families.Ordinal(['low', 'high'])"
                )
            self._require_call(node, _ON_THE_LEFT, _WITHIN_THE_LEFT)
        elif _kind(node) not in ("Variable", "QuotedName"):
            raise self._refused("its left side must be a column or a function of columns, as in log(y) or I(y > 3)")

    def _without_bar(self, response: Any, beside: Any) -> str:
        """A hint for `response | trials(n)` and similar syntax of other packages."""
        name = self._name_of(beside) if _kind(beside) == "Call" else "trials"
        if name == "weights":
            return "weights are an argument of glm: weights='column'"
        if name == "cens":
            return "for censored times write surv(time, event) ~ ..., with event 1 if it was observed, else 0"
        trials = beside.args if _kind(beside) == "Call" else [beside]
        return f"for successes in a number of trials write {_prop([response, *trials])} ~ ..."

    def _require_term(self, node: Any, alone: bool) -> None:
        """Raise `ValueError` unless a node is a sum of terms; `alone` allows effects of groups and offsets."""
        kind = _kind(node)
        if kind == "Grouping" and alone and _is_operation(node.expression, "PIPE"):
            self._require_term(node.expression.left, alone=False)
            self._require_grouping(node.expression.right)
        elif kind == "Grouping":
            self._require_term(node.expression, alone)
        elif _is_operation(node, "PLUS", "MINUS"):
            self._require_term(node.left, alone)
            self._require_term(node.right, alone)
        elif _is_operation(node, "COLON", "STAR", "SLASH"):
            self._require_factors(node)
            self._require_term(node.left, alone=False)
            self._require_term(node.right, alone=False)
        elif _is_operation(node, "STAR_STAR"):
            self._require_orders(node)
        elif kind == "Unary":
            self._require_term(node.right, alone=False)
        elif kind == "Call":
            self._require_call(node, _TERMS if alone else _IN_INTERACTIONS, _WITHIN_TERMS)
        elif kind == "Variable":
            self._require_no_level(node)
        elif kind == "Literal" and (type(node.value) not in (int, float) or node.value not in (0, 1)):
            raise self._refused(f"{node.lexeme or node.value} is not a term")
        elif _is_operation(node, "PIPE"):
            raise self._refused("effects of groups must be in parentheses, (x | group), and added to the other terms")
        elif kind not in ("QuotedName", "Literal"):
            raise self._refused("comparisons and other parts that are not terms must be in a function, as in I(x > 3)")

    def _require_factors(self, node: Any) -> None:
        """Raise `ValueError` for 0 or 1 in a product of terms, and for a sum next to `/`."""
        if _has_number(node):
            raise self._refused(
                "0 and 1 mean the intercept and cannot stand in a product: write the terms out, as in x + g + g:x. "
                "For a column times a number write I(2 * x)"
            )
        if _is_operation(node, "SLASH") and "Grouping" in (_kind(node.left), _kind(node.right)):
            raise self._refused("/ does not accept a sum of terms: write it out, as g + g:x for g / x")

    def _require_orders(self, node: Any) -> None:
        """Raise `ValueError` unless a power is one of a sum of terms, `(a + b) ** 2`."""
        left, orders = node.left, getattr(node.right, "value", None)
        if _kind(left) != "Grouping" or not _is_operation(left.expression, "PLUS", "STAR"):
            raise self._refused("write the power of a column in I(), as in I(x ** 2)")
        if type(orders) is not int or not 1 <= orders <= _MOST_ORDERS:
            raise self._refused(f"the exponent of a sum of terms must be an integer from 1 to {_MOST_ORDERS}")
        self._require_factors(left)
        self._require_term(left, alone=False)

    def _require_grouping(self, node: Any) -> None:
        if _is_operation(node, "COLON", "PLUS"):
            self._require_grouping(node.left)
            self._require_grouping(node.right)
        elif _is_operation(node, "SLASH"):
            raise self._refused(
                "nested groups are not supported: name the inner groups by one column, and write (1 | column) or "
                "(1 | site:column)"
            )
        elif _kind(node) == "Variable":
            self._require_no_level(node)
        elif _kind(node) != "QuotedName":
            raise self._refused("effects must be grouped by site, a column, or site:column")

    def _require_no_level(self, node: Any, function: str = "I") -> None:
        """Raise `ValueError` for `column['level']`; `function` encloses the comparison in the hint."""
        if node.level is not None:
            level = node.level.value if _kind(node.level) == "Literal" else "level"
            comparison = f"{node.name.lexeme} == '{level}'"
            raise self._refused(
                f"{node.name.lexeme}[...] is only allowed as the whole left side; here write "
                + (f"{function}({comparison})" if function else comparison)
            )

    def _name_of(self, call: Any) -> str:
        """The name of the called function; `ValueError` if it is another expression."""
        if _kind(call.callee) != "Variable" or call.callee.level is not None:
            raise self._refused("only the name of a function may stand before parentheses")
        name: str = call.callee.name.lexeme
        return name

    def _require_call(self, call: Any, known: Sequence[str], within: Sequence[str]) -> None:
        """Raise `ValueError` unless a function is in `known`, and functions in its arguments are in `within`."""
        written = self._name_of(call)
        name = _without_module(written)
        if name in _AS_FACTOR:
            raise self._refused("write a factor as C(column), with a reference level C(column, Treatment('level'))")
        if name in _CHOICES:
            raise self._refused(f"write {name}() as products of comparisons, I((x > 50) * (x - 50)) or I(x == 1)")
        if name in _FROM_ROWS:
            raise ValueError(
                f"{name}(...) depends on all rows of a site, so its columns would differ between sites: write powers, "
                "I(x ** 2), pieces, I((x - 50) * (x > 50)), or comparisons, I(x == 1)"
            )
        if name == "strata":
            raise self._refused(
                "strata() is not supported: the family cox has one baseline for each site, and no other strata. Add "
                "the column as a term, or split each site into one site for each stratum"
            )
        if name not in known:
            if name in _ARGUMENTS:
                raise self._refused(f"{name}() is not allowed at this place")
            raise unknown_name_error("function in the formula", written, known)
        given = self._arguments(name, call.args)
        if name in FACTORS:
            column, *contrasts = given
            if _kind(column) not in ("Variable", "QuotedName"):
                raise self._refused(f"the first argument of {name}() must be the name of a text column")
            self._require_number(column, within)
            for contrast in contrasts:
                self._require_contrast(name, contrast)
        else:
            for argument in given:
                self._require_number(argument, within)

    def _arguments(self, name: str, given: Sequence[Any]) -> list[Any]:
        """The values of all arguments of a call, positional and keyword."""
        takes = _ARGUMENTS[name]
        optional = [one.rstrip("=") for one in takes if one.endswith("=")]
        named = [one.name.name.lexeme for one in given if _kind(one) == "Assign"]
        by_place = len(given) - len(named)
        if by_place < len(takes) - len(optional) or len(given) > len(takes) or not set(named) <= set(optional):
            raise self._refused(f"the arguments of {name}() are ({', '.join(takes)})")
        return [one.value if _kind(one) == "Assign" else one for one in given]

    def _require_contrast(self, name: str, node: Any) -> None:
        """Raise `ValueError` unless an argument is a coding, such as `Treatment('b')`, or a level in `S` and `T`."""
        if name != "C":
            if not _is_text(node):
                raise self._refused(f"the arguments of {name}() are a column and one of its levels in quotation marks")
        elif _kind(node) == "Call":
            coding = self._name_of(node)
            if coding not in _CODINGS:
                raise unknown_name_error("coding of C", coding, _CODINGS)
            for level in self._arguments(coding, node.args):
                if not _is_text(level):
                    raise self._refused(f"the argument of {coding}() is a level in quotation marks")
        elif _kind(node) != "Variable" or node.level is not None or node.name.lexeme not in _CODINGS:
            level = f"'{node.value}'" if _is_text(node) else "'level'"
            raise self._refused(f"to code a column against a level write C(column, Treatment({level}))")

    def _require_number(self, node: Any, known: Sequence[str]) -> None:
        """Raise `ValueError` unless an argument consists of columns, numbers and functions in `known`."""
        kind = _kind(node)
        if kind == "Grouping":
            self._require_number(node.expression, known)
        elif _is_operation(node, *_ARITHMETIC, *_COMPARISONS):
            for side in (node.left, node.right):
                if node.operator.kind in _COMPARISONS and _is_operation(side, *_COMPARISONS):
                    raise self._refused("write chained comparisons as a product, I((30 < age) * (age < 60))")
                if not (node.operator.kind in _COMPARISONS and _is_text(side)):
                    self._require_number(side, known)
        elif kind == "Unary":
            self._require_number(node.right, known)
        elif kind == "Call":
            self._require_call(node, known, known)
        elif kind == "Variable":
            self._require_no_level(node, "")
        elif kind != "QuotedName" and not (kind == "Literal" and type(node.value) in (int, float)):
            raise self._refused(
                "arguments of functions are columns and numbers, with + - * / ** and comparisons. Text is only "
                "compared, as in I(sex == 'f')"
            )


def _terms_of(node: Any) -> int:
    """An upper bound of the number of terms of a node after expansion of interactions."""
    if _kind(node) == "Grouping":
        return _terms_of(node.expression)
    if not _is_operation(node, "PLUS", "MINUS", "COLON", "STAR", "SLASH", "STAR_STAR", "PIPE"):
        return 1
    if _is_operation(node, "STAR_STAR"):
        count = _terms_of(node.left)
        return sum(comb(count, order) for order in range(1, int(node.right.value) + 1))
    left, right = _terms_of(node.left), _terms_of(node.right)
    if _is_operation(node, "PLUS", "MINUS"):
        return left + right
    return left * right if _is_operation(node, "COLON", "PIPE") else left + right + left * right


def _kind(node: Any) -> str:
    return type(node).__name__


def _has_number(node: Any) -> bool:
    """Whether one of the terms of a node is a number."""
    if _kind(node) in ("Grouping", "Unary"):
        return _has_number(node.expression if _kind(node) == "Grouping" else node.right)
    if _is_operation(node, "PLUS", "MINUS", "COLON", "STAR", "SLASH", "STAR_STAR"):
        return _has_number(node.left) or (node.operator.kind != "STAR_STAR" and _has_number(node.right))
    return _kind(node) == "Literal"


def _is_operation(node: Any, *kinds: str) -> bool:
    return _kind(node) == "Binary" and node.operator.kind in kinds


def _is_text(node: Any) -> bool:
    return _kind(node) == "Literal" and isinstance(node.value, str)


def _prop(given: Sequence[Any]) -> str:
    """`prop(successes, trials)`, with the names of both columns if known."""
    names = [one.name.lexeme for one in given if _kind(one) == "Variable"]
    return f"prop({', '.join(names)})" if len(names) == len(given) == 2 else "prop(successes, trials)"


def _prop_of_cbind(given: Sequence[Any]) -> str:
    """`prop(successes, trials)` for the arguments of `cbind(successes, failures)`."""
    if len(given) == 2 and _is_operation(given[1], "MINUS") and given[1].right == given[0]:
        return _prop([given[0], given[1].left])
    return "prop(successes, successes + failures)"


def environment() -> Any:
    """The formulae environment, with the functions that formulas may call."""
    from formulae.categorical import ENCODINGS
    from formulae.environment import Environment
    from formulae.transforms import TRANSFORMS

    several = {name: lambda *columns: columns for name in _SEVERAL}
    known = {name: function for name, function in {**TRANSFORMS, **ENCODINGS}.items() if name in _ARGUMENTS}
    return Environment([{**known, **_ROW_BY_ROW, **several}])


# --- parts of a formula: calls, operations, names and values ---


def _allparts_of(model: Any) -> Iterator[Any]:
    """All parts of a parsed formula, including response and grouping factors."""
    sides = [side for term in model.group_terms for side in (term.expr, term.factor)]
    for term in (*model.common_terms, *sides, model.response.term):
        yield from parts_of_term(term)


def parts_of_term(term: Any) -> Iterator[Any]:
    """All parts of a term; none for an intercept."""
    for component in getattr(term, "components", ()):
        yield from parts_of(component)


def parts_of(part: Any) -> Iterator[Any]:
    """All sub-expressions of a component, inner parts first."""
    inner = [part.call] if hasattr(part, "call") else [*getattr(part, "args", ()), *_named(part).values()]
    for piece in inner:
        yield from parts_of(piece)
    if not hasattr(part, "call"):
        yield part


def _named(part: Any) -> dict[str, Any]:
    return getattr(part, "kwargs", {})


def is_call(part: Any) -> bool:
    """Whether a part is a function call."""
    return hasattr(part, "callee")


def _is_name(part: Any) -> bool:
    return hasattr(part, "name") and not is_call(part)


def joined_names(part: Any) -> Iterator[str]:
    """Columns that a part combines with other columns, as in `x + y` or `maximum(x, y)`."""
    for piece in parts_of(part):
        arguments = getattr(piece, "args", ())
        if sum(not hasattr(one, "value") for one in arguments) > 1:
            yield from names_of(arguments)


def names_of(parts: Iterable[Any]) -> list[str]:
    """The columns among parts."""
    return [part.name for part in parts if _is_name(part)]


@contextmanager
def of_rows(name: str, site: str) -> Iterator[None]:
    """Turn any error into a `ValueError` that names the part and the site and quotes no cell."""
    try:
        with np.errstate(all="ignore"):
            yield
    except Exception as error:
        raise ValueError(f"{name} cannot be evaluated on the rows of site {site!r}: {type(error).__name__}") from None


def evaluated(part: Any, frame: pd.DataFrame, environment: Any, site: str) -> np.ndarray:
    """The values of a part, shape (row,)."""
    with of_rows(str(part), site):
        return np.broadcast_to(np.asarray(part.eval(frame, environment), np.float64), (len(frame),))


def require_columns(part: Any, columns: Sequence[str], choices: Sequence[str]) -> None:
    """Raise `ValueError` if a part names an unknown column; the message suggests the nearest of `choices`."""
    if _is_name(part) and part.name not in columns:
        if part.name == "site":
            raise ValueError(
                "site in the formula is no column: write (1 | site) for effects of sites, or add a column with the "
                "name of the site to each table"
            )
        raise unknown_name_error("column in the formula", str(part.name), choices)


def require_levels(call: Any, levels: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the column of a factor has no levels, or if a named level is unknown."""
    if not is_call(call) or call.callee not in FACTORS:
        return
    name = call.args[0].name
    if name not in levels:
        raise ValueError(
            f"{call} needs a text column, with the same levels at all sites: list the column in strings when the table "
            "is read"
        )
    for part in parts_of(call):
        if isinstance(level := getattr(part, "value", None), str) and level not in levels[name]:
            raise unknown_name_error(f"level of {name}", level, levels[name])


def require_kinds(part: Any, levels: Mapping[str, Any], factors: Collection[str]) -> None:
    """Raise `ValueError` if a part uses text as a number or a number as text, or compares with an unknown level.

    Parameters
    ----------
    part
        A part of a formula.
    levels
        The levels of each text column.
    factors
        The columns in `C(...)`, which are text in the whole formula.
    """
    arguments: Sequence[Any] = getattr(part, "args", ())
    if getattr(part, "symbol", None) in _COMPARED:
        for one, other in (arguments, arguments[::-1]):
            _require_comparable(part, one, other, levels, factors)
        return
    callee, is_column = getattr(part, "callee", None), hasattr(part, "reference")
    if callee in FACTORS:
        return
    for name in [part.name] if is_column else names_of(arguments):
        if name in factors:
            raise _two_kinds_error(name)
        if name in levels and not (is_column or callee in ("I", *_SEVERAL)):
            raise ValueError(f"{part} needs numbers, and {name} holds text: write a comparison, I({name} == 'level')")


def _require_comparable(part: Any, one: Any, other: Any, levels: Mapping[str, Any], factors: Collection[str]) -> None:
    """Raise `ValueError` unless `one` can be compared with `other`."""
    is_word, other_is_word = (isinstance(getattr(side, "value", None), str) for side in (one, other))
    other_is_text = _is_name(other) and other.name in levels
    if is_word and not other_is_text:
        raise ValueError(
            f"{part} compares numbers with a text: write a number without quotation marks, or list the column in "
            "strings when the table is read"
        )
    if not (_is_name(one) and one.name in levels) or other_is_text:
        return
    name = one.name
    if part.symbol not in ("==", "!="):
        raise (
            _two_kinds_error(name) if name in factors else ValueError(f"{part}: {name} holds text, which has no order")
        )
    if not other_is_word:
        why = f" C({name}) makes it text in the whole formula." if name in factors else ""
        raise ValueError(
            f"{part} compares text with a number, as {name} holds text.{why} Write the level in quotation marks, "
            f"{name} {part.symbol} '{other if hasattr(other, 'value') else 'level'}'"
        )
    if other.value not in levels[name]:
        raise unknown_name_error(f"level of {name}", other.value, levels[name])


def _two_kinds_error(name: str) -> ValueError:
    return ValueError(
        f"{name} is a factor in C({name}) and is also used outside of C(): remove one of the two, or add a copy of "
        "the column under another name to the table"
    )


def require_finite(name: str, site: str, values: np.ndarray) -> None:
    """Raise `ValueError` if a term, shape (row, ...), is not finite in some rows of a site."""
    # no number of rows in the message: a small count is private
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} is not finite in some rows of site {site!r}: bound its argument, as in log(maximum(x, 0.5)), or "
            "remove these rows"
        )
