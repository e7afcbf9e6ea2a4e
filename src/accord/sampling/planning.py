"""`accord.plan`: forecasts of bias and cost of methods, before any of them runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import replace

import jax
import numpy as np

from ..base.checks import positive, whole_number
from ..base.errors import DivergenceError, unknown_name_error
from ..base.progress import Progress, stage
from ..engines.noise import seed_words
from ..network import Network
from ..posterior import Posterior
from ..results.findings import TOLERANCE
from ..results.traffic import Traffic
from ..samplers import ChEES, Importance
from ..samplers.by_sums.method import BySums
from ..samplers.protocol import Sampler
from ..samplers.session import Job, Session
from ..samplers.validation import check_compatible, is_complete
from ..tuning.forecast import Forecast, gaussian_model
from ..tuning.plan import COSTS, Plan, Trial, label
from ..tuning.search import try_out, tunable_methods
from ..tuning.warmup import Warmup, warm_up
from .rounds import Rounds
from .sample import require_problem, sample

# Most round-based methods that are timed, as each has to be compiled.
_MOST_TIMED = 3
# Fewest rounds of a timed run.
_ROUNDS = 200
# Seconds that the rounds of a timed run must add to the run's fixed cost.
_LONG_ENOUGH = 0.2


def plan(
    post: Posterior,
    network: Network,
    methods: Iterable[Sampler | BySums] | None = None,
    *,
    tolerance: float = TOLERANCE,
    cost: str = COSTS[0],
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    progress: bool | None = None,
) -> Plan:
    """Forecast the bias and cost of methods on a posterior and a network, before any of them runs.

    Round-based methods: the bias follows from the exact law of the method on the Gaussian nearest to the posterior,
    which a warm-up over the network finds. Missing numbers are searched from the cheapest setting on, until every
    agent's bias is within a tenth of `tolerance`. The margin covers the error of the Gaussian approximation. The law
    omits minibatch noise. Methods with a batch_size are marked, and ranked after those that meet the tolerance without.

    `Importance` and `ChEES`: their certified draws have no bias, so only the cost is forecast. They rank first, as in
    `accord.sample`, if their certificate is expected to pass.

    Costs are for `chains * draws` effective draws. Seconds are measured on this machine, with all agents in one
    process, without network latency and compiling. Sums are timed by repeating them. The first three round-based
    methods that meet the tolerance are timed by a second warm-up and a short run. For the others seconds are NaN.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    methods
        Methods with or without their numbers. None: `Importance`, `ChEES` and all methods that have an exact law, with
        independent and with common noise. Round-based methods with all numbers are forecast in the user's coordinates,
        as `accord.sample` runs them.
    tolerance
        Largest error of any agent's mean and standard deviation, in posterior standard deviations, > 0.
    cost
        The cost to compare methods by: "exchanges" (default), "bytes_sent", "gradient_rows" or "rounds".
    draws, chains
        Effective draws per chain, and chains. The defaults are the defaults of `accord.sample`.
    seed
        Seed of the later run. Forecasts of sum-based methods use the points and chains of that seed.
    progress
        Show progress, as in `accord.sample`.

    Raises
    ------
    ValueError
        A number is out of range, `methods` is empty, or a method does not fit the posterior or the network.
    ArithmeticError
        Warm-up found no mode, and there is no sum-based method to forecast.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> methods = [accord.samplers.DADMMS(noise="common"), accord.samplers.Importance()]
    >>> found = accord.plan(post, accord.Network.ring(3), methods)
    >>> [trial.label for trial in found.ranked]
    ['Importance', 'DADMMS, common noise']
    """
    require_problem(post, network)
    positive("tolerance", tolerance)
    if cost not in COSTS:
        raise unknown_name_error("cost", cost, COSTS)
    draws, chains = whole_number("draws", draws, 1), whole_number("chains", chains, 1)
    seed_words(seed)
    post.require_agents_of(network)
    post.require_unchanged()
    network.require_connected()
    if isinstance(methods, Sampler | BySums):
        raise ValueError(f"methods must be a list, as in [{type(methods).__name__}(...)], found a single method")
    methods = every_method(post, network) if methods is None else list(methods)
    wrapped = next((method for method in methods if isinstance(method, Rounds)), None)
    if wrapped is not None:
        raise TypeError(f"a plan compares methods without run options: pass {wrapped.method!r} without Rounds")
    if not methods:
        raise ValueError("methods is empty: name at least one method, or omit the argument to compare all")
    walking = [method for method in methods if not isinstance(method, BySums)]
    for sampler in walking:
        check_compatible(post, network, sampler)
    trials: list[Trial] = []
    with Progress("plan", progress):
        for method in methods:
            if isinstance(method, BySums):
                stage(f"forecasting {label(method)}")
                trials.append(_by_sums(post, network, method, draws, chains, seed))
        size = (network.num_agents, post.dim, _rows_bytes(post))
        found = Plan(tuple(trials), tolerance, cost, None, draws, chains, *size)
        return _with_walking(found, walking, post, network) if walking else found


def _rows_bytes(post: Posterior) -> float:
    """Bytes of all rows in double precision; NaN if some rows are not in this process."""
    if len(post.held) < post.num_agents:
        return np.nan
    return float(sum(8 * leaf.size for leaf in jax.tree.leaves(post.stacked().rows)))


def every_method(post: Posterior, network: Network) -> list[Sampler | BySums]:
    """All methods that can be forecast on this posterior and network, without numbers."""
    return [Importance(), ChEES(), *tunable_methods(post, network)]


def _with_walking(found: Plan, methods: list[Sampler], post: Posterior, network: Network) -> Plan:
    """The plan with round-based methods, or with the reason why warm-up found no mode if other trials exist."""
    try:
        warmup = warm_up(post, network)
    except ArithmeticError as error:
        if not found.trials:
            raise
        none = [Trial(label(s), s, not is_complete(s), None, str(error), np.nan) for s in methods]
        return replace(found, trials=found.trials + tuple(none))
    model, trials = gaussian_model(post.transformed(warmup.coordinates), warmup), list[Trial]()
    for sampler in methods:
        stage(f"forecasting {label(sampler)}")
        for trial in try_out(sampler, model, post.sizes, network, warmup.stiffness, found.tolerance):
            trials.append(_priced(trial, warmup, found.draws, found.chains))
    return _timed(replace(found, trials=found.trials + tuple(trials), warmup=warmup), warmup, post, network)


def _by_sums(post: Posterior, network: Network, method: BySums, draws: int, chains: int, seed: int) -> Trial:
    none = Trial(label(method), method, False, None, "", np.nan)
    try:
        with jax.enable_x64(True):
            found = method.forecast(Session(Job(post, network, draws, chains, seed)))
    except ArithmeticError as error:
        return none._replace(trouble=str(error))
    return none._replace(forecast=found, cost=found.spent)


def _priced(trial: Trial, warmup: Warmup, draws: int, chains: int) -> Trial:
    """A trial of a round-based method with the cost of all draws."""
    if not isinstance(trial.forecast, Forecast):
        return trial
    before = warmup.spent if trial.whitened else Traffic()
    return trial._replace(cost=trial.forecast.cost(draws, chains, before))


def _timed(found: Plan, warmup: Warmup, post: Posterior, network: Network) -> Plan:
    """The plan with the seconds of the first round-based methods that meet the tolerance."""
    best = [trial for trial in found.ranked if found.meets(trial) and isinstance(trial.forecast, Forecast)]
    best = best[:_MOST_TIMED]
    if not best:
        return found
    began = time.perf_counter()
    # all programs are compiled by now
    warm_up(post, network)
    before = time.perf_counter() - began
    timed = {}
    for trial in best:
        stage(f"timing rounds of {trial.label}")
        assert trial.cost is not None and isinstance(trial.sampler, Sampler)
        moved = post.transformed(warmup.coordinates) if trial.whitened else post
        once = _seconds_a_round(moved, network, trial.sampler, found.chains)
        seconds = (before if trial.whitened else 0.0) + trial.cost.rounds * once
        timed[id(trial)] = trial._replace(cost=trial.cost._replace(seconds=seconds))
    return replace(found, trials=tuple(timed.get(id(trial), trial) for trial in found.trials))


def _seconds_a_round(post: Posterior, network: Network, sampler: Sampler, chains: int) -> float:
    """Seconds of a round of all chains: a long run minus a short one, both after compiling.

    NaN if the run diverges or if the method runs on Gaussian posteriors only (exact conditionals).
    """

    def run(rounds: int) -> float:
        method = Rounds(sampler, burn_in=rounds, thin=1, whiten=False)
        return sample(post, network, method, draws=1, chains=chains, progress=False).seconds

    with warnings.catch_warnings():
        # warnings about draws do not concern a timed run
        warnings.simplefilter("ignore")
        try:
            run(1)
            rounds, short = _ROUNDS, run(1)
            while (longer := run(rounds)) < _LONG_ENOUGH + short:
                rounds *= 4
        except (ValueError, DivergenceError):
            return np.nan
    return (longer - short) / rounds
