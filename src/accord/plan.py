"""What each method would be worth on a posterior and a network, and which to take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from . import figures, samplers
from .checks import positive
from .errors import unknown_name_error
from .fit import check_fit
from .forecast import SHARE, Forecast, Model, forecast, gaussian_model
from .network import Network
from .posterior import Posterior
from .progress import waiting
from .response import SlowError, stationary_sampler
from .run import human_bytes
from .sampler import Sampler
from .schedules import at
from .warmup import Warmup, warm_up

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Largest error of an agent's mean and standard deviation that is allowed where none is given, in posterior deviations.
TOLERANCE = 0.05
# A setting whose bias is not below this share of the least so far gains nothing; so many in a row end a method.
_GAIN, _PATIENCE = 0.95, 3
# Settings are passed over while the bias to hope for is this much above what is allowed.
_FAR = 1.5
# What draws may be compared by; exchanges where nothing else is said: mostly a message takes long, not its bytes.
COSTS = ("exchanges", "bytes_sent", "gradient_rows", "rounds")


class Trial(NamedTuple):
    """One setting of a method.

    Parameters
    ----------
    label
        The method's name, its noise where it has a choice, and whether it was given all its numbers.
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


@dataclass(frozen=True, eq=False)
class Plan:
    """What to expect of each method; made by `accord.plan`.

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
        return f"<Plan: {len(self.trials)} settings of {len(self.ranked)} methods; best: {best}>"

    @property
    def ranked(self) -> list[Trial]:
        """The best setting of each method: those that meet the tolerance, the cheapest first; then the others."""
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
            raise ArithmeticError(
                f"no method keeps every agent within {self.tolerance:g} posterior standard deviations at any setting "
                "that was tried: more edges or a larger tolerance would help"
            )
        return first

    def meets(self, trial: Trial) -> bool:
        """Whether a trial is expected to meet the tolerance."""
        return trial.forecast is not None and trial.forecast.meets(self.tolerance)

    def why(self, trial: Trial) -> str:
        """What speaks for a trial, in a sentence."""
        found = trial.forecast
        assert found is not None
        if not self.meets(trial):
            return (
                f"no setting of {trial.label} that was tried keeps every agent within {self.tolerance:g} posterior "
                f"standard deviations: on the Gaussian approximation, which may take up {SHARE:g} of that, the nearest "
                f"is off by {found.bias:.2g}"
            )
        others = {other.label for other in self.trials} - {trial.label}
        return (
            f"{trial.label}: predicted within {found.bias:.2g} posterior standard deviations, {found.rounds:.3g} "
            f"rounds, {found.exchanges:.3g} exchanges and {human_bytes(found.bytes_sent)} an effective draw"
            + (f"; the fewest exchanges of {len(others) + 1} methods" if others else "")
        )

    def _rank(self, trial: Trial) -> tuple[int, float]:
        if trial.forecast is None:
            return 2, np.inf
        return (0, getattr(trial.forecast, self.cost)) if self.meets(trial) else (1, trial.forecast.bias)

    def table(self) -> pd.DataFrame:
        """One row for each setting that was tried.

        Columns: method; its numbers; whether it moves in whitened coordinates; whether it meets the tolerance; the
        largest bias of an agent and of the average (posterior standard deviations, on the Gaussian approximation);
        burn-in (rounds); rounds, exchanges, bytes and gradient rows of the busiest agent per effective draw; the
        stability limit of step_size; and why there is no forecast.
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
            rows.append({**row, "limit": trial.limit, "trouble": trial.trouble})
        columns = ["method", "numbers", "whitened", "meets", "bias", "average_bias", "burn_in", *COSTS]
        return pd.DataFrame(rows, columns=[*columns, "limit", "trouble"])

    def __rich__(self) -> Table:
        """The best setting of each method for a terminal."""
        shown = Table(
            box=None,
            padding=(0, 1, 0, 0),
            title=f"within {self.tolerance:g} posterior standard deviations at every agent, cheapest first",
            caption="rounds to rows (of gradients), and bytes sent: the busiest agent's, for one effective draw",
            title_justify="left",
            caption_justify="left",
        )
        shown.add_column("method", overflow="fold", min_width=16)
        for heading in ("bias", "average", "burn-in", "rounds", "exch.", "sent", "rows", "step <"):
            shown.add_column(heading, justify="right", overflow="fold")
        for trial in self.ranked:
            found, style = trial.forecast, None if self.meets(trial) else "dim"
            name = f"[cyan]{trial.label}[/]" if style is None else trial.label
            if found is None:
                shown.add_row(f"{name}\n{trial.trouble}", *[""] * 8, style=style)
                continue
            note = "" if style is None else "\nno setting within; the nearest"
            cells = [f"{found.bias:.2g}", f"{found.average_bias:.2g}", *map(_short, (found.burn_in, found.rounds))]
            cells += [_short(found.exchanges), human_bytes(found.bytes_sent), _short(found.gradient_rows)]
            limit = "" if np.isnan(trial.limit) else f"{trial.limit:.3g}"
            shown.add_row(f"{name}\n{escape(numbers(trial.sampler))}{note}", *cells, limit, style=style)
        return shown

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
            found = [t.forecast for t in self.trials if t.label == name and t.forecast is not None]
            ax.plot(
                [f.bytes_sent for f in found],
                [f.bias for f in found],
                color=colors[place % len(colors)],
                linestyle="-" if place < len(colors) else "--",
                marker="osD^v<>"[place % len(colors)],
                markersize=4,
                label=name,
            )
        ax.axhline(SHARE * self.tolerance, color="grey", linewidth=1, label="allowed")
        ax.set(xscale="log", yscale="log", xlabel="bytes sent per effective draw (busiest agent)")
        ax.set_ylabel("largest bias of an agent (posterior sd)")
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


def plan(
    post: Posterior,
    net: Network,
    methods: Iterable[Sampler] | None = None,
    *,
    tolerance: float = TOLERANCE,
    cost: str = COSTS[0],
    progress: bool | None = None,
) -> Plan:
    """What to expect of methods on a posterior and a network, before any of them runs.

    From the exact law of each method on the Gaussian nearest to the posterior, which a warm-up over the network finds.
    Numbers that a method leaves out are tried from those with the cheapest draws on, until every agent's bias is
    within a tenth of the tolerance: the rest is left to what the posterior is beyond its Gaussian approximation.

    Parameters
    ----------
    post, net
        As in `accord.sample`.
    methods
        Methods, complete or not; None: all that have an exact law, with independent and with common noise. Complete
        ones are judged in the user's coordinates, as `accord.sample` runs them.
    tolerance
        Largest error of any agent's mean and standard deviation, in posterior standard deviations, > 0.
    cost
        What effective draws are compared by: "exchanges" (default), "bytes_sent", "gradient_rows" or "rounds".
    progress
        Show what is being tried; None shows it on a terminal.

    Raises
    ------
    ValueError
        A number out of its range, or a method that does not fit the posterior or the network.
    ArithmeticError
        Warm-up found no mode.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> found = accord.plan(post, accord.Network.ring(3), [accord.samplers.DADMMS(noise="common")])
    >>> found.best.sampler.rho > 0
    True
    """
    positive("tolerance", tolerance)
    if cost not in COSTS:
        raise unknown_name_error("cost", cost, COSTS)
    net.require_connected()
    methods = every_method(post, net) if methods is None else list(methods)
    for sampler in methods:
        check_fit(post, net, sampler)
    with waiting("warm-up", progress):
        warmup = warm_up(post, net)
    model = gaussian_model(post.transformed(warmup.coordinates), warmup)
    trials: list[Trial] = []
    for sampler in methods:
        with waiting(f"{label(sampler)} in prospect", progress):
            trials += try_out(sampler, model, post.sizes, net, warmup.stiffness, tolerance)
    return Plan(tuple(trials), tolerance, cost, warmup)


def usual_methods(post: Posterior, net: Network) -> list[Sampler]:
    """What is chosen from where no method is named, with common noise; the first runs on every connected network."""
    first, *others = samplers.GTBAOAB(), samplers.GTDULA(noise="common"), samplers.DADMMS(noise="common")
    return [first, *(other for other in others if _fits(post, net, other))]


def _fits(post: Posterior, net: Network, sampler: Sampler) -> bool:
    try:
        check_fit(post, net, sampler)
    except ValueError:
        return False
    return True


def every_method(post: Posterior, net: Network) -> list[Sampler]:
    """All methods that have an exact law and fit, without numbers, with every noise that they have a meaning for."""
    classes = [getattr(samplers, name) for name in samplers.__all__]
    every = [cls(noise=noise) for cls in classes if cls.planned for noise in cls.noises]
    return [sampler for sampler in every if _fits(post, net, sampler)]


def label(sampler: Sampler) -> str:
    """A method's name, with its noise where it has a choice, and whether all its numbers were given."""
    name = type(sampler).__name__
    name = f"{name}, {sampler.noise} noise" if len(sampler.noises) > 1 else name
    return f"{name}, as given" if sampler.is_complete() else name


def choose(
    methods: Iterable[Sampler], post: Posterior, net: Network, warmup: Warmup, *, tolerance: float = TOLERANCE
) -> tuple[Trial, str]:
    """The cheapest setting of some methods that meets a tolerance, and why; what is nearest to it where none does.

    Parameters
    ----------
    methods
        Methods with numbers left out; one whose draws already cost more than the best one's is not looked at further.
    post
        The posterior in the coordinates that warm-up found.
    net, warmup, tolerance
        As in `plan`.

    Raises
    ------
    ArithmeticError
        No setting is stable, or known to be.
    """
    model, sizes = gaussian_model(post, warmup), post.sizes
    trials: list[Trial] = []
    most = np.inf
    for sampler in methods:
        for trial in try_out(sampler, model, sizes, net, warmup.stiffness, tolerance):
            trials.append(trial)
            if trial.forecast is None:
                continue
            if trial.forecast.exchanges >= most:
                break
            if trial.forecast.meets(tolerance):
                most = trial.forecast.exchanges
    found = Plan(tuple(trials), tolerance, COSTS[0], warmup)
    first = found.ranked[0]
    if first.forecast is None:
        raise ArithmeticError(f"no setting of {first.label} was found to serve: {trials[-1].trouble}")
    return first, found.why(first)


def try_out(
    sampler: Sampler, model: Model, sizes: np.ndarray, network: Network, stiffness: float, tolerance: float
) -> Iterator[Trial]:
    """The settings of a method, from those with the cheapest draws to the first that meets the tolerance."""
    name, whitened = label(sampler), not sampler.is_complete()
    idle, least, passed_over = 0, np.inf, list[Sampler]()
    # Langevin steps and biases of the forecasts so far
    known: list[tuple[float, float]] = []
    for setting in sampler.settings(network, stiffness):
        step = _langevin_step(setting, model, network)
        try:
            if _hoped(known, step) > _FAR * SHARE * tolerance:
                passed_over.append(setting)
                continue
            trial = _trial(name, setting, whitened, model, sizes, network)
        except SlowError as error:
            # those that follow forget still more slowly
            yield Trial(name, setting, whitened, None, str(error), np.nan)
            return
        yield trial
        if trial.forecast is None:
            continue
        bias = trial.forecast.bias
        idle, least = (0 if bias < _GAIN * least else idle + 1), min(least, bias)
        known.append((step, bias))
        if trial.forecast.meets(tolerance) or idle == _PATIENCE:
            break
    while passed_over and trial.forecast is not None and trial.forecast.meets(tolerance):
        trial = _trial(name, passed_over.pop(), whitened, model, sizes, network)
        yield trial


def _trial(name: str, sampler: Sampler, whitened: bool, model: Model, sizes: np.ndarray, network: Network) -> Trial:
    """One setting in prospect; `SlowError` where it forgets too slowly."""
    post = model.whitened if whitened else model.plain
    none = Trial(name, sampler, whitened, None, "", np.nan)
    if post is None:
        return none._replace(trouble="there is no forecast in the user's coordinates for so many parameters")
    try:
        stationary = stationary_sampler(post, network, sampler.modelled())
    except (TypeError, ValueError) as error:
        return none._replace(trouble=str(error))
    bound = stationary.max_step(network, post.hessians())
    limit = np.nan if bound is None else float(bound)
    try:
        found = forecast(post, sizes, network, sampler)
    except SlowError:
        raise
    except ArithmeticError as error:
        return none._replace(trouble=str(error), limit=limit)
    return none._replace(forecast=found, limit=limit)


def _langevin_step(sampler: Sampler, model: Model, network: Network) -> float:
    step = sampler.resolved(model.whitened, network).langevin_step(network)
    return np.nan if step is None else float(at(step, 0))


def _hoped(known: list[tuple[float, float]], step: float) -> float:
    """The bias at a smaller Langevin step at best: it falls as it just did, or in proportion."""
    if len(known) < 2 or not step < known[-1][0] < known[-2][0]:
        return 0.0
    (before, larger), (last, bias) = known[-2:]
    order = max(1.0, float(np.log(larger / bias) / np.log(before / last)))
    return bias * (step / last) ** order
