"""Totals: how near sums over all rows come to the machine's peak, how their time grows, and the memory of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
from growth import slope
from measured import REST, Line, Ratio, at_least, at_most, duration, effort, side_by_side
from rounds import advancing

import accord
from accord.base.linear import linear_predictor
from accord.base.program import WIDE, as_here
from accord.base.softplus import softplus
from accord.fitting.evaluations import slope_of, value_of
from accord.posterior.totals import AT_ONCE

TITLE = "Totals, and memory"
ABOUT = """\
Sums over all rows of ten agents in one process, at many points at a time, in double precision. *Of the peak*: the
multiplications and additions of the matrix products that a total needs, in a second, over those of a product of two
square matrices of 2,000, NumPy's or XLA's, whichever is faster, beside each other. A linear regression whose noise is
known is read off its closed form, without the products, so that it is beyond the peak, and has no goal. A logistic one
also takes a softplus of each row and point, for gradients with a logistic function: *at most* is what its total would
reach if nothing took time but these functions, of numbers in the processor's caches, and the products, of the shapes
that they have there, two programs at a time, each at the least time that it took in any turn. *Slopes* are as in
Growth, of the time of one total. *Memory of a round*: what the compiled loop holds at its peak beside the data and the
kept draws, over the bytes of all agents' states and noise, which it is given and gives back."""
AGENTS, DIM, POINTS, SQUARE = 10, 20, 512, 2000
# Totals that take about as long as the product of the squares; less is mostly how a resting processor begins.
IN_A_TURN = 4


def lines(small: bool) -> Iterator[Line]:
    with jax.enable_x64(True):
        yield from of_the_peak(small)
        yield from slopes(small)
    yield from memory(small)


def total_of(post: accord.Posterior, function: Callable[..., Any], points: int) -> Callable[[int], Any]:
    """So many totals at so many points."""
    here = post.totals_here()
    at = 0.1 * np.random.default_rng(0).standard_normal((points, post.dim))

    def work(times: int) -> None:
        for _ in range(times):
            here(function, points=at)

    return work


def of_the_peak(small: bool) -> Iterator[Line]:
    rows, dims, size = (100, (5,), 100) if small else (2000, (50, 200), SQUARE)
    numbers = IN_A_TURN * AGENTS * rows * POINTS
    square = np.random.default_rng(0).standard_normal((size, size))
    product, on_device = jax.jit(jnp.matmul), jax.device_put(square)
    peaks = {"NumPy": lambda: square @ square, "XLA": lambda: product(on_device, on_device)}
    functions = {function: partial(abreast, work, numbers // _BLOCK.size) for function, work in FUNCTIONS.items()}
    bare = {
        (dim, name): partial(abreast, work, numbers // (rows * AT_ONCE))
        for dim in dims
        for name, work in products_of(rows, dim).items()
    }
    models = {"linear": problems.linear, "logistic": problems.logistic}
    shapes = [(model, dim, function) for model in models for dim in dims for function in PRODUCTS]
    posts = {(model, dim): models[model](AGENTS, dim, rows) for model in models for dim in dims}
    totals = {shape: partial(total_of(posts[shape[:2]], shape[2], POINTS), IN_A_TURN) for shape in shapes}
    # all in each turn: a processor that is slow for a while, as those of virtual machines, is so for some turns of each
    found = side_by_side({**totals, **peaks, **functions, **bare}, 3 if small else 9, REST)
    peak = 2 * size**3 / np.minimum(*(found[name] for name in peaks))
    for model, dim, function in shapes:
        what, products = PRODUCTS[function]
        # two operations for each row, column and point, of each product
        count = 2 * products * numbers * dim
        own = count / found[model, dim, function]
        note = f"{np.median(own) / 1e9:.3g} of {np.median(peak) / 1e9:.3g} billion a second"
        shape = f"{AGENTS * rows:,} x {dim}, {model}, {POINTS} points"
        # a closed form makes no products, of which it could reach a share
        goal = at_least(0.6) if model == "logistic" else None
        yield Line(f"{what}, of the peak", shape, Ratio.of(own / peak), goal, note)
        if model == "logistic":
            parts = {"functions": function, **{name: (dim, name) for name in BARE[:products]}}
            least = {name: float(found[part].min()) for name, part in parts.items()}
            note = ", ".join(f"{name} {duration(time)}" for name, time in least.items())
            yield Line(f"{what}, at most", shape, Ratio.of(count / sum(least.values()) / peak), None, note)


def abreast(work: Callable[[int], Any], times: int) -> None:
    """Some work so many times, half of it in either of two threads, as totals run two programs at a time."""

    def half(times: int) -> None:
        jax.block_until_ready(work(times))

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(as_here(half), (times // 2, times - times // 2)))


# The functions that are summed, each with its name and the matrix products that it needs.
PRODUCTS = {value_of: ("values", 1), slope_of: ("values and gradients", 2)}

# The products of a regression by themselves: with its points, and of what comes out with its rows.
BARE = "rows times points", "their sums by rows"


def products_of(rows: int, dim: int) -> dict[str, Callable[[int], Any]]:
    """The products of a regression as totals have them, an agent after another, so many times."""
    rng = np.random.default_rng(0)
    X = jax.device_put(rng.standard_normal((AGENTS, rows, dim)))

    def times_points(own: jax.Array, points: jax.Array) -> jax.Array:
        return jax.vmap(partial(linear_predictor, own), out_axes=1)(points)

    def by_rows(own: jax.Array, weights: jax.Array) -> jax.Array:
        transposed = jax.linear_transpose(partial(linear_predictor, own), own[0])
        return jax.vmap(lambda numbers: transposed(numbers)[0], in_axes=1, out_axes=1)(weights)

    def repeated(product: Callable[[jax.Array, jax.Array], jax.Array], other: np.ndarray) -> Callable[[int], Any]:
        found = jax.eval_shape(product, X[0], other)

        @partial(jax.jit, compiler_options=WIDE)
        def work(X: jax.Array, other: jax.Array, times: int) -> jax.Array:
            def once(k: Any, last: jax.Array) -> jax.Array:
                # of what came out before, so that none is left out
                return product(X[k % AGENTS], other + 0.0 * last[0, 0])

            return jax.lax.fori_loop(0, times, once, jnp.zeros(found.shape))

        return partial(work, X, jax.device_put(other))

    points, weights = rng.standard_normal((AT_ONCE, dim)), rng.standard_normal((rows, AT_ONCE))
    return dict(zip(BARE, [repeated(times_points, points), repeated(by_rows, weights)], strict=True))


# Numbers that the processor's caches hold, about as many as a total has of a part of the rows.
_BLOCK = np.random.default_rng(0).standard_normal((500, 500))


def _softplus_and_logistic(z: jax.Array) -> jax.Array:
    value, slope = jax.jvp(softplus, (z,), (jnp.ones_like(z),))
    return value + slope


def _alone(function: Callable[[jax.Array], jax.Array]) -> Callable[[int], Any]:
    """A function of the numbers of a block, so many times, each of what the last one left."""

    @partial(jax.jit, compiler_options=WIDE)
    def work(block: jax.Array, times: int) -> jax.Array:
        return jax.lax.fori_loop(0, times, lambda _, z: z + 1e-12 * function(z), block)

    return lambda times: work(_BLOCK, times)


# What a logistic regression's total takes beside products.
FUNCTIONS = {value_of: _alone(softplus), slope_of: _alone(_softplus_and_logistic)}


def slopes(small: bool) -> Iterator[Line]:
    def line(name: str, made: Callable[[int], accord.Posterior], sizes: list[int], points: int | None = None) -> Line:
        chosen = sizes[:2] if small else sizes
        works = {size: total_of(made(size), slope_of, size if points is None else points) for size in chosen}
        return slope(f"total against {name}", works, **effort(small, 7, 0.05))

    few = problems.logistic(AGENTS, DIM, 100)
    yield line(
        "agents, 10 rows each, d=5, logistic", lambda n: problems.logistic(n, 5, 10), [10, 100, 1000, 10_000], 128
    )
    yield line("parameters, 1,000 rows, logistic", lambda d: problems.logistic(10, d, 100), [1, 10, 100, 1000], 128)
    yield line("rows, d=20, logistic", lambda n: problems.logistic(10, DIM, n // 10), [100, 1000, 10_000, 100_000], 128)
    yield line("points, 1,000 rows, d=20, logistic", lambda _: few, [128, 1024, 8192])


def memory(small: bool) -> Iterator[Line]:
    many = 100 if small else 100_000
    ring = accord.Network.ring(many)
    for sampler in (accord.samplers.DESGLD(1e-6), accord.samplers.GTDULA(1e-8, 0.3, 0.3)):
        engine, _ = advancing(problems.gaussian(many, 10), ring, sampler, 1)
        carry = engine.start(np.zeros((many, 10)), None)
        numbers = np.int32(1), np.int32(1), engine.keep
        # the records are of one draw of one agent
        program = engine.programs.record.lower(engine.problem, carry, *numbers, chains=1, capacity=1).compile()
        used: Any = program.memory_analysis()
        given = sum(leaf.nbytes for leaf in jax.tree.leaves(carry))
        holds = given + used.output_size_in_bytes - used.alias_size_in_bytes + used.temp_size_in_bytes
        name = f"memory of a round, {type(sampler).__name__}"
        note = f"{holds / 1e6:.3g} MB of {given / 1e6:.3g} MB"
        yield Line(name, f"ring, N={many:,}, d=10", Ratio.of([holds / given]), at_most(3.0), note)
