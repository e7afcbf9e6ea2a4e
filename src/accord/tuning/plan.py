"""A plan: forecasts of several methods on a posterior and a network, and the cheapest that meets the tolerance."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from ..base.page import number, paragraph, table
from ..base.terminal import folded, table_width
from ..base.text import human_bytes, human_seconds
from ..results.traffic import Cost
from ..samplers.by_sums.method import BySums, SumsForecast
from ..samplers.protocol import Sampler
from ..samplers.validation import is_complete
from .forecast import SHARE, Forecast, left_out
from .plot import Curve, drawn
from .warmup import Warmup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Costs by which methods may be compared. The default is exchanges, because latency usually dominates bandwidth.
COSTS = ("exchanges", "bytes_sent", "gradient_rows", "rounds")
# Mark of a method with a batch_size.
WITHOUT = "minibatch noise left out"


class Trial(NamedTuple):
    """One setting of a method.

    Parameters
    ----------
    label
        The method's name, its noise if it supports several kinds, "minibatches" if it uses them, and "as given" if the
        user set all numbers.
    sampler
        The method with all its numbers.
    whitened
        Whether the method moves in whitened coordinates.
    forecast
        Bias and cost of the method, or None.
    trouble
        The reason for a missing forecast, else empty.
    limit
        The largest stable step_size. NaN if every step is stable or the limit is unknown.
    cost
        Total cost of the plan's effective draws, or None if it was not computed.
    """

    label: str
    sampler: Sampler | BySums
    whitened: bool
    forecast: Forecast | SumsForecast | None
    trouble: str
    limit: float
    cost: Cost | None = None

    @property
    def left_out(self) -> str:
        """A sentence about noise that the forecast leaves out, with the remedy. Empty if it leaves out nothing."""
        return "" if self.forecast is None else left_out(self.sampler)


class Estimate(NamedTuple):
    """The expected time, memory and traffic of a run.

    Parameters
    ----------
    label
        The method's name.
    seconds
        Seconds on this machine, all agents in one process, without compilation. NaN if rounds were not timed.
    memory
        Bytes of all rows and kept draws, without the working memory of programs.
    bytes_sent
        Bytes that the busiest agent sends.
    """

    label: str
    seconds: float
    memory: float
    bytes_sent: float

    def __str__(self) -> str:
        """The estimate as one line."""
        seconds = "time not measured" if np.isnan(self.seconds) else human_seconds(self.seconds)
        memory = "memory unknown" if np.isnan(self.memory) else f"{human_bytes(self.memory)} of memory"
        return f"{self.label}: {seconds}, {memory}, {human_bytes(self.bytes_sent)} sent by the busiest agent"


@dataclass(frozen=True, eq=False)
class Plan:
    """The forecasts of all methods; made by `accord.plan`.

    Parameters
    ----------
    trials
        Every setting that was tried, method by method, in order of cost per draw.
    tolerance
        Largest allowed error of any agent's mean and standard deviation, in posterior standard deviations.
    cost
        The cost by which methods are compared, one of "exchanges", "bytes_sent", "gradient_rows" and "rounds".
    warmup
        The result of warm-up. None if no method needs it or it failed.
    draws, chains
        Effective draws per chain, and chains, to which costs refer.
    num_agents, dim, rows_bytes
        Agents, parameters, and bytes of all rows in double precision (NaN if unknown).
    """

    trials: tuple[Trial, ...]
    tolerance: float
    cost: str
    warmup: Warmup | None
    draws: int = 1000
    chains: int = 4
    num_agents: int = 1
    dim: int = 1
    rows_bytes: float = np.nan

    def __repr__(self) -> str:
        first = self.ranked[0]
        named = ", ".join(filter(None, (first.label, numbers(first.sampler))))
        best = named if self.meets(first) else "none meets the tolerance"
        best += f", {WITHOUT}" if self.meets(first) and first.left_out else ""
        return f"<Plan: {len(self.trials)} settings of {len(self.ranked)} methods; best: {best}>"

    @property
    def ranked(self) -> list[Trial]:
        """The best setting of each method, in order of preference.

        First come sum-based methods whose certificate is expected to pass, as in `accord.sample`. Then come round-based
        methods that meet the tolerance, by cost, and after them those with minibatches, whose noise is not part of the
        forecast. Methods that miss the tolerance are last.
        """
        of_method: dict[str, list[Trial]] = {}
        for trial in self.trials:
            of_method.setdefault(trial.label, []).append(trial)
        return sorted((min(group, key=self._rank) for group in of_method.values()), key=self._rank)

    @property
    def best(self) -> Trial:
        """The first of `ranked`.

        Raises
        ------
        ArithmeticError
            No setting meets the tolerance.
        """
        first = self.ranked[0]
        if not self.meets(first):
            none = (
                f"no method is forecast to keep every agent within {self.tolerance:g} posterior standard deviations at "
                "any setting that was tried: "
            )
            if first.forecast is not None and np.isinf(first.forecast.bias):
                raise ArithmeticError(
                    f"{none}all are unstable, at least at one of the posterior's stiffest draws. Add other methods to "
                    "the plan, such as GTBAOAB"
                )
            best = "none has a forecast" if first.forecast is None else f"the best has {self._off(first.forecast)}"
            raise ArithmeticError(f"{none}{best}. Add edges to the network or raise the tolerance")
        return first

    @property
    def allowed(self) -> float:
        """The largest allowed bias on the Gaussian approximation: a tenth of the tolerance."""
        return SHARE * self.tolerance

    def _off(self, found: Forecast | SumsForecast) -> str:
        return (
            f"bias {found.bias:.2g} on the Gaussian approximation, where it may be {self.allowed:.2g}, a tenth of that"
        )

    def meets(self, trial: Trial) -> bool:
        """Whether a trial is expected to meet the tolerance: its bias is at most `allowed`."""
        return trial.forecast is not None and trial.forecast.meets(self.tolerance)

    def why(self, trial: Trial) -> str:
        """One sentence on how well the trial meets the tolerance, and at what cost."""
        found = trial.forecast
        assert found is not None
        if isinstance(found, SumsForecast):
            return self._why_by_sums(trial.label, found)
        if np.isinf(found.bias):
            return (
                f"no setting of {trial.label} that was tried is stable, at least at one of the posterior's stiffest "
                "draws"
            )
        if not self.meets(trial):
            return (
                f"no setting of {trial.label} that was tried is forecast to keep every agent within {self.tolerance:g} "
                f"posterior standard deviations: the best has {self._off(found)}"
                + (f". {trial.left_out}" if trial.left_out else "")
            )
        methods = {other.label for other in self.trials}
        first = len(methods) > 1 and trial is self.ranked[0]
        # named first, because it may be most of the bias
        without = "apart from minibatch noise " if trial.left_out else ""
        return (
            f"{trial.label}: {without}predicted within {found.bias:.2g} posterior standard deviations on the Gaussian "
            f"approximation ({self.allowed:.2g} of the {self.tolerance:g} is allowed there), {found.rounds:.3g} "
            f"rounds, {found.exchanges:.3g} exchanges and {human_bytes(found.bytes_sent)} per effective draw"
            + (f"; the fewest {self.cost.replace('_', ' ')} of {len(methods)} methods" if first else "")
            + (f". {trial.left_out}" if trial.left_out else "")
        )

    def _why_by_sums(self, label: str, found: SumsForecast) -> str:
        if found.doubt:
            return f"{label} is not expected to be certified: {found.doubt}"
        return (
            f"{label}: {found.basis}; {found.spent.sums:,.0f} sums, {found.spent.exchanges:.3g} exchanges and "
            f"{human_bytes(found.spent.bytes_sent)} for {self.draws * self.chains:,} effective draws"
        )

    def _rank(self, trial: Trial) -> tuple[int, float]:
        found = trial.forecast
        if found is None:
            return 4, np.inf
        if not self.meets(trial):
            return 3, float(np.nan_to_num(found.bias, nan=np.inf))
        # without a number of draws, compare by the cost per draw
        amount = getattr(found if trial.cost is None else trial.cost, self.cost)
        return 0 if isinstance(found, SumsForecast) else 2 if trial.left_out else 1, amount

    def table(self) -> pd.DataFrame:
        """One row per setting that was tried.

        Columns: the method and its numbers; whether it moves in whitened coordinates; whether it meets the tolerance
        (its bias is at most `allowed`, or its certificate is expected to pass); the largest bias of an agent and of
        the average, in posterior standard deviations on the Gaussian approximation; burn-in in rounds; the `Cost` of
        `draws` x `chains` effective draws; the stability limit of step_size; the basis of a forecast of sums; the
        reason for doubt or a missing forecast; noise that the forecast leaves out.
        """
        import pandas as pd

        rows = []
        for trial in self.trials:
            found = trial.forecast
            row = {"method": trial.label, "numbers": numbers(trial.sampler), "whitened": trial.whitened}
            row |= {"meets": self.meets(trial)}
            if found is not None:
                row |= {"bias": found.bias, "average_bias": found.average_bias}
            row |= {} if trial.cost is None else trial.cost._asdict()
            if isinstance(found, Forecast):
                row |= {"burn_in": found.burn_in}
            if isinstance(found, SumsForecast):
                row |= {"basis": found.basis}
            missing = "minibatch noise" if trial.left_out else ""
            rows.append({**row, "limit": trial.limit, "trouble": _trouble(trial), "left_out": missing})
        columns = ["method", "numbers", "whitened", "meets", "bias", "average_bias", "burn_in", *Cost._fields]
        return pd.DataFrame(rows, columns=[*columns, "limit", "basis", "trouble", "left_out"])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The best setting of each method, with its notes below its name."""
        shown = Table(box=None, padding=(0, 1, 0, 0))
        shown.add_column("method")
        for heading in ("bias", "average", "rounds", "sums", "exch.", "sent", "rows", "values", "s"):
            shown.add_column(heading, justify="right", no_wrap=True)
        for trial in self.ranked:
            meets = self.meets(trial)
            method = [Text(trial.label, "cyan" if meets else ""), *map(Text, self._notes(trial))]
            shown.add_row(Text("\n").join(method), *_cells(trial), style=None if meets else "dim")
        yield Text(
            f"The best setting of each method. Goal: every agent's means and sds within {self.tolerance:g} posterior "
            "sds. Methods with certified draws come first, then the cheapest.",
            "italic",
        )
        width = table_width(options.max_width)
        yield Constrain(folded(shown, width), width)
        for line in (
            f"bias: the largest error of an agent on the Gaussian approximation. {self.allowed:.2g} is allowed there, "
            f"a tenth of the {self.tolerance:g}. The rest is a margin for the non-Gaussian part of the posterior.",
            "Steps that the plan chose are for whitened coordinates: Rounds(method, whiten=True).",
            "average: the bias of the agents' average.",
            f"rounds to s: the busiest agent's cost of {self.draws * self.chains:,} effective draws in {self.chains} "
            "chains, with warm-up and burn-in. rows: rows of gradients. values: rows of values without gradient. "
            "s: seconds on this machine without compilation, if measured.",
        ):
            yield Text(line, "dim italic")
        if any(trial.left_out for trial in self.ranked):
            yield Text(
                f"{WITHOUT}: draws will be wider than forecast. If run.summary() measures a temperature above 1, use "
                "a larger batch_size, smaller steps or all rows.",
                "dim italic",
            )

    def _repr_html_(self) -> str:
        """The best setting of each method, for notebooks."""
        numbers_of = ("bias", "average", "rounds", "sums", "exchanges", "sent", "rows", "values", "s")
        rows = []
        for trial in self.ranked:
            meets, notes = "meets" if self.meets(trial) else "", "; ".join(self._notes(trial))
            rows.append([meets, trial.label, *map(number, _cells(trial)), notes])
        text = (
            f"The best setting of each method. Goal: every agent's means and sds within {self.tolerance:g} posterior "
            f"sds. Costs are for {self.draws * self.chains:,} effective draws in {self.chains} chains."
        )
        return f"<strong>Plan</strong>{paragraph(text)}{table(['', 'method', *numbers_of, 'notes'], rows)}"

    def _notes(self, trial: Trial) -> list[str]:
        """Notes below the trial's name."""
        found, notes = trial.forecast, [numbers(trial.sampler), _trouble(trial)]
        if isinstance(found, SumsForecast):
            notes.append(found.basis)
        elif found is not None:
            notes.append("" if self.meets(trial) else f"no setting within {self.allowed:.2g}, this is the best")
            notes.append(WITHOUT if trial.left_out else "")
        return [note for note in notes if note]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the largest bias of an agent against the bytes of all effective draws, one line per method.

        Each method has one colour and marker, and lines of common noise are dashed. Biases below a hundredth of the
        allowed bias are drawn at that height. Sum-based methods have no bias and are vertical lines.

        Parameters
        ----------
        ax
            Axes to draw on. None makes a figure.

        Raises
        ------
        ImportError
            Matplotlib is not installed.
        """
        curves = []
        for label in dict.fromkeys(trial.label for trial in self.trials):
            tried = [(t.forecast, t.cost) for t in self.trials if t.label == label and t.forecast and t.cost]
            for found, spent in tried:
                if isinstance(found, SumsForecast):
                    doubted = "" if found.meets(self.tolerance) else " (not expected to be certified)"
                    curves.append(Curve(label + doubted, [spent.bytes_sent], None))
            walking = [(spent.bytes_sent, found.bias) for found, spent in tried if isinstance(found, Forecast)]
            if walking:
                left_out = f" ({WITHOUT})" if any(t.left_out for t in self.trials if t.label == label) else ""
                sent, bias = zip(*walking, strict=True)
                curves.append(Curve(label + left_out, list(sent), list(bias)))
        texts = (
            f"{self.allowed:.2g} allowed on the Gaussian approximation, a tenth of {self.tolerance:g}",
            f"bytes sent for {self.draws * self.chains:,} effective draws (busiest agent)",
            "largest bias of an agent (posterior sd, on the Gaussian approximation)",
        )
        return drawn(curves, self.allowed, texts, ax)

    def estimate(self, trial: Trial | None = None) -> Estimate:
        """Estimate the seconds on this machine, memory and bytes sent for the plan's effective draws.

        Parameters
        ----------
        trial
            A trial of the plan. None: `best`.

        Raises
        ------
        ArithmeticError
            `trial` is None and no setting meets the tolerance.
        ValueError
            The trial has no cost, because it has no forecast.
        """
        trial = self.best if trial is None else trial
        if trial.cost is None:
            raise ValueError(f"{trial.label} has no forecast: {trial.trouble or 'its cost was not computed'}")
        # sum-based methods keep one set of draws and weighted points, others the draws of each agent and of the average
        sums = isinstance(trial.forecast, SumsForecast)
        copies, width = (3, 8) if sums else (1 + self.num_agents, 4)
        kept = self.draws * self.chains * self.dim * copies * width
        return Estimate(trial.label, trial.cost.seconds, float(self.rows_bytes + kept), trial.cost.bytes_sent)


def _trouble(trial: Trial) -> str:
    return trial.forecast.doubt if isinstance(trial.forecast, SumsForecast) else trial.trouble


def _cells(trial: Trial) -> list[str]:
    """The table cells of a trial, empty for unknown numbers and zeros."""
    found, spent = trial.forecast, trial.cost
    biases = [np.nan, np.nan] if found is None else [found.bias, found.average_bias]
    cells = ["" if np.isnan(bias) else f"{bias:.2g}" for bias in biases]
    if spent is None:
        return cells + [""] * len(Cost._fields)
    shown = [_short(count) if count else "" for count in spent[:-1]]
    shown[Cost._fields.index("bytes_sent")] = human_bytes(spent.bytes_sent)
    return [*cells, *shown, "" if np.isnan(spent.seconds) else _short(float(f"{spent.seconds:.2g}"))]


def _short(count: float) -> str:
    """A number with three digits: 12.3, 4.56k, 789M, 1.2G."""
    for unit in ("", "k", "M"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:,.3g}G"


def numbers(sampler: Sampler | BySums) -> str:
    """The method's non-default numbers, as text."""
    given = []
    for f in fields(sampler):
        value = getattr(sampler, f.name)
        if f.name != "noise" and value is not None and not np.array_equal(value, _default(f)):
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            given.append(f"{f.name}={text}")
    return ", ".join(given)


def _default(f: Field) -> Any:
    return None if f.default is MISSING else f.default


def label(sampler: Sampler | BySums) -> str:
    """The method's name, its noise if it supports several kinds, "minibatches" and "as given" if they apply."""
    parts = [type(sampler).__name__]
    if isinstance(sampler, BySums):
        return parts[0]
    if len(sampler.noises) > 1:
        parts.append(f"{sampler.noise} noise")
    if sampler.needs(1).batch_size is not None:
        parts.append("minibatches")
    if is_complete(sampler):
        parts.append("as given")
    return ", ".join(parts)
