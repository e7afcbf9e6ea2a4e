"""A plan: the forecasts of several methods on a posterior and a network, and the cheapest that serves."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..base import figures
from ..base.terminal import folded
from ..base.text import human_bytes
from ..samplers.protocol import Sampler
from ..samplers.validation import is_complete
from .forecast import SHARE, Forecast, left_out
from .warmup import Warmup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# What draws may be compared by; exchanges where nothing else is said: mostly a message takes long, not its bytes.
COSTS = ("exchanges", "bytes_sent", "gradient_rows", "rounds")
# How the forecast of a method with a batch_size is marked.
_WITHOUT = "minibatch noise left out"


class Trial(NamedTuple):
    """One setting of a method.

    Parameters
    ----------
    label
        The method's name, its noise where it has a choice, and whether it takes minibatches or was given all its
        numbers.
    sampler
        The method with all its numbers.
    whitened
        Whether it moves in whitened coordinates.
    forecast
        What to expect of it, or None.
    trouble
        Why there is no forecast, else empty.
    limit
        The largest stable step_size, NaN where every step is stable or none is known.
    """

    label: str
    sampler: Sampler
    whitened: bool
    forecast: Forecast | None
    trouble: str
    limit: float

    @property
    def left_out(self) -> str:
        """A sentence on noise that the forecast leaves out, and its remedy; empty if there is none."""
        return "" if self.forecast is None else left_out(self.sampler)


@dataclass(frozen=True, eq=False)
class Plan:
    """The forecasts of all methods; made by `accord.plan`.

    Parameters
    ----------
    trials
        Every setting that was tried, method by method, those with the cheapest draws first.
    tolerance
        Largest error of any agent's mean and standard deviation that is allowed, in posterior standard deviations.
    cost
        What effective draws are compared by.
    warmup
        What warm-up found, and what it took.
    """

    trials: tuple[Trial, ...]
    tolerance: float
    cost: str
    warmup: Warmup

    def __repr__(self) -> str:
        first = self.ranked[0]
        best = f"{first.label}, {numbers(first.sampler)}" if self.meets(first) else "none meets the tolerance"
        best += f", {_WITHOUT}" if self.meets(first) and first.left_out else ""
        return f"<Plan: {len(self.trials)} settings of {len(self.ranked)} methods; best: {best}>"

    @property
    def ranked(self) -> list[Trial]:
        """The best setting of each method: those that meet the tolerance, the cheapest first; then the others.

        Those that meet it but for the noise of minibatches, which forecasts leave out, come after those that meet it.
        """
        of_method: dict[str, list[Trial]] = {}
        for trial in self.trials:
            of_method.setdefault(trial.label, []).append(trial)
        return sorted((min(group, key=self._rank) for group in of_method.values()), key=self._rank)

    @property
    def best(self) -> Trial:
        """The cheapest setting that meets the tolerance.

        Raises
        ------
        ArithmeticError
            None does.
        """
        first = self.ranked[0]
        if not self.meets(first):
            nearest = "" if first.forecast is None else f", the nearest setting is off by {first.forecast.bias:.2g}"
            raise ArithmeticError(
                f"no method keeps every agent within {self.tolerance:g} posterior standard deviations at any setting "
                f"that was tried: {self._rule}{nearest}. More edges or a larger tolerance would help"
            )
        return first

    @property
    def allowed(self) -> float:
        """The largest bias on the Gaussian approximation with which a setting meets the tolerance, a tenth of that."""
        return SHARE * self.tolerance

    @property
    def _rule(self) -> str:
        return (
            f"the forecast is for the Gaussian nearest to the posterior, where {self.allowed:.2g} is allowed and the "
            "rest is left to what the posterior is beyond it"
        )

    def meets(self, trial: Trial) -> bool:
        """Whether a trial is expected to meet the tolerance: its bias is at most `allowed`."""
        return trial.forecast is not None and trial.forecast.meets(self.tolerance)

    def why(self, trial: Trial) -> str:
        """The reason to take a trial, in a sentence."""
        found = trial.forecast
        assert found is not None
        if not self.meets(trial):
            return (
                f"no setting of {trial.label} that was tried keeps every agent within {self.tolerance:g} posterior "
                f"standard deviations: {self._rule}; there the nearest is off by {found.bias:.2g}"
                + (f". {trial.left_out}" if trial.left_out else "")
            )
        methods = {other.label for other in self.trials}
        first = len(methods) > 1 and trial is self.ranked[0]
        return (
            f"{trial.label}: predicted within {found.bias:.2g} posterior standard deviations on the Gaussian nearest "
            f"to the posterior ({self.allowed:.2g} of the {self.tolerance:g} is allowed there), {found.rounds:.3g} "
            f"rounds, {found.exchanges:.3g} exchanges and {human_bytes(found.bytes_sent)} an effective draw"
            + (f"; the fewest {self.cost.replace('_', ' ')} of {len(methods)} methods" if first else "")
            + (f". {trial.left_out}" if trial.left_out else "")
        )

    def _rank(self, trial: Trial) -> tuple[int, float]:
        if trial.forecast is None:
            return 3, np.inf
        if not self.meets(trial):
            return 2, trial.forecast.bias
        return 1 if trial.left_out else 0, getattr(trial.forecast, self.cost)

    def table(self) -> pd.DataFrame:
        """One row for each setting that was tried.

        Columns: method; its numbers; whether it moves in whitened coordinates; whether it meets the tolerance (its bias
        is at most `allowed`); the largest bias of an agent and of the average (posterior standard deviations, on the
        Gaussian approximation); burn-in (rounds); rounds, exchanges, bytes and gradient rows of the busiest agent per
        effective draw; the stability limit of step_size; why there is no forecast; and what a forecast leaves out.
        """
        import pandas as pd

        rows = []
        for trial in self.trials:
            found = trial.forecast
            row = {"method": trial.label, "numbers": numbers(trial.sampler), "whitened": trial.whitened}
            row |= {"meets": self.meets(trial)}
            if found is not None:
                row |= {"bias": found.bias, "average_bias": found.average_bias, "burn_in": found.burn_in}
                row |= {cost: getattr(found, cost) for cost in COSTS}
            missing = "minibatch noise" if trial.left_out else ""
            rows.append({**row, "limit": trial.limit, "trouble": trial.trouble, "left_out": missing})
        columns = ["method", "numbers", "whitened", "meets", "bias", "average_bias", "burn_in", *COSTS]
        return pd.DataFrame(rows, columns=[*columns, "limit", "trouble", "left_out"])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The best setting of each method: some lines each for a person, one each where a program reads."""
        joint = "\n" if console.is_terminal or console.is_jupyter else "; "
        shown = Table(box=None, padding=(0, 1, 0, 0))
        shown.add_column("method")
        for heading in ("bias", "average", "burn-in", "rounds", "exch.", "sent", "rows", "step <"):
            shown.add_column(heading, justify="right", no_wrap=True)
        for trial in self.ranked:
            found, meets = trial.forecast, self.meets(trial)
            notes, cells = [numbers(trial.sampler)], [""] * 7
            if found is None:
                notes.append(trial.trouble)
            else:
                cells = [f"{found.bias:.2g}", f"{found.average_bias:.2g}", *map(_short, (found.burn_in, found.rounds))]
                cells += [_short(found.exchanges), human_bytes(found.bytes_sent), _short(found.gradient_rows)]
                notes.append("" if meets else f"no setting within {self.allowed:.2g}; the nearest")
                notes.append(_WITHOUT if trial.left_out else "")
            method = [Text(trial.label, "cyan" if meets else ""), *(Text(note) for note in notes if note)]
            limit = "" if np.isnan(trial.limit) else f"{trial.limit:.3g}"
            shown.add_row(Text(joint).join(method), *cells, limit, style=None if meets else "dim")
        yield Text(
            f"To keep every agent's means and sds within {self.tolerance:g} posterior sds: the best setting of each "
            "method, the cheapest first.",
            "italic",
        )
        yield folded(shown, options.max_width)
        for line in (
            "bias: the largest error of an agent, forecast on the Gaussian nearest to the posterior. "
            f"{self.allowed:.2g} is allowed there, a tenth of the {self.tolerance:g}; the rest is left to what the "
            "posterior is beyond that Gaussian.",
            "average: the bias of the agents' average.",
            "rounds to rows (of gradients): the busiest agent's, for one effective draw.",
        ):
            yield Text(line, "dim italic")
        if any(trial.left_out for trial in self.ranked):
            yield Text(
                f"{_WITHOUT}: draws will be wider than forecast. run.summary() of a run measures their temperature; "
                "where it is above 1, a larger batch_size, smaller steps or all rows are needed.",
                "dim italic",
            )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Largest bias of an agent against bytes per effective draw, a line for each method.

        Parameters
        ----------
        ax
            Axes to draw on; None makes a figure.

        Raises
        ------
        ImportError
            Matplotlib is not installed.
        """
        figures.require()
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(8, 5), layout="constrained")[1] if ax is None else ax
        colors = ["black", *figures.COLORS.values()]
        for place, name in enumerate(dict.fromkeys(trial.label for trial in self.trials)):
            tried = [t for t in self.trials if t.label == name]
            found = [t.forecast for t in tried if t.forecast is not None]
            ax.plot(
                [f.bytes_sent for f in found],
                [f.bias for f in found],
                color=colors[place % len(colors)],
                linestyle="-" if place < len(colors) else "--",
                marker="osD^v<>"[place % len(colors)],
                markersize=4,
                label=f"{name}\n({_WITHOUT})" if any(t.left_out for t in tried) else name,
            )
        allowed = f"{self.allowed:.2g} allowed on the Gaussian,\na tenth of {self.tolerance:g}"
        ax.axhline(self.allowed, color="grey", linewidth=1, label=allowed)
        ax.set(xscale="log", yscale="log", xlabel="bytes sent per effective draw (busiest agent)")
        ax.set_ylabel("largest bias of an agent (posterior sd, on the Gaussian approximation)")
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return ax


def _short(count: float) -> str:
    """A number with three digits: 12.3, 4.56k, 789M."""
    for unit in ("", "k"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:,.3g}M"


def numbers(sampler: Sampler) -> str:
    """The numbers of a method that are not its defaults, as text."""
    given = []
    for f in fields(sampler):
        value = getattr(sampler, f.name)
        if f.name != "noise" and value is not None and not np.array_equal(value, _default(f)):
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            given.append(f"{f.name}={text}")
    return ", ".join(given)


def _default(f: Field) -> Any:
    return None if f.default is MISSING else f.default


def label(sampler: Sampler) -> str:
    """A method's name, its noise where it has a choice, whether it takes minibatches or was given all its numbers."""
    parts = [type(sampler).__name__]
    if len(sampler.noises) > 1:
        parts.append(f"{sampler.noise} noise")
    if sampler.needs(1).batch_size is not None:
        parts.append("minibatches")
    if is_complete(sampler):
        parts.append("as given")
    return ", ".join(parts)
