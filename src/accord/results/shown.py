"""How a run shows itself: ratios, plots, a page, a card in a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..base import figures
from ..base.errors import unknown_name_error
from ..base.text import counted
from ..base.whole import write_whole
from ..report import forest
from ..report.page import page
from .card import SHOWN, card
from .diagnostics import statistics
from .gathered import by_site, site_names, together, told
from .ratios import factors, ratios
from .reported import Reported

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Shown:
    """The part of a `Run` that shows it."""

    def ratios(self: Reported, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """Exponentials of the coefficients: odds ratios, rate ratios, hazard ratios, as the family has them.

        Of the average's draws: the median, 5% and 95% quantiles and the probability that it is above 1, by coefficient.
        The column of medians says what the ratio is. The intercept is no ratio.

        Parameters
        ----------
        units
            "original": for one unit more of a column as it was in the files, also where `accord run` has standardised
            it; "model": for one unit as the model was given it; or by column how many units, as `{"age": 10}`.

        Raises
        ------
        ValueError
            The exponential of a coefficient is no ratio in this model, or nobody said what it is; units are unknown.
        """
        return _ratios(self, "", units)

    def odds_ratios(self: Reported, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family of which they are odds ratios."""
        return _ratios(self, "odds", units)

    def rate_ratios(self: Reported, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family of which they are rate ratios."""
        return _ratios(self, "rate", units)

    def hazard_ratios(self: Reported, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family of which they are hazard ratios."""
        return _ratios(self, "hazard", units)

    def plot_forest(self: Reported, ax: Axes | None = None) -> Axes:
        """Forest plot of the average's draws: mean, 50% and 90% interval of each parameter.

        Parameters
        ----------
        ax
            Axes to draw on; None makes a figure.

        Raises
        ------
        ImportError
            Matplotlib is not installed.
        """
        flat = self.average.reshape(-1, len(self.names))
        low, first, third, high = np.quantile(flat, [0.05, 0.25, 0.75, 0.95], axis=0)
        ax = figures.axes(6.0, forest.EDGES + forest.LINE * len(self.names)) if ax is None else ax
        forest.forest(ax, self.names, flat.mean(axis=0), np.stack([first, third]), np.stack([low, high]))
        return ax

    def plot_sites(self: Reported, parameter: str, ax: Axes | None = None) -> Axes:
        """Forest plot of the sites: a parameter by each site alone, without each site, and of all together.

        Raises
        ------
        ValueError
            There is no such parameter.
        AttributeError
            No site's posterior is known, as where the run knows no agents or its sums are masked.
        ImportError
            Matplotlib is not installed.
        """
        if parameter not in self.names:
            raise unknown_name_error("parameter", parameter, self.names)
        found = by_site(self, site_names(self))
        if all(own.mean is None for one in found for own in (one.alone, one.without)):
            raise AttributeError(" ".join(dict.fromkeys([found[0].alone.why, found[0].without.why])))
        ax = figures.axes(6.0, forest.EDGES + 1.7 * forest.LINE * len(found)) if ax is None else ax
        forest.sites(ax, found, together(self.average), self.names.index(parameter))
        ax.set_xlabel(parameter, parse_math=False)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
        return ax

    def report(
        self: Reported, path: str | Path = "report.html", *, sites: Sequence[str] | None = None, ask: bool = True
    ) -> Path:
        """Write a page that says what was asked, what was found and whether it can be relied on; see docs/report.md.

        It is one file that loads nothing from anywhere.

        Parameters
        ----------
        path
            The file, which is replaced where it is there.
        sites
            Names of all agents, to name them by; None: those that the run knows, or their numbers.
        ask
            Ask the agents once more, for what the page shows of their rows: each site alone and left out, predictive
            checks, leave-one-out figures. A run from a file has nobody to ask.

        Returns
        -------
        Path
            Of the file.

        Raises
        ------
        ImportError
            Matplotlib is not installed.
        OSError
            The file cannot be written.
        """
        figures.require()
        if not str(path):
            raise ValueError("the path of the page is empty: name a file, such as study.html")
        write_whole(Path(path), page(told(self, sites, ask)).encode())
        return Path(path)

    def _repr_html_(self: Reported) -> str:
        """The table and the verdict of the certificate, for notebooks: nothing is asked or found out for it."""
        chains, draws, dim = self.average.shape
        line = f"{counted(chains, 'chain')} of {counted(draws, 'draw')} of {counted(dim, 'parameter')}"
        return card("Run", line, self.certificate, self.names, statistics(self.average[..., :SHOWN]))


def _ratios(run: Reported, kind: str, units: str | Mapping[str, float]) -> pd.DataFrame:
    """Ratios whose name has this word."""
    ratio, names = run.asked.ratio, run.asked.ratios
    if not names:
        of = f" of the {run.asked.model}" if run.asked.model else ", as the model does not say what they are"
        raise ValueError(f"exponentials of the coefficients are no ratios{of}")
    if kind and kind not in ratio.split():
        raise ValueError(
            f"there are no {kind} ratios of this run: of the {run.asked.model} exp(coefficient) is the {ratio}"
        )
    places = [run.names.index(name) for name in names]
    sds = run.settings.get("sds", {})
    if units == "original" and not sds and not run.asked.formula:
        warnings.warn(
            "ratios are for one unit of the columns that the model was given: Study.matrix standardises them "
            "by default, and then that is one standard deviation; units='model' says so",
            stacklevel=3,
        )
    return ratios(run.average[..., places] * factors(names, units, sds), names, ratio)
