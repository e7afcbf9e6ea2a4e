"""What a formula may say: how it is read, and which of its parts each site can evaluate on its own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import unknown_name_error
from .spelling import Spelling, require_usual_powers

if TYPE_CHECKING:
    import pandas as pd

# What gives each row a number of its own, whatever other rows there are; also as `np.log` and so on.
_ROW_BY_ROW: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "maximum", "minimum", "sin", "sqrt")
}
_FACTORS = ("C", "S", "T")
_CODINGS = ("Sum", "Treatment")
# Centred, or centred and divided, by figures of all sites.
STANDARDS = ("center", "scale", "standardize")
# Each site would find another basis, or another level, from its own rows.
_FROM_ROWS = ("B", "binary", "bs", "cc", "cr", "poly", "tp")
_KNOWN = (*_ROW_BY_ROW, *_FACTORS, *_CODINGS, *STANDARDS, "I", "offset")


def parsed(text: str) -> tuple[Any, Spelling]:
    """The formula as formulae's model, and its functions as they were written.

    Raises
    ------
    ImportError
        `formulae` is not installed.
    ValueError
        It cannot be read, or not all of it.
    """
    try:
        from formulae.model_description import model_description
        from formulae.scanner import Scanner
    except ImportError as error:
        raise ImportError("formulas need formulae: pip install 'accord[models]'") from error
    try:
        model = model_description(text)
        tokens = Scanner(text).scan()
    except Exception as error:
        # its scanner, parser and resolver have exceptions of their own
        raise ValueError(f"the formula {text!r} cannot be read: {error}") from error
    # formulae leaves out, without a word, what follows where it expects no more
    named = {token.lexeme.strip("`") for token in tokens if token.kind in ("IDENTIFIER", "BQNAME")}
    calls = [part for part in _allparts_of(model) if is_call(part)]
    seen = model.var_names.union(*({call.callee, *call.kwargs} for call in calls))
    lost = sorted(named - seen)
    if lost or (any(token.kind == "PIPE" for token in tokens) and not model.group_terms):
        raise ValueError(
            f"of the formula {text!r} a part is not understood{''.join(f', {name}' for name in lost)}: write effects "
            "of groups in parentheses, (x | group), and add them to other terms"
        )
    require_usual_powers(text, tokens)
    return model, Spelling(text, tokens)


def environment() -> Any:
    """What formulas may call, besides what formulae brings."""
    from types import SimpleNamespace

    from formulae.categorical import ENCODINGS
    from formulae.environment import Environment
    from formulae.transforms import TRANSFORMS

    several = {name: lambda *columns: columns for name in ("p", "prop", "proportion", "surv")}
    return Environment([{**TRANSFORMS, **ENCODINGS, **_ROW_BY_ROW, **several, "np": SimpleNamespace(**_ROW_BY_ROW)}])


# --- parts of a formula: calls, operations, names and values ---


def _allparts_of(model: Any) -> Iterator[Any]:
    """All parts of a parsed formula, its response and grouping factors too."""
    terms = [*model.common_terms, *(side for term in model.group_terms for side in (term.expr, term.factor))]
    if model.response is not None:
        terms.append(model.response.term)
    for term in terms:
        for component in getattr(term, "components", ()):
            yield from parts_of(component)


def parts_of(part: Any) -> Iterator[Any]:
    """A component and all it is made of, inner parts first."""
    inner = [part.call] if hasattr(part, "call") else [*getattr(part, "args", ()), *_named(part).values()]
    for piece in inner:
        yield from parts_of(piece)
    if not hasattr(part, "call"):
        yield part


def _named(part: Any) -> dict[str, Any]:
    return getattr(part, "kwargs", {})


def is_call(part: Any) -> bool:
    """Whether a part is a function of other parts."""
    return hasattr(part, "callee")


def _is_name(part: Any) -> bool:
    return hasattr(part, "name") and not is_call(part)


@contextmanager
def of_rows(name: str, site: str) -> Iterator[None]:
    """Evaluate a part of a formula on somebody's rows: an error names the part and the site, and quotes no cell."""
    try:
        with np.errstate(all="ignore"):
            yield
    except Exception as error:
        raise ValueError(f"{name} is no number of the rows of {site}: {type(error).__name__}") from None


def evaluated(part: Any, frame: pd.DataFrame, environment: Any, site: str) -> np.ndarray:
    """The numbers that a part is in each row."""
    with of_rows(str(part), site):
        return np.asarray(part.eval(frame, environment), np.float64)


def require_columns(part: Any, columns: Sequence[str], choices: Sequence[str]) -> None:
    """Raise `ValueError` where a part is a name of no column; `choices` are told."""
    if _is_name(part) and part.name not in columns and part.name not in _CODINGS:
        raise unknown_name_error("column in the formula", str(part.name), choices)


def require_known(call: Any, levels: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a function is unknown, or where each site would find figures of its own for it."""
    if not is_call(call):
        return
    name = call.callee.removeprefix("np.") if call.callee.removeprefix("np.") in _ROW_BY_ROW else call.callee
    if name in _FROM_ROWS:
        raise ValueError(
            f"{call} is found from the rows themselves, and each site would find another: write powers, I(x ** 2), "
            "pieces, I((x - 50) * (x > 50)), or comparisons, I(x == 1)"
        )
    if name not in _KNOWN:
        raise unknown_name_error("function in the formula", call.callee, _KNOWN)
    if name in _FACTORS and not (_is_name(call.args[0]) and call.args[0].name in levels):
        raise ValueError(
            f"{call} must be of a column of text, on whose levels the sites agree: name the column in strings where "
            "the table is read"
        )


def require_finite(name: str, site: str, values: np.ndarray) -> None:
    """Raise `ValueError` where a term, shape (row, ...), is no finite number in some rows of a site."""
    # how many rows would tell of few of them
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is no finite number in some rows of {site}")
