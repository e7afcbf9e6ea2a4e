"""The search for the cheapest setting of the methods that meets a tolerance."""

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

# Ratio of the new to the smallest bias that counts as an improvement.
_MIN_IMPROVEMENT = 0.95
# Consecutive settings without improvement after which the search gives a method up.
_PATIENCE = 3
# Patience while only the number of exchanges grows, because the bias may rise before it reaches the step's own bias.
_PATIENCE_AT_STEP = 8
# Reason for an infinite bias.
_UNSTABLE = (
    "unstable at the posterior's stiffest draws with every number of exchanges that was tried. Set a larger "
    "mix_rounds, or use GTBAOAB()"
)
# Skip settings whose extrapolated bias exceeds the allowed bias by this factor.
_SKIP_FACTOR = 1.5


def usual_methods(post: Posterior, network: Network) -> list[Sampler]:
    """The default candidates, with common noise. The first runs on every connected network."""
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
    """All methods without numbers that a plan can tune and that fit, one for each supported kind of noise."""
    classes = [getattr(samplers, name) for name in samplers.__all__]
    every = [cls(noise=noise) for cls in classes if issubclass(cls, Tunable) for noise in cls.noises]
    return [sampler for sampler in every if _fits(post, network, sampler)]


def choose(
    methods: Iterable[Sampler], post: Posterior, network: Network, warmup: Warmup, *, tolerance: float = TOLERANCE
) -> tuple[Trial, str]:
    """The cheapest setting that meets the tolerance, with the reason. If none does, the setting with the least bias.

    Parameters
    ----------
    methods
        Methods without numbers. The search leaves a method once its draws cost more than the best so far.
    post
        The posterior in warm-up's coordinates.
    network, warmup, tolerance
        As in `plan`.

    Raises
    ------
    ArithmeticError
        No setting has a forecast of finite bias.
    """
    model, sizes = gaussian_model(post, warmup), post.sizes
    trials: list[Trial] = []
    most = np.inf
    for sampler in methods:
        stage(f"forecasting {label(sampler)}")
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
        # the last setting of each method, which is the most accurate
        reasons = {trial.label: trial.trouble or _UNSTABLE for trial in trials}
        raise ArithmeticError(
            "no usable setting was found: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        )
    return first, found.why(first)


def try_out(
    sampler: Sampler, model: Model, sizes: np.ndarray, network: Network, stiffness: float, tolerance: float
) -> Iterator[Trial]:
    """The settings of a method in order of cost per draw, up to the first that meets the tolerance."""
    whitened = not is_complete(sampler)
    post = model.of(whitened)
    none = Trial(label(sampler), sampler, whitened, None, "", np.nan)
    if getattr(sampler, "temperature", None) == 0.0:
        yield none._replace(trouble="no forecast: without noise (temperature 0) the method is an optimiser")
        return
    if post is None:
        yield none._replace(trouble="no forecast in the user's coordinates: too many parameters to sum Hessians")
        return
    try:
        post.exact()
    except ValueError:
        yield none._replace(trouble="no forecast: F is not convex on average over the posterior, as in a funnel")
        return
    if isinstance(sampler, Expanding) and model.stiff is None:
        yield none._replace(trouble="no forecast: too many parameters to sum Hessians")
        return
    idle, least, passed_over = 0, np.inf, list[tuple[Trial, Bound]]()
    # (Langevin step, bias) of the forecasts so far
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
            # later settings mix still more slowly
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
    """The trial with its forecast, or with the reason for none. `SlowError` if it mixes too slowly."""
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
    """The bias at a smaller Langevin step, extrapolated with the order of the last two, at least first order."""
    if len(known) < 2 or not step < known[-1][0] < known[-2][0]:
        return 0.0
    (before, larger), (last, bias) = known[-2:]
    order = max(1.0, float(np.log(larger / bias) / np.log(before / last)))
    return bias * (step / last) ** order
