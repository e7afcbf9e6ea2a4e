"""`accord.compare`: compares models by leave-one-out cross-validation and by evidence."""

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
    """The result of `accord.compare`: several models of the same rows.

    Parameters
    ----------
    loos
        The leave-one-out result of each model by name, largest elpd first.
    dse
        Standard errors of the differences in elpd from the first model, shape (model,).
    log_evidence
        Log evidence of each model and its standard error, shape (model, 2); NaN if a run has no weighted points.
    """

    loos: dict[str, Loo]
    dse: np.ndarray
    log_evidence: np.ndarray

    def __repr__(self) -> str:
        return f"<Comparison: {len(self.loos)} models, largest elpd: {next(iter(self.loos))}>"

    @property
    def elpd_diff(self) -> np.ndarray:
        """The first model's elpd minus each model's elpd, shape (model,)."""
        elpd = np.array([one.elpd for one in self.loos.values()])
        return elpd[0] - elpd

    @property
    def log_bayes_factor(self) -> np.ndarray:
        """Log Bayes factor of the model with the largest evidence over each model, and its standard error.

        Shape (model, 2); NaN if the log evidence is NaN.
        """
        value, error = self.log_evidence.T
        if np.isnan(value).all():
            return self.log_evidence
        best = np.nanargmax(value)
        found = np.stack([value[best] - value, np.hypot(error[best], error)], axis=1)
        # the factor of a model over itself has no error
        found[best] = 0.0
        return found

    def table(self) -> pd.DataFrame:
        """One row per model, largest elpd first.

        Columns of ArviZ's `compare`: rank from 0, elpd, p, elpd_diff and dse (the first model's elpd minus this
        model's, and its standard error), se, and warning (whether the Pareto k of some row is too large). Further
        columns: bad_rows (number of such rows), k (the largest), log_evidence and log_bf (log Bayes factor of the
        model with the largest evidence over this model), with standard errors log_evidence_se and log_bf_se.
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
        """One line per model, and a legend."""
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
            "elpd: sum over rows of the log density of a row given all other rows. p: effective parameters.",
            "less: elpd below the first model's. Less than 4, or than a few standard errors, is inconclusive.",
            "bad rows: rows with a too large Pareto k, whose part of elpd is unreliable. k: the largest k.",
            *(["log Bayes f.: of the model with the largest evidence over this model."] if evidence else []),
        ):
            yield Text(line, "dim italic")


def _within(value: float, error: float) -> str:
    return "" if np.isnan(value) else f"{value:.1f} ± {error:{'.1f' if error >= 1.0 else '.1g'}}"


def compare(
    runs: Mapping[str, tuple[Run, Posterior]], network: Network, *, engine: str | Builder = "local"
) -> Comparison:
    """Compare models of the same rows by leave-one-out cross-validation (PSIS-LOO) and by evidence.

    Each agent leaves out its own rows, one at a time, for all models, and returns sums over its rows. One sum adds them
    up over all agents. Nothing is sampled. Likelihoods must be normalised densities of the same observations.

    Parameters
    ----------
    runs
        Two or more runs by name of the model, each with its posterior: `{"a": (run, post), "b": (other, its_post)}`.
        Row r of an agent must be the same observation in all models; only the number of rows is checked. Runs may come
        from files.
    network
        The network of the agents.
    engine
        Engine that places the data, as in `accord.sample`.

    Raises
    ------
    ValueError
        There are fewer than two runs; a run is of another posterior; responses, agents or numbers of rows differ; a
        log likelihood does not return one number per row; or there are fewer than 25 draws.
    TypeError
        An entry is not a pair (run, post).
    ArithmeticError
        Draws are not certified or not at temperature 1, or a log likelihood is not finite at some draw.

    Warns
    -----
    UserWarning
        The Pareto k of some rows is too large.
    """
    if len(runs) < 2:
        raise ValueError(f"compare needs two or more runs by name, found {len(runs)}")
    for name, pair in runs.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"compare needs a pair (run, post) for each model, found {type(pair).__name__} for {name!r}"
            )
    found, errors = loos(runs, network, engine, "compare")
    names = list(found)
    order = sorted(range(len(names)), key=lambda place: -found[names[place]].elpd)
    nothing = np.nan, np.nan
    evidence = [nothing if run.points is None else run.log_evidence for run, _ in runs.values()]
    return Comparison({names[i]: found[names[i]] for i in order}, errors[order[0], order], np.array(evidence)[order])
