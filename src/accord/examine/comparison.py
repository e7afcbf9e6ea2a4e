"""`accord.compare`: which of several models predicts rows better, and which the data is likelier under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..base.terminal import folded
from ..network import Network
from ..posterior import Posterior
from ..results.run import Run
from ..samplers.engine import Builder
from .loo import Loo, loos

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Comparison:
    """Figures of several models of the same rows; made by `accord.compare`.

    Parameters
    ----------
    loos
        The leave-one-out figures of each model by name, the largest elpd first.
    dse
        Standard errors of the models' differences of elpd from the first's, shape (model,).
    log_evidence
        Log evidence of each model and its standard error, shape (model, 2); NaN where a run has no weighted points.
    """

    loos: dict[str, Loo]
    dse: np.ndarray
    log_evidence: np.ndarray

    def __repr__(self) -> str:
        return f"<Comparison: {len(self.loos)} models; the largest elpd has {next(iter(self.loos))}>"

    @property
    def elpd_diff(self) -> np.ndarray:
        """How much larger the first model's elpd is than each, shape (model,)."""
        elpd = np.array([one.elpd for one in self.loos.values()])
        return elpd[0] - elpd

    @property
    def log_bayes_factor(self) -> np.ndarray:
        """The log of the largest evidence over each model's, and its standard error, shape (model, 2); NaN likewise."""
        value, error = self.log_evidence.T
        if np.isnan(value).all():
            return self.log_evidence
        best = np.nanargmax(value)
        found = np.stack([value[best] - value, np.hypot(error[best], error)], axis=1)
        # a model's over itself is known
        found[best] = 0.0
        return found

    def table(self) -> pd.DataFrame:
        """One row for each model, the largest elpd first.

        Columns as ArviZ's `compare` has them: rank from 0, elpd, p, elpd_diff and dse (how much larger the first
        model's elpd is, and the standard error), se, warning (some rows' Pareto k is too large). Besides: bad_rows, how
        many; k, the largest; log_evidence and log_bf, the log of the largest evidence over this model's, with their
        standard errors log_evidence_se and log_bf_se.
        """
        import pandas as pd

        rows = list(self.loos.values())
        columns = {name: [getattr(one, name) for one in rows] for name in ("elpd", "p", "se")}
        table = {
            "rank": np.arange(len(rows)),
            "elpd": columns["elpd"],
            "p": columns["p"],
            "elpd_diff": self.elpd_diff,
            "se": columns["se"],
            "dse": self.dse,
            "warning": [one.bad > 0 for one in rows],
            "bad_rows": [one.bad for one in rows],
            "k": [one.k for one in rows],
        }
        for name, pair in (("log_evidence", self.log_evidence), ("log_bf", self.log_bayes_factor)):
            table |= {name: pair[:, 0], f"{name}_se": pair[:, 1]}
        return pd.DataFrame(table, index=list(self.loos))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A line for each model, and what the columns are."""
        shown = Table(box=None, padding=(0, 1, 0, 0))
        shown.add_column("model")
        evidence = not np.isnan(self.log_evidence).all()
        headings = ["elpd", "p", "less", "bad rows", "k"] + (["log evidence", "log Bayes f."] if evidence else [])
        for heading in headings:
            shown.add_column(heading, justify="right", no_wrap=True)
        rows = zip(self.loos.items(), self.elpd_diff, self.dse, self.log_evidence, self.log_bayes_factor, strict=True)
        for place, ((name, one), diff, dse, own, factor) in enumerate(rows):
            cells = [_within(one.elpd, one.se), f"{one.p:.1f}", _within(diff, dse) if place else ""]
            cells += [f"{one.bad} of {one.rows}", f"{one.k:.2f}"]
            cells += [_within(*own), _within(*factor) if factor[0] else ""] if evidence else []
            shown.add_row(Text(name, "cyan" if place == 0 else ""), *cells)
        yield folded(shown, options.max_width)
        for line in (
            "elpd: the sum over rows of the log density of a row given all others; p: effective parameters.",
            "less: than the first model's. Below 4, or below a few standard errors, it says little.",
            "bad rows: with a Pareto k that is too large, whose part of elpd may be off; k: the largest.",
            *(["log Bayes f.: of the largest evidence over this model's."] if evidence else []),
        ):
            yield Text(line, "dim italic")


def _within(value: float, error: float) -> str:
    return "" if np.isnan(value) else f"{value:.1f} ± {error:{'.1f' if error >= 1.0 else '.1g'}}"


def compare(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, *, engine: str | Builder = "local"
) -> Comparison:
    """Compare models of the same rows by leave-one-out cross-validation (PSIS-LOO) and by their evidence.

    Each agent leaves out its own rows, one after another, in all models at once, and returns sums over its rows, which
    are added up over all agents in one sum. Nothing is sampled. Likelihoods must be normalised densities of the same
    observations.

    Parameters
    ----------
    runs
        By the models' names, two or more runs, each with the posterior that it was sampled from: `{"a": (run, post),
        "b": (other, its_post)}`. Row r of an agent must be the same observation in all of them: that they are as many
        is checked. Runs may come from files.
    network
        Who talks to whom.
    engine
        What places the data, as in `accord.sample`.

    Raises
    ------
    ValueError
        Runs are fewer than two, of other posteriors than those given, of different agents or of different numbers of
        rows, a log likelihood does not give one number a row, or draws are fewer than 25.
    ArithmeticError
        Draws are not certified or not of temperature 1, or a log likelihood is not finite at some draw.

    Warns
    -----
    UserWarning
        Rows have a Pareto k that is too large, with their number.
    """
    if len(runs) < 2:
        raise ValueError(f"compare needs two runs or more, by name; found {len(runs)}")
    found, errors = loos(runs, network, engine, "compare")
    names = list(found)
    order = sorted(range(len(names)), key=lambda place: -found[names[place]].elpd)
    nothing = np.nan, np.nan
    evidence = [nothing if run.points is None else run.log_evidence for run, _ in runs.values()]
    return Comparison({names[i]: found[names[i]] for i in order}, errors[order[0], order], np.array(evidence)[order])
