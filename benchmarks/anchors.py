"""accord, NumPyro's NUTS and nutpie on the same log densities: seconds, gradient evaluations and errors.

python benchmarks/anchors.py              # all posteriors, about half an hour
python benchmarks/anchors.py glmm schools # some posteriors
python benchmarks/anchors.py glmm 1       # one warm call

Posteriors and references are from fallback.py. With the ending _h, accord gets centred effects and the argument
`hierarchy`, and the others the same centred density. nutpie is optional: pip install nutpie.

Each method has its own process and one core, in double precision. Cold is the first call, with compilation and without
imports. Warm is the median of three calls with other seeds, in which the methods take turns. CPU is the processor's
share of it, which depends less on other processes. "over NUTS" is the median ratio of CPU times to NUTS with acceptance
.8 in the same turn. A time is only worth comparing if the errors beside it are small.

NUTS has vectorized chains, which were faster than sequential ones on `seeds` and `glmm`. nutpie calls Python for each
gradient, like its own JAX backend. It is much faster with PyMC models that Numba compiles: .08 instead of 1.06 seconds
on `schools`.

Numbers of evaluations and effective draws are medians over all calls. Errors and divergences are the largest ones. A
gradient evaluation is of one chain at one position, also in warm-up. An accord sum is many of them. Evaluations of
values alone, in parentheses, are from importance sampling. Effective draws are the least bulk or tail ess over
parameters of the 4,000 draws that each method returns.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, NamedTuple

# one core for each method, before JAX starts
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base.array import array_stats
from fallback import TARGETS, Target
from measured import Ratio

import accord
from accord.samplers import ChEES

POSTERIORS = ("seeds", "glmm", "schools", "seeds_h", "glmm_h", "schools_h")
CHAINS, DRAWS, WARMUP = 4, 1000, 1000


class Drawn(NamedTuple):
    """What one call of a method returns.

    `draws` are unconstrained, (chain, draw, dim). `gradients` and `values` are numbers of evaluations. `sums` and
    `certified` are of accord alone.
    """

    draws: np.ndarray
    gradients: int
    divergences: int = 0
    values: int = 0
    sums: int | None = None
    certified: bool | None = None
    rhat: float | None = None


class Call(NamedTuple):
    """Figures of one call of a method: seconds on the clock and of the processor, and accuracy of the draws."""

    seconds: float
    processor: float
    effective: float
    mean_error: float
    sd_error: float
    drawn: Drawn


# From a seed to draws, and to draws with all counts, which may take longer. Only the first is timed.
Sampler = Callable[[int], Callable[[], Drawn]]


def by_accord(method: ChEES | None, target: Target, declared: bool) -> Sampler:
    post = target.posterior(declared)

    def sample(seed: int) -> Callable[[], Drawn]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = accord.sample(post, accord.Network.empty(1), method, seed=seed)
        traffic, checks = run.traffic, {check.name: check.found for check in run.certificate.checks}
        return lambda: Drawn(
            run.average,
            # the posterior has one row
            int(traffic.gradient_rows.sum()),
            values=int(traffic.value_rows.sum()),
            sums=traffic.sums,
            certified=run.certificate.holds,
            rhat=checks.get("nested R-hat"),
        )

    return sample


def by_nuts(acceptance: float, target: Target, declared: bool) -> Sampler:
    from numpyro.infer import MCMC, NUTS

    fields = ("num_steps", "diverging")

    def sampler() -> MCMC:
        kernel = NUTS(potential_fn=lambda x: -target.log_density(x), target_accept_prob=acceptance)
        size: dict[str, Any] = {"num_warmup": WARMUP, "num_samples": DRAWS, "num_chains": CHAINS}
        return MCMC(kernel, **size, chain_method="vectorized", progress_bar=False)

    main, counting = sampler(), sampler()

    def sample(seed: int) -> Callable[[], Drawn]:
        key, start = jax.random.split(jax.random.key(seed))
        init = {"init_params": jax.random.uniform(start, (CHAINS, target.dim), minval=-2.0, maxval=2.0)}
        main.run(key, **init, extra_fields=fields)
        draws = np.asarray(main.get_samples(group_by_chain=True))

        def counted() -> Drawn:
            found = main.get_extra_fields()
            # the same warm-up again, as a run does not keep its steps
            counting.warmup(key, **init, extra_fields=fields, collect_warmup=True)
            steps = found["num_steps"].sum() + counting.get_extra_fields()["num_steps"].sum()
            return Drawn(draws, int(steps), int(found["diverging"].sum()))

        return counted

    return sample


def by_nutpie(low_rank: bool, target: Target, declared: bool) -> Sampler:
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    @jax.jit
    def slope(x: jax.Array) -> jax.Array:
        value, gradient = jax.value_and_grad(target.log_density)(x)
        return jnp.concatenate([value[None], gradient])

    calls = 0

    def log_density(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1
        # one array, as each one takes microseconds to convert
        found = np.asarray(slope(x))
        return float(found[0]), found[1:]

    model = from_pyfunc(
        target.dim,
        lambda: log_density,
        lambda *_: lambda x: {"x": np.asarray(x)},
        [np.dtype("float64")],
        [(target.dim,)],
        ["x"],
    )

    def sample(seed: int) -> Callable[[], Drawn]:
        before = calls
        options: dict[str, Any] = {"low_rank_modified_mass_matrix": True} if low_rank else {}
        run = nutpie.sample(model, chains=CHAINS, cores=1, seed=seed, progress_bar=False, **options)
        draws, spent = np.asarray(run.posterior["x"]), calls - before
        return lambda: Drawn(draws, spent, int(run.sample_stats["diverging"].sum()))

    return sample


METHODS: dict[str, Callable[[Target, bool], Sampler]] = {
    "accord": partial(by_accord, None),
    "accord, ChEES()": partial(by_accord, ChEES()),
    "NUTS, .8": partial(by_nuts, 0.8),
    "NUTS, .95": partial(by_nuts, 0.95),
    "nutpie": partial(by_nutpie, False),
    "nutpie, low rank": partial(by_nutpie, True),
}


def clocks() -> np.ndarray:
    """Seconds on the clock and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def called(sample: Sampler, target: Target, seed: int, began: np.ndarray) -> Call:
    """One call of a method, timed since `began`."""
    finish = sample(seed)
    seconds, processor = (clocks() - began).tolist()
    drawn = finish()
    x = target.of(drawn.draws.reshape(-1, target.dim))
    by_chain = x.reshape(*drawn.draws.shape[:2], -1).astype(np.float64)
    ess = partial(array_stats.ess, by_chain, chain_axis=0, draw_axis=1)
    least = min(ess(method="bulk").min(), ess(method="tail", prob=(0.05, 0.95)).min())
    means = np.abs((x.mean(axis=0) - target.mean) / target.sd).max()
    sds = np.abs(x.std(axis=0) / target.sd - 1.0).max()
    # draws are large, and stay in their process
    return Call(seconds, processor, float(least), float(means), float(sds), drawn._replace(draws=np.zeros(0)))


@cache
def prepared(posterior: str, method: str) -> tuple[Sampler, Target]:
    target = TARGETS[posterior]()
    return METHODS[method](target, posterior.endswith("_h")), target


def start() -> None:
    """Start JAX, which is no part of a first call."""
    jax.config.update("jax_enable_x64", True)
    jax.block_until_ready(jnp.zeros(1) + 1.0)


def call(posterior: str, method: str, seed: int) -> Call:
    """One call of a method in its own process. The first one prepares the method."""
    began = clocks()
    sample, target = prepared(posterior, method)
    return called(sample, target, seed, began)


def measured(posterior: str, methods: list[str], warm: int) -> Iterator[tuple[str, list[Call]]]:
    """Methods and their calls, the cold one first. NUTS with acceptance .95 only runs if .8 diverges."""
    context = get_context("spawn")
    processes = {method: ProcessPoolExecutor(1, context, start) for method in methods}
    found: dict[str, list[Call]] = {}
    try:
        for number in range(1 + warm):
            # alternate the order, as the machine's speed drifts
            for method in methods[:: 1 if number % 2 == 0 else -1]:
                if number or method != "NUTS, .95" or found["NUTS, .8"][0].drawn.divergences:
                    if number == 0 or method in found:
                        one = processes[method].submit(call, posterior, method, number).result()
                        found.setdefault(method, []).append(one)
                        turn = "warm" if number else "cold"
                        print(f"{posterior}, {method}, {turn}: {one.seconds:.1f} s", file=sys.stderr, flush=True)
    finally:
        for process in processes.values():
            process.shutdown()
    yield from ((method, found[method]) for method in methods if method in found)


def row(posterior: str, method: str, calls: list[Call], nuts: list[Call]) -> str:
    """A row of the table. `nuts` are the calls of NUTS with acceptance .8."""
    drawn = [one.drawn for one in calls]
    per_draw = np.median([one.drawn.gradients / one.effective for one in calls])
    values = np.median([one.drawn.values / one.effective for one in calls])
    sums, certified = "-", "-"
    if drawn[0].sums is not None:
        sums = f"{np.median([one.sums for one in drawn]):,.0f}"
        certified = f"{sum(bool(one.certified) for one in drawn)} of {len(drawn)}"
    cells = (
        posterior,
        method,
        f"{calls[0].seconds:.1f}",
        f"{np.median([one.seconds for one in calls[1:]]):.2f}",
        f"{np.median([one.processor for one in calls[1:]]):.2f}",
        str(Ratio.of([one.processor / other.processor for one, other in zip(calls[1:], nuts[1:], strict=True)])),
        sums,
        f"{np.median([one.effective for one in calls]):,.0f}",
        f"{per_draw:.1f}" + (f" (+ {values:.1f} values)" if values else ""),
        f"{max(one.mean_error for one in calls):.3f}",
        f"{max(one.sd_error for one in calls):.1%}",
        "-" if drawn[0].sums is not None else f"{max(one.divergences for one in drawn)}",
        certified,
    )
    return f"| {' | '.join(cells)} |"


HEADER = (
    "| posterior | method | cold, s | warm, s | CPU, s | over NUTS | sums | effective | gradients per effective draw "
    "| error of means, sds | of sds | divergences | certified |\n|" + " --- |" * 13
)


def main(posteriors: list[str], warm: int) -> None:
    methods = list(METHODS)
    if importlib.util.find_spec("nutpie") is None:
        print("nutpie is not installed, so its rows are missing: pip install nutpie", file=sys.stderr)
        methods = [method for method in methods if not method.startswith("nutpie")]
    print(HEADER, flush=True)
    for posterior in posteriors:
        found = dict(measured(posterior, methods, warm))
        for method, calls in found.items():
            print(row(posterior, method, calls, found["NUTS, .8"]), flush=True)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main([word for word in sys.argv[1:] if not word.isdigit()] or list(POSTERIORS), *numbers or [3])
