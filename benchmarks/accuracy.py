"""Every method of the library on three posteriors: how far its draws are from the truth, and what they cost.

Writes docs/methods.md, whose text says what is measured and how steps are chosen. `--small` is a smoke test.
"""

import argparse
import functools
import inspect
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import accuracy_page
import jax
import numpy as np
from accuracy_steps import FAMILIES, Budget, Choice, Surrogate, choose
from accuracy_targets import TARGETS, Target
from arviz_stats.base.array import array_stats
from rich.console import Console

import accord
import accord_papers.combine
from accord.engines.agreement import bind
from accord.results.traffic import Traffic
from accord.samplers import (
    DESGLD,
    DGLMC,
    DMAHMC,
    DULA,
    ELF,
    GCMC,
    GTBAOAB,
    QLSD,
    AsynchronousULA,
    ChEES,
    EventTriggeredULA,
    Gibbs,
    Importance,
    ProximalDESGLD,
    Replicated,
    SplitGTBAOAB,
)
from accord.samplers.by_totals import ByTotals
from accord.samplers.convex_sets import Box
from accord.samplers.protocol import HasLaw, Tunable
from accord.schedules import Polynomial, diminishing
from accord.tuning.warmup import warm_up

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".cache" / "accuracy.json"
# Of the stability bound, where a diminishing schedule may start.
FIRST_STEP = 0.9
# Tolerances of GCMC's sequence, as multiples of the last.
TOLERANCES = (8.0, 4.0, 2.0)
KERNELS = ("nuts", "hmc", "mala")
FULL = Budget(rounds=20_000, burn_in=4_000, thin=16, chains=8)
# A run is timed up to so many times while that takes no more seconds than this in all.
REPEATS, SHORT = 3, 4.0
# Seconds of a one-shot run above which compilation is too small a part for a second one.
LONG = 30.0
SMALL = Budget(rounds=120, burn_in=40, thin=2, chains=2, search=False)


@dataclass(frozen=True)
class Entry:
    """A row to be: a label, and how to make the method from the steps chosen for a target."""

    label: str
    family: str | None
    make: Callable[["Chosen"], accord.Sampler]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What entries are made from: the target, the budget, and the family's choice for that target."""

    target: Target
    budget: Budget
    choice: Choice | None

    @property
    def sampler(self) -> accord.Sampler:
        assert self.choice is not None
        return self.choice.sampler

    def diminishing(self) -> Polynomial:
        """The schedule that passes through the chosen constant step in the middle of the draws, if stable at first."""
        middle = (self.budget.burn_in + self.budget.rounds) / 2.0
        chi = diminishing(1.0).chi
        bound = self.sampler.max_step(self.target.net, self.target.surrogate.hessians())
        return diminishing(min(self.sampler.step_size * (1.0 + middle) ** chi, FIRST_STEP * bound))


def same(chosen: Chosen) -> accord.Sampler:
    return chosen.sampler


def event_triggered(chosen: Chosen) -> accord.Sampler:
    """D-ULA's numbers, and a threshold of the size of a round's noise, at which about half of the rounds are silent."""
    step, beta = chosen.sampler.step_size, chosen.sampler.consensus_step
    size = chosen.target.net.num_agents * chosen.target.post.dim
    return EventTriggeredULA(step, beta, float(np.sqrt(2.0 * step * size)))


def by_leapfrog(chosen: Chosen, remainder: bool) -> accord.Sampler:
    """Half the largest stable step, and trajectories of about the widest standard deviation, within a thinned draw."""
    curvatures = np.linalg.eigvalsh(chosen.target.surrogate.hessians().sum(axis=0))
    smallest, largest = np.sqrt(curvatures[[0, -1]])
    return DMAHMC(1.0 / largest, int(np.clip(np.ceil(largest / smallest), 1, chosen.budget.thin)), remainder)


ENTRIES = (
    Entry("DE-SGLD", "DESGLD", same),
    Entry("DE-SGLD, diminishing steps", "DESGLD", lambda c: DESGLD(c.diminishing())),
    Entry("Proximal DE-SGLD, no bounds", "DESGLD", lambda c: ProximalDESGLD(c.sampler.step_size, Box())),
    Entry("DE-SGHMC", "DESGHMC", same),
    Entry("D-ULA", "DULA", same),
    Entry("D-ULA, diminishing steps", "DULA", lambda c: DULA(c.diminishing(), c.sampler.consensus_step)),
    Entry(
        "D-ULA, steps of the D-ADMMS paper",
        None,
        lambda c: DULA(Polynomial(0.00082, 230.0, 0.05), Polynomial(0.48, 230.0, 0.05)),
    ),
    Entry("Event-triggered ULA", "DULA", event_triggered),
    Entry(
        "Asynchronous ULA, half awake",
        "DULA",
        lambda c: AsynchronousULA(c.sampler.step_size, c.sampler.consensus_step),
    ),
    Entry("GT-DULA", "GTDULA", same),
    Entry("GT-DULA, common noise", "GTDULA common", same),
    Entry("EXTRA-SGLD", "EXTRASGLD", same),
    Entry("EXTRA-SGLD, common noise", "EXTRASGLD common", same),
    Entry("DIGing-SGLD", "DIGingSGLD", same),
    Entry("DIGing-SGLD, common noise", "DIGingSGLD common", same),
    Entry("GT-BAOAB, no numbers", None, lambda c: GTBAOAB()),
    Entry("Split GT-BAOAB, no numbers", None, lambda c: SplitGTBAOAB()),
    Entry("D-MAHMC", None, lambda c: by_leapfrog(c, True)),
    Entry("D-MAHMC, Taylor approximation", None, lambda c: by_leapfrog(c, False)),
    Entry("D-ADMMS as published", "DADMMS published", same),
    Entry("D-ADMMS calibrated", "DADMMS", same),
    Entry("D-ADMMS calibrated, common noise", "DADMMS common", same),
    Entry("D-ASG", "DASG", same),
    Entry("Gibbs, exact conditionals", "Gibbs", same),
    Entry("Gibbs, exact conditionals, recentred", "Gibbs recentred", same),
    Entry("Gibbs, rejection", "Gibbs rejection", lambda c: Gibbs(c.sampler.eta, "rejection")),
    Entry(
        "Gibbs, rejection, recentred",
        "Gibbs rejection recentred",
        lambda c: Gibbs(c.sampler.eta, "rejection", recentre=True),
    ),
    Entry("Gibbs, MALA", "Gibbs", lambda c: Gibbs(c.sampler.eta, "mala")),
    Entry("Gibbs, MALA, recentred", "Gibbs recentred", lambda c: Gibbs(c.sampler.eta, "mala", recentre=True)),
    Entry("DG-LMC, defaults", None, lambda c: DGLMC()),
    Entry("DG-LMC, rho chosen", "DGLMC", same),
    Entry("GCMC, exact conditionals", "GCMC", same),
    Entry("GCMC, MALA", "GCMC", lambda c: GCMC(c.sampler.rho)),
    Entry(
        "GCMC, MALA, falling tolerances",
        "GCMC",
        lambda c: GCMC(c.sampler.rho, tolerances=tuple(t * c.sampler.rho for t in TOLERANCES)),
    ),
    Entry("D-SGLD with a hub", "HubSGLD", same),
    Entry("D-SGLD with a hub, 10 local steps", "HubSGLD 10", same),
    Entry("FSGLD, 10 local steps", "FSGLD 10", same),
    Entry("FA-LD", "FALD", same),
    Entry("FA-LD, 10 local steps", "FALD 10", same),
    Entry("FA-LD, 10 local steps, common noise", "FALD 10 common", same),
    Entry("stale gradients, 5 rounds late", "StaleSGLD", same),
    # compression has no law: with the step of the same without it
    Entry("QLSD, 2 levels, no memory", "FALD", lambda c: QLSD(c.sampler.step_size, 2, memory=0.0)),
    Entry("QLSD, 2 levels", "FALD", lambda c: QLSD(c.sampler.step_size, 2)),
    Entry("D-ELF, a quarter of the numbers", "FALD", lambda c: ELF(c.sampler.step_size)),
    *(
        Entry(f"Replicated {kernel.upper()}", None, lambda c, k=kernel: Replicated(k, warmup=c.budget.warmup))
        for kernel in KERNELS
    ),
)
BY_TOTALS = (("Importance sampling", Importance()), ("ChEES-HMC", ChEES()))
ALONE = accord.combine.METHODS | {name: getattr(accord_papers.combine, name) for name in accord_papers.combine.__all__}
ONE_SHOT = tuple((f"one-shot: {name}", ALONE[name]) for name in sorted(ALONE))


@dataclass
class Row:
    """One line of a table; what could not be had is None, and `error` says why."""

    label: str
    method: str
    setting: str = ""
    kind: str = "network"
    predicted_worst: float | None = None
    predicted_average: float | None = None
    predicted_error: float | None = None
    worst: float | None = None
    median: float | None = None
    average: float | None = None
    unscaled: float | None = None
    quantile: float | None = None
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


def settings(sampler: accord.Sampler | ByTotals) -> str:
    """The method with the numbers that are not its defaults."""
    parts = []
    for f in fields(sampler):
        value = getattr(sampler, f.name)
        if isinstance(value, accord.Sampler) or repr(value) == repr(f.default):
            continue
        parts.append(f"{f.name}={_short(value)}")
    return f"{type(sampler).__name__}({', '.join(parts)})"


def chosen_by_plan(sampler: accord.Sampler) -> bool:
    """Whether a method leaves numbers to a plan; those of a paper's guidelines it chooses by itself."""
    return isinstance(sampler, Tunable) and not set(sampler.left_out) <= set(sampler.chosen_by_bind)


def chosen_numbers(sampler: accord.Sampler, run: accord.Run) -> str:
    """The method with the numbers that a plan chose for a run."""
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
    """Fill in a row from a run; `once` is the part of its traffic that served all chains, where not all or none did."""
    draws, average = run.draws, run.average.astype(np.float64)
    agents = [draws[:, :, i].astype(np.float64) for i in range(draws.shape[2])]
    distances = [accord.metrics.wasserstein2(*target.fitted(own)) for own in agents]
    ratios = np.array([own.std(axis=(0, 1)) for own in agents]) / target.reference.sd
    ratio = average.std(axis=(0, 1)) / target.reference.sd
    row.worst, row.median = max(distances), float(np.median(distances))
    row.average = accord.metrics.wasserstein2(*target.fitted(average))
    row.unscaled = accord.metrics.wasserstein2(*target.fitted(agents[int(np.argmax(distances))], scaled=False))
    row.sd_agents, row.sd_average = (float(ratios.min()), float(ratios.max())), (float(ratio.min()), float(ratio.max()))
    if target.quantile is not None:
        row.quantile = max(_quantile_distance(target, own) for own in agents)
    # what methods by totals count is of all chains already
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


def _quantile_distance(target: Target, draws: np.ndarray) -> float:
    """Largest exact W2 of a coordinate's draws, in sds."""
    flat = np.sort(draws.reshape(-1, target.post.dim), axis=0)
    truth = target.quantile((np.arange(len(flat)) + 0.5) / len(flat))
    return float((np.sqrt(np.mean((flat - truth[:, None]) ** 2, axis=0)) / target.reference.sd).max())


def attempt(row: Row, work: Callable[[], None]) -> Row:
    """Do the work of a row; what it raises becomes the row's text, what it warns of goes below the table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            work()
        except (ValueError, TypeError, ArithmeticError, accord.DivergenceError) as error:
            row.error = f"{type(error).__name__}: {error}"
    row.warned = sorted({str(w.message) for w in caught if issubclass(w.category, UserWarning)})
    return row


def network_row(target: Target, budget: Budget, entry: Entry, choice: Callable[[str], Choice]) -> Row:
    """The row of a method that talks in rounds."""
    row = Row(entry.label, "")

    def work() -> None:
        chosen = Chosen(target, budget, None if entry.family is None else choice(entry.family))
        sampler = entry.make(chosen)
        row.method, row.setting = type(sampler).__name__, settings(sampler)
        row.kind = "hub" if sampler.needs(target.post.dim).spans_network else "network"
        row.optimiser = sampler.temperature == 0
        if chosen.choice is not None and isinstance(sampler, HasLaw) and sampler.is_constant():
            row.predicted_worst, row.predicted_average = chosen.choice.worst, chosen.choice.average
            row.predicted_error = chosen.choice.error
        if entry.family is None and isinstance(sampler, DGLMC):
            row.setting = settings(bind(target.post, target.net, sampler).sampler)
        run, once = timed_run(target, budget, sampler), None
        if chosen_by_plan(sampler):
            row.setting = chosen_numbers(sampler, run)
            once = warm_up(target.post, target.net).spent
        measured(target, row, run, once)

    row = attempt(row, work)
    # an entry whose making failed still says which method it is
    row.method = row.method or FAMILIES[entry.family].method
    return row


def timed_run(target: Target, budget: Budget, sampler: accord.Sampler) -> accord.Run:
    """A run whose seconds leave compilation out: a short one before it has compiled the same program."""
    common = dict(chains=budget.chains, progress=False, whiten=chosen_by_plan(sampler))
    least = 1 if chosen_by_plan(sampler) else max(1, bind(target.post, target.net, sampler).adapting)
    if isinstance(sampler, Replicated):
        draws, thin, burn_in = budget.draws, 1, least
    else:
        draws, thin, burn_in = budget.draws, budget.thin, budget.burn_in
    if budget.search:
        accord.sample(target.post, target.net, sampler, draws=1, thin=thin, burn_in=least, seed=1, **common)
    return fastest(
        budget,
        lambda: accord.sample(
            target.post, target.net, sampler, draws=draws, thin=thin, burn_in=burn_in, seed=0, **common
        ),
    )


def fastest(budget: Budget, run: Callable[[], accord.Run]) -> accord.Run:
    """A run with the seconds of the fastest of some: the draws are the same, and other work only ever adds to them."""
    times: list[float] = []
    while not times or (budget.search and len(times) < REPEATS and sum(times) < SHORT):
        found = run()
        times.append(found.seconds)
    return replace(found, seconds=min(times))


def totals_row(target: Target, budget: Budget, label: str, method: ByTotals) -> Row:
    """The row of a method that asks for nothing but sums."""
    row = Row(label, type(method).__name__, settings(method), kind="totals")

    def work() -> None:
        def run() -> accord.Run:
            return accord.sample(
                target.post, target.net, method, draws=budget.draws, chains=budget.chains, seed=0, progress=False
            )

        if budget.search:
            # compiled once; what is asked depends on the answers, so that no shorter run asks for all of it
            run()
        measured(target, row, fastest(budget, run))

    return attempt(row, work)


def one_shot_row(target: Target, budget: Budget, label: str, combine: Callable[..., accord.Run]) -> Row:
    """The row of a method that sends draws once."""
    row = Row(label, combine.__name__, f"{combine.__name__}(draws={budget.draws}, chains=4)", kind="one-shot")

    def work() -> None:
        own = {"warmup": budget.warmup} if "warmup" in inspect.signature(combine).parameters else {}
        once = functools.partial(combine, target.post, draws=budget.draws, chains=4, seed=0, **own)
        run = once()
        if budget.search and run.seconds < LONG:
            run = once()
        measured(target, row, run)

    return attempt(row, work)


def check_complete(rows: list[Row]) -> None:
    """Raise where a method of the library has no row."""
    missing = {*accord.samplers.__all__, *ALONE} - {row.method for row in rows}
    if missing:
        raise AssertionError(f"methods without a row: {', '.join(sorted(missing))}")


def floors(target: Target, counts: list[int], repeats: int = 50) -> dict[int, float]:
    """Mean W2 of so many independent exact draws of a Gaussian with the reference's moments."""
    rng = np.random.default_rng(0)
    root, found = target.reference.factor(), {}
    for count in counts:
        repeated = (
            target.reference.mean + rng.standard_normal((count, target.post.dim)) @ root.T for _ in range(repeats)
        )
        found[count] = float(np.mean([accord.metrics.wasserstein2(*target.fitted(x)) for x in repeated]))
    return found


def compare(name: str, small: bool, console: Console, kept: dict[str, dict]) -> dict:
    """All rows of one target, as plain data; `kept` are rows by label that need not be made."""
    budget = SMALL if small else FULL
    console.log(f"{name}: the reference")
    target = TARGETS[name](small)
    surrogate = Surrogate(target.surrogate, target.net, target.post)

    @functools.cache
    def choice(family: str) -> Choice:
        return choose(surrogate, FAMILIES[family], budget)

    rows = []
    works = [(e.label, functools.partial(network_row, target, budget, e, choice)) for e in ENTRIES]
    works += [(label, functools.partial(totals_row, target, budget, label, method)) for label, method in BY_TOTALS]
    works += [(label, functools.partial(one_shot_row, target, budget, label, f)) for label, f in ONE_SHOT]
    with console.status("") as status:
        for number, (label, work) in enumerate(works, 1):
            if label in kept:
                rows.append(Row(**kept[label]))
                continue
            status.update(f"{name}, {number} of {len(works)}: {label}")
            began = time.perf_counter()
            row = work()
            rows.append(row)
            seen = row.error or f"worst agent's W2 {row.worst:.3g}"
            console.log(f"{name}: {label}: {seen} ({time.perf_counter() - began:.0f} s)", highlight=False)
    check_complete(rows)
    counts = [100, 1000, budget.chains * budget.draws]
    if target.reference_draws is not None:
        counts.append(int(target.reference_draws))
    return {
        "name": name,
        "title": target.title,
        "text": target.text,
        "network": repr(target.net),
        "dim": target.post.dim,
        "agents": target.post.num_agents,
        "exact": target.post.quadratic,
        "has_quantile": target.quantile is not None,
        "reference_draws": target.reference_draws,
        "floors": floors(target, counts, 5 if small else 50),
        "rows": [asdict(row) for row in rows],
    }


def machine() -> str:
    """The machine in words, without its name."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {jax.default_backend().upper()}, {platform.system()}, "
        f"Python {platform.python_version()}, JAX {jax.__version__}, accord {accord.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a smoke test: tiny runs, the page goes to the terminal")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), help="only these; the others from the last run")
    parser.add_argument("--methods", metavar="TEXT", default="", help="only rows whose label contains this text")
    parser.add_argument("--page", action="store_true", help="write the page again from the last run's results")
    options = parser.parse_args()
    # programs are compiled once; what is timed leaves compilation out anyway
    jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    console = Console(stderr=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.small else {}
    names = options.targets or (["power"] if options.small else list(TARGETS))
    for name in [] if options.page else names:
        began = time.perf_counter()
        old = results.get(name, {"rows": [], "seconds": 0.0})
        kept = {row["label"]: row for row in old["rows"] if options.methods not in row["label"]}
        results[name] = compare(name, options.small, console, kept)
        # the time of all rows, where only some were made again
        seconds = max(time.perf_counter() - began, old["seconds"] if kept else 0.0)
        results[name] |= {"seconds": seconds, "machine": machine()}
        if not options.small:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results))
    budget = SMALL if options.small else FULL
    page = accuracy_page.page([results[name] for name in TARGETS if name in results], budget)
    if options.small:
        print(page)
    else:
        accuracy_page.write(ROOT / "docs", page, list(results.values()))


if __name__ == "__main__":
    main()
