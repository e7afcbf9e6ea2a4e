"""Tables that nothing is cut from: columns that do not fit into a line go on below."""

from __future__ import annotations

import shutil
from typing import Any

import pandas as pd

from ..base.text import no_formula


class Table(pd.DataFrame):
    """A `pandas.DataFrame` that shows all its columns, in as many blocks as the width of the terminal asks for."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def __repr__(self) -> str:
        with pd.option_context("display.max_columns", None, "display.width", shutil.get_terminal_size().columns):
            return super().__repr__()

    def to_csv(self, *arguments: Any, float_format: Any = "%.6g", **options: Any) -> Any:
        """Write it, by default with six digits: the draws behind it know no more. Texts are `no_formula`."""
        escaped = self.rename(index=no_formula, columns=no_formula).map(no_formula)
        return pd.DataFrame(escaped).to_csv(*arguments, float_format=float_format, **options)
