"""Accuracy and cost of every method on three posteriors.

Writes the tables of docs/methods.md, which explains the measurements and the steps. `--small` is a smoke test.
"""

import argparse
import functools
import inspect
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import accuracy_page
import jax
import numpy as np
from accuracy_methods import ENTRIES, Entry
from accuracy_targets import TARGETS, Target
from arviz_stats.base.array import array_stats
from measured import duration
from pages import DOCS, fill, measured_on
from rich.console import Console

import accord
import accord_papers.combine
from accord.engines.consensus_mode import bind
from accord.results.traffic import Traffic
from accord.samplers import DGLMC, ChEES, Importance, Replicated
from accord.samplers.by_sums.method import BySums
from accord.samplers.protocol import HasLaw, Tunable
from accord.samplers.schedules import Polynomial
from accord.tuning.warmup import warm_up

PAGE = DOCS / "methods.md"
BY_TOTALS = (("Importance sampling", Importance()), ("ChEES-HMC", ChEES()))
ALONE = accord.samplers.combine.METHODS | {
    name: getattr(accord_papers.combine, name) for name in accord_papers.combine.__all__
}
ONE_SHOT = tuple((f"one-shot: {name}", ALONE[name]) for name in sorted(ALONE))
# adaptation steps of one-shot methods
WARMUP = 500


class Budget(NamedTuple):
    """Rounds with their burn-in, thinning, chains, and the largest number of timed runs."""

    rounds: int
    burn_in: int
    thin: int
    chains: int
    repeats: int

    @property
    def draws(self) -> int:
        """Kept draws of each chain."""
        return (self.rounds - self.burn_in) // self.thin


FULL = Budget(rounds=20_000, burn_in=4_000, thin=16, chains=8, repeats=3)
SMALL = Budget(rounds=120, burn_in=40, thin=2, chains=2, repeats=0)
# total seconds of timed runs after which no further run starts
SHORT = 4.0
# seconds of a one-shot run above which compilation is negligible and no second run follows
LONG = 30.0


@dataclass
class Row:
    """One line of a table, with None for missing numbers."""

    label: str
    method: str
    setting: str = ""
    kind: str = "network"
    predicted_worst: float | None = None
    predicted_average: float | None = None
    worst: float | None = None
    median: float | None = None
    average: float | None = None
    sd_agents: tuple[float, float] | None = None
    sd_average: tuple[float, float] | None = None
    rounds: int | None = None
    sums: int | None = None
    exchanges: int | None = None
    bytes_sent: float | None = None
    gradient_rows: float | None = None
    value_rows: float | None = None
    effective: float | None = None
    per_megabyte: float | None = None
    per_second: float | None = None
    optimiser: bool = False
    error: str | None = None
    warned: list[str] = field(default_factory=list)


def settings(sampler: accord.Sampler | BySums) -> str:
    """The method with its non-default parameters."""
    parts = []
    for f in fields(sampler):
        value = getattr(sampler, f.name)
        if isinstance(value, accord.Sampler) or repr(value) == repr(f.default):
            continue
        parts.append(f"{f.name}={_short(value)}")
    return f"{type(sampler).__name__}({', '.join(parts)})"


def chosen_by_plan(sampler: accord.Sampler) -> bool:
    """Whether a plan chooses parameters of the method. Parameters from a paper's guidelines do not count."""
    return isinstance(sampler, Tunable) and not set(sampler.left_out) <= set(sampler.chosen_by_bind)


def chosen_numbers(sampler: accord.Sampler, run: accord.Run) -> str:
    """The method with the parameters that a plan chose for a run."""
    known = repr(sampler).rstrip(")").partition("(")[2].split(", ")
    name, _, numbers = run.settings["method"].rstrip(")").partition("(")
    chosen = ", ".join(part for part in numbers.split(", ") if part not in known)
    return f"{name}({re.sub(r'[0-9]+[.][0-9]{4,}', lambda found: _short(float(found[0])), chosen)})"


def _short(value) -> str:
    if isinstance(value, Polynomial):
        return f"{value.a:.3g} / ({value.b:g} + k)^{value.chi:g}"
    if isinstance(value, bool | str):
        return repr(value)
    if isinstance(value, int | float):
        return f"{value:.4g}"
    if isinstance(value, np.ndarray | tuple) and np.size(value):
        low, high = np.min(value), np.max(value)
        return f"{low:.3g}" if low == high else f"{low:.3g} .. {high:.3g}"
    return type(value).__name__.lower()


def measured(target: Target, row: Row, run: accord.Run, once: Traffic | None = None) -> None:
    """Fill in a row from a run. `once` is the part of its traffic that served all chains."""
    draws, average = run.draws, run.average.astype(np.float64)
    agents = [draws[:, :, i].astype(np.float64) for i in range(draws.shape[2])]
    distances = [accord.metrics.wasserstein2(*target.fitted(own)) for own in agents]
    ratios = np.array([own.std(axis=(0, 1)) for own in agents]) / target.reference.sd
    ratio = average.std(axis=(0, 1)) / target.reference.sd
    row.worst, row.median = max(distances), float(np.median(distances))
    row.average = accord.metrics.wasserstein2(*target.fitted(average))
    row.sd_agents, row.sd_average = (float(ratios.min()), float(ratios.max())), (float(ratio.min()), float(ratio.max()))
    # methods by totals count all chains
    chains, spent, once = 1 if row.kind == "totals" else len(average), run.traffic, once or Traffic()

    def whole(name: str) -> np.ndarray:
        return chains * (getattr(spent, name) - getattr(once, name)) + getattr(once, name)

    row.rounds, row.sums, row.exchanges = spent.rounds, spent.sums, spent.exchanges
    row.bytes_sent, row.gradient_rows, row.value_rows = (
        float(whole(name).mean()) for name in ("bytes_sent", "gradient_rows", "value_rows")
    )
    if not row.optimiser:
        some = [average, *(agents[i] for i in sorted({0, len(agents) // 2, len(agents) - 1}))]
        row.effective = float(min(array_stats.ess(x, chain_axis=0, draw_axis=1).min() for x in some))
        sent = float(whole("bytes_sent").sum()) / 1e6
        row.per_megabyte, row.per_second = row.effective / sent, row.effective / run.seconds


def attempt(row: Row, work: Callable[[], None]) -> Row:
    """Run `work`, and store its error and warnings in the row."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            work()
        except (ValueError, TypeError, ArithmeticError, accord.DivergenceError) as error:
            row.error = f"{type(error).__name__}: {error}"
    row.warned = sorted({str(w.message) for w in caught if issubclass(w.category, UserWarning)})
    return row


def network_row(target: Target, budget: Budget, entry: Entry) -> Row:
    """The row of a method with rounds."""
    sampler = entry.sampler(target)
    row = Row(entry.label, type(sampler).__name__, settings(sampler), optimiser=sampler.temperature == 0)
    row.kind = "hub" if sampler.needs(target.post.dim).spans_network else "network"

    def work() -> None:
        if entry.powers is not None and isinstance(sampler, HasLaw) and sampler.is_constant():
            row.predicted_worst, row.predicted_average = predicted(target, sampler)
        if isinstance(sampler, DGLMC):
            row.setting = settings(bind(target.post, target.net, sampler).sampler)
        run, once = timed_run(target, budget, sampler), None
        if chosen_by_plan(sampler):
            row.setting = chosen_numbers(sampler, run)
            once = warm_up(target.post, target.net).spent
        measured(target, row, run, once)

    return attempt(row, work)


def predicted(target: Target, sampler: accord.Sampler) -> tuple[float | None, float | None]:
    """Exact W2 of the worst agent and of the average on the surrogate, in its sds, or None without a law."""
    try:
        moments = accord.law(target.surrogate, target.net, sampler).stationary()
    except TypeError:
        # rejection and MALA have no law
        return None, None
    truth = target.surrogate.exact()

    def distance(found: accord.Gaussian) -> float:
        scale = truth.sd
        pair = [accord.Gaussian(g.mean / scale, g.cov / np.outer(scale, scale)) for g in (found, truth)]
        return accord.metrics.wasserstein2(*pair)

    return max(distance(moments.agent(i)) for i in range(target.agents)), distance(moments.average)


def timed_run(target: Target, budget: Budget, sampler: accord.Sampler) -> accord.Run:
    """A timed run, after a short run that compiles the program."""
    least = 1 if chosen_by_plan(sampler) else max(1, bind(target.post, target.net, sampler).adapting)
    thin, burn_in = (1, least) if isinstance(sampler, Replicated) else (budget.thin, budget.burn_in)

    def run(draws: int, burn_in: int, seed: int) -> accord.Run:
        method = accord.Rounds(sampler, burn_in=burn_in, thin=thin, whiten=chosen_by_plan(sampler))
        chains = budget.chains
        return accord.sample(target.post, target.net, method, draws=draws, chains=chains, seed=seed, progress=False)

    if budget.repeats:
        run(1, least, 1)
    return fastest(budget, lambda: run(budget.draws, burn_in, 0))


def fastest(budget: Budget, run: Callable[[], accord.Run]) -> accord.Run:
    """A run with the least seconds of several runs with equal draws."""
    times: list[float] = []
    while not times or (len(times) < budget.repeats and sum(times) < SHORT):
        found = run()
        times.append(found.seconds)
    return replace(found, seconds=min(times))


def totals_row(target: Target, budget: Budget, label: str, method: BySums) -> Row:
    """The row of a method that only needs sums."""
    row = Row(label, type(method).__name__, settings(method), kind="totals")
    options = {"draws": budget.draws, "chains": budget.chains, "seed": 0, "progress": False}
    run = functools.partial(accord.sample, target.post, target.net, method, **options)

    def work() -> None:
        if budget.repeats:
            # compile by a full run, because the sums depend on earlier results
            run()
        measured(target, row, fastest(budget, run))

    return attempt(row, work)


def one_shot_row(target: Target, budget: Budget, label: str, combine: Callable[..., accord.Run]) -> Row:
    """The row of a method that sends draws once."""
    row = Row(label, combine.__name__, f"{combine.__name__}(draws={budget.draws}, chains=4)", kind="one-shot")
    own = {"warmup": WARMUP} if "warmup" in inspect.signature(combine).parameters else {}

    def work() -> None:
        once = functools.partial(combine, target.post, draws=budget.draws, chains=4, seed=0, **own)
        run = once()
        if budget.repeats and run.seconds < LONG:
            run = once()
        measured(target, row, run)

    return attempt(row, work)


def check_complete(rows: list[Row]) -> None:
    """Raise if a method of the library has no row."""
    missing = {*accord.samplers.__all__, *ALONE} - {row.method for row in rows}
    if missing:
        raise AssertionError(f"methods without a row: {', '.join(sorted(missing))}")


def floors(target: Target, counts: list[int], repeats: int = 50) -> dict[int, float]:
    """Mean W2 of independent exact draws from a Gaussian with the reference's moments, by number of draws."""
    rng = np.random.default_rng(0)
    root, found = target.reference.factor(), {}
    for count in counts:
        repeated = (
            target.reference.mean + rng.standard_normal((count, target.post.dim)) @ root.T for _ in range(repeats)
        )
        found[count] = float(np.mean([accord.metrics.wasserstein2(*target.fitted(x)) for x in repeated]))
    return found


def compare(name: str, small: bool, console: Console) -> accuracy_page.Result:
    """All rows of one target."""
    budget = SMALL if small else FULL
    target = TARGETS[name](small)
    works = [(entry.label, functools.partial(network_row, target, budget, entry)) for entry in ENTRIES]
    works += [(label, functools.partial(totals_row, target, budget, label, method)) for label, method in BY_TOTALS]
    works += [(label, functools.partial(one_shot_row, target, budget, label, f)) for label, f in ONE_SHOT]
    rows = []
    for label, work in works:
        began = time.perf_counter()
        row = work()
        rows.append(row)
        seen = row.error or f"worst agent's W2 {row.worst:.3g}"
        console.log(f"{name}: {label}: {seen} ({time.perf_counter() - began:.0f} s)", highlight=False)
    check_complete(rows)
    counts = [100, 1000, budget.chains * budget.draws]
    if target.reference_draws is not None:
        counts.append(int(target.reference_draws))
    return accuracy_page.Result(target.title, target.post.dim, floors(target, counts, 5 if small else 50), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a smoke test, which prints a part of the page")
    small = parser.parse_args().small
    jax.config.update("jax_compilation_cache_dir", str(DOCS.parent / ".cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    results = []
    for name in ["power"] if small else TARGETS:
        began = time.perf_counter()
        results.append(compare(name, small, Console(stderr=True)))
        took = f"Measured in {duration(time.perf_counter() - began)} on {measured_on()}."
        text = f"{accuracy_page.section(results[-1])}\n{took}"
        if small:
            print(text)
        else:
            fill(PAGE, name, text)
    if not small:
        fill(PAGE, "overview", accuracy_page.overview(results))


if __name__ == "__main__":
    main()
