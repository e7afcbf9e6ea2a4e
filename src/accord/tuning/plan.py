"""A plan: the forecasts of several methods on a posterior and a network, and the cheapest that serves."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..base.page import number, paragraph, table
from ..base.terminal import folded
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

# What methods may be compared by; exchanges where nothing else is said: mostly a message takes long, not its bytes.
COSTS = ("exchanges", "bytes_sent", "gradient_rows", "rounds")
# How the forecast of a method with a batch_size is marked.
WITHOUT = "minibatch noise left out"


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
    cost
        What the effective draws that a plan is for take in all; None where that was not asked.
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
        """A sentence on noise that the forecast leaves out, and its remedy; empty if there is none."""
        return "" if self.forecast is None else left_out(self.sampler)


class Estimate(NamedTuple):
    """What a run is expected to take.

    Parameters
    ----------
    label
        The method's name.
    seconds
        On this machine, all agents in one process, without compiling; NaN where rounds were not timed.
    memory
        Bytes for all rows and the draws that are kept; what programs take while they run comes on top.
    bytes_sent
        What the busiest agent sends.
    """

    label: str
    seconds: float
    memory: float
    bytes_sent: float

    def __str__(self) -> str:
        """All of it as a line."""
        seconds = "a time that was not measured" if np.isnan(self.seconds) else human_seconds(self.seconds)
        memory = "memory unknown" if np.isnan(self.memory) else f"{human_bytes(self.memory)} of memory"
        return f"{self.label}: {seconds}, {memory}, {human_bytes(self.bytes_sent)} sent by the busiest agent"


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
        What warm-up found, and what it took; None where no method needs it, or it found nothing.
    draws, chains
        Effective draws of each chain, and chains, that costs are for.
    num_agents, dim, rows_bytes
        Agents, parameters, and the memory that all rows take in double precision; NaN where nobody looked.
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
        """The best setting of each method: those that meet the tolerance, the cheapest first; then the others.

        Methods by sums that are expected to be certified come before all that walk, as `accord.sample` takes them:
        they check their draws. Methods that meet the tolerance but for the noise of minibatches, which forecasts leave
        out, come after those that meet it.
        """
        of_method: dict[str, list[Trial]] = {}
        for trial in self.trials:
            of_method.setdefault(trial.label, []).append(trial)
        return sorted((min(group, key=self._rank) for group in of_method.values()), key=self._rank)

    @property
    def best(self) -> Trial:
        """The first setting in rank, which meets the tolerance.

        Raises
        ------
        ArithmeticError
            None does.
        """
        first = self.ranked[0]
        if not self.meets(first):
            none = (
                f"no method keeps every agent within {self.tolerance:g} posterior standard deviations at any setting "
                "that was tried: "
            )
            if first.forecast is not None and np.isinf(first.forecast.bias):
                raise ArithmeticError(
                    f"{none}all are unstable, or forecast to be so at one of the posterior's stiffest draws. Plan for "
                    "other methods too, such as GTBAOAB"
                )
            nearest = "" if first.forecast is None else f", the nearest setting is off by {first.forecast.bias:.2g}"
            raise ArithmeticError(f"{none}{self._rule}{nearest}. More edges or a larger tolerance would help")
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
        if isinstance(found, SumsForecast):
            return self._why_by_sums(trial.label, found)
        if np.isinf(found.bias):
            return (
                f"no setting of {trial.label} that was tried is stable: its forecast is that of one of the posterior's "
                "stiffest draws"
            )
        if not self.meets(trial):
            return (
                f"no setting of {trial.label} that was tried keeps every agent within {self.tolerance:g} posterior "
                f"standard deviations: {self._rule}; there the nearest is off by {found.bias:.2g}"
                + (f". {trial.left_out}" if trial.left_out else "")
            )
        methods = {other.label for other in self.trials}
        first = len(methods) > 1 and trial is self.ranked[0]
        # what is left out comes first: it may be most of the bias
        without = "but for the noise of minibatches " if trial.left_out else ""
        return (
            f"{trial.label}: {without}predicted within {found.bias:.2g} posterior standard deviations on the Gaussian "
            f"nearest to the posterior ({self.allowed:.2g} of the {self.tolerance:g} is allowed there), "
            f"{found.rounds:.3g} rounds, {found.exchanges:.3g} exchanges and {human_bytes(found.bytes_sent)} an "
            "effective draw"
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
        # a search among methods that walk knows what a draw costs, and not how many there will be
        amount = getattr(found if trial.cost is None else trial.cost, self.cost)
        return 0 if isinstance(found, SumsForecast) else 2 if trial.left_out else 1, amount

    def table(self) -> pd.DataFrame:
        """One row for each setting that was tried.

        Columns: method; its numbers; whether it moves in whitened coordinates; whether it meets the tolerance (its bias
        is at most `allowed`, or it is expected to be certified); the largest bias of an agent and of the average
        (posterior standard deviations, on the Gaussian approximation); burn-in (rounds); the `Cost` of `draws` x
        `chains` effective draws; the stability limit of step_size; what a forecast of sums rests on; why there is no
        forecast, or doubt; and what a forecast leaves out.
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
        """The best setting of each method: some lines each for a person, one each where a program reads."""
        joint = "\n" if console.is_terminal or console.is_jupyter else "; "
        shown = Table(box=None, padding=(0, 1, 0, 0))
        shown.add_column("method")
        for heading in ("bias", "average", "rounds", "sums", "exch.", "sent", "rows", "values", "s"):
            shown.add_column(heading, justify="right", no_wrap=True)
        for trial in self.ranked:
            meets = self.meets(trial)
            method = [Text(trial.label, "cyan" if meets else ""), *map(Text, self._notes(trial))]
            shown.add_row(Text(joint).join(method), *_cells(trial), style=None if meets else "dim")
        yield Text(
            f"To keep every agent's means and sds within {self.tolerance:g} posterior sds: the best setting of each "
            "method, those that sums certify first, then the cheapest.",
            "italic",
        )
        yield folded(shown, options.max_width)
        for line in (
            "bias: the largest error of an agent, forecast on the Gaussian nearest to the posterior. "
            f"{self.allowed:.2g} is allowed there, a tenth of the {self.tolerance:g}; the rest is left to what the "
            "posterior is beyond that Gaussian.",
            "average: the bias of the agents' average.",
            f"rounds to s: the busiest agent's, for {self.draws * self.chains:,} effective draws in {self.chains} "
            "chains, warm-up and burn-in included. rows: of gradients; values: rows of values without one; s: seconds "
            "on this machine, compiled, where they were measured.",
        ):
            yield Text(line, "dim italic")
        if any(trial.left_out for trial in self.ranked):
            yield Text(
                f"{WITHOUT}: draws will be wider than forecast. run.summary() of a run measures their temperature; "
                "where it is above 1, a larger batch_size, smaller steps or all rows are needed.",
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
            f"Within {self.tolerance:g} posterior sds at every agent: the best setting of each method, for "
            f"{self.draws * self.chains:,} effective draws in {self.chains} chains."
        )
        return f"<strong>Plan</strong>{paragraph(text)}{table(['', 'method', *numbers_of, 'notes'], rows)}"

    def _notes(self, trial: Trial) -> list[str]:
        """What is said of a trial below its name."""
        found, notes = trial.forecast, [numbers(trial.sampler), _trouble(trial)]
        if isinstance(found, SumsForecast):
            notes.append(found.basis)
        elif found is not None:
            notes.append("" if self.meets(trial) else f"no setting within {self.allowed:.2g}; the nearest")
            notes.append(WITHOUT if trial.left_out else "")
        return [note for note in notes if note]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Largest bias of an agent against bytes for all effective draws, a line for each method.

        A method has one colour and marker, common noise is dashed, and names stand beside their lines. Biases below a
        hundredth of what is allowed are drawn there. Methods by sums, which have no bias, are vertical lines.

        Parameters
        ----------
        ax
            Axes to draw on; None makes a figure.

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
            f"{self.allowed:.2g} allowed on the Gaussian, a tenth of {self.tolerance:g}",
            f"bytes sent for {self.draws * self.chains:,} effective draws (busiest agent)",
            "largest bias of an agent (posterior sd, on the Gaussian approximation)",
        )
        return drawn(curves, self.allowed, texts, ax)

    def estimate(self, trial: Trial | None = None) -> Estimate:
        """What the effective draws that the plan is for take on this machine: seconds, memory, bytes an agent sends.

        Parameters
        ----------
        trial
            One of the plan's; None: `best`.

        Raises
        ------
        ArithmeticError
            None is the best.
        ValueError
            The trial has no forecast, so that nobody knows what it takes.
        """
        trial = self.best if trial is None else trial
        if trial.cost is None:
            raise ValueError(f"{trial.label} has no forecast: {trial.trouble or 'it was not priced'}")
        # by sums all agents have the same draws, and weighted points besides; else each has its own, and their average
        sums = isinstance(trial.forecast, SumsForecast)
        copies, width = (3, 8) if sums else (1 + self.num_agents, 4)
        kept = self.draws * self.chains * self.dim * copies * width
        return Estimate(trial.label, trial.cost.seconds, float(self.rows_bytes + kept), trial.cost.bytes_sent)


def _trouble(trial: Trial) -> str:
    return trial.forecast.doubt if isinstance(trial.forecast, SumsForecast) else trial.trouble


def _cells(trial: Trial) -> list[str]:
    """The numbers of a trial as text, empty where they are not known or naught."""
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


def label(sampler: Sampler | BySums) -> str:
    """A method's name, its noise where it has a choice, whether it takes minibatches or was given all its numbers."""
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
