"""Rows of `score.py`: what each one runs. A row returns a function of a seed, which returns its numbers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from problems import breast_cancer, digits, intercepts, logistic, regression, wine

import accord

Numbers = dict[str, Any]
Measure = Callable[[int], Numbers]
# Observed effects and standard errors of eight schools.
EFFECTS, ERRORS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


def schools() -> accord.Posterior:
    """Eight schools at two agents, with declared centred effects, after the mean and the log of the scale."""
    import jax.numpy as jnp

    def log_likelihood(p, rows):
        y, error, school = rows
        return -0.5 * ((y - p["rest"][school]) / error) ** 2

    def log_prior(p):
        (mean, log_sd), effect = p["others"], p["rest"]
        own = -0.5 * ((effect - mean) / jnp.exp(log_sd)) ** 2 - log_sd
        return -(mean**2) / 50.0 - jnp.log1p(jnp.exp(2.0 * log_sd) / 25.0) + log_sd + own.sum()

    def hierarchy(p):
        return {"rest": (p["others"][0], jnp.exp(p["others"][1]))}

    columns = np.array(EFFECTS), np.array(ERRORS), np.arange(8)
    shards = [tuple(column[agent::2] for column in columns) for agent in range(2)]
    init = {"others": np.zeros(2), "rest": np.zeros(8)}
    return accord.Posterior(log_likelihood, log_prior, shards, init, hierarchy=hierarchy)


def private() -> accord.Posterior:
    """Logistic regression of 20,000 rows at five agents, with declared ranges."""
    rng = np.random.default_rng(0)

    def table(rows: int) -> dict[str, np.ndarray]:
        age, sex = rng.uniform(20, 80, rows), rng.choice(["f", "m"], rows)
        died = rng.random(rows) < 1.0 / (1.0 + np.exp(2.5 - 0.03 * age - 0.4 * (sex == "m")))
        return {"age": age, "sex": sex, "died": died.astype(int)}

    ranges = {"age": (18, 90), "sex": ("f", "m"), "died": (0, 1)}
    return accord.models.glm([table(4000) for _ in range(5)], "died ~ scale(age) + sex", "bernoulli", ranges=ranges)


POSTERIORS: dict[str, Callable[[], accord.Posterior]] = {
    "breast cancer 31, prior variance 1": partial(breast_cancer, prior_variance=1.0),
    "breast cancer 31, prior variance 10": breast_cancer,
    "wine 14": wine,
    "digits 21": digits,
    "logistic 6": partial(regression, "bernoulli", 2, 300, 5),
    "logistic 11": partial(regression, "bernoulli", 3, 1100, 10),
    "Poisson 8": partial(regression, "poisson", 7, 800, 7),
    "binomial 8": partial(regression, "binomial", 6, 240, 7),
    "normal 7": partial(regression, "normal", 1, 210, 5),
    "negative binomial 8": partial(regression, "negative_binomial", 9, 320, 6),
    "gamma 7": partial(regression, "gamma", 10, 700, 5),
    "Student 8": partial(regression, "student", 11, 320, 5),
    "ordinal 7": partial(regression, "ordinal", 12, 300, 5),
    "Cox 5": partial(regression, "cox", 13, 400, 5),
    "random intercepts 3": intercepts,
    "eight schools 10": schools,
}
REFERRED = {**POSTERIORS, "private logistic 3": private}
# Model and columns of studies between organisations.
FIXED = "dose = {low = 0, high = 4}\nward = ['a', 'b', 'c']"
STUDIES = {
    "logistic": ('family = "bernoulli"\nformula = "y ~ scale(age) + dose + ward"', FIXED),
    "linear": ('family = "normal"\nformula = "y ~ scale(age) + dose + ward"', FIXED),
    "random intercepts": ('family = "bernoulli"\nformula = "y ~ scale(age) + (1 | site:ward)"', "ward = {groups = 6}"),
}


@contextmanager
def timed(numbers: Numbers) -> Iterator[None]:
    """Context manager: adds the processor's seconds of the block as `cpu`."""
    began = time.process_time()
    yield
    numbers["cpu"] = time.process_time() - began


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Context manager: agents' noise, which the operating system seeds, follows from the seed."""
    urandom, os.urandom = os.urandom, random.Random(seed).randbytes
    try:
        yield
    finally:
        os.urandom = urandom


def costs(run: accord.Run, rows: int) -> Numbers:
    """Traffic, method and certificate of a run of all rows. Round-based methods have no certificate."""
    traffic = run.traffic
    evaluated = (np.asarray(traffic.value_rows) + np.asarray(traffic.gradient_rows)).sum()
    held = {} if run.certificate is None else {"certified": run.certificate.holds}
    return {
        "method": str(run.settings.get("method", "")).partition("(")[0],
        **held,
        "rounds": traffic.rounds,
        "sums": traffic.sums,
        "exchanges": traffic.exchanges,
        "kb": float(np.max(traffic.bytes_sent)) / 1e3,
        "evaluations": float(evaluated) / rows,
    }


def ring(post: accord.Posterior) -> accord.Network:
    agents = post.num_agents
    return accord.Network.ring(agents) if agents > 2 else accord.Network.complete(agents)


def sampled(name: str, references: Numbers, method: Any = None, own_width: bool = False, **options: Any) -> Measure:
    """Runs of a posterior, with errors of the draws' means and sds. `own_width`: in sds of the run, and none of sds."""
    if name not in references:
        raise ValueError(f"no reference of {name}: make score SCORE=--references")
    post = REFERRED[name]()
    rows, mean, sd = int(np.sum(post.sizes)), *(np.array(references[name][what]) for what in ("mean", "sd"))

    def measure(seed: int) -> Numbers:
        numbers: Numbers = {}
        try:
            with repeatable(seed), timed(numbers):
                run = accord.sample(post, ring(post), *filter(None, [method]), seed=seed, progress=False, **options)
        except ArithmeticError as error:
            return {"method": f"refused: {error}"[:100], "certified": False}
        draws = np.asarray(run.average, float).reshape(-1, len(mean))
        if own_width:
            found = {"mean": np.abs((draws.mean(axis=0) - mean) / draws.std(axis=0)).max()}
        else:
            found = {"mean": np.abs((draws.mean(axis=0) - mean) / sd).max()}
            found["sd"] = np.abs(draws.std(axis=0) / sd - 1.0).max()
        return {**costs(run, rows), **numbers, **{what: float(value) for what, value in found.items()}}

    return measure


def coarse(name: str, references: Numbers) -> Measure:
    return sampled(name, references, engine=accord.engines.Local(coarse=True))


def noised(references: Numbers) -> Measure:
    method, masked = accord.samplers.Private(epsilon=1.0, delta=1e-6), accord.engines.Local(masks=True)
    return sampled("private logistic 3", references, method, own_width=True, engine=masked)


def by_rounds(references: Numbers) -> Measure:
    method = accord.Rounds(accord.samplers.GTBAOAB(0.5, 1.0, mix_rounds=4), burn_in=200, thin=10, whiten=True)
    return sampled("logistic 6", references, method)


def study(name: str, references: Numbers) -> Measure:
    """The entries of all sites in a study between organisations, on synthetic rows."""
    from accord.federation import StudyDocument
    from accord.federation.rehearsal import rehearse

    model, columns = STUDIES[name]
    text = f'[data]\nsites = ["north", "south", "west"]\n[model]\n{model}\n[run]\ndraws = 1000\n'
    document = StudyDocument(
        f"{text}[rehearsal]\nrows = [220, 310, 400]\n[rehearsal.columns]\nage = {{mean = 50, sd = 9}}\n{columns}\n"
    )

    def measure(seed: int) -> Numbers:
        numbers: Numbers = {}
        with timed(numbers):
            (found,) = rehearse(document, repetitions=1, references=0, seed=seed).attempts
        numbers |= {"entries": len(found.steps)}
        # the others answer after they have read the plan of the first site
        numbers["handoffs"] = len(found.steps) + sum(own[0].planned for own in found.steps)
        sent = sorted(sum(entry.bytes for entry in own) / 1e3 for own in zip(*found.steps, strict=True))
        numbers |= {"kb": sent[-1], "kb_others": sent[-2]}
        if found.run is None:
            return {**numbers, "method": f"stopped: {found.stopped}"[:100], "certified": False}
        of_run = costs(found.run, sum(found.run.info.rows))
        return {**{what: of_run[what] for what in ("method", "certified", "sums", "evaluations")}, **numbers}

    return measure


@contextmanager
def counted(post: accord.Posterior, numbers: Numbers) -> Iterator[None]:
    """Context manager: adds the queries of all agents, the kB of an agent's answers, and the points of each query."""
    numbers |= {"sums": 0, "kb": 0.0, "evaluations": 0}
    each, totals = accord.Posterior.each, accord.Posterior.totals

    def count(found: Any, agents: int, given: Any) -> Any:
        tables = [leaf for leaf in jax.tree.leaves(given) if np.ndim(leaf) == 2 and np.shape(leaf)[1] == post.dim]
        numbers["sums"] += 1
        numbers["kb"] += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(found)) / agents / 1e3
        numbers["evaluations"] += max((len(table) for table in tables), default=0)
        return found

    def counting_each(self: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        return count(each(self, function, *arguments, **options), self.num_agents, (arguments, options))

    def counting_totals(self: Any, *arguments: Any, **options: Any) -> Any:
        make = totals(self, *arguments, **options)
        return lambda *asked, **more: count(make(*asked, **more), 1, (asked, more))

    accord.Posterior.each, accord.Posterior.totals = counting_each, counting_totals
    try:
        yield
    finally:
        accord.Posterior.each, accord.Posterior.totals = each, totals


def afterwards(what: str, references: Numbers) -> Measure:
    """A function of a finished run: what it adds to the run's costs."""
    post = logistic(10, 6, 50, 10.0)
    network, new = ring(post), {0: jax.tree.map(lambda leaf: leaf[:20], post.shards[0])}
    more = {"leave_out": (0,), "loo": (), "update": (new,)}[what]

    def measure(seed: int) -> Numbers:
        run, numbers = accord.sample(post, network, seed=seed, progress=False), dict[str, Any]()
        with counted(post, numbers), timed(numbers):
            getattr(accord, what)(run, post, network, *more)
        return numbers

    return measure


def misses(family: str, references: Numbers) -> Measure:
    """Verdicts of `make misses` on one family, with two seeds for each case."""
    from misses import VERDICTS, cases, judged

    def measure(seed: int) -> Numbers:
        numbers: Numbers = dict.fromkeys(map(str.lower, VERDICTS), 0)
        with timed(numbers):
            for case in (make() for make in cases()):
                if case.family == family:
                    for own in range(2):
                        numbers[judged(case, own)[0].lower()] += 1
        return numbers

    return measure


def lines(references: Numbers) -> Measure:
    folder = Path(accord.__file__).parent
    return lambda seed: {"lines": sum(len(file.read_text("utf-8").splitlines()) for file in folder.rglob("*.py"))}


FAMILIES = "two", "plateau", "sine", "wide", "easy"
# All rows by name: functions of the references. The longest come first, so that both cores are busy to the end.
ROWS: dict[str, Callable[[Numbers], Measure]] = {
    **{f"misses, {family}": partial(misses, family) for family in FAMILIES},
    **{f"{name}, {how.__name__}": partial(how, name) for name in POSTERIORS for how in (sampled, coarse)},
    **{f"study, {name}": partial(study, name) for name in STUDIES},
    "logistic 6, GT-BAOAB": by_rounds,
    "private logistic 3": noised,
    **{what: partial(afterwards, what) for what in ("leave_out", "loo", "update")},
    "lines of src/accord": lines,
}
ROWS = {name.replace(", sampled", ", exact"): row for name, row in ROWS.items()}
# Rows that do not depend on the seed.
ONCE = tuple(name for name in ROWS if name.startswith(("misses", "lines")))
QUICK = (
    "breast cancer 31, prior variance 1, exact",
    "logistic 6, exact",
    "logistic 6, coarse",
    "Poisson 8, exact",
    "wine 14, exact",
    "normal 7, exact",
    "study, logistic",
)
