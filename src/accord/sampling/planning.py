"""`accord.plan`: forecasts of all methods, each before it runs, for a number of effective draws."""

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
from .sample import sample

# Methods that walk whose rounds are timed: the first of those that meet the tolerance, as each has to be compiled.
_MOST_TIMED = 3
# Rounds of a timed run, the fewest, and the seconds from which on its rounds can be told from what comes before them.
_ROUNDS, _LONG_ENOUGH = 200, 0.2


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
    """Forecast methods on a posterior and a network, before any of them runs.

    Methods that walk: from the exact law of each method on the Gaussian nearest to the posterior, which a warm-up over
    the network finds. Numbers that a method leaves out are tried from those with the cheapest draws on, until every
    agent's bias is within a tenth of the tolerance: the rest is left to what the posterior is beyond its Gaussian
    approximation. The noise of minibatches is left out; methods with a batch_size are marked, and ranked after those
    that meet the tolerance without.

    `Importance` and `ChEES`, whose draws have no bias where they are certified: what as many effective draws take.
    They come first, as `accord.sample` takes them, where they are expected to be certified.

    All costs are for the effective draws of `chains` chains of `draws` each. Seconds are those of this machine, all
    agents in one process, so that an exchange takes no time beyond its arithmetic, and without compiling. They are
    measured: for sums, by asking for them again; for the three first methods that walk and meet the tolerance, by a
    second warm-up and a short run; for others they are NaN.

    Parameters
    ----------
    post, network
        As in `accord.sample`.
    methods
        Methods, complete or not; None: all that have an exact law, with independent and with common noise, and those
        by sums. Complete ones that walk are judged in the user's coordinates, as `accord.sample` runs them.
    tolerance
        Largest error of any agent's mean and standard deviation, in posterior standard deviations, > 0.
    cost
        What methods are compared by: "exchanges" (default), "bytes_sent", "gradient_rows" or "rounds".
    draws, chains
        Effective draws of each chain, and chains, which are what `accord.sample` draws where nothing is given.
    seed
        Of the run to come: methods by sums are forecast from the points and chains that it draws.
    progress
        Show what is being tried, as `accord.sample` does.

    Raises
    ------
    ValueError
        A number out of its range, no method, or one that does not fit the posterior or the network.
    ArithmeticError
        Warm-up found no mode, and no method begins elsewhere.

    Examples
    --------
    >>> import accord
    >>> post = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    >>> methods = [accord.samplers.DADMMS(noise="common"), accord.samplers.Importance()]
    >>> found = accord.plan(post, accord.Network.ring(3), methods)
    >>> [trial.label for trial in found.ranked]
    ['Importance', 'DADMMS, common noise']
    """
    positive("tolerance", tolerance)
    if cost not in COSTS:
        raise unknown_name_error("cost", cost, COSTS)
    draws, chains = whole_number("draws", draws, 1), whole_number("chains", chains, 1)
    seed_words(seed)
    post.require_agents_of(network)
    post.require_unchanged()
    network.require_connected()
    if isinstance(methods, Sampler | BySums):
        raise ValueError(f"methods must be several, as in [{type(methods).__name__}(...)]; found one method by itself")
    methods = every_method(post, network) if methods is None else list(methods)
    wrapped = next((method for method in methods if isinstance(method, Rounds)), None)
    if wrapped is not None:
        raise TypeError(
            f"a plan compares methods without options of their runs: give {wrapped.method!r} without Rounds"
        )
    if not methods:
        raise ValueError("methods is empty: name at least one, or leave it out to compare all")
    walking = [method for method in methods if not isinstance(method, BySums)]
    for sampler in walking:
        check_compatible(post, network, sampler)
    trials: list[Trial] = []
    with Progress("plan", progress):
        for method in methods:
            if isinstance(method, BySums):
                stage(f"{label(method)} in prospect")
                trials.append(_by_sums(post, network, method, draws, chains, seed))
        size = (network.num_agents, post.dim, _rows_bytes(post))
        found = Plan(tuple(trials), tolerance, cost, None, draws, chains, *size)
        return _with_walking(found, walking, post, network) if walking else found


def _rows_bytes(post: Posterior) -> float:
    """The memory of all rows in double precision; NaN where they lie elsewhere."""
    if len(post.held) < post.num_agents:
        return np.nan
    return float(sum(8 * leaf.size for leaf in jax.tree.leaves(post.stacked().rows)))


def every_method(post: Posterior, network: Network) -> list[Sampler | BySums]:
    """All methods that can be forecast and fit, without numbers."""
    return [Importance(), ChEES(), *tunable_methods(post, network)]


def _with_walking(found: Plan, methods: list[Sampler], post: Posterior, network: Network) -> Plan:
    """The plan with methods that walk; where warm-up finds no mode, with the reason, if there are others."""
    try:
        warmup = warm_up(post, network)
    except ArithmeticError as error:
        if not found.trials:
            raise
        none = [Trial(label(s), s, not is_complete(s), None, str(error), np.nan) for s in methods]
        return replace(found, trials=found.trials + tuple(none))
    model, trials = gaussian_model(post.transformed(warmup.coordinates), warmup), list[Trial]()
    for sampler in methods:
        stage(f"{label(sampler)} in prospect")
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
    """A trial of a method that walks with the cost of all draws."""
    if not isinstance(trial.forecast, Forecast):
        return trial
    before = warmup.spent if trial.whitened else Traffic()
    return trial._replace(cost=trial.forecast.cost(draws, chains, before))


def _timed(found: Plan, warmup: Warmup, post: Posterior, network: Network) -> Plan:
    """The plan with the seconds of the first methods that walk and meet the tolerance."""
    best = [trial for trial in found.ranked if found.meets(trial) and isinstance(trial.forecast, Forecast)]
    best = best[:_MOST_TIMED]
    if not best:
        return found
    began = time.perf_counter()
    # the second time all programs are compiled
    warm_up(post, network)
    before = time.perf_counter() - began
    timed = {}
    for trial in best:
        stage(f"{trial.label}: rounds are timed")
        assert trial.cost is not None and isinstance(trial.sampler, Sampler)
        moved = post.transformed(warmup.coordinates) if trial.whitened else post
        once = _seconds_a_round(moved, network, trial.sampler, found.chains)
        seconds = (before if trial.whitened else 0.0) + trial.cost.rounds * once
        timed[id(trial)] = trial._replace(cost=trial.cost._replace(seconds=seconds))
    return replace(found, trials=tuple(timed.get(id(trial), trial) for trial in found.trials))


def _seconds_a_round(post: Posterior, network: Network, sampler: Sampler, chains: int) -> float:
    """The seconds of a round of all chains: of a run without those of a shorter one, after a first that compiles.

    NaN where it diverges, or where only its law on a Gaussian can be had, as of exact conditionals.
    """

    def run(rounds: int) -> float:
        method = Rounds(sampler, burn_in=rounds, thin=1, whiten=False)
        return sample(post, network, method, draws=1, chains=chains, progress=False).seconds

    with warnings.catch_warnings():
        # what there is to say of draws is said of a run's
        warnings.simplefilter("ignore")
        try:
            run(1)
            rounds, short = _ROUNDS, run(1)
            while (longer := run(rounds)) < _LONG_ENOUGH + short:
                rounds *= 4
        except (ValueError, DivergenceError):
            return np.nan
    return (longer - short) / rounds
