"""Totals relative to the machine's peak, growth of their time, and memory of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
from measured import Line, Ratio, effort, side_by_side
from rounds import DESGLD, GTDULA, advancing, slope

import accord
from accord.samplers.by_sums.evaluations import slope_of, value_of

AGENTS, DIM, POINTS, SQUARE = 10, 20, 512, 2000
# totals in one timing, about as long as the product of the square matrices
IN_A_TURN = 4
# seconds between timings, because NumPy's threads stay busy after their work
REST = 0.1


def lines(small: bool) -> Iterator[Line]:
    with jax.enable_x64(True):
        yield from of_the_peak(small)
        yield from slopes(small)
    yield from memory(small)


def total_of(post: accord.Posterior, function: Callable[..., Any], points: int) -> Callable[[int], Any]:
    """Totals at many points, as a function of the number of totals."""
    here = post.totals_here()
    at = 0.1 * np.random.default_rng(0).standard_normal((points, post.dim))

    def work(times: int) -> None:
        for _ in range(times):
            here(function, points=at)

    return work


def of_the_peak(small: bool) -> Iterator[Line]:
    rows, dims, size = (100, (5,), 100) if small else (2000, (50, 200), SQUARE)
    square = np.random.default_rng(0).standard_normal((size, size))
    product, on_device = jax.jit(jnp.matmul), jax.device_put(square)
    peaks = {"NumPy": lambda: square @ square, "XLA": lambda: product(on_device, on_device)}
    posts = {dim: problems.logistic(AGENTS, dim, rows) for dim in dims}
    # label and matrix products of each kind of total
    functions = {value_of: ("values", 1), slope_of: ("values and gradients", 2)}
    totals = {(d, f): partial(total_of(posts[d], f, POINTS), IN_A_TURN) for d in dims for f in functions}
    found = side_by_side({**totals, **peaks}, 3 if small else 9, REST)
    peak = 2 * size**3 / np.minimum(*(found[name] for name in peaks))
    for dim, function in totals:
        what, products = functions[function]
        # two operations for each row, column and point
        own = 2 * products * IN_A_TURN * AGENTS * rows * POINTS * dim / found[dim, function]
        note = f"{np.median(own) / 1e9:.3g} / {np.median(peak) / 1e9:.3g} Gflop/s"
        shape = f"{AGENTS * rows:,} x {dim}, logistic, {POINTS} points"
        yield Line(f"{what}, share of peak", shape, Ratio.of(own / peak), note, least=0.6)


def slopes(small: bool) -> Iterator[Line]:
    def line(name: str, made: Callable[[int], accord.Posterior], sizes: list[int], points: int | None = None) -> Line:
        chosen = sizes[:2] if small else sizes
        works = {size: total_of(made(size), slope_of, size if points is None else points) for size in chosen}
        return slope(f"total by {name}", works, **effort(small, 7, 0.05))

    few, sizes = problems.logistic(AGENTS, DIM, 100), [10, 100, 1000, 10_000]
    yield line("agents, 10 rows each, d=5, logistic", lambda n: problems.logistic(n, 5, 10), sizes, 128)
    yield line("parameters, 1,000 rows, logistic", lambda d: problems.logistic(10, d, 100), [1, *sizes[:3]], 128)
    yield line("rows, d=20, logistic", lambda n: problems.logistic(10, DIM, n // 10), [*sizes[1:], 100_000], 128)
    yield line("points, 1,000 rows, d=20, logistic", lambda _: few, [128, 1024, 8192])


def memory(small: bool) -> Iterator[Line]:
    """Peak memory of the compiled loop over the bytes of all agents' states and noise."""
    many = 100 if small else 100_000
    ring = accord.Network.ring(many)
    for sampler in (DESGLD, GTDULA):
        engine, _ = advancing(problems.gaussian(many, 10), ring, sampler, 1)
        carry = engine.start(np.zeros((many, 10)), None)
        numbers = np.int32(1), np.int32(1), engine.keep
        # records of one draw of one agent
        program = engine.programs.record.lower(engine.problem, carry, *numbers, chains=1, capacity=1).compile()
        used: Any = program.memory_analysis()
        given = sum(leaf.nbytes for leaf in jax.tree.leaves(carry))
        holds = given + used.output_size_in_bytes - used.alias_size_in_bytes + used.temp_size_in_bytes
        name = f"memory of a round, {type(sampler).__name__}"
        note = f"{holds / 1e6:.3g} MB / {given / 1e6:.3g} MB"
        yield Line(name, f"ring, N={many:,}, d=10", Ratio.of([holds / given]), note, most=3.0)
