"""NumPyro models in modules that sites have installed and whose hash their policies approve."""

from __future__ import annotations

import importlib.machinery
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..data.cells import Rules, Source
from ..data.files import Dialect, read_sheet
from ..data.missing import without_value
from ..data.policy import Policy
from ..models.bridges.numpyro import from_numpyro
from ..models.sections import require_known, require_type
from ..posterior import Posterior
from .keys import digest, is_digest

KEYS = {"numpyro": "str", "hash": "str", "rows": "str", "local": "str", "integers": "list[str]", "arguments": "dict"}
_NAME = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]\w*")
# Number of rows of the example shard.
_MADE_UP = 12
# Number of rows of each group in it.
_EACH = 3


@dataclass(frozen=True)
class ApprovedModule:
    """The [model] of a study whose model is a function of NumPyro in a module of one file.

    Parameters
    ----------
    name
        Name of the module, which every site has installed.
    function
        Name of the model in it.
    hash
        SHA-256 of the module's file in hexadecimal digits, which policies of sites list.
    arguments
        Keyword arguments of the model, made of columns: the name of a column, a list of names for a matrix,
        {group = "..."} for the number of each row's group, from 0, or {groups = "..."} for the number of groups.
    integers
        Columns of whole numbers.
    rows, local
        As in `accord.from_numpyro`.
    """

    name: str
    function: str
    hash: str
    arguments: dict[str, Any]
    integers: tuple[str, ...] = ()
    rows: str = "rows"
    local: str | None = None
    columns: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        columns = [name for value in self.arguments.values() for name in _columns_of(value)]
        object.__setattr__(self, "columns", frozenset(columns))

    @classmethod
    def of(cls, section: dict[str, Any]) -> ApprovedModule:
        """The module of a section [model].

        Raises
        ------
        ValueError
            A key or a value is wrong.
        """
        require_known("key of [model] with numpyro", section, KEYS)
        for key in ("numpyro", "hash", "arguments"):
            if key not in section:
                raise ValueError(f"[model] with numpyro must have {key}")
        for key in ("numpyro", "hash", "rows", "local"):
            require_type("[model]", key, section.get(key, ""), "str")
        if _NAME.fullmatch(section["numpyro"]) is None:
            raise ValueError(f'numpyro in [model] must be "module:function", found {section["numpyro"]!r}')
        if not is_digest(section["hash"]):
            raise ValueError(f"hash in [model] must be the SHA-256 of the module's file, found {section['hash']!r}")
        integers, arguments = section.get("integers", []), section["arguments"]
        if not isinstance(arguments, dict) or not arguments:
            raise ValueError("[model.arguments] must name the columns for the arguments of the model")
        if not isinstance(integers, list) or not all(isinstance(name, str) for name in integers):
            raise ValueError(f"integers in [model] must be a list of columns, found {integers!r}")
        for name, value in arguments.items():
            if not _columns_of(value):
                raise ValueError(
                    f"{name} in [model.arguments] must be a column, a list of columns, {{group = column}} or "
                    f"{{groups = column}}, found {value!r}"
                )
        module, function = section["numpyro"].split(":")
        rest = {key: section[key] for key in ("rows", "local") if key in section}
        return cls(module, function, section["hash"], arguments, tuple(integers), **rest)

    def posterior(self, sources: Sequence[Callable[[], dict[str, Any]]]) -> Posterior:
        """The posterior of all sites. `sources` has the function that reads the arguments of each site."""
        return from_numpyro(self._model(), list(sources), self.rows, self.local, example=self._made_up())

    def read(self, file: Path, site: str, floors: Policy) -> dict[str, Any]:
        """The arguments of the model from the file of a site.

        Raises
        ------
        DataError
            A column is missing or has texts, or the site has fewer rows than its floor.
        """
        where, sheet = f"{site} ({file.name})", read_sheet(file, Dialect())
        if sheet.problems:
            raise DataError(f"{where}: {sheet.problems[0]}")
        if missing := sorted(self.columns - set(sheet.columns)):
            raise DataError(f"{where}: there is no column {missing[0]!r}")
        source = Source(site, where, "line", floors, sheet.columns, sheet.lines)
        table, wrong = source.table(sorted(self.columns), Rules())
        wrong += without_value(table, frozenset(self.columns))
        wrong += [f"{where}: column {name!r} holds texts" for name, kind in table.kinds.items() if kind == "factor"]
        if wrong:
            raise DataError(wrong[0])
        columns = table.values
        if table.rows < floors.rows:
            raise DataError(f"{where}: the site's policy allows no study of fewer than {floors.rows} rows")
        return self._made_of(columns)

    def refusing(self) -> Callable[[], dict[str, Any]]:
        """The source of arguments for a remote site, which raises `DataError`."""
        return _Elsewhere(self.name)

    def _made_of(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if isinstance(value, dict):
                ((what, column),) = value.items()
                _, group = np.unique(columns[column], return_inverse=True)
                found[name] = group if what == "group" else int(group.max()) + 1
            elif isinstance(value, list):
                found[name] = np.column_stack([self._typed(column, columns) for column in value])
            else:
                found[name] = self._typed(value, columns)
        return found

    def _typed(self, column: str, columns: dict[str, np.ndarray]) -> np.ndarray:
        own = columns[column]
        if column not in self.integers:
            return own
        if (own != own.round()).any():
            raise DataError(f"column {column!r} has non-integer numbers, but the study lists it in integers")
        return own.astype(np.int64)

    def _made_up(self) -> dict[str, Any]:
        """An example shard of ones in a few groups, from which the model is traced."""
        grouped = {next(iter(value.values())) for value in self.arguments.values() if isinstance(value, dict)}
        groups = (np.arange(_MADE_UP) // _EACH).astype(float)
        return self._made_of({name: groups if name in grouped else np.ones(_MADE_UP) for name in self.columns})

    def _model(self) -> Callable[..., Any]:
        """The model, from the bytes that were hashed."""
        spec = importlib.machinery.PathFinder.find_spec(self.name)
        is_file = spec is not None and spec.origin is not None and Path(spec.origin).is_file()
        if spec is None or spec.origin is None or not is_file or spec.submodule_search_locations is not None:
            raise DataError(f"the study's module {self.name!r} is not installed here as one file")
        content = Path(spec.origin).read_bytes()
        if digest(content) != self.hash:
            raise DataError(f"the study's module {self.name!r} differs here: its file has another hash")
        module = types.ModuleType(self.name)
        module.__file__ = spec.origin
        try:
            exec(compile(content, spec.origin, "exec"), vars(module))
            model = getattr(module, self.function)
        except (Exception, SystemExit) as error:
            # the message may contain data
            raise DataError(f"the study's module {self.name!r} cannot be run: {type(error).__name__}") from None
        if not callable(model):
            raise DataError(f"{self.function!r} of the study's module {self.name!r} is not a function")
        return model


def _columns_of(value: Any) -> list[str]:
    """The columns of an argument, an empty list if it is malformed."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    if isinstance(value, dict) and len(value) == 1 and set(value) <= {"group", "groups"}:
        return [name for name in value.values() if isinstance(name, str)]
    return []


@dataclass(frozen=True)
class _Elsewhere:
    name: str

    def __call__(self) -> dict[str, Any]:
        raise DataError(f"rows of {self.name!r} are at another site")
