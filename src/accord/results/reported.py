"""What of a run is shown: the attributes and answers of `Run` that pages, plots and tables are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..report.told import Histogram
from .alone import Alone
from .asked import Asked
from .certificate import Certificate
from .loo import Loo
from .points import Points
from .reweighting import LeftOut
from .traffic import Traffic

if TYPE_CHECKING:
    import pandas as pd


class Reported(Protocol):
    """A run, as `Run` documents it."""

    @property
    def average(self) -> np.ndarray: ...  # noqa: D102
    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def traffic(self) -> Traffic: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def settings(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def points(self) -> Points | None: ...  # noqa: D102
    @property
    def certificate(self) -> Certificate | None: ...  # noqa: D102
    @property
    def asked(self) -> Asked: ...  # noqa: D102
    @property
    def log_evidence(self) -> tuple[float, float]: ...  # noqa: D102
    def warnings(self, sites: Sequence[str] | None = None) -> list[str]: ...  # noqa: D102
    def table(self, sites: Sequence[str] | None = None) -> pd.DataFrame: ...  # noqa: D102
    def ratios(self, units: str | Mapping[str, float] = "original") -> pd.DataFrame: ...  # noqa: D102
    def loo(self) -> Loo: ...  # noqa: D102
    def leave_each_out(self) -> tuple[LeftOut | str, ...]: ...  # noqa: D102
    def alone(self) -> tuple[Alone, ...]: ...  # noqa: D102
    def predictive_check(self) -> Histogram: ...  # noqa: D102
