"""The summary table of a run, printed in full: columns that do not fit into a line continue below."""

from __future__ import annotations

import shutil
from typing import Any

import pandas as pd

from ..base.text import no_formula


class Table(pd.DataFrame):
    """A `pandas.DataFrame` that shows all its columns, in blocks as wide as the terminal.

    If the columns of the average and of the worst agent are equal, it shows them once.
    """

    @property
    def _constructor(self) -> type[Table]:
        return Table

    @property
    def shown(self) -> pd.DataFrame:
        """The table without the worst agent's columns if they equal the average's."""
        if self.columns.nlevels != 2 or not {"average", "worst agent"} <= set(self.columns.get_level_values(0)):
            return pd.DataFrame(self)
        average, worst = (pd.DataFrame(self)[block] for block in ("average", "worst agent"))
        if not average.equals(worst.drop(columns="agent", errors="ignore")):
            return pd.DataFrame(self)
        return pd.concat({"all agents": average}, axis=1)

    def __repr__(self) -> str:
        # 80 columns if standard output is no terminal
        with pd.option_context("display.max_columns", None, "display.width", shutil.get_terminal_size().columns):
            return repr(self.shown)

    def _repr_html_(self) -> Any:
        with pd.option_context("display.max_columns", None):
            return self.shown._repr_html_()

    def to_string(self, *arguments: Any, **options: Any) -> Any:
        """The printed table as text, without folding."""
        return self.shown.to_string(*arguments, **options)

    def to_csv(self, *arguments: Any, float_format: Any = "%.6g", **options: Any) -> Any:
        """Write the table with six digits by default. Texts that a spreadsheet would run as formulas are escaped."""
        escaped = self.rename(index=no_formula, columns=no_formula).map(no_formula)
        return pd.DataFrame(escaped).to_csv(*arguments, float_format=float_format, **options)
