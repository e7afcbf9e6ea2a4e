"""Ratios, such as odds ratios: exponentials of coefficients in units of the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import unknown_name_error

if TYPE_CHECKING:
    import pandas as pd

# Named choices of units.
UNITS = ("original", "model")


def factors(names: Sequence[str], units: str | Mapping[str, float], sds: Mapping[str, float]) -> np.ndarray:
    """Factors that convert coefficients to the requested units, (name,).

    Parameters
    ----------
    names
        Names of the coefficients.
    units
        "original": one unit of the column in the files; "model": one unit of the column passed to the model; or a
        number of original units by name, default 1.
    sds
        Standard deviations by which columns were divided before they were passed to the model.
    """
    own = np.array([1.0 / sds.get(name, 1.0) for name in names])
    if isinstance(units, str):
        if units not in UNITS:
            raise unknown_name_error("units", units, UNITS)
        return own if units == "original" else np.ones(len(names))
    for name, amount in units.items():
        if name not in names:
            raise unknown_name_error("coefficient of units", name, names)
        if not (np.isfinite(amount) and amount != 0):
            raise ValueError(f"units of {name} must be a finite number other than 0, found {amount!r}")
    return own * np.array([float(units.get(name, 1.0)) for name in names])


def ratios(draws: np.ndarray, names: Sequence[str], ratio: str) -> pd.DataFrame:
    """Median, 5% and 95% quantiles of exp(draws) and the share above 1, by name, for draws (chain, draw, name)."""
    import pandas as pd

    low, middle, high = np.exp(np.quantile(draws.astype(np.float64), [0.05, 0.5, 0.95], axis=(0, 1)))
    columns = {ratio: middle, "5%": low, "95%": high, "P(> 1)": (draws > 0).mean(axis=(0, 1))}
    return pd.DataFrame(columns, index=list(names))
