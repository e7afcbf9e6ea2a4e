"""Which setting of which method to take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .. import samplers
from ..base.progress import stage
from ..network import Network
from ..posterior import Posterior
from ..results.findings import TOLERANCE
from ..samplers.protocol import Bound, Expanding, HasLaw, Langevin, Sampler, Tunable
from ..samplers.schedules import at
from ..samplers.validation import check_compatible, is_complete
from .forecast import SHARE, Forecast, Model, forecast_beyond, forecast_bound, gaussian_model
from .impulse_response import SlowError, stationary_bound
from .plan import COSTS, Plan, Trial, label
from .warmup import Warmup

# Give a method up after `_PATIENCE` settings in a row that do not improve its smallest bias to this share of it.
_MIN_IMPROVEMENT = 0.95
_PATIENCE = 3
# The same while the step stays and only exchanges grow: the bias may rise on the way, and ends at the step's own.
_PATIENCE_AT_STEP = 8
# What is wrong with a setting whose errors are infinite.
_UNSTABLE = (
    "unstable at the posterior's stiffest draws with the exchanges that were tried; give more as mix_rounds, or take "
    "GTBAOAB()"
)
# Skip settings while the bias to hope for is this many times what is allowed.
_SKIP_FACTOR = 1.5


def usual_methods(post: Posterior, network: Network) -> list[Sampler]:
    """The methods to choose from where none is named, with common noise; the first runs on every connected network."""
    first, *others = (
        samplers.SplitGTBAOAB(),
        samplers.GTBAOAB(),
        samplers.GTDULA(noise="common"),
        samplers.DADMMS(noise="common"),
    )
    return [first, *(other for other in others if _fits(post, network, other))]


def _fits(post: Posterior, network: Network, sampler: Sampler) -> bool:
    try:
        check_compatible(post, network, sampler)
    except ValueError:
        return False
    return True


def tunable_methods(post: Posterior, network: Network) -> list[Sampler]:
    """All methods that have an exact law and fit, without numbers, with every noise that they have a meaning for."""
    classes = [getattr(samplers, name) for name in samplers.__all__]
    every = [cls(noise=noise) for cls in classes if issubclass(cls, Tunable) for noise in cls.noises]
    return [sampler for sampler in every if _fits(post, network, sampler)]


def choose(
    methods: Iterable[Sampler], post: Posterior, network: Network, warmup: Warmup, *, tolerance: float = TOLERANCE
) -> tuple[Trial, str]:
    """The cheapest setting of some methods that meets a tolerance, and why; what is nearest to it where none does.

    Parameters
    ----------
    methods
        Methods with numbers left out; one whose draws already cost more than the best one's is not looked at further.
    post
        The posterior in the coordinates that warm-up found.
    network, warmup, tolerance
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
        stage(f"{label(sampler)} in prospect")
        for trial in try_out(sampler, model, sizes, network, warmup.stiffness, tolerance):
            trials.append(trial)
            if not isinstance(trial.forecast, Forecast):
                continue
            if trial.forecast.exchanges >= most:
                break
            if trial.forecast.meets(tolerance) and not trial.left_out:
                most = trial.forecast.exchanges
    found = Plan(tuple(trials), tolerance, COSTS[0], warmup)
    first = found.ranked[0]
    if first.forecast is None or np.isinf(first.forecast.bias):
        # of each method the last setting, which came closest to serving
        reasons = {trial.label: trial.trouble or _UNSTABLE for trial in trials}
        raise ArithmeticError(
            "no setting was found to serve; " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        )
    return first, found.why(first)


def try_out(
    sampler: Sampler, model: Model, sizes: np.ndarray, network: Network, stiffness: float, tolerance: float
) -> Iterator[Trial]:
    """The settings of a method, from those with the cheapest draws to the first that meets the tolerance."""
    whitened = not is_complete(sampler)
    post = model.of(whitened)
    none = Trial(label(sampler), sampler, whitened, None, "", np.nan)
    if post is None:
        yield none._replace(trouble="there is no forecast in the user's coordinates for so many parameters")
        return
    try:
        post.exact()
    except ValueError:
        yield none._replace(trouble="-F bends upwards on average about its draws, as in a funnel's neck: no forecast")
        return
    if isinstance(sampler, Expanding) and model.stiff is None:
        yield none._replace(trouble="there is no forecast for so many parameters: their Hessians are not summed")
        return
    idle, least, passed_over = 0, np.inf, list[tuple[Trial, Bound]]()
    # Langevin steps and biases of the forecasts so far
    known: list[tuple[float, float]] = []
    for setting in sampler.candidates(network, stiffness) if isinstance(sampler, Tunable) else [sampler]:
        trial = none._replace(sampler=setting)
        try:
            linear = setting.linear() if isinstance(setting, HasLaw) else setting
            law = stationary_bound(post, network, linear)
        except (TypeError, ValueError) as error:
            yield trial._replace(trouble=str(error))
            continue
        step = _langevin_step(law.sampler, network)
        if _hoped(known, step) > _SKIP_FACTOR * SHARE * tolerance:
            passed_over.append((trial, law))
            continue
        try:
            trial = _judged(trial, law, model, sizes, network)
        except SlowError as error:
            # those that follow forget still more slowly
            yield trial._replace(trouble=str(error))
            return
        yield trial
        if trial.forecast is None:
            continue
        bias = trial.forecast.bias
        idle, least = (0 if bias < _MIN_IMPROVEMENT * least else idle + 1), min(least, bias)
        same_step = bool(known) and known[-1][0] == step
        known.append((step, bias))
        if trial.forecast.meets(tolerance) or idle >= (_PATIENCE_AT_STEP if same_step else _PATIENCE):
            break
    while passed_over and trial.forecast is not None and trial.forecast.meets(tolerance):
        trial = _judged(*passed_over.pop(), model, sizes, network)
        yield trial


def _judged(trial: Trial, law: Bound, model: Model, sizes: np.ndarray, network: Network) -> Trial:
    """A trial with its forecast, or with its trouble; `SlowError` where it forgets too slowly."""
    post = model.of(trial.whitened)
    assert post is not None
    largest = law.sampler.max_step(network, post.hessians()) if isinstance(law.sampler, Langevin) else None
    trial = trial._replace(limit=np.nan if largest is None else float(largest))
    assert isinstance(trial.sampler, Sampler)
    try:
        found = forecast_bound(post, sizes, network, trial.sampler, law)
        if isinstance(trial.sampler, Expanding):
            found = forecast_beyond(found, model, trial.whitened, network)
        return trial._replace(forecast=found)
    except SlowError:
        raise
    except ArithmeticError as error:
        return trial._replace(trouble=str(error))


def _langevin_step(sampler: Sampler, network: Network) -> float:
    return float(at(sampler.langevin_step(network), 0)) if isinstance(sampler, Langevin) else np.nan


def _hoped(known: list[tuple[float, float]], step: float) -> float:
    """The bias at a smaller Langevin step at best: it falls as it just did, or in proportion."""
    if len(known) < 2 or not step < known[-1][0] < known[-2][0]:
        return 0.0
    (before, larger), (last, bias) = known[-2:]
    order = max(1.0, float(np.log(larger / bias) / np.log(before / last)))
    return bias * (step / last) ** order
